// SPDX-License-Identifier: Apache-2.0
// The rows' types against NVML's own declarations, at compile time: as many parameters, each of the same
// width, and what pointers point at of the same size.
#define NVML_NO_UNVERSIONED_FUNC_DEFS
#include <nvml.h>

#include <cstdio>
#include <type_traits>

#include "ivshmem_ring/protocol/nvml_call.h"

namespace causeway::nvml {
namespace {

// What a direction says that its pointer points at; 0: as much as the caller states, or another version's
// struct.
template <class D>
constexpr size_t kPointee = 0;
template <class T>
constexpr size_t kPointee<Out<T>> = sizeof(T);
template <uint32_t bytes>
constexpr size_t kPointee<OutBytes<bytes>> = bytes;
template <>
constexpr size_t kPointee<InOutCount> = 4;
template <size_t I, uint32_t size>
constexpr size_t kPointee<OutList<I, size>> = size;
template <size_t I, uint32_t size>
constexpr size_t kPointee<InOutArray<I, size>> = size;
template <uint32_t... versions>
constexpr bool Knows(const Versioned<versions...>*, size_t bytes) {
  return (((versions & 0xffffff) == bytes) || ...);
}
constexpr bool Knows(const void*, size_t) {
  return true;
}

template <class D, class P>
constexpr bool Fits() {
  if (std::is_pointer_v<P> != std::is_pointer_v<typename D::P> || sizeof(P) != sizeof(typename D::P))
    return false;
  if constexpr (std::is_pointer_v<P> && !std::is_same_v<D, Device>) {
    constexpr size_t bytes = sizeof(std::remove_pointer_t<P>);
    return (kPointee<D> == 0 || kPointee<D> == bytes) && Knows(static_cast<const D*>(nullptr), bytes);
  }
  return true;
}

template <class Shape, class Function>
struct Same;
template <class... Q, class... D, class... P>
struct Same<causeway::Shape<Return (*)(Q...), D...>, nvmlReturn_t (*)(P...)> {
  static_assert(sizeof...(D) == sizeof...(P), "as many parameters as NVML declares");
  static constexpr bool kValue = (Fits<D, P>() && ...);
};

// Older versions of a struct keep their size; the header has only the newest under these names.
constexpr Op kOlderStructs[] = {Op::nvmlDeviceGetPciInfo, Op::nvmlDeviceGetPciInfo_v2,
                                Op::nvmlDeviceGetNvLinkRemotePciInfo};
constexpr bool IsOlder(Op op) {
  for (const Op older : kOlderStructs) {
    if (older == op) return true;
  }
  return false;
}

// Stands in where the header does not declare the name.
[[maybe_unused]] nvmlReturn_t nvmlDeviceGetRemappedRows_v2(nvmlDevice_t, uint32_t (*)[6]) {
  return NVML_SUCCESS;
}

#define NVML_CALL(fn, ...)                                                        \
  static_assert(IsOlder(Op::fn) || Same<RowShape<Op::fn>, decltype(&fn)>::kValue, \
                "check the row "                                                  \
                "of " #fn);
#define NVML_GUEST NVML_CALL
#include "ivshmem_ring/nvml_calls.def"

static_assert(sizeof(Memory) == sizeof(nvmlMemory_t) && sizeof(MemoryV2) == sizeof(nvmlMemory_v2_t));
static_assert(sizeof(ProcessV1) == sizeof(nvmlProcessInfo_v1_t) &&
              sizeof(ProcessV2) == sizeof(nvmlProcessInfo_t));
static_assert(sizeof(ProcessDetail) == sizeof(nvmlProcessDetail_v1_t));
static_assert(sizeof(ProcessDetailList) == sizeof(nvmlProcessDetailList_v1_t));
static_assert(sizeof(PciInfo) == sizeof(nvmlPciInfo_t) && sizeof(Uuid) == sizeof(nvmlUUID_v1_t));
static_assert(sizeof(ProcessSample) == sizeof(nvmlProcessUtilizationSample_t));
static_assert(sizeof(FieldValue) == sizeof(nvmlFieldValue_t));

}  // namespace
}  // namespace causeway::nvml

int main() {
  std::puts("every row agrees with nvml.h");
}
