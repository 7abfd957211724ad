// SPDX-License-Identifier: Apache-2.0
// The whole worker under a hostile guest: a session with its dispatcher, lanes and two channels, each on its
// thread, on the software GPU (CAUSEWAY_FUZZ_DRIVER, else the one of this build). The input is a script
// (script.h), whose first messages go one after the other, the others as the threads get at them. Memory is
// shared as in a VM: arenas are pages of a region that the guest keeps writing to.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/api/dispatch.h"
#include "host_backend/worker/api/guarded_driver.h"
#include "host_backend/worker/session/channels.h"
#include "host_backend/worker/session/dispatcher.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_region.h"
#include "tests/fuzz/script.h"
#include "tests/fuzz/thread_pool.h"
#include "tests/fuzz/worker_setup.h"

namespace causeway::fuzz {
namespace {

constexpr auto kForAMessage = std::chrono::milliseconds(100);  // then the session is stopped; what keeps it
                                                               // after that is a hang, which -timeout finds
constexpr uint32_t kLinks = kScriptChannels + 1;

bool LeftOut(const Message& message) {
  switch (static_cast<Op>(message.head.op)) {
    case Op::kOpenChannel:    // no more threads than the two
    case Op::kAwaitCallback:  // a guest's own thread waits there as long as it likes
      return true;
    default:
      return false;
  }
}

// Delivers a script's messages to the session's threads, and takes their replies.
class ScriptTransport : public ServerTransport {
 public:
  ScriptTransport(const Script& script, const ScriptPrefix& prefix, Places& places)
      : prefix_(prefix), places_(places) {
    for (size_t i = 0; i < script.size(); ++i) {
      const Message& message = script[i];
      if (LeftOut(message)) continue;
      order_.push_back(message.head.link);
      links_[message.head.link].waiting.push_back(&message);
    }
  }

  // Until the session has served all of it, or stopped. False: it took too long.
  bool AwaitEnd() {
    std::unique_lock lock(mutex_);
    for (size_t seen = 0;; seen = served_) {
      if (changed_.wait_for(lock, kForAMessage, [&] { return stopped_ || served_ >= order_.size(); }))
        return true;
      if (seen == served_) return false;
    }
  }

  ReceiveStatus ReceiveMain(std::span<const std::byte>* record) override {
    return Receive(kMainScriptLink, record);
  }
  void DoneMain() override { Served(); }
  void HandedMain() override { Served(); }
  void ExecutedMain(uint64_t) override {}
  bool MainReady() override { return Ready(kMainScriptLink); }
  ReceiveStatus ReceiveRequest(uint32_t channel, std::span<const std::byte>* record) override {
    return Receive(static_cast<uint8_t>(channel + 1), record);
  }
  bool RequestReady(uint32_t channel) override { return Ready(static_cast<uint8_t>(channel + 1)); }
  void DoneRequest(uint32_t) override { Served(); }
  std::byte* ReserveReply(uint32_t channel, size_t bytes) override {
    Link& link = links_[channel + 1];
    Require(bytes >= sizeof(RecordHeader) && bytes <= kMaxChannelRecordBytes);
    link.reply.assign(bytes, std::byte{0});
    link.reply.shrink_to_fit();
    return link.reply.data();
  }
  void PublishReply(uint32_t channel, size_t bytes) override {
    Link& link = links_[channel + 1];
    Require(bytes <= link.reply.size());
    RecordHeader reply;
    std::memcpy(&reply, link.reply.data(), sizeof reply);
    NoteAnswer(reply.op, reply.result);
    Require(!link.lent.empty() &&
            reply.bulk_bytes <= link.lent.front());  // replies come in the requests' order
    link.lent.pop_front();
    if (reply.result != CUDA_SUCCESS || link.current == nullptr) return;
    const std::lock_guard lock(mutex_);
    places_.Take(link.current->head.place, std::span(link.reply).first(bytes).subspan(sizeof reply));
  }
  void PostAsyncError(uint32_t) override {}
  std::span<std::byte> BulkOf(uint32_t channel, const RecordHeader&) override {
    return links_[channel + 1].bulks.back();
  }
  bool shares_memory() const override { return prefix_.over_tcp != 1; }
  void Stop() override {
    {
      const std::lock_guard lock(mutex_);
      if (stopped_) return;
      stopped_ = true;
    }
    changed_.notify_all();
    for (Link& link : links_) link.due.notify_all();
  }
  const char* CorruptReason() const override { return "none"; }

