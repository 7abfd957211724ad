// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: write a word, or hold the stream until a word has a value.
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/graph_operations.h"
#include "tests/software_gpu/kept_mapped.h"
#include "tests/software_gpu/memory.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

constexpr auto kPollInterval = std::chrono::microseconds(20);

template <typename Word>
bool IsSatisfied(Word seen, Word wanted, unsigned condition) {
  switch (condition) {
    case CU_STREAM_WAIT_VALUE_GEQ: {
      using Signed = std::make_signed_t<Word>;
      return static_cast<Signed>(seen - wanted) >= 0;  // cyclic, as cuda.h defines it
    }
    case CU_STREAM_WAIT_VALUE_EQ:
      return seen == wanted;
    case CU_STREAM_WAIT_VALUE_AND:
      return (seen & wanted) != 0;
    default:
      return (~(seen | wanted)) != 0;  // CU_STREAM_WAIT_VALUE_NOR
  }
}

template <typename Word>
void WaitForWord(uint64_t address, Word wanted, unsigned condition) {
  auto* word = reinterpret_cast<Word*>(address);
  const uint64_t most_ms = GetConfig().word_wait_ms;
  const auto begin = std::chrono::steady_clock::now();
  // A fault elsewhere ends the wait: nobody may be left who would write the word.
  for (Word seen = 0;;) {
    const bool there = Touch({{address, sizeof(Word)}},
                             [&] { seen = std::atomic_ref<Word>(*word).load(std::memory_order_acquire); });
    if (!there || IsSatisfied(seen, wanted, condition)) return;
    if (StickyError() != CUDA_SUCCESS) return;
    if (most_ms != 0 && std::chrono::steady_clock::now() - begin >= std::chrono::milliseconds(most_ms))
      return RaiseFault(CUDA_ERROR_LAUNCH_TIMEOUT,
                        "a wait for a word took longer than SOFTWARE_GPU_WORD_WAIT_MS allows");
    std::this_thread::sleep_for(kPollInterval);
  }
}

template <typename Word>
void WriteWord(uint64_t address, Word value) {
  if (StickyError() != CUDA_SUCCESS) return;  // behind a fault nothing happens any more
  Touch({{address, sizeof(Word), true}}, [&] {
    std::atomic_ref<Word>(*reinterpret_cast<Word*>(address)).store(value, std::memory_order_release);
  });
}

bool IsUsableWord(CUdeviceptr address, size_t bytes) {
  return address % bytes == 0 && IsAddressable(address, bytes);
}

// Makes what the operation does; 1 when it makes no sense.
CUresult MakeWait(CUdeviceptr address, uint64_t value, size_t bytes, unsigned flags,
                  std::function<void()>* run) {
  unsigned condition = flags & 3u;
  if ((flags & ~(3u | unsigned{CU_STREAM_WAIT_VALUE_FLUSH})) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CU_STREAM_WAIT_VALUE_FLUSH) != 0) return CUDA_ERROR_NOT_SUPPORTED;
  if (!IsUsableWord(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 4) {
    *run = [=] { WaitForWord<uint32_t>(address, static_cast<uint32_t>(value), condition); };
  } else {
    *run = [=] { WaitForWord<uint64_t>(address, value, condition); };
  }
  return CUDA_SUCCESS;
}

CUresult MakeWrite(CUdeviceptr address, uint64_t value, size_t bytes, unsigned flags,
                   std::function<void()>* run) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;  // NO_MEMORY_BARRIER is the older forms'
  if (!IsUsableWord(address, bytes)) return CUDA_ERROR_INVALID_VALUE;
  if (bytes == 4) {
    *run = [=] { WriteWord<uint32_t>(address, static_cast<uint32_t>(value)); };
  } else {
    *run = [=] { WriteWord<uint64_t>(address, value); };
  }
  return CUDA_SUCCESS;
}

