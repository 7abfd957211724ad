// SPDX-License-Identifier: Apache-2.0
// What a daemon that was taken over sends to its launcher: packets of any bytes and lengths, with any number of
// descriptors of any sort, in any order, between ends of processes and of daemons. The packets go through the launcher's
// own socket and checks; what it then would do is noted by acts that check it against the configuration
// (launcher_world.h), so that nothing is started and nobody signalled. In a time of its own (CMakeLists.txt, --wrap).
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <set>

#include "host_backend/common/driver_variables.h"
#include "host_backend/launcher/launcher.h"
#include "ivshmem_ring/transport/packet.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/launcher_world.h"

namespace causeway::fuzz {
namespace {

int64_t now_ns = 3'600'000'000'000;
// As many as a user may have on their way are on it: the launcher's next answer with descriptors cannot be sent.
bool answers_are_full = false;
bool refused_answer = false;

}  // namespace

std::chrono::steady_clock::time_point FuzzedNow() asm("__wrap__ZNSt6chrono3_V212steady_clock3nowEv");
std::chrono::steady_clock::time_point FuzzedNow() {
  return std::chrono::steady_clock::time_point(std::chrono::nanoseconds(now_ns));
}

extern "C" ssize_t __real_sendmsg(int socket, const msghdr* message, int flags);
extern "C" ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags);
extern "C" ssize_t __wrap_sendmsg(int socket, const msghdr* message, int flags) {
  const bool is_answer = message->msg_iov[0].iov_len == sizeof(launcher::Answer);
  if (!is_answer || message->msg_controllen == 0 || !std::exchange(answers_are_full, false))
    return __real_sendmsg(socket, message, flags);
  refused_answer = true;
  errno = ETOOMANYREFS;
  return -1;
}

namespace {

using launcher::Action;
using launcher::Answer;
using launcher::Launcher;
using launcher::Request;
using launcher::Settings;
using launcher::WorkerKind;
using Sort = Process::Sort;

constexpr size_t kMostHeld = 200;  // descriptors in records; below what a process may have open by default
constexpr size_t kPacketRoom = sizeof(Request) + launcher::kGrowth + 16;

struct Packet {
  alignas(Request) std::array<uint8_t, kPacketRoom> bytes{};
  size_t size = sizeof(Request);
  std::vector<size_t> files;  // of AllFiles

