// SPDX-License-Identifier: Apache-2.0
// Launches of before CUDA 4 keep shape and parameters in the function. NVIDIA's driver checks neither the
// function nor where a parameter goes: an offset beyond its buffer writes to the worker's own memory. So
// these rows come here first.
#include "host_backend/worker/driver/legacy_launch.h"

#include <cstddef>

namespace causeway::host {
namespace {

// The driver's own function, for each of the rows.
void (*originals[static_cast<size_t>(Op::kCount)])();

bool Fits(CUfunction function, uint64_t offset, uint64_t bytes) {
  if (TheDriver().cuFuncGetParamInfo == nullptr) return false;  // nothing says where parameters end
  uint64_t end = 0;
  size_t at = 0, size = 0;
  for (size_t i = 0; TheDriver().cuFuncGetParamInfo(function, i, &at, &size) == CUDA_SUCCESS; ++i)
    end = at + size;
  return offset <= end && bytes <= end - offset;
}

template <Op op, class... Arguments>
CUresult Original(Arguments... arguments) {
  return reinterpret_cast<CUresult (*)(Arguments...)>(originals[static_cast<size_t>(op)])(arguments...);
}

// What needs a function, and no more.
template <Op op, class... Arguments>
CUresult WithFunction(CUfunction function, Arguments... arguments) {
  return function != nullptr ? Original<op>(function, arguments...) : CUDA_ERROR_INVALID_HANDLE;
}

template <Op op, class T>
CUresult SetWord(CUfunction function, int offset, T value) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset < 0 || !Fits(function, static_cast<uint64_t>(offset), sizeof value))
    return CUDA_ERROR_INVALID_VALUE;
  return Original<op>(function, offset, value);
}

CUresult SetBytes(CUfunction function, int offset, void* from, unsigned bytes) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset < 0 || !Fits(function, static_cast<uint64_t>(offset), bytes)) return CUDA_ERROR_INVALID_VALUE;
  return Original<Op::cuParamSetv>(function, offset, from, bytes);
}

CUresult SetSize(CUfunction function, unsigned bytes) {
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Fits(function, 0, bytes) ? Original<Op::cuParamSetSize>(function, bytes) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void GuardLegacyLaunches(Driver& driver) {
  const auto guard = [&driver](Op op, auto* checked) {
    auto& row = driver.row[static_cast<size_t>(op)];
    if (row == nullptr) return;
    originals[static_cast<size_t>(op)] = row;
    row = reinterpret_cast<void (*)()>(checked);
  };
  guard(Op::cuFuncSetBlockShape, &WithFunction<Op::cuFuncSetBlockShape, int, int, int>);
  guard(Op::cuFuncSetSharedSize, &WithFunction<Op::cuFuncSetSharedSize, unsigned>);
  guard(Op::cuParamSetSize, &SetSize);
  guard(Op::cuParamSeti, &SetWord<Op::cuParamSeti, unsigned>);
  guard(Op::cuParamSetf, &SetWord<Op::cuParamSetf, float>);
  guard(Op::cuParamSetv, &SetBytes);
  guard(Op::cuParamSetTexRef, &WithFunction<Op::cuParamSetTexRef, int, CUtexref>);
  guard(Op::cuLaunch, &WithFunction<Op::cuLaunch>);
  guard(Op::cuLaunchGrid, &WithFunction<Op::cuLaunchGrid, int, int>);
  guard(Op::cuLaunchGridAsync, &WithFunction<Op::cuLaunchGridAsync, int, int, CUstream>);
}

}  // namespace causeway::host
