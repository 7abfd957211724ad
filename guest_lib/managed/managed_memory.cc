// SPDX-License-Identifier: Apache-2.0
// Managed memory has two forms. In its coherent form it lies in the shared region at one address for both
// processors, and every access of either is seen by the other at once, also while a kernel runs. Nothing
// migrates, so prefetches and advice have nothing to move; they are checked as natively, and what a program
// can ask back is remembered here by range.
//
// In its migrating form it is the driver's own (guest_lib/managed/pager.h): the driver moves it, takes advice
// and answers questions, and both processors see each other's writes in order, but later while a kernel runs.
#include "guest_lib/managed/managed_memory.h"

#include <stdlib.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "guest_lib/addresses/region_memory.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/page_watch/page_watch.h"
#include "guest_lib/process/lock_order.h"
#include "guest_lib/process/log.h"
#include "guest_lib/stream/capture_rule.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/managed_messages.h"
#include "ivshmem_ring/messages/registration.h"

namespace causeway::guest {
namespace {

struct Location {
  CUmemLocationType type = CU_MEM_LOCATION_TYPE_INVALID;
  int id = CU_DEVICE_INVALID;
  bool operator==(const Location&) const = default;
};

// What was said of one range; ranges that nothing was said of have none.
struct Advice {
  uint64_t end = 0;
  bool read_mostly = false;
  uint64_t accessed_by = 0;  // bit per device; the top bit is the CPU
  Location preferred, prefetched;
};
constexpr uint32_t kCpuBit = 63;

Mutex<Lock::kAdvice> advice_mutex;
auto& advices = *new std::map<uint64_t, Advice>;  // by first byte; never destroyed

// Cuts the range that holds `at` in two, so that one begins there.
void Cut(uint64_t at) {
  auto next = advices.upper_bound(at);
  if (next == advices.begin()) return;
  --next;
  if (next->first == at || next->second.end <= at) return;
  advices[at] = next->second;
  next->second.end = at;
}

// Calls `change` for every piece of [begin, end), making those that are missing.
template <class Change>
void ForEachPiece(uint64_t begin, uint64_t end, Change change) {
  Cut(begin);
  Cut(end);
  for (uint64_t at = begin; at < end;) {
    auto next = advices.lower_bound(at);
    if (next == advices.end() || next->first > at) {
      const uint64_t stop = next == advices.end() ? end : std::min(end, next->first);
      next = advices.emplace(at, Advice{}).first;
      next->second.end = stop;
    }
    change(next->second);
    at = next->second.end;
  }
}

void ForgetAdvice(uint64_t begin, uint64_t end) {
  const std::lock_guard lock(advice_mutex);
  Cut(begin);
  Cut(end);
  advices.erase(advices.lower_bound(begin), advices.lower_bound(end));
}

bool IsMigrating(CUdeviceptr address) {
  HostAllocation allocation;
  return FindMigrating(address, &allocation, true) && allocation.kind == HostKind::kManaged;
}

// The range as the driver sees it: whole pages, of one managed allocation.
CUresult ManagedRange(CUdeviceptr address, size_t bytes, PageRange* range) {
  if (const CUresult result = NeedContext()) return result;
  if (const CUresult sticky = Session::Made().sticky()) return sticky;
  HostAllocation allocation;
  if (bytes == 0 || !FindManaged(address, &allocation) ||
      bytes > allocation.bytes - (address - allocation.address)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  range->begin = std::max(PageFloor(address), allocation.address);
  range->end = std::min(PageCeiling(address + bytes), allocation.address + allocation.bytes);
  return CUDA_SUCCESS;
}

CUresult CheckStream(CUstream stream) {
  return IsDefaultStream(stream) || Find(stream) != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

// As it is remembered: the current node becomes a node.
CUresult CheckLocation(const CUmemLocation& given, Location* location) {
  switch (given.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
      *location = {given.type, given.id};
      return IsDevice(given.id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST:
      *location = {given.type, CU_DEVICE_CPU};
      return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      *location = {given.type, given.id};
      return given.id >= 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: {
      unsigned cpu = 0, node = 0;
      getcpu(&cpu, &node);
      *location = {CU_MEM_LOCATION_TYPE_HOST_NUMA, static_cast<int>(node)};
      return CUDA_SUCCESS;
    }
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

CUmemLocation OfDevice(CUdevice device) {
  CUmemLocation location{};
  location.type = device == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
  location.id = device;
  return location;
}

// Of migrating memory.
CUresult TellDriver(Op op, CUdeviceptr address, size_t bytes, const CUmemLocation& where, uint32_t advice,
                    CUstream stream) {
  Remote remote;
  PendingCall call = remote.StartCall(op);
  Writer& w = call.writer();
  w.Put(ManagedHintBody{address, bytes, static_cast<uint32_t>(where.type), where.id, advice, 0,
                        remote.ToWire(stream, w)});
  return call.Finish();
}

CUresult Prefetch(CUdeviceptr address, size_t bytes, const CUmemLocation& to, CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (const CUresult result = CaptureRefusal(CaptureRule::kOutsideCaptures, stream)) return result;
  PageRange range{};
  Location location;
  if (IsMigrating(address)) {
    if (const CUresult result = CheckLocation(to, &location)) return result;
    if (const CUresult result = CheckStream(stream)) return result;
    return TellDriver(Op::cuMemPrefetchAsync_v2, address, bytes, to, 0, stream);
  }
  if (const CUresult result = ManagedRange(address, bytes, &range)) return result;
  if (const CUresult result = CheckLocation(to, &location)) return result;
  if (const CUresult result = CheckStream(stream)) return result;
  const std::lock_guard lock(advice_mutex);
  ForEachPiece(range.begin, range.end, [&](Advice& advice) { advice.prefetched = location; });
  return CUDA_SUCCESS;
}

bool NamesProcessor(CUmem_advise advice) {
  return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
         advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

// Advice that names no processor needs a place all the same, of a kind that exists.
bool IsAdvice(CUmem_advise advice, const CUmemLocation& given) {
  Location location;
  const bool is_known = advice >= CU_MEM_ADVISE_SET_READ_MOSTLY && advice <= CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  const bool is_place =
      given.type == CU_MEM_LOCATION_TYPE_DEVICE || given.type == CU_MEM_LOCATION_TYPE_HOST ||
      given.type == CU_MEM_LOCATION_TYPE_HOST_NUMA || given.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  return is_known && is_place && (!NamesProcessor(advice) || CheckLocation(given, &location) == CUDA_SUCCESS);
}

CUresult Advise(CUdeviceptr address, size_t bytes, CUmem_advise advice, const CUmemLocation& given) {
  PageRange range{};
  Location location;
  if (const CUresult result = NeedContext()) return result;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  if (IsMigrating(address)) {
    if (NamesProcessor(advice)) {
      if (const CUresult result = CheckLocation(given, &location)) return result;
    }
    return TellDriver(Op::cuMemAdvise_v2, address, bytes, given, static_cast<uint32_t>(advice), nullptr);
  }
  if (const CUresult result = ManagedRange(address, bytes, &range)) return result;
  if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
    return CUDA_ERROR_INVALID_VALUE;
  if (NamesProcessor(advice)) {
    if (const CUresult result = CheckLocation(given, &location)) return result;
  }
  const bool accessed = advice == CU_MEM_ADVISE_SET_ACCESSED_BY || advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
  if (accessed && location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA) return CUDA_ERROR_INVALID_VALUE;
  const uint64_t processor =
      uint64_t{1} << (location.type == CU_MEM_LOCATION_TYPE_DEVICE ? static_cast<uint32_t>(location.id)
                                                                   : kCpuBit);
  const std::lock_guard lock(advice_mutex);
  ForEachPiece(range.begin, range.end, [&](Advice& piece) {
    switch (advice) {
      case CU_MEM_ADVISE_SET_READ_MOSTLY:
      case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
        piece.read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
        break;
      case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
      case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
        piece.preferred = advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION ? location : Location{};
        break;
      default:
        piece.accessed_by = advice == CU_MEM_ADVISE_SET_ACCESSED_BY ? piece.accessed_by | processor
                                                                    : piece.accessed_by & ~processor;
    }
  });
  return CUDA_SUCCESS;
}

// What holds for all of the range.
Advice Common(PageRange range) {
  const std::lock_guard lock(advice_mutex);
  Advice common;
  bool first = true;
  ForEachPiece(range.begin, range.end, [&](const Advice& piece) {
    if (first) common = piece;
    first = false;
    common.read_mostly = common.read_mostly && piece.read_mostly;
    common.accessed_by &= piece.accessed_by;
    if (common.preferred != piece.preferred) common.preferred = {};
    if (common.prefetched != piece.prefetched) common.prefetched = {};
  });
  return common;
}

// Of the forms that know devices and the CPU only.
int Number(const Location& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  return location.type == CU_MEM_LOCATION_TYPE_INVALID ? CU_DEVICE_INVALID : CU_DEVICE_CPU;
}

CUresult Answer(int* data, size_t bytes, CUmem_range_attribute attribute, const Advice& advice) {
  if (data == nullptr || bytes == 0 || bytes % sizeof *data != 0) return CUDA_ERROR_INVALID_VALUE;
  if (attribute == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY) {
    size_t count = 0;
    const size_t room = bytes / sizeof *data;
    for (uint32_t bit = 0; bit <= kCpuBit && count < room; ++bit) {
      if ((advice.accessed_by >> bit & 1) != 0)
        data[count++] = bit == kCpuBit ? CU_DEVICE_CPU : static_cast<int>(bit);
    }
    std::fill(data + count, data + room, static_cast<int>(CU_DEVICE_INVALID));
    return CUDA_SUCCESS;
  }
  if (bytes != sizeof *data) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
      *data = advice.read_mostly ? 1 : 0;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
      *data = Number(advice.preferred);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
      *data = Number(advice.prefetched);
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
      *data = advice.preferred.type;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
      *data = advice.preferred.id;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
      *data = advice.prefetched.type;
      return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
      *data = advice.prefetched.id;
      return CUDA_SUCCESS;
    default:
      return CUDA_ERROR_INVALID_VALUE;
  }
}

// Of migrating memory: the driver's answer.
CUresult AskDriver(void* data, size_t data_bytes, CUmem_range_attribute attribute, CUdeviceptr address,
                   size_t bytes) {
  if (const CUresult result = NeedContext()) return result;
  if (data == nullptr || data_bytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t asked = std::min<size_t>(data_bytes, kMaxRangeAttributeBytes);  // longer lists end in none
  PendingCall call(Op::cuMemRangeGetAttribute);
  call.writer().Put(
      RangeAttributeBody{address, bytes, static_cast<uint32_t>(attribute), static_cast<uint32_t>(asked)});
  if (const CUresult result = call.Finish()) return result;
  const std::byte* answer = call.reader().Take(asked);
  if (answer == nullptr) return CUDA_ERROR_UNKNOWN;
  std::copy_n(answer, asked, static_cast<std::byte*>(data));
  std::fill_n(static_cast<int*>(data) + asked / sizeof(int), (data_bytes - asked) / sizeof(int),
              static_cast<int>(CU_DEVICE_INVALID));
  return CUDA_SUCCESS;
}

// ---- batches ----

struct Batch {
  const CUdeviceptr* at;
  const size_t* bytes;
  size_t count;
  unsigned long long flags;
  CUstream stream;
};

// In the order in which the driver looks: the flags, the stream and whether it captures, the arrays.
CUresult BeginBatch(const Batch& batch) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (batch.flags != 0 || batch.stream == nullptr || batch.stream == CU_STREAM_LEGACY)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedContext()) return result;
  return CaptureRefusal(CaptureRule::kOutsideCaptures, batch.stream);
}

CUresult CheckArrays(const Batch& batch) {
  if (batch.at == nullptr || batch.bytes == nullptr || batch.count == 0) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckStream(batch.stream)) return result;
  for (size_t i = 0; i < batch.count; ++i) {
    PageRange range{};
    if (const CUresult result = ManagedRange(batch.at[i], batch.bytes[i], &range)) return result;
  }
  return CUDA_SUCCESS;
}

CUresult PrefetchBatch(const Batch& batch, const CUmemLocation* locations, const size_t* first,
                       size_t count) {
  const WithContextOf scope(batch.stream);
  if (const CUresult result = BeginBatch(batch)) return result;
  if (locations == nullptr || first == nullptr || count == 0 || count > batch.count)
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = CheckArrays(batch)) return result;
  for (size_t i = 0; i < count; ++i) {
    Location location;
    if (i == 0 ? first[i] != 0 : first[i] <= first[i - 1]) return CUDA_ERROR_INVALID_VALUE;
    if (first[i] >= batch.count) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult result = CheckLocation(locations[i], &location)) return result;
  }
  size_t at = 0;
  for (size_t i = 0; i < batch.count; ++i) {
    if (at + 1 < count && first[at + 1] == i) ++at;
    if (const CUresult result = Prefetch(batch.at[i], batch.bytes[i], locations[at], batch.stream))
      return result;
  }
  return CUDA_SUCCESS;
}

// ---- allocations ----

// CAUSEWAY_MANAGED=coherent, migrating, or auto: migrating where system calls may touch pages that are away.
// Over TCP nothing is shared, so all of it migrates.
constexpr std::string_view kDefaultForm = "auto";

bool WantsMigrating() {
  static const bool wanted = [] {
    const char* value = getenv("CAUSEWAY_MANAGED");
    std::string_view form = value != nullptr ? value : kDefaultForm;
    if (form != "coherent" && form != "migrating" && form != "auto") {
      form = kDefaultForm;
      Complain("CAUSEWAY_MANAGED is none of auto, coherent and migrating: managed memory will be " +
               std::string(form));
    }
    return form == "migrating" || (form == "auto" && PageWatch::Get().serves_system_calls());
  }();
  return wanted;
}

// Whether the program may touch managed memory while the device uses some.
bool IsConcurrent() {
  constexpr auto kWanted = CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
  const auto device = static_cast<size_t>(ContextOf(CurrentContextObject()).device);
  const DeviceDescription& description = Session::Made().devices()[device];
  return description.attribute_result[kWanted] == CUDA_SUCCESS && description.attribute[kWanted] != 0;
}

CUresult AllocateMigrating(CUdeviceptr* address, size_t bytes, unsigned flags) {
  CUdeviceptr made = 0;
  if (const CUresult result = Wait<Op::cuMemAllocManaged>(&made, bytes, flags)) return result;
  HostAllocation allocation{.address = made, .bytes = bytes, .kind = HostKind::kManaged, .flags = flags};
  allocation.context = CurrentContextObject();
  allocation.id = NextId();
  allocation.device_address = made;
  const CUresult result = AddMigrating(allocation, 0, true);
  if (result != CUDA_SUCCESS) {
    Wait<Op::cuMemFree_v2>(made);
    return result;
  }
  *address = made;
  return CUDA_SUCCESS;
}

CUresult AllocateCoherent(CUdeviceptr* address, size_t bytes, unsigned flags) {
  void* made = nullptr;
  const CUresult result = Session::Made().memory().Allocate(bytes, HostKind::kManaged, flags, &made);
  if (result == CUDA_SUCCESS) *address = reinterpret_cast<CUdeviceptr>(made);
  return result;
}

// The pages go first: afterwards the address may be another thread's.
CUresult FreeMigrating(const HostAllocation& allocation) {
  GiveBackManagedPages();  // a kernel that the call waits for may wait for what is in them
  ForgetMigrating(allocation.address);
  const CUresult result = Wait<Op::cuMemFree_v2>(allocation.address);
  if (result != CUDA_SUCCESS) AddMigrating(allocation, 0, false);
  return result;
}

}  // namespace

bool FindManaged(uint64_t address, HostAllocation* allocation) {
  Session* session = Session::Get();
  if (session == nullptr) return false;
  const bool found = session->memory().Find(address, allocation) || FindMigrating(address, allocation, false);
  return found && allocation->kind == HostKind::kManaged;
}

CUresult FreeManaged(const HostAllocation& allocation) {
  if (IsMigrating(allocation.address)) return FreeMigrating(allocation);
  // As cuMemFree of any memory, this waits for the whole device.
  if (const CUresult result = DrainDevice()) return result;
  ForgetAdvice(allocation.address, allocation.address + allocation.bytes);
  const bool freed = Session::Made().memory().Free(reinterpret_cast<void*>(allocation.address));
  return freed ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuMemAllocManaged(CUdeviceptr* address, size_t bytes, unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (address == nullptr || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST))
    return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult result = NeedContext()) return result;
  Session& session = Session::Made();
  if (const CUresult sticky = session.sticky()) return sticky;
  if (const CUresult unsafe = CheckUnsafeCall()) return unsafe;
  const bool shares = session.transport().shares_memory();
  // What the CPU uses, and devices that let only one processor in at a time, are better served coherently.
  const bool may_migrate = !shares || (flags == CU_MEM_ATTACH_GLOBAL && IsConcurrent());
  if (may_migrate && (!shares || WantsMigrating())) {
    const CUresult result = AllocateMigrating(address, bytes, flags);
    if (result != CUDA_ERROR_NOT_SUPPORTED || !shares) return result;
  }
  const CUresult result = AllocateCoherent(address, bytes, flags);
  if (result != CUDA_ERROR_OUT_OF_MEMORY || !may_migrate || WantsMigrating()) return result;
  // Natively there may be more of it than either processor has memory, so not only as much as the region has.
  Explain("managed memory that has no room in the region migrates");
  const CUresult migrates = AllocateMigrating(address, bytes, flags);
  return migrates == CUDA_ERROR_NOT_SUPPORTED ? result : migrates;
}

CUresult cuMemPrefetchAsync(CUdeviceptr address, size_t bytes, CUdevice device, CUstream stream) {
  return Prefetch(address, bytes, OfDevice(device), stream);
}
CUresult cuMemPrefetchAsync_v2(CUdeviceptr address, size_t bytes, CUmemLocation location, unsigned int flags,
                               CUstream stream) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  // A place that is none is looked at before captures.
  const bool is_place = location.type != CU_MEM_LOCATION_TYPE_INVALID;
  return flags == 0 && is_place ? Prefetch(address, bytes, location, stream) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuMemAdvise(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUdevice device) {
  return Advise(address, bytes, advice, OfDevice(device));
}
CUresult cuMemAdvise_v2(CUdeviceptr address, size_t bytes, CUmem_advise advice, CUmemLocation location) {
  if (const CUresult result = NeedContext()) return result;
  // The driver looks at the advice and the place before captures, as was seen on an H200.
  if (!IsAdvice(advice, location)) return CUDA_ERROR_INVALID_VALUE;
  return Advise(address, bytes, advice, location);
}

CUresult cuMemRangeGetAttribute(void* data, size_t data_bytes, CUmem_range_attribute attribute,
                                CUdeviceptr address, size_t bytes) {
  PageRange range{};
  if (IsMigrating(address)) return AskDriver(data, data_bytes, attribute, address, bytes);
  if (const CUresult result = ManagedRange(address, bytes, &range)) return result;
  return Answer(static_cast<int*>(data), data_bytes, attribute, Common(range));
}
CUresult cuMemRangeGetAttributes(void** data, size_t* data_bytes, CUmem_range_attribute* attributes,
                                 size_t count, CUdeviceptr address, size_t bytes) {
  PageRange range{};
  if (const CUresult result = NeedContext()) return result;
  const bool migrating = IsMigrating(address);
  if (!migrating) {
    if (const CUresult result = ManagedRange(address, bytes, &range)) return result;
  }
  if (data == nullptr || data_bytes == nullptr || attributes == nullptr || count == 0)
    return CUDA_ERROR_INVALID_VALUE;
  for (size_t i = 0; migrating && i < count; ++i) {
    const CUresult result = AskDriver(data[i], data_bytes[i], attributes[i], address, bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  if (migrating) return CUDA_SUCCESS;
  const Advice advice = Common(range);
  for (size_t i = 0; i < count; ++i) {
    const CUresult result = Answer(static_cast<int*>(data[i]), data_bytes[i], attributes[i], advice);
    if (result != CUDA_SUCCESS) return result;
  }
  return CUDA_SUCCESS;
}

CUresult cuMemPrefetchBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                 CUmemLocation* locations, size_t* first, size_t location_count,
                                 unsigned long long flags, CUstream stream) {
  return PrefetchBatch({addresses, bytes, count, flags, stream}, locations, first, location_count);
}
// The bytes of a discarded range are any from then on: those that are there will do.
CUresult cuMemDiscardBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count, unsigned long long flags,
                                CUstream stream) {
  const Batch batch{addresses, bytes, count, flags, stream};
  const WithContextOf scope(stream);
  if (const CUresult result = BeginBatch(batch)) return result;
  return CheckArrays(batch);
}
CUresult cuMemDiscardAndPrefetchBatchAsync(CUdeviceptr* addresses, size_t* bytes, size_t count,
                                           CUmemLocation* locations, size_t* first, size_t location_count,
                                           unsigned long long flags, CUstream stream) {
  return PrefetchBatch({addresses, bytes, count, flags, stream}, locations, first, location_count);
}

// Who may touch the memory when is no question where every access is coherent; else the driver is told.
CUresult cuStreamAttachMemAsync(CUstream stream, CUdeviceptr address, size_t bytes, unsigned int flags) {
  const WithContextOf scope(stream);
  if (const CUresult result = NeedContext()) return result;
  if (const CUresult result = CaptureRefusal(CaptureRule::kUnsafeOutsideCaptures, stream)) return result;
  if (const CUresult result = CheckStream(stream)) return result;
  HostAllocation allocation;
  if (!FindManaged(address, &allocation) || allocation.address != address ||
      (bytes != 0 && bytes != allocation.bytes)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE)
    return CUDA_ERROR_INVALID_VALUE;
  const bool null_stream = stream == nullptr || stream == CU_STREAM_LEGACY;
  if (flags == CU_MEM_ATTACH_SINGLE && null_stream) return CUDA_ERROR_INVALID_VALUE;
  return IsMigrating(address) ? Wait<Op::cuStreamAttachMemAsync>(stream, address, bytes, flags)
                              : CUDA_SUCCESS;
}

}  // extern "C"
