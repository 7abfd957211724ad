// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/memory/shared_descriptor.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <mutex>
#include <vector>

#include "guest_lib/process/lock_order.h"
#include "guest_lib/session/session.h"

namespace causeway::guest {
namespace {

struct Kept {
  int descriptor;  // our end
  SharedToken token;
  bool is_pool;
};

Mutex<Lock::kSharedDescriptors> kept_mutex;
auto& kept = *new std::vector<Kept>;  // never destroyed

void Drop(const Kept& closed) {
  close(closed.descriptor);
  PendingPost post(Op::kDropShared);
  post.writer().Put(DropSharedBody{closed.token, closed.is_pool ? 1u : 0u, 0});
  if (post.writer().ok()) post.Finish();
}

}  // namespace

void FillBlob(void* blob, const SharedToken& token) {
  SharedBlob filled{};
  filled.magic = kSharedMagic;
  filled.token = token;
  std::memcpy(blob, &filled, sizeof filled);
}

bool ReadBlob(const void* blob, SharedToken* token) {
  SharedBlob read;
  std::memcpy(&read, blob, sizeof read);
  *token = read.token;
  return read.magic == kSharedMagic;
}

namespace {

// Makes a descriptor for the token, which the program owns.
CUresult MakeSharedDescriptor(const SharedToken& token, bool is_pool, int* descriptor) {
  int ends[2];
  SharedBlob blob;
  FillBlob(&blob, token);
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
  if (send(ends[0], &blob, sizeof blob, MSG_NOSIGNAL | MSG_DONTWAIT) != static_cast<ssize_t>(sizeof blob)) {
    close(ends[0]);
    close(ends[1]);
    return CUDA_ERROR_OPERATING_SYSTEM;
  }
  const std::lock_guard lock(kept_mutex);
  kept.push_back({ends[0], token, is_pool});
  *descriptor = ends[1];
  return CUDA_SUCCESS;
}

}  // namespace

CUresult ExportShareable(Op op, const Object& object, CUmemAllocationHandleType type, uint64_t flags,
                         void* shareable) {
  DropClosedDescriptors();
  SharedToken token{};
  const ShareableBody body{WireOf(&object), static_cast<uint32_t>(type), 0, flags, {}};
  if (const CUresult result = AskHost(op, body, &token)) return result;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
    return MakeSharedDescriptor(token, op == Op::cuMemPoolExportToShareableHandle,
                                static_cast<int*>(shareable));
  FillBlob(shareable, token);
  return CUDA_SUCCESS;
}

bool ReadSharedDescriptor(int descriptor, SharedToken* token) {
  SharedBlob blob;
  const ssize_t got = recv(descriptor, &blob, sizeof blob, MSG_PEEK | MSG_DONTWAIT | MSG_TRUNC);
  return got == static_cast<ssize_t>(sizeof blob) && ReadBlob(&blob, token);
}

bool ReadShareable(void* shareable, CUmemAllocationHandleType type, SharedToken* token) {
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    const auto descriptor = reinterpret_cast<intptr_t>(shareable);
    return descriptor >= 0 && descriptor <= INT32_MAX &&
           ReadSharedDescriptor(static_cast<int>(descriptor), token);
  }
  return type == CU_MEM_HANDLE_TYPE_FABRIC && shareable != nullptr && ReadBlob(shareable, token);
}

void DropClosedDescriptors() {
  std::vector<Kept> closed;
  {
    const std::lock_guard lock(kept_mutex);
    for (size_t i = kept.size(); i-- > 0;) {
      pollfd end{kept[i].descriptor, 0, 0};
      if (poll(&end, 1, 0) != 1 || (end.revents & POLLHUP) == 0) continue;
      closed.push_back(kept[i]);
      kept.erase(kept.begin() + static_cast<ptrdiff_t>(i));
    }
  }
  for (const Kept& each : closed) Drop(each);
}

}  // namespace causeway::guest
