// SPDX-License-Identifier: Apache-2.0
// The run-time linker. A link's log buffers and option values live here as long as it does, because the
// driver writes to them until cuLinkDestroy; each reply carries what a call changed.
#include <mutex>
#include <system_error>

#include "host_backend/worker/code/image.h"
#include "host_backend/worker/code/jit_options.h"
#include "host_backend/worker/process/one_thread.h"
#include "host_backend/worker/session/blob.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {
namespace {

// What a call of the linker came with.
struct Call {
  LinkBody body;
  std::shared_ptr<std::vector<std::byte>> blob;
  JitOptions options;
  const char* name = nullptr;
  void* data = nullptr;
};

CUresult Take(Session& session, Request& request, Call* call) {
  call->body = request.in.Get<LinkBody>();
  if (!request.in.ok() || request.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  uint64_t blob_bytes = 0;
  call->blob = session.part<Blobs>().Take(request, &blob_bytes);
  const LinkBody& body = call->body;
  const bool sizes_fit =
      body.option_bytes <= blob_bytes && body.name_bytes <= blob_bytes && body.data_bytes <= blob_bytes;
  const uint64_t name_at = sizes_fit ? ImageAligned(body.option_bytes) : 0;
  const uint64_t data_at = ImageAligned(name_at + (sizes_fit ? body.name_bytes : 0));
  if (!sizes_fit || data_at > blob_bytes || body.data_bytes != blob_bytes - data_at)
    return session.Breach("a call of the linker names more bytes than it sends");
  std::byte* at = call->blob->data();
  Reader in({at, body.option_bytes});
  if (body.name_bytes != 0) call->name = reinterpret_cast<const char*>(at + name_at);
  call->data = at + data_at;
  const CUresult options = call->options.Take(in, body.option_count);
  if (!in.ok()) return session.Breach("the options of a call of the linker are cut");
  if (call->name != nullptr && call->name[body.name_bytes - 1] != '\0')
    return session.Breach("a name for the linker does not end");
  return options;
}

void Reply(Session& session, Request& request, const JitOptions* call, const JitOptions* link,
           const void* cubin = nullptr, size_t cubin_bytes = 0) {
  std::vector<std::byte>& left = session.part<Blobs>().left(request.channel);
  left.clear();
  LinkReply reply{};
  if (call != nullptr) call->AppendOutputs(&left);
  reply.call_bytes = left.size();
  if (link != nullptr) link->AppendOutputs(&left);
  reply.link_bytes = left.size() - reply.call_bytes;
  const auto* from = static_cast<const std::byte*>(cubin);
  if (from != nullptr) left.insert(left.end(), from, from + cubin_bytes);
  reply.cubin_bytes = left.size() - reply.call_bytes - reply.link_bytes;
  request.out.Put(reply);
}

// What lives as long as a link: the call that made it, and those whose logs the driver may still write to.
struct Link {
  Call made;
  std::mutex mutex;  // kept
  std::vector<std::shared_ptr<Call>> kept;
};
constexpr size_t kMostKept = 256;

// The link that a call names, with the options it was made with.
CUresult FindLink(Session& session, Request& request, WireHandle wire, CUlinkState* state,
                  std::shared_ptr<Link>* link) {
  *state = session.objects().ToDriver<CUlinkState>(wire, request.in);
  if (*state != nullptr) *link = session.objects().Kept<Link>(HandleKind::kLink, *state);
  if (*link == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = session.objects().Prepare()) return result;
  (*link)->made.options.Mark();
  return CUDA_SUCCESS;
}

// False: the link has too many already.
bool KeepLogs(Link& link, const std::shared_ptr<Call>& call) {
  if (!call->options.is_written_to()) return true;
  const std::lock_guard lock(link.mutex);
  if (link.kept.size() >= kMostKept) return false;
  link.kept.push_back(call);
  return true;
}

// The driver's error for an input that is not of the type that the call states.
CUresult RefusalOf(CUjitInputType type) {
  switch (type) {
    case CU_JIT_INPUT_PTX:
      return CUDA_ERROR_INVALID_PTX;
    case CU_JIT_INPUT_OBJECT:
    case CU_JIT_INPUT_LIBRARY:
      return CUDA_ERROR_UNKNOWN;
    default:
      return CUDA_ERROR_INVALID_IMAGE;
  }
}

// One thread of the worker makes all calls of the driver's linker, because the linker of 580.159.04 keeps a link's memory with the
// thread that made the link. A native program crashes by signal 11 when its main thread makes a link and another thread ends it; it
// runs without error when two threads take turns and each uses links of its own. The worker does not always serve a guest's thread by
// the same thread, so that without this one a guest's correct program could crash.
OneThread& LinkerThread() {
  static auto& thread = *new OneThread;
  return thread;
}

// The linker's thread has the context and the capture mode of the thread that asks.
template <typename Function, typename... Arguments>
CUresult AskLinker(Function function, Arguments... arguments) {
  const Driver& driver = TheDriver();
  CUcontext context = nullptr;
  CUresult result = driver.cuCtxGetCurrent(&context);
  if (result != CUDA_SUCCESS) return result;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const bool has_mode = Has(driver.cuThreadExchangeStreamCaptureMode);
  if (has_mode) {
    driver.cuThreadExchangeStreamCaptureMode(&mode);  // there is no other way to ask for it
    CUstreamCaptureMode back = mode;
    driver.cuThreadExchangeStreamCaptureMode(&back);
  }
  try {
    LinkerThread().Do([&] {
      if (has_mode) driver.cuThreadExchangeStreamCaptureMode(&mode);
      result = driver.cuCtxSetCurrent(context);
      if (result == CUDA_SUCCESS) result = function(arguments...);
      driver.cuCtxSetCurrent(nullptr);  // it may end before the next call
    });
  } catch (const std::system_error&) {  // no thread could be started
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return result;
}

}  // namespace

CUresult Serve_cuLinkCreate_v2(Session& session, Request& request) {
  // The call's options become the link's.
  auto link = std::make_shared<Link>();
  if (const CUresult result = Take(session, request, &link->made)) return result;
  if (const CUresult result = RequireNumber(HandleKind::kLink, link->made.body.link)) return result;
  JitOptions* options = &link->made.options;
  CUlinkState state = nullptr;
  options->Mark();
  const CUresult result =
      AskLinker(TheDriver().cuLinkCreate_v2, options->count(), options->options(), options->values(), &state);
  Reply(session, request, options, nullptr);
  if (result != CUDA_SUCCESS) return result;
  session.objects().Keep(HandleKind::kLink, state, link);
  session.objects().Bind(HandleKind::kLink, link->made.body.link, state, request.out);
  return request.out.error();
}

CUresult Serve_cuLinkAddData_v2(Session& session, Request& request) {
  const auto call = std::make_shared<Call>();
  if (const CUresult result = Take(session, request, call.get())) return result;
  CUlinkState state;
  std::shared_ptr<Link> link;
  const LinkBody& body = call->body;
  if (const CUresult result = FindLink(session, request, body.link, &state, &link)) return result;
  CUjitInputType type;
  if (const CUresult result = TakeKnown(body.input_type, &type)) return result;
  JitOptions& options = call->options;
  options.Mark();
  CUresult result = RefusalOf(type);
  if (IsLinkInput(type, {static_cast<const std::byte*>(call->data), body.data_bytes})) {
    if (!KeepLogs(*link, call)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = AskLinker(TheDriver().cuLinkAddData_v2, state, type, call->data, body.data_bytes, call->name,
                       options.count(), options.options(), options.values());
  }
  Reply(session, request, &options, &link->made.options);
  return result;
}

CUresult Serve_cuLinkComplete(Session& session, Request& request) {
  Call call;
  if (const CUresult result = Take(session, request, &call)) return result;
  CUlinkState state;
  std::shared_ptr<Link> link;
  if (const CUresult result = FindLink(session, request, call.body.link, &state, &link)) return result;
  void* cubin = nullptr;
  size_t bytes = 0;
  const CUresult result = AskLinker(TheDriver().cuLinkComplete, state, &cubin, &bytes);
  if (result != CUDA_SUCCESS) cubin = nullptr;
  Reply(session, request, nullptr, &link->made.options, cubin, bytes);
  return result;
}

CUresult Serve_cuLinkDestroy(Session& session, Request& request) {
  Call call;
  if (const CUresult result = Take(session, request, &call)) return result;
  CUlinkState state;
  std::shared_ptr<Link> link;
  if (const CUresult result = FindLink(session, request, call.body.link, &state, &link)) return result;
  const CUresult result =
      session.objects().End(HandleKind::kLink, call.body.link, state, [&session, state, link] {
        const CUresult ended = AskLinker(TheDriver().cuLinkDestroy, state);
        if (ended == CUDA_SUCCESS) session.objects().Drop(HandleKind::kLink, state, link);
        return ended;
      });
  Reply(session, request, nullptr, &link->made.options);
  return result;
}

}  // namespace causeway::host
