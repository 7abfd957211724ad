// SPDX-License-Identifier: Apache-2.0
// Linear copies. Which of them wait follows NVIDIA's driver:
//   synchronous with a host side       wait for the legacy stream's order, then copy
//   synchronous device to device       return at once
//   asynchronous from pageable memory  capture the source up to 1 MiB, wait above
//   asynchronous to pageable memory    wait
//   asynchronous, pinned or device     return at once
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/device_access.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/kept_mapped.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/stream.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kMaxCapturedSourceBytes = size_t{1} << 20;

struct LinearCopy {
  uint64_t to = 0;
  uint64_t from = 0;
  size_t bytes = 0;
  RangeClass to_class = RangeClass::kInvalid;
  RangeClass from_class = RangeClass::kInvalid;

  bool HasPageableSide() const {
    return to_class == RangeClass::kPageable || from_class == RangeClass::kPageable;
  }
  bool HasHostSide() const {
    return to_class != RangeClass::kDevice || from_class != RangeClass::kDevice || IsManagedMemory(to) ||
           IsManagedMemory(from);
  }
};

enum class Side { kDevice, kHost, kEither };

bool Classify(uint64_t address, size_t bytes, Side side, RangeClass* range_class) {
  if (address == 0) return false;
  *range_class = ClassifyRange(address, bytes);
  if (*range_class == RangeClass::kInvalid) return false;
  return side != Side::kDevice || *range_class != RangeClass::kPageable;
}

using Clock = std::chrono::steady_clock;

// A link that takes a time for the bytes and no processor's: sleeps until this copy would be over. Each
// direction does one copy after the other, without a gap where the next was asked for in time: that this
// thread was late to wake up does not count.
void PassLink(bool to_device, size_t bytes, Clock::time_point asked) {
  constexpr auto kLate = std::chrono::milliseconds(20);
  static std::mutex mutex;
  static Clock::time_point free_at[2];
  static thread_local const int exact = prctl(PR_SET_TIMERSLACK, 1);
  (void)exact;
  const auto now = Clock::now();
  if (now - asked > kLate) asked = now;  // other work of its stream was before it
  Clock::time_point end;
  {
    const std::lock_guard lock(mutex);
    Clock::time_point& free = free_at[to_device ? 1 : 0];
    end = free = std::max(free, asked) + std::chrono::nanoseconds(bytes * 1000 / GetConfig().link_mb_per_s);
  }
  std::this_thread::sleep_until(end);
}

Touched Target(const LinearCopy& copy) {
  return {copy.to, copy.bytes, true, copy.to_class == RangeClass::kPageable};
}
Touched Source(const LinearCopy& copy) {
  return {copy.from, copy.bytes, false, copy.from_class == RangeClass::kPageable};
}

void RunCopy(const LinearCopy& copy, Clock::time_point asked) {
  const bool to_device = copy.to_class == RangeClass::kDevice;
  constexpr size_t kSmall = 64u << 10;
  if (GetConfig().link_mb_per_s != 0 && to_device != (copy.from_class == RangeClass::kDevice)) {
    PassLink(to_device, copy.bytes, asked);
    if (copy.bytes > kSmall) return;
  }
  Touch({Target(copy), Source(copy)}, [&] {
    Move(reinterpret_cast<void*>(copy.to), to_device, reinterpret_cast<const void*>(copy.from),
         copy.from_class == RangeClass::kDevice, copy.bytes);
  });
}

// What a 1D copy node's GetParams answers.
std::shared_ptr<const CUDA_MEMCPY3D> NodeParameters(const LinearCopy& copy) {
  auto node = std::make_shared<CUDA_MEMCPY3D>();
  std::memset(node.get(), 0, sizeof *node);
  node->srcMemoryType = CU_MEMORYTYPE_UNIFIED;
  node->srcDevice = copy.from;
  node->srcPitch = copy.bytes;
  node->dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  node->dstDevice = copy.to;
  node->dstPitch = copy.bytes;
  node->WidthInBytes = copy.bytes;
  node->Height = 1;
  node->Depth = 1;
  return node;
}

CUresult SubmitCopy(const StreamRef& stream, const LinearCopy& copy, CompletionRef* done) {
  Operation operation{CU_GRAPH_NODE_TYPE_MEMCPY, [copy, asked = Clock::now()] { RunCopy(copy, asked); },
                      NodeParameters(copy)};
  return Submit(stream, std::move(operation), done);
}

