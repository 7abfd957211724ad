// SPDX-License-Identifier: Apache-2.0
// The run-time linker. Its inputs go to the host as blobs (files are read here); each call updates the
// program's log buffers and option values, and the cubin stays with the link until cuLinkDestroy.
#include <algorithm>
#include <cstring>
#include <list>

#include "guest_lib/code/jit_options.h"
#include "guest_lib/process/file.h"
#include "guest_lib/session/blob.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/code_messages.h"

namespace causeway::guest {
namespace {

struct Link {
  JitOptions options;
  std::list<std::vector<std::byte>> cubins;  // one for each cuLinkComplete; the program has their addresses
};

struct Input {
  const char* name = nullptr;
  const void* data = nullptr;
  uint64_t bytes = 0;
};

// One call of the linker: sends what belongs to it, and hands on what it left behind.
CUresult Run(Op op, WireHandle wire, Link* link, JitOptions* options, CUjitInputType type, const Input& input,
             std::vector<std::byte>* cubin) {
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  const LinkBody body{.link = wire,
                      .option_count = options->count(),
                      .input_type = static_cast<uint32_t>(type),
                      .option_bytes = options->wire().size(),
                      .name_bytes = input.name != nullptr ? std::strlen(input.name) + 1 : 0,
                      .data_bytes = input.bytes};
  const uint64_t name_at = ImageAligned(body.option_bytes), data_at = ImageAligned(name_at + body.name_bytes);
  const auto copy = [&](uint64_t at, std::span<std::byte> to) {
    std::fill(to.begin(), to.end(), std::byte{0});
    CopyPart(at, to, options->wire().data(), 0, body.option_bytes);
    CopyPart(at, to, input.name, name_at, body.name_bytes);
    CopyPart(at, to, input.data, data_at, body.data_bytes);
  };
  Blob blob(lease);
  if (const CUresult result = blob.Fill(data_at + body.data_bytes, copy)) return result;
  Writer w = lease.Begin();
  w.Put(body);
  Reader in;
  CUresult result = lease.AwaitSent(blob.Send(op, w), &in);
  if (in.left() < sizeof(LinkReply)) return result != CUDA_SUCCESS ? result : CUDA_ERROR_UNKNOWN;
  const auto reply = in.Get<LinkReply>();
  std::vector<std::byte> rest;
  if (reply.call_bytes > kMaxBlobBytes || reply.link_bytes > kMaxBlobBytes) return CUDA_ERROR_UNKNOWN;
  if (const CUresult fetched =
          FetchBlob(lease, reply.call_bytes + reply.link_bytes + reply.cubin_bytes, &rest)) {
    return result != CUDA_SUCCESS ? result : fetched;
  }
  const std::span<const std::byte> all(rest);
  options->Return(all.first(reply.call_bytes));
  link->options.Return(all.subspan(reply.call_bytes, reply.link_bytes));
  if (cubin != nullptr) cubin->assign(all.end() - static_cast<ptrdiff_t>(reply.cubin_bytes), all.end());
  return result;
}

CUresult Add(CUlinkState state, CUjitInputType type, const Input& input, unsigned count,
             const CUjit_option* names, void** values) {
  const Object* object = Find(state);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  JitOptions options;
  if (const CUresult result = options.Take(count, names, values)) return result;
  return Run(Op::cuLinkAddData_v2, WireOf(object), static_cast<Link*>(object->detail), &options, type, input,
             nullptr);
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuLinkCreate_v2(unsigned int count, CUjit_option* names, void** values, CUlinkState* state) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  auto* link = new Link;
  Object* object = NewObject(HandleKind::kLink, nullptr);
  CUresult result = object != nullptr ? link->options.Take(count, names, values) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    JitOptions sent = link->options;  // what the call changes comes back once, as the call's own
    result = Run(Op::cuLinkCreate_v2, WireOf(object), link, &sent, CU_JIT_INPUT_CUBIN, {}, nullptr);
  }
  if (result != CUDA_SUCCESS) {
    FreeObject(object);
    delete link;
    return result;
  }
  object->detail = link;
  *state = reinterpret_cast<CUlinkState>(object);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t bytes, const char* name,
                          unsigned int count, CUjit_option* names, void** values) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return Add(state, type, {name, data, bytes}, count, names, values);
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int count,
                          CUjit_option* names, void** values) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Find(state) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  std::vector<std::byte> bytes;
  if (!ReadFile(path, &bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
  if (type == CU_JIT_INPUT_PTX) bytes.push_back(std::byte{0});  // as data, PTX ends in a zero
  return Add(state, type, {path, bytes.data(), bytes.size()}, count, names, values);
}

CUresult cuLinkComplete(CUlinkState state, void** cubin, size_t* bytes) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(state);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (cubin == nullptr) return CUDA_ERROR_INVALID_VALUE;
  auto* link = static_cast<Link*>(object->detail);
  JitOptions none;
  std::vector<std::byte> image;
  if (const CUresult result =
          Run(Op::cuLinkComplete, WireOf(object), link, &none, CU_JIT_INPUT_CUBIN, {}, &image)) {
    return result;
  }
  const size_t image_bytes = image.size();
  image.resize(image_bytes + kImageAlign);  // whoever sizes it as text finds an end
  link->cubins.push_back(std::move(image));
  *cubin = link->cubins.back().data();
  if (bytes != nullptr) *bytes = image_bytes;
  return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state) {
  if (const CUresult result = InitialisedOrError()) return result;
  Object* object = Find(state);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  auto* link = static_cast<Link*>(object->detail);
  JitOptions none;
  if (const CUresult result =
          Run(Op::cuLinkDestroy, WireOf(object), link, &none, CU_JIT_INPUT_CUBIN, {}, nullptr)) {
    return result;
  }
  FreeObject(object);
  delete link;
  return CUDA_SUCCESS;
}

}  // extern "C"
