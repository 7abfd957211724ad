// SPDX-License-Identifier: Apache-2.0
// A call that is ready to run: the values of its parameters and what they point to.
#pragma once
#include "tests/differential/executor.h"

namespace causeway::differential {

struct Executor::Ready {
  static constexpr size_t kScratchBytes = 768;  // behind one pointer
  static_assert(kScratchBytes >= kBuiltBytes);

  alignas(64) std::byte slots[kMostParameters][kSlotBytes];
  alignas(64) std::byte scratch[kMostParameters][kScratchBytes];
  alignas(64) std::byte behind[8192];  // what structs point to
  uint64_t stream_key = kLegacyKey;
  Object* objects[kMostParameters];  // that the parameters name
  Region* regions[kMostParameters];
  CUresult result = CUDA_SUCCESS;

  // Whether one of the call's numbers says that all of the list was handed over.
  bool Handed(const Call& call, int count) const {
    for (size_t i = 0; i < call.row->parameters.size(); ++i) {
      if (call.arguments[i].kind == ArgumentKind::kNumber &&
          call.arguments[i].number == static_cast<uint64_t>(count))
        return true;
    }
    return false;
  }
  uint64_t Word(size_t parameter, size_t element = 0) const {
    uint64_t word;
    std::memcpy(&word, scratch[parameter] + 8 * element, 8);
    return word;
  }
};

}  // namespace causeway::differential