 private:
  struct Link {
    std::condition_variable due;  // its next message; one thread waits
    std::vector<const Message*> waiting;
    size_t next = 0;
    const Message* current = nullptr;
    std::vector<std::byte> record, reply;
    std::deque<std::vector<std::byte>> bulks;  // pieces of copies use theirs until they are answered
    std::deque<size_t> lent;                   // of requests without a reply
  };

  bool Ready(uint8_t index) {
    const std::lock_guard lock(mutex_);
    return stopped_ || IsDue(index);
  }
  // The caller holds the mutex.
  bool IsDue(uint8_t index) const {
    if (links_[index].next >= links_[index].waiting.size()) return false;
    const bool in_order = given_ < prefix_.in_order;
    return !in_order || (served_ == given_ && given_ < order_.size() && order_[given_] == index);
  }

  static RecordPrefix HeaderOf(const Message& message, const Link& link) {
    return {static_cast<uint32_t>(sizeof(RecordHeader) + message.body.size()), message.head.op,
            message.head.flags, link.next - 1, message.head.context};
  }

  ReceiveStatus Receive(uint8_t index, std::span<const std::byte>* record) {
    std::unique_lock lock(mutex_);
    Link& link = links_[index];
    link.due.wait(lock, [&] { return stopped_ || IsDue(index); });
    if (stopped_) return ReceiveStatus::kStopped;
    const Message& message = *link.waiting[link.next++];
    ++given_;
    const bool posted = index == kMainScriptLink;
    link.current = &message;
    link.record.resize(sizeof(RecordHeader) + message.body.size());
    link.record.shrink_to_fit();  // a sanitizer sees what is read behind it
    if (posted) {
      const PostedHeader header{HeaderOf(message, link), message.head.stream, message.head.event,
                                message.head.thread, 0};
      std::memcpy(link.record.data(), &header, sizeof header);
    } else {
      // It comes after what was posted before it, unless the input lets them race.
      const RecordHeader header{HeaderOf(message, link), given_ <= prefix_.in_order ? links_[0].next : 0, 0,
                                message.head.bulk_bytes, 0};
      std::memcpy(link.record.data(), &header, sizeof header);
    }
    std::copy(message.body.begin(), message.body.end(), link.record.begin() + sizeof(RecordHeader));
    places_.Fill(std::span(link.record).subspan(sizeof(RecordHeader)));
    auto& bulk = link.bulks.emplace_back(message.head.bulk_bytes);
    std::copy(message.bulk.begin(), message.bulk.end(), bulk.begin());
    places_.Fill(std::span(bulk).first(message.bulk.size()));
    link.lent.push_back(bulk.size());
    *record = link.record;
    const uint32_t due = LinksDue();
    lock.unlock();
    Wake(due);
    return ReceiveStatus::kRecord;
  }
  void Served() {
    std::unique_lock lock(mutex_);
    const bool all = ++served_ == order_.size();
    const uint32_t due = LinksDue();
    lock.unlock();
    if (all) changed_.notify_all();
    Wake(due);
  }
  // Whose turn it is now, a bit for each link; to wake all of them each time is most of an execution. The caller holds
  // the mutex, and wakes them without it: they would only wait for it.
  uint32_t LinksDue() {
    if (given_ < prefix_.in_order && given_ < order_.size())
      return served_ == given_ ? 1u << order_[given_] : 0;
    if (given_ < prefix_.in_order || racing_) return 0;
    racing_ = true;
    return (1u << kLinks) - 1;
  }
  void Wake(uint32_t links) {
    for (uint32_t i = 0; i < kLinks; ++i) {
      if ((links >> i & 1) != 0) links_[i].due.notify_one();
    }
  }

