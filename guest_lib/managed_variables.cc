// SPDX-License-Identifier: Apache-2.0
// Managed variables: pages, and what changed on either side.
#include "guest_lib/managed_variables.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <vector>

#include "guest_lib/address_windows.h"
#include "guest_lib/session.h"
#include "ivshmem_ring/managed_messages.h"

namespace causeway::guest {
namespace {

struct Variable {
  std::byte* bytes;               // here and there
  std::vector<std::byte> agreed;  // what both sides had when they last met
  WireHandle owner;
};

struct Managed {
  std::recursive_mutex mutex;
  std::vector<Variable> variables;
};
Managed& All() {
  static Managed& all = *new Managed;
  return all;
}

std::atomic<size_t> variable_count{0};
thread_local bool busy = false;  // the messages below are messages too

struct Busy {
  Busy() { busy = true; }
  ~Busy() { busy = false; }
};

// Pages for a variable; others may lie in the same ones already.
bool MapPages(uint64_t address, uint64_t bytes, const std::vector<Variable>& others) {
  const auto page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  for (uint64_t at = address & ~(page - 1); at < address + bytes; at += page) {
    const bool mapped = std::any_of(others.begin(), others.end(), [&](const Variable& other) {
      const auto begin = reinterpret_cast<uintptr_t>(other.bytes);
      return (begin & ~(page - 1)) < at + page && at < begin + other.agreed.size();
    });
    if (mapped) continue;
    // Device windows are reserved by this library and nobody else's.
    if (!IsDeviceAddress(at) || mmap(reinterpret_cast<void*>(at), page, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == MAP_FAILED) {
      return false;
    }
  }
  return true;
}

// What the device has now, into `now`.
CUresult Read(const Variable& variable, std::vector<std::byte>* now) {
  now->resize(variable.agreed.size());
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  const uint32_t index = lease.session().AcquireBulk();
  const Bulk bulk = lease.session().bulk(index);
  CUresult result = CUDA_SUCCESS;
  for (size_t at = 0; at < now->size() && result == CUDA_SUCCESS;) {
    const auto piece = static_cast<uint32_t>(std::min(kBulkBytes, now->size() - at));
    Writer w = lease.Begin();
    w.Put(ManagedBody{reinterpret_cast<uintptr_t>(variable.bytes) + at, piece});
    result = lease.Send(Op::kReadManaged, w, kBulkToGuest, bulk.offset, piece);
    Reader none;
    uint32_t written = 0;
    if (result == CUDA_SUCCESS) result = lease.Await(&none, &written);
    if (result == CUDA_SUCCESS && written != piece) result = CUDA_ERROR_UNKNOWN;
    if (result == CUDA_SUCCESS) std::memcpy(now->data() + at, bulk.bytes, piece);
    at += piece;
  }
  lease.session().ReleaseBulk(index);
  return result;
}

CUresult Write(const std::byte* to, const std::byte* from, size_t bytes) {
  for (size_t at = 0; at < bytes;) {
    const size_t piece = std::min<size_t>(kManagedPieceBytes, bytes - at);
    PendingPost post(Op::kWriteManaged, sizeof(ManagedBody) + kManagedPieceBytes);
    post.writer().Put(ManagedBody{reinterpret_cast<uintptr_t>(to) + at, piece});
    post.writer().PutBytes(from + at, piece);
    if (const CUresult result = post.writer().ok() ? post.Finish() : post.writer().error()) return result;
    at += piece;
  }
  return CUDA_SUCCESS;
}

// Calls `run(begin, end)` for each stretch in which two texts differ.
template <class Run>
void ForDifferences(const std::byte* a, const std::byte* b, size_t bytes, const Run& run) {
  if (std::memcmp(a, b, bytes) == 0) return;
  for (size_t i = 0; i < bytes;) {
    if (a[i] == b[i]) {
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < bytes && a[i] != b[i]) ++i;
    run(begin, i);
  }
}

void Exchange(bool take) {
  if (variable_count.load(std::memory_order_acquire) == 0 || busy) return;
  Managed& all = All();
  const std::lock_guard lock(all.mutex);
  const Busy guard;
  std::vector<std::byte> here, there;
  for (Variable& variable : all.variables) {
    here.assign(variable.bytes, variable.bytes + variable.agreed.size());
    ForDifferences(here.data(), variable.agreed.data(), here.size(), [&](size_t begin, size_t end) {
      if (Write(variable.bytes + begin, here.data() + begin, end - begin) != CUDA_SUCCESS) return;
      std::memcpy(variable.agreed.data() + begin, here.data() + begin, end - begin);
    });
    if (!take || Read(variable, &there) != CUDA_SUCCESS) continue;
    ForDifferences(there.data(), variable.agreed.data(), there.size(), [&](size_t begin, size_t end) {
      std::memcpy(variable.bytes + begin, there.data() + begin, end - begin);
      std::memcpy(variable.agreed.data() + begin, there.data() + begin, end - begin);
    });
  }
}

}  // namespace

void SendManagedChanges() {
  Exchange(false);
}

void TakeManagedChanges() {
  Exchange(true);
}

CUresult AdmitManaged(CUdeviceptr address, size_t bytes, WireHandle owner) {
  Managed& all = All();
  const std::lock_guard lock(all.mutex);
  for (const Variable& known : all.variables) {
    if (known.bytes == reinterpret_cast<std::byte*>(address)) return CUDA_SUCCESS;
  }
  const Busy guard;
  {
    ChannelLease lease;
    if (lease.error() != CUDA_SUCCESS) return lease.error();
    Writer w = lease.Begin();
    w.Put(ManagedBody{address, bytes});
    CUresult result = lease.Send(Op::kFindManaged, w);
    Reader reply;
    if (result == CUDA_SUCCESS) result = lease.Await(&reply);
    if (result != CUDA_SUCCESS) return result;
    if (reply.Get<uint32_t>() == 0) return CUDA_SUCCESS;  // ordinary device memory
  }
  if (bytes == 0 || bytes > kMaxManagedVariableBytes || !MapPages(address, bytes, all.variables))
    return CUDA_ERROR_NOT_SUPPORTED;
  Variable variable{reinterpret_cast<std::byte*>(address), std::vector<std::byte>(bytes), owner};
  std::vector<std::byte> now;
  if (const CUresult result = Read(variable, &now)) return result;
  variable.agreed = now;
  std::memcpy(variable.bytes, now.data(), now.size());
  all.variables.push_back(std::move(variable));
  variable_count.store(all.variables.size(), std::memory_order_release);
  return CUDA_SUCCESS;
}

// The pages stay: others may share them, and they cost nothing once the device's window is reserved anyway.
void ForgetManagedOf(WireHandle owner) {
  if (variable_count.load(std::memory_order_acquire) == 0) return;
  Managed& all = All();
  const std::lock_guard lock(all.mutex);
  std::erase_if(all.variables, [owner](const Variable& variable) { return variable.owner == owner; });
  variable_count.store(all.variables.size(), std::memory_order_release);
}

}  // namespace causeway::guest
