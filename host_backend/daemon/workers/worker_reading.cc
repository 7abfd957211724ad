// SPDX-License-Identifier: Apache-2.0
// What the daemon reads of a worker: its control socket and what it prints. It may be its guest's by then.
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>

#include "host_backend/daemon/workers/worker_process.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

constexpr size_t kMaxOutputLine = 1024;
constexpr size_t kOutputRead = 4096;
// Lines of one read that the log is asked to write; it writes fewer in a second.
constexpr size_t kMostLinesOfARead = 64;
// At once, before others are served.
constexpr int kPacketsAtOnce = 16;
// One that has died is read to its end, up to so much.
constexpr int kLastPackets = 64, kLastReads = 64;
// One that says too much is listened to again so much later.
constexpr std::chrono::milliseconds kReadingPause{2};
// Packets that have a record kept anew, or may: the daemon waits for the launcher when many are under way. In packets of others.
constexpr double kRecordCost = 15, kSharingCost = 3;

template <class... Readers>
struct Overloaded : Readers... {
  using Readers::operator()...;
};
template <class... Functions>
Overloaded(Functions...) -> Overloaded<Functions...>;  // for clang before 17

// Letters of other languages have no place in what a worker prints, and some bytes command terminals.
std::string Printable(std::string_view text) {
  std::string clean(text);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return clean;
}

}  // namespace

void WorkerProcess::WatchControl() {
  control_watch_ =
      loop_.Watch(control_.get(), EPOLLIN, "a worker's message", [this](uint32_t) { OnControl(true); });
}

void WorkerProcess::WatchOutput() {
  output_watch_ =
      loop_.Watch(output_.get(), EPOLLIN, "a worker's output", [this](uint32_t) { OnOutput(true); });
}

void WorkerProcess::OnControl(bool at_its_pace) {
  const int most = at_its_pace ? kPacketsAtOnce : kLastPackets;
  for (int packets = 0; control_ && packets < most; ++packets) {
    if (at_its_pace && (closing_->is_full() || !pace_->Take(Clock::now()))) {
      loop_.Unwatch(control_watch_);
      control_pause_ = loop_.After(kReadingPause, "a pause of a worker's reading", [this] {
        if (control_) WatchControl();
      });
      return;
    }
    if (!ReadPacket()) return;
  }
}

// False: there was none.
bool WorkerProcess::ReadPacket() {
  std::array<std::byte, kWorkerPacketRoom> packet;
  std::vector<WorkerFd> descriptors;
  int flags = 0;
  const ssize_t bytes =
      ReceiveFromStranger(control_.get(), packet.data(), packet.size(), &descriptors, &flags, closing_);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (bytes <= 0) {  // it closed its end: it is ending, and the pidfd tells when
    Wind();
    return false;
  }
  if ((flags & MSG_CTRUNC) != 0 && descriptors.empty()) {
    // There was room for all, so the daemon itself has no descriptor left, which is not this worker's fault.
    SharingRequest request;
    if (bytes != ssize_t(sizeof request)) return true;
    std::memcpy(&request, packet.data(), sizeof request);
    SharingReply full{};
    full.result = SharingResult::kFull;
    full.number = request.number;
    AnswerSharing(full, -1);
    return true;
  }
  Handle(dialogue_.Read(std::span(packet).first(size_t(bytes)), descriptors.size()), descriptors);
  return true;
}

void WorkerProcess::Handle(const WorkerMessage& message, std::vector<WorkerFd>& descriptors) {
  std::visit(Overloaded{
                 [&](const WorkerViolation& violation) { Violate(violation.what); },
                 [&](const WorkerReady& ready) { HandleReady(ready); },
                 [&](const WorkerConfined& confined) { HandleConfined(confined, descriptors); },
                 [&](const WorkerUsage& usage) { listener_.OnUsage(*this, usage); },
                 [&](const SharingRequest& request) {
                   pace_->Charge(kSharingCost);
                   listener_.OnSharing(*this, request,
                                       descriptors.empty() ? WorkerFd() : std::move(descriptors.front()));
                 },
                 [&](const CheckpointOrder& order) { listener_.OnCheckpoint(*this, order); },
                 [&](const WorkerRepeats&) {},
                 [&](const WorkerReachable& reachable) { listener_.OnReachable(*this, reachable.number); },
                 [&](const WorkerMemoryUse& use) { listener_.OnMemoryUse(*this, use); },
                 [&](const WorkerDeviceUse& use) { listener_.OnDeviceUse(*this, use); },
                 [&](const WorkerQuery&) { listener_.OnQuery(*this); },
                 [&](const WorkerLink& link) {
                   pace_->Charge(kRecordCost);
                   listener_.OnLink(*this, link.waits != 0);
                 },
             },
             message);
}

