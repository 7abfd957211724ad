// SPDX-License-Identifier: Apache-2.0
#include "tests/fuzz/fuzz_records.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <iterator>
#include <string>

#include "host_backend/common/json.h"
#include "host_backend/common/shares/account_page.h"
#include "host_backend/daemon/takeover/record_form.h"
#include "ivshmem_ring/release/build_stamp.h"
#include "ivshmem_ring/transport/layout.h"

namespace causeway::fuzz {
namespace {

using daemon::RecordKind;

constexpr uint32_t kVersion = 1;  // of what a record holds

enum class Sort : uint8_t {
  kListener,
  kPackets,       // a socket whose other end lives
  kEndedPackets,  // and one whose other end is gone
  kStream,
  kOutput,
  kPage,
  kRegion,
  kSmallFile,
  kEvent,
  kProcess,
  kPlace,
  kNothing,  // /dev/null
  kOpening,
  kCount
};

UniqueFd FileOf(const void* bytes, size_t count, off_t size) {
  UniqueFd file(memfd_create("record", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  Require(bool(file) && ftruncate(file.get(), size) == 0);
  Require(count == 0 || pwrite(file.get(), bytes, count, 0) == ssize_t(count));
  return file;
}

std::vector<UniqueFd>& Peers() {
  static std::vector<UniqueFd> peers;
  return peers;
}

UniqueFd PairEnd(int type, bool ended) {
  int ends[2];
  Require(socketpair(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
  UniqueFd other(ends[1]);
  if (!ended) Peers().push_back(std::move(other));
  return UniqueFd(ends[0]);
}

UniqueFd MakeFile(Sort sort) {
  switch (sort) {
    case Sort::kListener: {
      UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
      const sa_family_t family = AF_UNIX;  // at an address that the kernel chooses
      Require(bind(listener.get(), reinterpret_cast<const sockaddr*>(&family), sizeof family) == 0 &&
              listen(listener.get(), 1) == 0);
      return listener;
    }
    case Sort::kPackets:
      return PairEnd(SOCK_SEQPACKET, false);
    case Sort::kEndedPackets:
      return PairEnd(SOCK_SEQPACKET, true);
    case Sort::kStream:
      return PairEnd(SOCK_STREAM, false);
    case Sort::kOutput: {
      int ends[2];
      Require(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
      close(ends[1]);
      return UniqueFd(ends[0]);
    }
    case Sort::kPage:
      return FileOf(nullptr, 0, sizeof(AccountPage));
    case Sort::kRegion:
      return FileOf(nullptr, 0, off_t{kRecordRegionMib << 20});
    case Sort::kSmallFile:
      return FileOf("image", 5, 5);
    case Sort::kEvent:
      return UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    case Sort::kProcess:
      return UniqueFd(int(syscall(SYS_pidfd_open, getpid(), 0)));
    case Sort::kPlace:
      return UniqueFd(open("/", O_PATH | O_CLOEXEC));
    case Sort::kOpening: {
      OpenBlock block{};
      block.magic = kRegionMagic;
      block.abi_major = kAbiMajor;
      block.api_hash = kBuildStamp.api_hash;
      return FileOf(&block, sizeof block, sizeof block);
    }
    default:
      return UniqueFd(open("/dev/null", O_RDWR | O_CLOEXEC));
  }
}

// Of what a daemon of before may have named.
struct Names {
  Input& input;

  uint64_t Small() const { return input.Byte() < 240 ? input.Byte() % 4u : input.Word(); }
  std::string Scope() const {
    static constexpr const char* kScopes[] = {"vm:vm", "uid:0", "uid:1000", "tcp:127.0.0.1", "vm:none", ""};
    return kScopes[input.Byte() % std::size(kScopes)];
  }
  std::string Vm() const { return input.Byte() % 8 == 0 ? "none" : "vm"; }
  std::string Digits(size_t bytes) const {
    return std::string(input.Byte() % 16 == 0 ? input.Byte() : 2 * bytes, char('0' + input.Byte() % 4));
  }
};

struct Made {
  Json state = Json::object();
  std::vector<std::pair<const char*, Sort>> descriptors;
};

Made Worker(const Names& of) {
  const bool assigned = of.input.Byte() % 4 != 0;
  Json cell = of.Small();
  if (!assigned) cell = Json();
  Json state = {{"kind", of.input.Byte() % 16 == 0 ? of.Small() : 1},
                {"api_hash", kBuildStamp.api_hash + of.input.Byte() / 200u},
                {"assigned", assigned},
                {"confined", of.input.Byte() % 2 == 0},
                {"link", of.Small()},
                {"user", 0},
                {"number", of.Small()},
                {"own", of.input.Byte() % 4 == 0},
                {"scope", of.Scope()},
                {"kept_for", ""},
                {"user_scope", of.input.Byte() % 16 == 0 ? of.Scope() : ""},
                {"entry_user", of.input.Byte() % 16 == 0 ? of.Small() : 0},
                {"cell", cell},
                {"in_cgroup", of.input.Byte() % 4 == 0},
                {"oom_kills", of.Small()},
                {"start_bytes", {{of.Digits(16), of.Small()}}},
                {"driver", {"/libcuda.so.1", 13000, of.Small(), true, "enforce"}},
                {"asks_again", of.input.Byte() % 2 == 0},
                {"devices", Json::array({of.Digits(16)})},
                {"waits_for_guests", of.input.Byte() % 2 == 0}};
  return {state, {{"control", Sort::kPackets}, {"output", Sort::kOutput}, {"pidfd", Sort::kProcess}}};
}

Made Session(const Names& of) {
  const bool local = of.input.Byte() % 2 == 0;
  const uint64_t connection = uint64_t(RecordKind::kConnection) << 56 | of.Small();
  Json state = {{"vm", local ? "" : of.Vm()},
                {"slot", of.Small()},
                {"session", of.Small()},
                {"connection", local ? connection : 0},
                {"worker", of.Small()},
                {"window", of.input.Word()},
                {"pid", of.Small()},
                {"uid", of.Small()},
                {"number", of.Small()},
                {"release", "1"},
                {"opened_ns", of.input.Word() >> of.input.Byte() % 64}};
  return {state, {{"flight", Sort::kSmallFile}}};
}

Made Stream(const Names& of) {
  const bool tls = of.input.Byte() % 2 == 0;
  const uint64_t worker = of.Small();
  Json state = {{"kind", tls ? "tls" : "tcp"},
                {"place", tls ? of.Vm() : "127.0.0.1"},
                {"user", of.input.Byte() % 2 == 0 ? Json() : Json(of.Small())},
                {"worker", worker},
                {"pid", of.Small()},
                {"number", of.Small()},
                {"release", "1"},
                {"opened_ns", of.input.Word() >> of.input.Byte() % 64},
                {"key_id", "a"},
                {"waits", of.input.Byte() % 2 == 0},
                {"token", of.Digits(32)},
                {"grace_s", of.Small()},
                {"attempt", of.Small()}};
  Made made{state, {{"socket", Sort::kStream}, {"flight", Sort::kSmallFile}}};
  if (worker == 0) made.descriptors[1] = {"block", Sort::kOpening};
  return made;
}

Made OfKind(RecordKind kind, const Names& of) {
  switch (kind) {
    case RecordKind::kListener:
      return {{{"path", of.input.Byte() % 2 == 0 ? "tcp://127.0.0.1:0" : "/run/none"}},
              {{"listener", Sort::kListener}}};
    case RecordKind::kAccount:
      return {{{"scope", of.Scope()}, {"limit", of.Small()}},
              {{"page", Sort::kPage}, {"reading", Sort::kPage}}};
    case RecordKind::kWorker:
      return Worker(of);
    case RecordKind::kConnection:
      return {{{"pid", of.Small()},
               {"uid", of.Small()},
               {"scope", of.Scope()},
               {"family", of.Scope()},
               {"bytes", of.input.Byte() < 240 ? kRecordRegionMib << 20 : of.Small()},
               {"begun", of.input.Byte() % 2 == 0}},
              {{"socket", Sort::kPackets}, {"region", Sort::kRegion}, {"pidfd", Sort::kProcess}}};
    case RecordKind::kSession:
      return Session(of);
    case RecordKind::kStream:
      return Stream(of);
    case RecordKind::kShared:
      return {{{"scope", of.Scope()},
               {"session", of.Small()},
               {"kind", of.Small()},
               {"token", of.Digits(16)},
               {"bytes", of.Digits(64)}},
              {{"object", Sort::kSmallFile}}};
    case RecordKind::kImage:
      return {
          {{"scope", of.Scope()}, {"hash", of.Digits(32)}, {"bytes", of.input.Byte() < 240 ? 5 : of.Small()}},
          {{"image", Sort::kSmallFile}}};
    case RecordKind::kShares:
      return {{{"paused", Json::array({of.Scope()})},
               {"set", {{of.Scope(), {{"weight", of.Small()}, {"cap", of.Small()}, {"class", of.Small()}}}}},
               {"turn_ms", {{"GPU-1", double(of.Small()) / 3}}}},
              {}};
    default:
      return {};
  }
}

Json SomeValue(Input& input) {
  switch (input.Byte() % 8) {
    case 0:
      return nullptr;
    case 1:
      return input.Word();
    case 2:
      return -1 - int64_t(input.Word() >> 1);
    case 3:
      return Json::array({input.Word(), "x"});
    case 4:
      return Json{{"x", input.Word()}};
    case 5:
      return input.Byte() % 2 == 0;
    case 6:
      return 1e300;
    default: {
      const auto bytes = input.Bytes(input.Byte() % 32);
      return std::string(bytes.begin(), bytes.end());
    }
  }
}

}  // namespace

void EndPeers() {
  Peers().clear();
}

Record SomeRecord(Input& input) {
  Record record;
  const uint8_t odd = input.Byte();
  const auto kind = RecordKind(odd < 240 ? 1 + odd % 12 : input.Byte());
  record.key = uint64_t(kind) << 56 | (input.Byte() % 8 + 1u);
  Made made = OfKind(kind, Names{input});
  if (kind == RecordKind::kWorker) record.worker = 1'000'000 + int(input.Byte() % 8);
  if (kind == RecordKind::kWorker && input.Byte() > 250) record.worker = 0;
  const uint8_t change = input.Byte();
  if (change > 200 && !made.state.empty()) {
    auto field = std::next(made.state.begin(), change % int(made.state.size()));
    const std::string name = field.key();
    if (change % 2 == 0) *field = SomeValue(input);
    if (change % 2 == 1) made.state.erase(name);
  }
  Json names = Json::array();
  record.descriptors.resize(1);
  for (auto& [name, sort] : made.descriptors) {
    const uint8_t other = input.Byte();
    record.ends = record.ends && other < 220;
    if (other > 250) continue;  // an older daemon had none, or has lost it
    names.push_back(other == 250 ? "other" : name);
    const bool as_it_is = other < 220;
    if (as_it_is && sort == Sort::kProcess && kind == RecordKind::kWorker) {
      int ends[2];
      Require(pipe2(ends, O_CLOEXEC) == 0);
      record.descriptors.emplace_back(ends[0]);
      record.lives.reset(ends[1]);
      continue;
    }
    record.descriptors.push_back(MakeFile(as_it_is ? sort : Sort(other % int(Sort::kCount))));
  }
  if (change == 199) names.push_back(nullptr);
  Json whole = {
      {"version", change == 198 ? input.Byte() : kVersion}, {"state", made.state}, {"descriptors", names}};
  std::string text = JsonText(whole);
  if (change == 197) text.resize(input.Word() % (text.size() + 1));
  if (change == 196) text[input.Word() % text.size()] = char(input.Byte());
  if (change == 195) text = std::string(4096, '[');
  record.descriptors[0] = change == 194 ? MakeFile(Sort(input.Byte() % int(Sort::kCount)))
                                        : FileOf(text.data(), text.size(), off_t(text.size()));
  return record;
}

}  // namespace causeway::fuzz
