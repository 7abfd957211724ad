// SPDX-License-Identifier: Apache-2.0
// Device memory that the driver takes for a call whose arguments do not say how much: contexts, what modules
// declare, stacks and heaps. Only under a limit (device_memory_mib): without one nothing is asked or counted.
#include <algorithm>

#include "host_backend/worker/accounting/accounting.h"
#include "host_backend/worker/driver/guard.h"

namespace causeway::host {
namespace {

constexpr uint64_t kMib = 1u << 20;
// A module may take so much beyond twice its image without its being looked at.
constexpr uint64_t kUnsuspicious = 4 * kMib;

// Of the device of the current context. False: it cannot be had.
bool FreeBytes(uint64_t* bytes) {
  size_t free = 0, total = 0;
  if (Uncounted::GetInfo(&free, &total) != CUDA_SUCCESS) return false;
  *bytes = free;
  return true;
}

uint64_t Less(uint64_t from, uint64_t what) {
  return from > what ? from - what : 0;
}

using CountedLimits = Guards<struct CountsLimits>;

// What the driver takes for the limit at the most, beyond what it takes for its default.
uint64_t BytesOf(CUlimit limit, uint64_t value, CUdevice device) {
  constexpr uint64_t kStack = 1024, kPrintf = 2 * kMib, kHeap = 8 * kMib;
  constexpr uint64_t kMost = uint64_t{1} << 50;  // more than any device has, and no sum of it overflows
  const uint64_t wanted = std::min(value, kMost);
  if (limit == CU_LIMIT_PRINTF_FIFO_SIZE) return Less(wanted, kPrintf);
  if (limit == CU_LIMIT_MALLOC_HEAP_SIZE) return Less(wanted, kHeap);
  if (limit != CU_LIMIT_STACK_SIZE) return 0;
  int processors = 0, threads = 0;
  const auto ask = TheDriver().cuDeviceGetAttribute;
  if (ask(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device) != CUDA_SUCCESS ||
      ask(&threads, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device) != CUDA_SUCCESS) {
    return 0;
  }
  const uint64_t all = uint64_t(std::max(processors, 0)) * uint64_t(std::max(threads, 0));
  const uint64_t each = Less(wanted, kStack);
  return all != 0 && each > kMost / all ? kMost : each * all;
}

CUresult SetLimit(CUlimit limit, size_t value) {
  CUcontext context = nullptr;
  CUdevice device = 0;
  if (TheAccounting().limit_bytes() == 0 || TheDriver().cuCtxGetCurrent(&context) != CUDA_SUCCESS ||
      context == nullptr || TheDriver().cuCtxGetDevice(&device) != CUDA_SUCCESS) {
    return CountedLimits::own<&Driver::cuCtxSetLimit>(limit, value);
  }
  // Contexts are at least 8 bytes apart, and these limits are numbered from 0 to 2.
  const uint64_t key = reinterpret_cast<uint64_t>(context) + uint64_t(limit);
  const uint64_t bytes = BytesOf(limit, value, device);
  const Holding before = TheAccounting().Take(ChargeSpace::kLimit, key);
  if (bytes == 0) {
    const CUresult result = CountedLimits::own<&Driver::cuCtxSetLimit>(limit, value);
    if (result != CUDA_SUCCESS) TheAccounting().PutBack(ChargeSpace::kLimit, key, before);
    return result;
  }
  ChargeRef charge = TheAccounting().Reserve(MemoryKind::kDevice, device, bytes);
  const CUresult result =
      charge != nullptr ? CountedLimits::own<&Driver::cuCtxSetLimit>(limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    TheAccounting().Hold(ChargeSpace::kLimit, key, std::move(charge), true);
  } else {
    TheAccounting().PutBack(ChargeSpace::kLimit, key, before);
  }
  return result;
}

}  // namespace

void AccountLimits(Driver& driver) {
  CountedLimits::Put<&Driver::cuCtxSetLimit>(driver, &SetLimit);
}

// Other processes take and give memory of the device meanwhile. So what looks like too much is undone once
// and looked at again: the difference that is seen twice is the module's.
CUresult LoadMeasured(uint64_t image_bytes, const std::function<CUresult()>& load,
                      const std::function<void()>& undo, ChargeRef* charge) {
  Accounting& accounting = TheAccounting();
  CUdevice device = 0;
  uint64_t before = 0, after = 0, again = 0;
  if (accounting.limit_bytes() == 0 || TheDriver().cuCtxGetDevice(&device) != CUDA_SUCCESS ||
      !FreeBytes(&before)) {
    return load();
  }
  const uint64_t counted = accounting.OwnOnDevice(device);
  if (const CUresult result = load()) return result;
  const uint64_t allowed = kUnsuspicious + 2 * image_bytes;
  if (!FreeBytes(&after) || Less(before, after) <= allowed + Less(accounting.OwnOnDevice(device), counted))
    return CUDA_SUCCESS;
  undo();
  if (!FreeBytes(&again)) return CUDA_ERROR_OUT_OF_MEMORY;
  const uint64_t own = Less(again, after);
  if (own > allowed) {
    *charge = accounting.Reserve(MemoryKind::kDevice, device, own);
    if (*charge == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return load();
}

CUresult CreateMeasured(CUdevice device, const std::function<CUresult()>& create,
                        const std::function<void()>& undo, ChargeRef* charge) {
  Accounting& accounting = TheAccounting();
  const Driver& driver = TheDriver();
  CUcontext previous = nullptr;
  CUdevice current = 0;
  uint64_t before = 0, after = 0;
  const bool measured = accounting.limit_bytes() != 0 && driver.cuCtxGetCurrent(&previous) == CUDA_SUCCESS &&
                        previous != nullptr && driver.cuCtxGetDevice(&current) == CUDA_SUCCESS &&
                        current == device && FreeBytes(&before);
  const CUresult result = create();
  if (result != CUDA_SUCCESS || !measured || !FreeBytes(&after) || after >= before) return result;
  *charge = accounting.Reserve(MemoryKind::kDevice, device, before - after);
  if (*charge != nullptr) return CUDA_SUCCESS;
  undo();
  return CUDA_ERROR_OUT_OF_MEMORY;
}

}  // namespace causeway::host