void WorkerProcess::Violate(const std::string& what) {
  if (!violation_.empty()) return;
  violation_ = what;
  log_->Write(LogLevel::kWarning,
              "worker " + std::to_string(pid_) + " sent " + what + " on its control socket; it is killed");
  Kill();
  listener_.OnViolation(*this);
}

// Another file may have come into the program's place since this daemon began.
std::string WorkerProcess::WhyNotUsed(const WorkerReady& ready) const {
  const std::string said = "The worker program " + program_.programs.PathOf(api_hash_) + " is of release " +
                           ReleaseText(ready.release);
  if (ready.api_hash != api_hash_)
    return said + " (rows " + HashText(ready.api_hash) + "), where one for rows " + HashText(api_hash_) +
           " is needed: run `causeway upgrade`, or restart causewayd.";
  if (ready.control_version < kOldestWorkerControl || ready.control_version > kWorkerControl)
    return said + " and speaks version " + std::to_string(ready.control_version) +
           " to its daemon, and this one, " + kBuildStamp.release + ", versions " +
           std::to_string(kOldestWorkerControl) + " to " + std::to_string(kWorkerControl) +
           ": install a release in the guest for which this host has a worker.";
  return {};
}

void WorkerProcess::HandleReady(const WorkerReady& said) {
  if (state_ != State::kStarting) return;  // it was given up meanwhile
  loop_.Cancel(timer_);
  WorkerReady ready = said;
  if (const std::string why = ready.failed == 0 ? WhyNotUsed(ready) : ""; !why.empty()) {
    ready.failed = 1;
    std::snprintf(ready.text, sizeof ready.text, "%s", why.c_str());
  }
  if (ready.failed != 0) {
    End();
  } else {
    state_ = State::kReady;
    asks_again_ = (ready.features & kAsksAgain) != 0;
    waits_for_guests_ = (ready.features & kWaitsForGuests) != 0;
    compresses_ = (ready.features & kCompresses) != 0;
  }
  listener_.OnReady(*this, ready);
}

// Before the worker has seen anything of its guest, and once: the dialogue sees to both.
void WorkerProcess::HandleConfined(const WorkerConfined& confined, std::vector<WorkerFd>& descriptors) {
  if (state_ != State::kAssigned) return;
  confined_ = true;
  if (confined.has_listener == 0) return listener_.OnConfined(*this);
  if (!SandboxWatch::IsListener(descriptors.front().get()))
    return Violate("something else than the kernel's questions about its calls");
  Listen(std::move(descriptors.front()));
  listener_.OnConfined(*this);
}

void WorkerProcess::Listen(WorkerFd questions) {
  sandbox_ = std::make_unique<SandboxWatch>(
      loop_, std::move(questions), program_.sandbox != "enforce",
      kind_ == WorkerKind::kCuda ? "cuda" : "nvml", *program_.question,
      [this] { return pace_->Take(Clock::now()); },
      [this](const RegionMapping& mapping) { return listener_.MayMap(*this, mapping); });
}

// In one pass, so that a read that is nothing but line ends costs no more than any other.
void WorkerProcess::LogOutput(bool all) {
  size_t begin = 0, lines = 0;
  while (begin < pending_output_.size()) {
    const size_t newline = pending_output_.find('\n', begin);
    if (newline == std::string::npos && pending_output_.size() - begin <= kMaxOutputLine && !all) break;
    const size_t length = std::min({newline, pending_output_.size(), begin + kMaxOutputLine}) - begin;
    if (lines++ < kMostLinesOfARead)
      log_->Write(LogLevel::kInfo, "worker " + std::to_string(pid_) + ": " +
                                       Printable(std::string_view(pending_output_).substr(begin, length)));
    begin += begin + length == newline ? length + 1 : length;
  }
  if (lines > kMostLinesOfARead) log_->LeaveOut(lines - kMostLinesOfARead);
  pending_output_.erase(0, begin);
}

// What read answered.
ssize_t WorkerProcess::ReadOutput() {
  char buffer[kOutputRead];
  const ssize_t bytes = read(output_.get(), buffer, sizeof(buffer));
  if (bytes > 0) pending_output_.append(buffer, size_t(bytes));
  return bytes;
}

void WorkerProcess::OnOutput(bool at_its_pace) {
  if (!at_its_pace) {
    for (int reads = 0; reads < kLastReads && ReadOutput() > 0; ++reads) LogOutput(false);
    loop_.Unwatch(output_watch_);
    return LogOutput(true);
  }
  if (!pace_->Take(Clock::now())) {
    loop_.Unwatch(output_watch_);
    output_pause_ = loop_.After(kReadingPause, "a pause of a worker's reading", [this] { WatchOutput(); });
    return;
  }
  const ssize_t bytes = ReadOutput();
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (bytes <= 0) loop_.Unwatch(output_watch_);
  LogOutput(bytes <= 0);
}

}  // namespace causeway::daemon
