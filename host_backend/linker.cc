// SPDX-License-Identifier: Apache-2.0
// The run-time linker. A link's log buffers and option values live here as long as it does, because the
// driver writes to them until cuLinkDestroy; each reply carries what a call changed.
#include <cstring>

#include "host_backend/jit_options.h"
#include "host_backend/session.h"
#include "ivshmem_ring/code_messages.h"

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
  call->blob = session.TakeBlob(request, &blob_bytes);
  const LinkBody& body = call->body;
  const bool sizes_fit =
      body.option_bytes <= blob_bytes && body.name_bytes <= blob_bytes && body.data_bytes <= blob_bytes;
  const uint64_t name_at = sizes_fit ? ImageAligned(body.option_bytes) : 0;
  const uint64_t data_at = ImageAligned(name_at + (sizes_fit ? body.name_bytes : 0));
  if (!sizes_fit || data_at > blob_bytes || body.data_bytes != blob_bytes - data_at) {
    session.violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
  std::byte* at = call->blob->data();
  Reader in({at, body.option_bytes});
  if (body.name_bytes != 0) call->name = reinterpret_cast<const char*>(at + name_at);
  call->data = at + data_at;
  if (call->options.Take(in, body.option_count) != CUDA_SUCCESS ||
      (call->name != nullptr && call->name[body.name_bytes - 1] != '\0')) {
    session.violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void Reply(Session& session, Request& request, const JitOptions* call, const JitOptions* link,
           const void* cubin = nullptr, size_t cubin_bytes = 0) {
  std::vector<std::byte>& left = session.left_blob(request.channel);
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

// The link that a call names, with the options it was made with.
CUresult FindLink(Session& session, Request& request, WireHandle wire, CUlinkState* state,
                  std::shared_ptr<JitOptions>* options) {
  *state = static_cast<CUlinkState>(session.ToDriver(HandleKind::kLink, wire, request.in));
  *options = std::static_pointer_cast<JitOptions>(session.Kept(wire));
  if (*state == nullptr || *options == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult result = session.Prepare()) return result;
  (*options)->Mark();
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Serve_cuLinkCreate_v2(Session& session, Request& request) {
  // The call's options become the link's.
  auto call = std::make_shared<Call>();
  if (const CUresult result = Take(session, request, call.get())) return result;
  const std::shared_ptr<JitOptions> options(call, &call->options);
  if (TheDriver().cuLinkCreate_v2 == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  CUlinkState state = nullptr;
  options->Mark();
  const CUresult result =
      TheDriver().cuLinkCreate_v2(options->count(), options->options(), options->values(), &state);
  Reply(session, request, options.get(), nullptr);
  if (result != CUDA_SUCCESS) return result;
  session.Keep(call->body.link, options);
  session.Bind(HandleKind::kLink, call->body.link, state, request.out);
  return request.out.error();
}

CUresult Serve_cuLinkAddData_v2(Session& session, Request& request) {
  Call call;
  if (const CUresult result = Take(session, request, &call)) return result;
  CUlinkState state;
  std::shared_ptr<JitOptions> options;
  if (const CUresult result = FindLink(session, request, call.body.link, &state, &options)) return result;
  call.options.Mark();
  const CUresult result = TheDriver().cuLinkAddData_v2(
      state, static_cast<CUjitInputType>(call.body.input_type), call.data, call.body.data_bytes, call.name,
      call.options.count(), call.options.options(), call.options.values());
  Reply(session, request, &call.options, options.get());
  return result;
}

CUresult Serve_cuLinkComplete(Session& session, Request& request) {
  Call call;
  if (const CUresult result = Take(session, request, &call)) return result;
  CUlinkState state;
  std::shared_ptr<JitOptions> options;
  if (const CUresult result = FindLink(session, request, call.body.link, &state, &options)) return result;
  void* cubin = nullptr;
  size_t bytes = 0;
  const CUresult result = TheDriver().cuLinkComplete(state, &cubin, &bytes);
  if (result != CUDA_SUCCESS) cubin = nullptr;
  Reply(session, request, nullptr, options.get(), cubin, bytes);
  return result;
}

CUresult Serve_cuLinkDestroy(Session& session, Request& request) {
  Call call;
  if (const CUresult result = Take(session, request, &call)) return result;
  CUlinkState state;
  std::shared_ptr<JitOptions> options;
  if (const CUresult result = FindLink(session, request, call.body.link, &state, &options)) return result;
  const CUresult result = session.End(HandleKind::kLink, call.body.link, state,
                                      [&session, state, options, wire = call.body.link] {
                                        const CUresult ended = TheDriver().cuLinkDestroy(state);
                                        if (ended == CUDA_SUCCESS) session.Drop(wire, options);
                                        return ended;
                                      });
  Reply(session, request, nullptr, options.get());
  return result;
}

}  // namespace causeway::host