  Request& request() { return *reinterpret_cast<Request*>(bytes.data()); }
  const Request& request() const { return *reinterpret_cast<const Request*>(bytes.data()); }
};

// protocol.h in other words: what an action uses, and how many descriptors it has.
struct Form {
  Action action;
  unsigned uses;
  size_t least, most;
};
enum : unsigned { kPid = 1, kGroup = 2, kUser = 4, kNumber = 8, kLink = 16, kStarts = 32 };
constexpr Form kForms[] = {
    {Action::kStart, kLink | kStarts, 2, 2},
    {Action::kKill, kPid, 0, 0},
    {Action::kReap, kPid, 0, 0},
    {Action::kAbandon, kPid, 0, 0},
    {Action::kGiveToGroup, kGroup, 1, 1},
    {Action::kFindVm, 0, 2, 2},
    {Action::kMakeCache, kUser, 0, 0},
    {Action::kHoldCache, kUser | kNumber, 0, 0},
    {Action::kClearCache, kUser | kNumber, 0, 0},
    {Action::kCheckpoint, kPid | kUser, 1, 1},
    {Action::kGiveToUser, kUser, 1, 1},
    {Action::kKeep, kLink | kPid, 1, launcher::kMaxKeptDescriptors},
    {Action::kForget, kLink, 0, 0},
    {Action::kTake, kNumber, 0, 0},
    {Action::kEnd, 0, 0, 0},
    {Action::kWatchCache, kUser | kNumber, 1, 1},
};

const Form* FormOf(Action action) {
  const auto* found = std::find_if(std::begin(kForms), std::end(kForms),
                                   [&](const Form& form) { return form.action == action; });
  return found == std::end(kForms) ? nullptr : found;
}

// Texts are looked at by the acts, where they matter.
bool IsWellFormed(const Packet& packet) {
  const Request& request = packet.request();
  const Form* form = FormOf(request.action);
  if (form == nullptr || packet.size < sizeof(Request) || packet.size > sizeof(Request) + launcher::kGrowth)
    return false;
  const auto unused = [&](unsigned field, uint64_t value) { return (form->uses & field) != 0 || value == 0; };
  return std::all_of(packet.bytes.begin() + sizeof(Request), packet.bytes.begin() + ptrdiff_t(packet.size),
                     [](uint8_t byte) { return byte == 0; }) &&
         request.reserved == 0 && unused(kPid, uint32_t(request.pid)) && unused(kGroup, request.group) &&
         unused(kUser, request.user) && unused(kNumber, request.number) && unused(kLink, request.link) &&
         unused(kStarts, uint64_t(request.worker) | request.worker_hash | request.environment_bytes |
                             uint8_t(request.gpus[0])) &&
         packet.files.size() >= form->least && packet.files.size() <= form->most;
}

// Of those below `end`. poll says at once which are, but not of places (O_PATH).
size_t OpenDescriptors(int end) {
  std::vector<pollfd> all(static_cast<size_t>(end));
  for (int at = 0; at < end; ++at) all[size_t(at)] = {at, 0, 0};
  Require(poll(all.data(), all.size(), 0) >= 0);
  return size_t(std::count_if(all.begin(), all.end(), [](const pollfd& each) {
    return (each.revents & POLLNVAL) == 0 || fcntl(each.fd, F_GETFD) >= 0;
  }));
}

// The next one to be made has this number.
int LowestFree() {
  const UniqueFd next(fcntl(AllFiles().number(0), F_DUPFD_CLOEXEC, 0));
  return next.get();
}

class World {
 public:
  World(uint8_t choice, Input& input) : settings_(SettingsOf(choice)), input_(input) {
    before_ = OpenDescriptors(end());
    Connect();
    launcher_ = std::make_unique<Launcher>(settings_, acts_);
    outside_ = OpenDescriptors(end());
  }
  ~World() {
    launcher_.reset();
    daemon_.reset();
    own_.reset();
    Require(OpenDescriptors(end()) == before_);
    // Everything that was started is ended with it.
    for (const Process& process : acts_.processes())
      Require(process.killed || process.sort == Sort::kSearch || process.sort == Sort::kFolder);
  }
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  void Run();

 private:
  struct Record {
    uint64_t child = 0;  // serial; 0: it names none
    pid_t pid = 0;
    size_t descriptors = 0;
  };

  static Settings SettingsOf(uint8_t choice);
  void Connect();
  pid_t SomePid();
  uint32_t SomeUser();
  void FillTexts(Request& request);
  Packet SomePacket();
  Packet SomeBytes();
  bool Send(const Packet& packet);
  void Ask(const Packet& packet);
  void CheckAnswer(const Packet& packet, const Answer& answer, size_t descriptors);
  void CheckRefused(const Request& request, const Answer& answer, size_t descriptors);
  void CheckRecords(const Request& request, const Answer& answer, size_t descriptors);
  void Note(const Packet& packet, const Answer& answer);
  void CheckCounts();
  void EndProcess();
  bool EndDaemon();
  size_t held() const;
  // Of all numbers that descriptors have had here, the lowest that were free.
  int end() const { return lowest_ + int(most_held_) + 16; }

