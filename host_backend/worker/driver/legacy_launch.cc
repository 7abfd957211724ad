// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/legacy_launch.h"

#include <algorithm>

#include "host_backend/worker/driver/guard.h"
#include "host_backend/worker/driver/logs.h"
#include "ivshmem_ring/messages/code_messages.h"

namespace causeway::host {
namespace {

using Checked = Guards<struct ChecksLaunches>;

// The most bytes of parameters that launches of this form have.
constexpr uint64_t kMostBytes = 4096;

// How many of `bytes` from `offset` on lie in the function's parameters. The driver looks at no end and writes
// behind its own memory in the end, so what lies beyond the parameters never reaches it: a kernel does not see that anyway,
// and to the program the answer is the driver's, success.
CUresult PartInside(CUfunction function, int64_t offset, uint64_t bytes, unsigned* inside,
                    uint64_t least = kMostBytes) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  CUcontext current = nullptr;
  if (TheDriver().cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == nullptr)
    return CUDA_ERROR_INVALID_CONTEXT;
  if (offset < 0 || !Has(TheDriver().cuFuncGetParamInfo)) return CUDA_ERROR_INVALID_VALUE;  // no end is known
  const OwnCalls own_calls;
  uint64_t end = 0;
  size_t at = 0, size = 0;
  for (size_t i = 0; TheDriver().cuFuncGetParamInfo(function, i, &at, &size) == CUDA_SUCCESS; ++i)
    end = at + size;
  const auto from = static_cast<uint64_t>(offset);
  const uint64_t most = std::max(end, least);
  if (from > most || bytes > most - from) return CUDA_ERROR_INVALID_VALUE;
  *inside = static_cast<unsigned>(from < end ? std::min(bytes, end - from) : 0);
  return CUDA_SUCCESS;
}

// What needs a function, and no more.
template <auto entry, class... Arguments>
CUresult WithFunction(CUfunction function, Arguments... arguments) {
  return function != nullptr ? Checked::own<entry>(function, arguments...) : CUDA_ERROR_INVALID_HANDLE;
}

template <auto entry, class T>
CUresult SetWord(CUfunction function, int offset, T value) {
  unsigned inside = 0;
  if (const CUresult result = PartInside(function, offset, sizeof value, &inside)) return result;
  if (inside == sizeof value) return Checked::own<entry>(function, offset, value);
  return inside != 0 ? Checked::own<&Driver::cuParamSetv>(function, offset, &value, inside) : CUDA_SUCCESS;
}

CUresult SetBytes(CUfunction function, int offset, void* from, unsigned bytes) {
  unsigned inside = 0;
  if (const CUresult result = PartInside(function, offset, bytes, &inside)) return result;
  if (inside == 0) return CUDA_SUCCESS;
  return Checked::own<&Driver::cuParamSetv>(function, offset, from, inside);
}

CUresult SetSize(CUfunction function, unsigned bytes) {
  unsigned inside = 0;
  if (const CUresult result = PartInside(function, 0, bytes, &inside, kMaxLaunchParameterBytes))
    return result;
  return Checked::own<&Driver::cuParamSetSize>(function, inside);
}

}  // namespace

void GuardLegacyLaunches(Driver& driver) {
  Checked::Put<&Driver::cuFuncSetBlockShape>(driver, &WithFunction<&Driver::cuFuncSetBlockShape>);
  Checked::Put<&Driver::cuFuncSetSharedSize>(driver, &WithFunction<&Driver::cuFuncSetSharedSize>);
  Checked::Put<&Driver::cuParamSetSize>(driver, &SetSize);
  Checked::Put<&Driver::cuParamSeti>(driver, &SetWord<&Driver::cuParamSeti>);
  Checked::Put<&Driver::cuParamSetf>(driver, &SetWord<&Driver::cuParamSetf>);
  Checked::Put<&Driver::cuParamSetv>(driver, &SetBytes);
  Checked::Put<&Driver::cuParamSetTexRef>(driver, &WithFunction<&Driver::cuParamSetTexRef>);
  Checked::Put<&Driver::cuLaunch>(driver, &WithFunction<&Driver::cuLaunch>);
  Checked::Put<&Driver::cuLaunchGrid>(driver, &WithFunction<&Driver::cuLaunchGrid>);
  Checked::Put<&Driver::cuLaunchGridAsync>(driver, &WithFunction<&Driver::cuLaunchGridAsync>);
}

}  // namespace causeway::host
