// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/legacy_launch.h"

#include "host_backend/worker/driver/guard.h"

namespace causeway::host {
namespace {

using Checked = Guards<struct ChecksLaunches>;

bool Fits(CUfunction function, uint64_t offset, uint64_t bytes) {
  if (!Has(TheDriver().cuFuncGetParamInfo)) return false;  // nothing says where parameters end
  uint64_t end = 0;
  size_t at = 0, size = 0;
  for (size_t i = 0; TheDriver().cuFuncGetParamInfo(function, i, &at, &size) == CUDA_SUCCESS; ++i)
    end = at + size;
  return offset <= end && bytes <= end - offset;
}

// What needs a function, and no more.
template <auto entry, class... Arguments>
CUresult WithFunction(CUfunction function, Arguments... arguments) {
  return function != nullptr ? Checked::own<entry>(function, arguments...) : CUDA_ERROR_INVALID_HANDLE;
}

template <auto entry, class T>
CUresult SetWord(CUfunction function, int offset, T value) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset < 0 || !Fits(function, static_cast<uint64_t>(offset), sizeof value))
    return CUDA_ERROR_INVALID_VALUE;
  return Checked::own<entry>(function, offset, value);
}

CUresult SetBytes(CUfunction function, int offset, void* from, unsigned bytes) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset < 0 || !Fits(function, static_cast<uint64_t>(offset), bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Checked::own<&Driver::cuParamSetv>(function, offset, from, bytes);
}

CUresult SetSize(CUfunction function, unsigned bytes) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Fits(function, 0, bytes) ? Checked::own<&Driver::cuParamSetSize>(function, bytes)
                                  : CUDA_ERROR_INVALID_VALUE;
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