  const Settings settings_;
  Input& input_;
  CheckedActs acts_{settings_};
  UniqueFd daemon_, own_;
  std::unique_ptr<Launcher> launcher_;
  std::vector<std::pair<uint64_t, Record>> records_;  // in the order of their keys' first arrival
  bool end_ = false;
  int lowest_ = LowestFree();
  size_t before_ = 0, outside_ = 0, most_held_ = 0;  // open before all of this, and without what is kept
};

Settings World::SettingsOf(uint8_t choice) {
  Settings settings;
  settings.worker = "/programs/causeway-worker";
  settings.driver = "libcuda.so.1";
  settings.management = "libnvidia-ml.so.1";
  if ((choice & 1) == 0) settings.workers = "/programs/workers";
  if ((choice & 2) == 0) settings.links = "/links";
  if ((choice & 4) == 0) settings.cache = "/";
  if ((choice & 8) == 0) settings.users = kUsers;
  if ((choice & 16) == 0) settings.groups.assign(std::begin(kGroups), std::end(kGroups));
  if ((choice & 32) == 0) settings.keep_s = 60;
  if ((choice & 64) == 0) settings.shm = "/shm";
  settings.shows_all = (choice & 128) == 0;
  settings.allow_pageable_access = (choice & 128) != 0;
  return settings;
}

void World::Connect() {
  int ends[2];
  Require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0);
  daemon_.reset(ends[0]);
  own_.reset(ends[1]);
}

size_t World::held() const {
  size_t all = 0;
  for (const auto& [key, record] : records_) all += record.descriptors;
  return all;
}

