// SPDX-License-Identifier: Apache-2.0
// Settings of GPU core dumps. The names of file and pipe mean something only once a dump can be made, which
// the host refuses (host_backend/worker/device/coredump.cc): those that a program sets are kept here.
#include <cstring>
#include <mutex>
#include <string>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/sharing_messages.h"

using namespace causeway;
using namespace causeway::guest;

namespace {

struct Names {
  Mutex<Lock::kCoredumpNames> mutex;
  std::string file, pipe;  // of the process
};
Names& names = *new Names;

std::string* NameOf(CUcoredumpSettings attribute) {
  if (attribute == CU_COREDUMP_FILE) return &names.file;
  return attribute == CU_COREDUMP_PIPE ? &names.pipe : nullptr;
}

// False: the program has set none.
bool GetName(CUcoredumpSettings attribute, void* value, size_t* size) {
  const std::lock_guard lock(names.mutex);
  const std::string* kept = NameOf(attribute);
  if (kept == nullptr || kept->empty()) return false;
  const std::string& name = *kept;
  const size_t room = *size;
  *size = name.size() + 1;
  if (value != nullptr) std::memcpy(value, name.c_str(), room < *size ? room : *size);
  return true;
}

CUresult Get(Op op, CUcoredumpSettings attribute, void* value, size_t* size) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (size == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (GetName(attribute, value, size)) return CUDA_SUCCESS;
  PendingCall call(op);
  call.writer().Put(CoredumpBody{static_cast<uint32_t>(attribute), value != nullptr ? 1u : 0u, *size});
  if (const CUresult result = call.Finish()) return result;
  Reader& r = call.reader();
  const auto used = r.Get<uint64_t>();
  if (value != nullptr) {
    const size_t bytes = r.left() < *size ? r.left() : *size;
    if (const std::byte* from = r.Take(bytes)) std::memcpy(value, from, bytes);
  }
  *size = used;
  return r.ok() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
}

CUresult Set(Op op, CUcoredumpSettings attribute, const void* value, const size_t* size) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (size == nullptr || *size > kMaxCoredumpValueBytes) return CUDA_ERROR_INVALID_VALUE;
  if (std::string* name = NameOf(attribute)) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::lock_guard lock(names.mutex);
    const auto* text = static_cast<const char*>(value);
    name->assign(text, strnlen(text, *size));
    return CUDA_SUCCESS;
  }
  PendingCall call(op);
  call.writer().Put(CoredumpBody{static_cast<uint32_t>(attribute), value != nullptr ? 1u : 0u, *size});
  if (value != nullptr) call.writer().PutBytes(value, *size);
  return call.Finish();
}

}  // namespace

extern "C" {

CUresult cuCoredumpGetAttribute(CUcoredumpSettings attribute, void* value, size_t* size) {
  return Get(Op::cuCoredumpGetAttribute, attribute, value, size);
}
CUresult cuCoredumpGetAttributeGlobal(CUcoredumpSettings attribute, void* value, size_t* size) {
  return Get(Op::cuCoredumpGetAttributeGlobal, attribute, value, size);
}
CUresult cuCoredumpSetAttribute(CUcoredumpSettings attribute, void* value, size_t* size) {
  return Set(Op::cuCoredumpSetAttribute, attribute, value, size);
}
CUresult cuCoredumpSetAttributeGlobal(CUcoredumpSettings attribute, void* value, size_t* size) {
  return Set(Op::cuCoredumpSetAttributeGlobal, attribute, value, size);
}

}  // extern "C"