CUresult MakeStep(const CUstreamBatchMemOpParams& operation, std::function<void()>* run) {
  switch (operation.operation) {
    case CU_STREAM_MEM_OP_WAIT_VALUE_32:
      return MakeWait(operation.waitValue.address, operation.waitValue.value, 4, operation.waitValue.flags,
                      run);
    case CU_STREAM_MEM_OP_WAIT_VALUE_64:
      return MakeWait(operation.waitValue.address, operation.waitValue.value64, 8, operation.waitValue.flags,
                      run);
    case CU_STREAM_MEM_OP_WRITE_VALUE_32:
      return MakeWrite(operation.writeValue.address, operation.writeValue.value, 4,
                       operation.writeValue.flags, run);
    case CU_STREAM_MEM_OP_WRITE_VALUE_64:
      return MakeWrite(operation.writeValue.address, operation.writeValue.value64, 8,
                       operation.writeValue.flags, run);
    case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
    case CU_STREAM_MEM_OP_BARRIER:
      *run = [] {};
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

template <typename Make>
CUresult SubmitStep(const char* function, CUstream handle, const Make& make) {
  return InContext(function, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (IsCaptureBroken(stream)) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    CUresult result = make(&operation.run);
    if (result != CUDA_SUCCESS) return MeetsCapture(stream) ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : result;
    return Submit(stream, std::move(operation));
  });
}

CUresult MakeSteps(unsigned count, const CUstreamBatchMemOpParams* operations, unsigned flags,
                   std::function<void()>* run) {
  constexpr unsigned kMaxOperations = 256;
  if (flags != 0 || count > kMaxOperations || (count != 0 && operations == nullptr))
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::function<void()>> steps(count);
  for (unsigned i = 0; i < count; ++i) {
    if (CUresult result = MakeStep(operations[i], &steps[i]); result != CUDA_SUCCESS) return result;
  }
  *run = [steps = std::move(steps)] {
    for (const auto& step : steps) step();
  };
  return CUDA_SUCCESS;
}

// The first forms are not supported, as by NVIDIA's driver unless its kernel module was told otherwise; a capture
// is what it looks at before.
CUresult RefuseFirstForm(const char* function, CUstream handle) {
  return InContext(function, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, handle);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    const CUresult refused = RefuseInCapture(stream);
    return refused != CUDA_SUCCESS ? refused : CUDA_ERROR_NOT_SUPPORTED;
  });
}

}  // namespace

CUresult MakeBatchOperation(const CUDA_BATCH_MEM_OP_NODE_PARAMS* parameters, Operation* operation) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUresult result = MakeSteps(parameters->count, parameters->paramArray, parameters->flags, &operation->run);
  if (result != CUDA_SUCCESS) return result;
  struct Kept {
    CUDA_BATCH_MEM_OP_NODE_PARAMS parameters;
    std::vector<CUstreamBatchMemOpParams> operations;
  };
  auto kept = std::make_shared<Kept>();
  kept->parameters = *parameters;
  kept->operations.assign(parameters->paramArray, parameters->paramArray + parameters->count);
  kept->parameters.paramArray = kept->operations.data();
  operation->type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
  operation->parameters = std::shared_ptr<const void>(kept, &kept->parameters);
  return CUDA_SUCCESS;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return SubmitStep(__func__, stream, [&](auto* run) { return MakeWait(addr, value, 4, flags, run); });
}

CUresult cuStreamWaitValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return SubmitStep(__func__, stream, [&](auto* run) { return MakeWait(addr, value, 8, flags, run); });
}

CUresult cuStreamWriteValue32_v2(CUstream stream, CUdeviceptr addr, cuuint32_t value, unsigned int flags) {
  return SubmitStep(__func__, stream, [&](auto* run) { return MakeWrite(addr, value, 4, flags, run); });
}

CUresult cuStreamWriteValue64_v2(CUstream stream, CUdeviceptr addr, cuuint64_t value, unsigned int flags) {
  return SubmitStep(__func__, stream, [&](auto* run) { return MakeWrite(addr, value, 8, flags, run); });
}

CUresult cuStreamBatchMemOp_v2(CUstream stream, unsigned int count, CUstreamBatchMemOpParams* paramArray,
                               unsigned int flags) {
  return SubmitStep(__func__, stream, [&](auto* run) { return MakeSteps(count, paramArray, flags, run); });
}

CUresult cuStreamWaitValue32(CUstream stream, CUdeviceptr, cuuint32_t, unsigned int) {
  return RefuseFirstForm(__func__, stream);
}

CUresult cuStreamWaitValue64(CUstream stream, CUdeviceptr, cuuint64_t, unsigned int) {
  return RefuseFirstForm(__func__, stream);
}

CUresult cuStreamWriteValue32(CUstream stream, CUdeviceptr, cuuint32_t, unsigned int) {
  return RefuseFirstForm(__func__, stream);
}

CUresult cuStreamWriteValue64(CUstream stream, CUdeviceptr, cuuint64_t, unsigned int) {
  return RefuseFirstForm(__func__, stream);
}

CUresult cuStreamBatchMemOp(CUstream stream, unsigned int, CUstreamBatchMemOpParams*, unsigned int) {
  return RefuseFirstForm(__func__, stream);
}

// Sparse arrays are not supported, but a capture is what NVIDIA's driver looks at first.
CUresult cuMemMapArrayAsync(CUarrayMapInfo*, unsigned int, CUstream stream) {
  return RefuseFirstForm(__func__, stream);
}

}  // extern "C"