CUresult CopyAsync(const StreamRef& stream, const LinearCopy& copy) {
  if (IsCapturing(stream) || !copy.HasPageableSide()) return SubmitCopy(stream, copy, nullptr);
  if (copy.to_class != RangeClass::kPageable && copy.bytes <= kMaxCapturedSourceBytes) {
    const auto* source = reinterpret_cast<const std::byte*>(copy.from);
    std::vector<std::byte> captured(source, source + copy.bytes);
    return Submit(stream, {CU_GRAPH_NODE_TYPE_MEMCPY,
                           [copy, captured = std::move(captured)] {
                             Touch({Target(copy)}, [&] {
                               Move(reinterpret_cast<void*>(copy.to), copy.to_class == RangeClass::kDevice,
                                    captured.data(), false, copy.bytes);
                             });
                           },
                           nullptr});
  }
  CompletionRef done;
  CUresult result = SubmitCopy(stream, copy, &done);
  if (result != CUDA_SUCCESS) return result;
  done->Wait();
  return StickyError();
}

CUresult CopySync(const ContextRef& context, const LinearCopy& copy) {
  StreamRef stream = FindStream(context, nullptr);
  CompletionRef done;
  CUresult result = SubmitCopy(stream, copy, &done);
  if (result != CUDA_SUCCESS || !copy.HasHostSide() || done == nullptr) return result;
  done->Wait();
  FlushDeviceOutput();
  return StickyError();
}

CUresult Prepare(uint64_t to, Side to_side, uint64_t from, Side from_side, size_t bytes, LinearCopy* copy) {
  copy->to = to;
  copy->from = from;
  copy->bytes = bytes;
  bool ok =
      Classify(to, bytes, to_side, &copy->to_class) && Classify(from, bytes, from_side, &copy->from_class);
  return ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult Copy(const ContextRef& context, uint64_t to, Side to_side, uint64_t from, Side from_side,
              size_t bytes) {
  if (bytes == 0) return CUDA_SUCCESS;
  LinearCopy copy;
  CUresult result = Prepare(to, to_side, from, from_side, bytes, &copy);
  return result != CUDA_SUCCESS ? result : CopySync(context, copy);
}

CUresult CopyOnStream(const ContextRef& context, uint64_t to, Side to_side, uint64_t from, Side from_side,
                      size_t bytes, CUstream handle) {
  StreamRef stream = FindStream(context, handle);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  LinearCopy copy;
  CUresult result = Prepare(to, to_side, from, from_side, bytes, &copy);
  return result != CUDA_SUCCESS ? result : CopyAsync(stream, copy);
}

uint64_t Address(const void* pointer) {
  return reinterpret_cast<uintptr_t>(pointer);
}

}  // namespace
}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    return Copy(context, dst, Side::kEither, src, Side::kEither, ByteCount);
  });
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    return Copy(context, dstDevice, Side::kDevice, Address(srcHost), Side::kHost, ByteCount);
  });
}

CUresult cuMemcpyDtoH_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    return Copy(context, Address(dstHost), Side::kHost, srcDevice, Side::kDevice, ByteCount);
  });
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) {
    return Copy(context, dstDevice, Side::kDevice, srcDevice, Side::kDevice, ByteCount);
  });
}

CUresult cuMemcpyPeer(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                      CUcontext srcContext, size_t ByteCount) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (FindContext(dstContext) == nullptr || FindContext(srcContext) == nullptr)
      return CUDA_ERROR_INVALID_CONTEXT;
    return Copy(context, dstDevice, Side::kDevice, srcDevice, Side::kDevice, ByteCount);
  });
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return CopyOnStream(context, dst, Side::kEither, src, Side::kEither, ByteCount, hStream);
  });
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dstDevice, const void* srcHost, size_t ByteCount,
                              CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return CopyOnStream(context, dstDevice, Side::kDevice, Address(srcHost), Side::kHost, ByteCount, hStream);
  });
}

CUresult cuMemcpyDtoHAsync_v2(void* dstHost, CUdeviceptr srcDevice, size_t ByteCount, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return CopyOnStream(context, Address(dstHost), Side::kHost, srcDevice, Side::kDevice, ByteCount, hStream);
  });
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dstDevice, CUdeviceptr srcDevice, size_t ByteCount,
                              CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    return CopyOnStream(context, dstDevice, Side::kDevice, srcDevice, Side::kDevice, ByteCount, hStream);
  });
}

CUresult cuMemcpyPeerAsync(CUdeviceptr dstDevice, CUcontext dstContext, CUdeviceptr srcDevice,
                           CUcontext srcContext, size_t ByteCount, CUstream hStream) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) -> CUresult {
    if (FindContext(dstContext) == nullptr || FindContext(srcContext) == nullptr)
      return CUDA_ERROR_INVALID_CONTEXT;
    return CopyOnStream(context, dstDevice, Side::kDevice, srcDevice, Side::kDevice, ByteCount, hStream);
  });
}

}  // extern "C"