pid_t World::SomePid() {
  const auto& processes = acts_.processes();
  const uint8_t which = input_.Byte();
  if (which < 230) return processes.empty() ? 0 : processes[which % processes.size()].pid;
  const pid_t others[] = {0, -1, 1, getpid(), 69'999, 70'000, 70'001, int32_t(input_.Word())};
  return others[which % std::size(others)];
}

uint32_t World::SomeUser() {
  const uint8_t which = input_.Byte();
  if (which < 100) return kUsers.first + which % kUsers.count;
  if (which < 160) return settings_.users.count == 0 ? 0 : 4321;
  const uint32_t others[] = {
      0, 1, 999, 1000, 4321, ~0u, kUsers.first - 1, kUsers.first + kUsers.count, uint32_t(input_.Word())};
  return others[which % std::size(others)];
}

void World::FillTexts(Request& request) {
  const uint8_t gpus = input_.Byte();
  if (gpus > 250) {
    std::memset(request.gpus, 'a', sizeof request.gpus - (gpus == 255));
  } else if (gpus > 150) {
    const auto text = input_.Bytes(gpus % 24);
    std::copy(text.begin(), text.end(), request.gpus);
  } else if (gpus > 100) {
    std::memcpy(request.gpus, "GPU-01234567-89ab-cdef-0123-456789abcdef,MIG-0", 47);
  }
  const size_t variables = input_.Byte() % 32;
  if (variables > std::size(kDriverVariables)) return;
  std::string text;
  uint8_t at = input_.Byte();
  for (size_t i = 0; i < variables; ++i) {
    text += kDriverVariables[at++ % std::size(kDriverVariables)];
    const uint8_t odd = input_.Byte();
    if (odd == 255) text += "_";
    if (odd != 254) text += "=";
    if (odd < 64) {
      const auto value = input_.Bytes(odd);
      text.append(reinterpret_cast<const char*>(value.data()), value.size());
    }
    if (odd == 253) text.resize(sizeof request.environment - 1, 'x');
    if (odd == 252) --at;  // the same name again
    if (odd != 251) text += '\0';
  }
  if (variables % 8 == 7) text += "LD_PRELOAD=/x";
  text.resize(std::min(text.size(), sizeof request.environment));
  std::copy(text.begin(), text.end(), request.environment);
  request.environment_bytes = uint32_t(text.size());
}

// Nearly a request.
Packet World::SomePacket() {
  Packet packet;
  Request& request = packet.request();
  const uint8_t which = input_.Byte();
  const Form& form = kForms[which % std::size(kForms)];
  request.action = form.action;
  const uint8_t odd = input_.Byte();  // below 192: as it should be
  const auto uses = [&](unsigned field) { return (form.uses & field) != 0; };
  if (uses(kPid)) request.pid = SomePid();
  if (uses(kUser)) request.user = SomeUser();
  if (uses(kGroup)) request.group = odd < 128 ? kGroups[odd % 2] : uint32_t(input_.Word());
  if (uses(kNumber)) request.number = odd < 128 ? input_.Byte() % 8 : uint32_t(input_.Word());
  if (uses(kLink)) request.link = odd < 160 ? odd % 5 : input_.Word();
  if (uses(kStarts)) {
    request.worker = WorkerKind(odd < 128 ? 1 + odd % 3 : input_.Byte());
    if (odd % 8 == 1) request.worker_hash = input_.Word();
    if (odd % 4 == 2) FillTexts(request);
  }
  size_t files = form.least + (form.most > form.least ? input_.Byte() % (form.most + 1 - form.least) : 0);
  if (odd >= 240) files = input_.Byte() % 9;
  // The first places are a pipe's and a socket's for packets, in the order of kStart.
  for (size_t i = 0; i < files; ++i) {
    constexpr size_t kPackets = 2, kRegion = 7;
    const bool last = i + 1 == files,
               region = form.action == Action::kFindVm || uses(kGroup) || form.action == Action::kGiveToUser;
    const size_t fitting = last && files + 1 > form.least && !(region && files == 1) ? kPackets
                           : region                                                  ? kRegion
                                                                                     : 0;
    packet.files.push_back(odd < 128 ? fitting : input_.Byte() % AllFiles().size());
  }
  if (odd >= 250) packet.size = input_.Word() % (kPacketRoom + 1);
  if (odd >= 232 && odd < 250) {
    const uint64_t change = input_.Word();
    packet.size = sizeof request + (change >> 8) % (launcher::kGrowth + 2);
    const size_t at = odd < 240 ? (change >> 24) % 48 : (change >> 24) % packet.size;
    packet.bytes[at] ^= uint8_t(change);
  }
  return packet;
}

Packet World::SomeBytes() {
  Packet packet;
  const auto bytes = input_.Bytes(input_.Byte() % 64);
  std::copy(bytes.begin(), bytes.end(), packet.bytes.begin());
  if (input_.Byte() % 2 == 0) packet.size = bytes.size();
  for (size_t i = input_.Byte() % 9; i > 0; --i) packet.files.push_back(input_.Byte() % AllFiles().size());
  return packet;
}

// False: it would be the end of what may be sent without waiting.
bool World::Send(const Packet& packet) {
  std::vector<int> numbers;
  for (const size_t file : packet.files) numbers.push_back(AllFiles().number(file));
  return SendPacket(daemon_.get(), packet.bytes.data(), packet.size, numbers, MSG_DONTWAIT);
}

// The packet's answer, or the end of the daemon, for which it takes a packet without bytes.
void World::Ask(const Packet& packet) {
  Require(Send(packet));
  acts_.Begin(packet.size == 0 ? nullptr : &packet.request());
  const bool serving = launcher::AnswerRequest(*launcher_, own_.get());
  Require(serving == (packet.size != 0));
  if (!serving) return;
  Answer answer{};
  int numbers[8];
  int flags = 0;
  const ssize_t bytes = ReceivePacket(daemon_.get(), &answer, sizeof answer, numbers, MSG_DONTWAIT, &flags);
  Require(bytes == ssize_t(sizeof answer) && (flags & (MSG_TRUNC | MSG_CTRUNC)) == 0);
  size_t descriptors = 0;
  for (const int number : numbers) descriptors += size_t(number >= 0 && close(number) == 0);
  CheckAnswer(packet, answer, descriptors);
  Require(recv(daemon_.get(), &answer, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
  acts_.Begin(nullptr);
}

void World::CheckAnswer(const Packet& packet, const Answer& answer, size_t descriptors) {
  const Request& request = packet.request();
  Require(answer.error >= 0 && answer.reserved == 0);
  const bool done = answer.error == 0;
  if (answer.error == EINVAL) Require(acts_.done() == 0);
  if (!IsWellFormed(packet)) Require(answer.error == EINVAL);
  Require(std::exchange(refused_answer, false) == (answer.error == ETOOMANYREFS));
  if (answer.error == ETOOMANYREFS) return CheckRefused(request, answer, descriptors);
  const auto is = [&](Action action) { return done && request.action == action; };
  if (!is(Action::kStart) && !is(Action::kCheckpoint) && !is(Action::kReap) && !is(Action::kTake))
    Require(answer.pid == 0);
  if (!is(Action::kReap)) Require(answer.status == 0);
  if (!is(Action::kTake)) Require(answer.key == 0);
  if (!is(Action::kStart) && !is(Action::kTake)) Require(descriptors == 0);
  if (is(Action::kStart) || is(Action::kCheckpoint)) {
    const Process* process = acts_.Find(answer.pid);
    Require(process != nullptr && !process->killed && acts_.done() == 1);
    Require(descriptors == (request.action == Action::kStart));
  }
  if (is(Action::kReap)) Require(answer.pid == request.pid && acts_.Find(request.pid) == nullptr);
  if (is(Action::kKill)) Require(acts_.Find(request.pid) != nullptr && acts_.Find(request.pid)->killed);
  if (is(Action::kGiveToGroup) || is(Action::kGiveToUser) || is(Action::kMakeCache) || is(Action::kFindVm))
    Require(acts_.done() == 1);
  if (is(Action::kFindVm)) {
    const FileTraits& file = AllFiles().traits(packet.files[0]);
    Require(file.for_search || (file.of_worker && settings_.users.count == 0));
  }
  if (IsWellFormed(packet)) {
    CheckRecords(request, answer, descriptors);
    if (done) Note(packet, answer);
  }
}

// What was started without a pidfd for the daemon is ended, and nothing else.
void World::CheckRefused(const Request& request, const Answer& answer, size_t descriptors) {
  Require(descriptors == 0 && answer.status == 0);
  const bool take = request.action == Action::kTake;
  Require(answer.key == (take ? records_.at(request.number).first : 0));
  Require(answer.pid == (take ? records_.at(request.number).second.pid : 0));
  Require(request.action == Action::kStart ? acts_.done() >= 2 : acts_.done() == 0);
}

// kForget and kTake are answered as the records are; nothing else of these requests can be wrong.
void World::CheckRecords(const Request& request, const Answer& answer, size_t descriptors) {
  const auto known = std::any_of(records_.begin(), records_.end(),
                                 [&](const auto& record) { return record.first == request.link; });
  if (request.action == Action::kForget) Require(answer.error == (known ? 0 : ENOENT));
  if (request.action == Action::kEnd) Require(answer.error == 0);
  if (request.action != Action::kTake) return;
  Require(answer.error == (request.number < records_.size() ? 0 : ENOENT));
  if (answer.error != 0) return;
  const auto& [key, record] = records_[request.number];
  Require(answer.key == key && answer.pid == record.pid && descriptors == record.descriptors);
}

// What was answered with success.
void World::Note(const Packet& packet, const Answer&) {
  const Request& request = packet.request();
  const auto found = std::find_if(records_.begin(), records_.end(),
                                  [&](const auto& record) { return record.first == request.link; });
  if (request.action == Action::kEnd) end_ = true;
  if (request.action == Action::kForget) records_.erase(found);
  if (request.action != Action::kKeep) return;
  const Process* process = acts_.Find(request.pid);
  Require(request.pid == 0 || process != nullptr);
  const Record record{process != nullptr ? process->serial : 0, request.pid, packet.files.size()};
  if (found == records_.end()) {
    records_.emplace_back(request.link, record);
  } else {
    found->second = record;
  }
}

// Nothing stays open but what is kept, and no more runs than is known.
void World::CheckCounts() {
  most_held_ = std::max(most_held_, held());
  Require(OpenDescriptors(end()) == outside_ + held());
  size_t children = 0, searches = 0, folders = 0;
  for (const Process& process : acts_.processes()) {
    searches += process.sort == Sort::kSearch;
    folders += process.sort == Sort::kFolder;
    children += process.sort == Sort::kWorker || process.sort == Sort::kCheckpointer;
  }
  Require(children == launcher_->workers() && folders <= launcher::kMaxFolderHelpers);
  Require(folders + searches <= launcher::kMaxHelpers);
}

void World::EndProcess() {
  auto& processes = acts_.processes();
  const uint8_t which = input_.Byte();
  if (processes.empty()) return;
  Process& process = processes[which % processes.size()];
  process.ended = true;
  process.status = input_.Byte() << 8;
}

// With requests that it has not read the answers of. False: the launcher ends with it.
bool World::EndDaemon() {
  for (size_t left = input_.Byte() % 3; left > 0; --left) {
    // What becomes of others is seen from their answers.
    Packet packet;
    packet.request().action = Action::kKill;
    packet.request().pid = SomePid();
    Require(Send(packet));
  }
  daemon_.reset();
  acts_.Begin(nullptr);
  for (int packets = 0; launcher::AnswerRequest(*launcher_, own_.get()); ++packets) Require(packets < 8);
  std::set<uint64_t> named, untouched;
  for (const auto& [key, record] : records_) named.insert(record.child);
  for (const Process& process : acts_.processes()) {
    if (!process.killed) untouched.insert(process.serial);
  }
  const bool outlived = launcher_->Outlive();
  Require(outlived == (settings_.keep_s != 0 && !end_));
  if (!outlived) return false;
  for (const Process& process : acts_.processes()) {
    if (untouched.count(process.serial) == 0) continue;
    const bool named_one = named.count(process.serial) != 0;
    const bool helper = process.sort == Sort::kSearch || process.sort == Sort::kFolder;
    // A checkpointer ends with its worker, which no record may name.
    const bool may_end = !helper && (!named_one || process.sort == Sort::kCheckpointer);
    Require(process.killed ? may_end : helper || named_one);
  }
  Connect();
  launcher_->Serve(getpid());
  return true;
}

void World::Run() {
  while (!input_.empty() && held() <= kMostHeld) {
    const uint8_t what = input_.Byte();
    if (what < 16) {
      if (!EndDaemon()) return;
    } else if (what < 32) {
      now_ns += int64_t{input_.Byte()} * 50'000'000;
    } else if (what < 64) {
      EndProcess();
    } else {
      answers_are_full = what >= 72 && what < 76;
      if (what < 72) acts_.FailNext(what % 2 == 0, what % 2 != 0);
      const Packet packet = what >= 76 && what < 92 ? SomeBytes() : SomePacket();
      Ask(packet);
      if (packet.size == 0 && !EndDaemon()) return;
    }
    acts_.Begin(nullptr);
    launcher_->ReapHelpers();
    CheckCounts();
  }
}

void SetOwnVariables() {
  // The launcher keeps some of these variables from every worker, and a request may replace others of them.
  for (const char* name :
       {"LD_AUDIT", "CAUSEWAY_SOCKET", "CAUSEWAY_TURNS", "CUDA_CACHE_PATH", "CUDA_DISABLE_JIT"})
    setenv(name, "/nowhere", 1);
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  [[maybe_unused]] static const bool prepared = (SetOwnVariables(), AllFiles().size() != 0);
  Input input(data, size);
  const uint8_t settings = input.Byte();
  World(settings, input).Run();
  return 0;
}
