// SPDX-License-Identifier: Apache-2.0
// The worker's decoder and handlers under a hostile guest. An input is a script (script.h), all of which this
// thread serves; behind the handlers is a driver that touches whatever it is given as the real one may, and
// accepts nothing dead (fake_driver.h). The session must never crash, read outside a message, or pass on what
// has ended.
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>

#include "host_backend/worker/addresses/arenas.h"
#include "host_backend/worker/api/dispatch.h"
#include "host_backend/worker/session/deferred_replies.h"
#include "host_backend/worker/session/dispatcher.h"
#include "tests/fuzz/fake_driver.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_region.h"
#include "tests/fuzz/guarded_buffer.h"
#include "tests/fuzz/script.h"
#include "tests/fuzz/worker_setup.h"
#include "tests/silent_transport.h"

// While a request is served no thread can be had: what would run beside it (the registration of the first arena) runs in
// it, so that findings repeat, and the fake driver, which knows one thread, sees one. libFuzzer has a thread of its own.
static bool refuses_threads = false;
extern "C" {
using ThreadState = std::unique_ptr<std::thread::_State>;
void RealStartThread(std::thread*, ThreadState, void (*)()) __asm__(
    "__real__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE");
void WrapStartThread(std::thread*, ThreadState, void (*)()) __asm__(
    "__wrap__ZNSt6thread15_M_start_threadESt10unique_ptrINS_6_StateESt14default_deleteIS1_EEPFvvE");
void WrapStartThread(std::thread* thread, ThreadState state, void (*depend)()) {
  if (refuses_threads)
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  RealStartThread(thread, std::move(state), depend);
}
}

namespace causeway::fuzz {
namespace {

using host::Request;
using host::Session;
using test::SilentTransport;

// A thread would be started for each, and a wait for a callback would last.
bool LeftOut(uint16_t op) {
  return op == static_cast<uint16_t>(Op::kOpenChannel) || op == static_cast<uint16_t>(Op::kAwaitCallback);
}

class Server {
 public:
  Server(Session& session, Places& places) : session_(session), places_(places) {}

  // As the dispatcher (posted) and a channel's thread call it.
  void Serve(const ScriptReader& reader, const ScriptReader::View& message) {
    const MessageHead& head = message.head;
    if (LeftOut(head.op)) return;
    const bool posted = head.link == kMainScriptLink;
    RecordHeader header{};  // a handler sees no more of a posted record's than its prefix
    header.op = head.op;
    header.flags = head.flags;
    header.sequence = sequence_++;
    header.context = head.context;
    header.bulk_bytes = head.bulk_bytes;
    static GuardedBuffer request_space(kMaxMainRecordBytes), bulk_space(kBulkBytes),
        reply_space(kMaxChannelRecordBytes);
    auto body = request_space.Hold(message.body.size());
    std::copy_n(message.body.begin(), body.size(), body.begin());
    reader.KeepRoomSmall(head.op, body);
    places_.Fill(body);
    auto bulk = bulk_space.Hold(head.bulk_bytes);
    std::copy(message.bulk.begin(), message.bulk.end(), bulk.begin());
    std::memset(bulk.data() + message.bulk.size(), 0, bulk.size() - message.bulk.size());
    places_.Fill(bulk.first(message.bulk.size()));
    auto reply = reply_space.Hold(posted ? 0 : kMaxChannelRecordBytes - sizeof header);
    // A large request's body lies in its bulk buffer; the channel's thread has copied it out by then.
    Reader in((head.flags & kLargeRequest) != 0 && !posted ? LargeBody(body, bulk) : body);
    Writer out(reply);
    Request request{
        .header = header,
        .in = in,
        .out = out,
        .channel = posted ? kChannelCount : head.link - 1u,
        .bulk = (head.flags & (kLargeRequest | kLargeReply)) != 0 ? std::span<std::byte>{} : bulk};
    request.staged = !posted && host::MayBeDeferred(header);
    const size_t lent = request.bulk.size();
    refuses_threads = true;
    const CUresult result = session_.Execute(request);
    refuses_threads = false;
    NoteAnswer(head.op, result);
    Require(request.bulk_written <= lent);
    if (result == CUDA_SUCCESS) places_.Take(head.place, reply.first(out.size()));
    if (posted) session_.part<host::Dispatcher>().Settle();
    if (request.staged && request.done != nullptr) AwaitPiece(header, request.done);
    session_.objects().EndRequest();
  }

 private:
  static void AwaitPiece(const RecordHeader& header, CUevent done) {
    host::DeferredReplies replies;
    RecordHeader reply = header;
    replies.Add(reply, done);
    for (int looks = 0; looks < 100 && !replies.Take(&reply); ++looks) {
    }
  }
  static std::span<const std::byte> LargeBody(std::span<const std::byte> body,
                                              std::span<const std::byte> bulk) {
    uint32_t bytes = 0;
    if (body.size() < sizeof bytes) return {};
    std::memcpy(&bytes, body.data(), sizeof bytes);
    return bytes <= bulk.size() ? bulk.first(bytes) : std::span<const std::byte>{};
  }

  Session& session_;
  Places& places_;
  uint64_t sequence_ = 0;
};

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  static const struct Driver {
    Driver() { InstallFakeDriver(); }
    ~Driver() { fprintf(stderr, "%lu calls reached the driver\n", FakeDriverCalls()); }
  } driver;
  const ScriptPrefix prefix = ReadPrefix({data, size});
  causeway::host::warm_context.store(nullptr);
  ResetFakeDriver(prefix.seed);
  ResetFakeDaemon();
  const OneWorker worker(prefix);
  {
    const auto session = causeway::host::MakeSession(std::make_unique<SilentTransport>(prefix.over_tcp != 1),
                                                     TheRegion().view());
    session->set_daemon(&TheFakeDaemon());
    worker.TakeTurns(*session);
    causeway::RecordHeader none{};
    session->objects().Enter(none);  // this thread may hold the last input's context
    Places places;
    Server server(*session, places);
    ScriptReader reader({data, size});
    for (ScriptReader::View message; reader.Next(&message);) server.Serve(reader, message);
  }
  EndFakeObjects();
  return 0;
}