  const ScriptPrefix prefix_;
  Places& places_;
  std::vector<uint8_t> order_;
  Link links_[kLinks];
  std::mutex mutex_;
  std::condition_variable changed_;  // all served, or stopped
  size_t given_ = 0, served_ = 0;
  bool racing_ = false;  // the links' threads wait for none of the others
  bool stopped_ = false;
};

const char* DriverPath() {
  const char* path = getenv("CAUSEWAY_FUZZ_DRIVER");
  return path != nullptr ? path : CAUSEWAY_FUZZ_DRIVER_PATH;
}

// A new thread has no context. The session lives while the mutex is held and it is named here.
std::mutex session_of_threads_mutex;
host::Session* session_of_threads = nullptr;
[[maybe_unused]] void ThreadBegins() {
  const std::lock_guard lock(session_of_threads_mutex);
  if (session_of_threads != nullptr) session_of_threads->objects().Enter(RecordHeader{});
}
void SetSessionOfThreads(host::Session* session) {
  const std::lock_guard lock(session_of_threads_mutex);
  session_of_threads = session;
}

// Kernels and streams of the corpus wait for words that nobody may write here. The end of a worker's process
// ends such waits; here they end by themselves.
void OpenDriver() {
  setenv("SOFTWARE_GPU_LAUNCH_TURNS", "20", 0);
  setenv("SOFTWARE_GPU_WORD_WAIT_MS", "3", 0);
  // What a guest fills is this process's memory, which -rss_limit_mb bounds; a worker's is bounded by its cgroup.
  setenv("SOFTWARE_GPU_MEMORY_MIB", "1024", 0);
  setenv("SOFTWARE_GPU_HOST_MEMORY_MIB", "512", 0);
  setenv("CAUSEWAY_LANES", "4", 0);  // also where there are few processors
#ifdef CAUSEWAY_KEPT_THREADS
  SetThreadBegins(ThreadBegins);
#endif
  std::string error;
  const host::Driver& driver = host::TheDriver();
  if (!host::OpenDriver(DriverPath(), &error) || driver.cuInit(0) != CUDA_SUCCESS) {
    fprintf(stderr, "fuzz_worker: %s\n", error.c_str());
    exit(2);
  }
}

// Everything on the GPU ends: what a worker's end does.
void EndContexts() {
  static void* const gpu = dlopen(DriverPath(), RTLD_NOW | RTLD_NOLOAD);
  static const auto forget_fault = reinterpret_cast<void (*)()>(dlsym(gpu, "cuSoftwareGpuForgetFault"));
  static const auto end_contexts = reinterpret_cast<void (*)()>(dlsym(gpu, "cuSoftwareGpuEndContexts"));
  Require(forget_fault != nullptr && end_contexts != nullptr);
  forget_fault();
  host::TheDriver().cuCtxSetCurrent(nullptr);
  end_contexts();
  forget_fault();  // what ran until now may have met one
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  static const bool opened = (OpenDriver(), true);
  Require(opened);
  const ScriptPrefix prefix = ReadPrefix({data, size});
  ScriptMemory::Reset();
  const Script script = ParseScript({data, size});
  Places places;
  CUcontext warm = nullptr;
  if (causeway::host::TheDriver().cuDevicePrimaryCtxRetain(&warm, 0) != CUDA_SUCCESS) {
    EndContexts();  // something of the last input's was still running, and has ended with a fault
    return 0;
  }
  causeway::host::warm_context.store(warm);
  ResetFakeDaemon();
  const OneWorker worker(prefix);
  {
    auto owned = std::make_unique<ScriptTransport>(script, prefix, places);
    ScriptTransport& transport = *owned;
    const auto session = causeway::host::MakeSession(std::move(owned), TheRegion().view());
    session->set_daemon(&TheFakeDaemon());
    worker.TakeTurns(*session);
    SetSessionOfThreads(session.get());
    auto& channels = session->part<causeway::host::Channels>();
    channels.Open(0);
    channels.Open(1);
    std::thread dispatcher([&] { session->part<causeway::host::Dispatcher>().Run(); });
    transport.AwaitEnd();
    session->Stop();
    dispatcher.join();
    SetSessionOfThreads(nullptr);
  }
  EndContexts();
  return 0;
}
