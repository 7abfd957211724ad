// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress: a hash table over proc_versions.def, built by the compiler. A process with five copies of
// the CUDA runtime looks up more than 2,000 names before it does anything else.
#define __CUDA_API_VERSION_INTERNAL  // declares every ABI of every function, without renaming any

#include "guest_lib/api/proc_address.h"

#include <cudaProfiler.h>
#include "ivshmem_ring/protocol/driver_api.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>

namespace causeway::guest {
namespace {

struct Row {
  const char* name;
  int version;
  int per_thread_version;  // kNever where the row has no per-thread variant
};

constexpr int kNever = std::numeric_limits<int>::max();

constexpr Row kRows[] = {
#define ENTRY(name, version, symbol) {#name, version, kNever},
#define PER_THREAD(name, version, symbol, per_thread_version, suffix) {#name, version, per_thread_version},
#include "guest_lib/api/proc_versions.def"
#undef ENTRY
#undef PER_THREAD
};
constexpr size_t kRowCount = std::size(kRows);

struct Addresses {
  void* plain;
  void* per_thread;
};

// Same order as kRows. Apart, because an address as void* is no constant expression; the linker fills it.
const Addresses kAddresses[] = {
#define ENTRY(name, version, symbol) {reinterpret_cast<void*>(&symbol), nullptr},
#define PER_THREAD(name, version, symbol, per_thread_version, suffix) \
  {reinterpret_cast<void*>(&symbol), reinterpret_cast<void*>(&symbol##suffix)},
#include "guest_lib/api/proc_versions.def"
#undef ENTRY
#undef PER_THREAD
};
static_assert(std::size(kAddresses) == kRowCount);

constexpr bool RowsAreOrdered() {
  for (size_t i = 1; i < kRowCount; ++i) {
    const int order = std::string_view(kRows[i - 1].name).compare(kRows[i].name);
    if (order > 0 || (order == 0 && kRows[i - 1].version >= kRows[i].version)) return false;
  }
  return true;
}
static_assert(RowsAreOrdered(), "proc_versions.def: names in ASCII order, the rows of one name oldest first");

// FNV-1a.
constexpr uint32_t HashName(const char* name) {
  uint32_t hash = 2166136261u;
  for (; *name != '\0'; ++name) hash = (hash ^ static_cast<unsigned char>(*name)) * 16777619u;
  return hash;
}

// Open addressing; a bucket holds 1 + the first row of a name, 0 when empty. Less than half full, so a miss
// ends soon.
constexpr size_t kBucketCount = 2048;
static_assert(kRowCount * 2 < kBucketCount && kRowCount < std::numeric_limits<uint16_t>::max());

constexpr std::array<uint16_t, kBucketCount> BuildBuckets() {
  std::array<uint16_t, kBucketCount> buckets{};
  for (size_t row = 0; row < kRowCount; ++row) {
    if (row > 0 && std::string_view(kRows[row - 1].name) == kRows[row].name) continue;
    size_t bucket = HashName(kRows[row].name) % kBucketCount;
    while (buckets[bucket] != 0) bucket = (bucket + 1) % kBucketCount;
    buckets[bucket] = static_cast<uint16_t>(row + 1);
  }
  return buckets;
}
constexpr std::array<uint16_t, kBucketCount> kBuckets = BuildBuckets();

// The first row of the name, or kRowCount.
size_t FirstRow(const char* name) {
  for (size_t bucket = HashName(name) % kBucketCount; kBuckets[bucket] != 0;
       bucket = (bucket + 1) % kBucketCount) {
    const size_t row = kBuckets[bucket] - 1u;
    if (std::strcmp(kRows[row].name, name) == 0) return row;
  }
  return kRowCount;
}

}  // namespace

bool IsValidProcAddressQuery(int version, cuuint64_t flags) {
  constexpr cuuint64_t kKnownFlags =
      CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  return version <= kNewestProcAddressVersion && (flags & ~kKnownFlags) == 0;
}

ProcAddress FindProcAddress(const char* name, int version, cuuint64_t flags) {
  const size_t first = FirstRow(name);
  if (first == kRowCount) return {nullptr, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND};

  // Measured: the driver compares versions without sign, so -1 gets the newest.
  const int limit = version < 0 ? kNever - 1 : version;
  void* plain = nullptr;
  void* per_thread = nullptr;
  bool has_per_thread = false;
  for (size_t row = first; row < kRowCount; ++row) {
    if (row != first && std::strcmp(kRows[row].name, kRows[first].name) != 0) break;
    if (kRows[row].version <= limit) plain = kAddresses[row].plain;
    if (kRows[row].per_thread_version == kNever) continue;
    has_per_thread = true;
    if (kRows[row].per_thread_version <= limit) per_thread = kAddresses[row].per_thread;
  }
  // A name with per-thread variants never falls back to the legacy one when those are asked for: stream 0
  // would silently mean another stream.
  const bool wants_per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
  void* const address = wants_per_thread && has_per_thread ? per_thread : plain;
  if (address == nullptr) return {nullptr, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT};
  return {address, CU_GET_PROC_ADDRESS_SUCCESS};
}

}  // namespace causeway::guest

using causeway::guest::FindProcAddress;
using causeway::guest::IsValidProcAddressQuery;
using causeway::guest::ProcAddress;

extern "C" {

// The form of CUDA 11.3: an error for a missing name, *pfn left alone.
CUresult cuGetProcAddress(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsValidProcAddressQuery(cudaVersion, flags)) return CUDA_ERROR_INVALID_VALUE;
  const ProcAddress found = FindProcAddress(symbol, cudaVersion, flags);
  if (found.status != CU_GET_PROC_ADDRESS_SUCCESS) return CUDA_ERROR_NOT_FOUND;
  *pfn = found.address;
  return CUDA_SUCCESS;
}

// The form of CUDA 12.0: a missing name is a success with a null address and, where asked for, the reason.
CUresult cuGetProcAddress_v2(const char* symbol, void** pfn, int cudaVersion, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* symbolStatus) {
  if (symbol == nullptr || pfn == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (!IsValidProcAddressQuery(cudaVersion, flags)) return CUDA_ERROR_INVALID_VALUE;
  const ProcAddress found = FindProcAddress(symbol, cudaVersion, flags);
  *pfn = found.address;
  if (symbolStatus != nullptr) *symbolStatus = found.status;
  return CUDA_SUCCESS;
}

}  // extern "C"
