// SPDX-License-Identifier: Apache-2.0
// Loads, stores, address conversions and copies, in every state space.
#include <algorithm>
#include <cstdio>

#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

std::byte* Misaligned(Thread& thread, const Op& op, uint64_t address, uint32_t bytes) {
  char what[120];
  std::snprintf(what, sizeof what, "the address 0x%llx is not aligned to %u bytes",
                static_cast<unsigned long long>(address), bytes);
  RaiseFault(thread, op, 716, what);
  return nullptr;
}

std::byte* Outside(Thread& thread, const Op& op, const char* space, uint64_t address, uint32_t bytes) {
  char what[160];
  std::snprintf(what, sizeof what, "%u bytes at %s address 0x%llx are outside of what the thread may access",
                bytes, space, static_cast<unsigned long long>(address));
  RaiseFault(thread, op, 700, what);
  return nullptr;
}

// Memory of the launch itself, which no allocation covers.
bool InLaunch(LaunchState& launch, uint64_t address, uint32_t bytes) {
  const auto within = [&](const void* start, size_t size) {
    const uint64_t offset = address - reinterpret_cast<uintptr_t>(start);
    return offset < size && bytes <= size - offset;
  };
  return within(&launch.workspace, sizeof launch.workspace) ||
         within(launch.parameters.data(), launch.parameters.size()) || launch.heap->Contains(address, bytes);
}

// Where a load or store goes. Frame: .param variables of .func code; Parameter: those of the kernel.
enum class Place { kGeneric, kGlobal, kShared, kLocal, kFrame, kParameter };

template <Place kPlace>
std::byte* Locate(Thread& thread, const Op& op, uint32_t bytes, Access access) {
  if constexpr (kPlace == Place::kFrame) {
    return reinterpret_cast<std::byte*>(thread.regs) + op.imm;
  } else if constexpr (kPlace == Place::kParameter) {
    return thread.block->launch->parameters.data() + op.imm;
  } else {
    const uint64_t address = thread.regs[op.a] + static_cast<uint64_t>(op.imm);
    if constexpr (kPlace == Place::kGlobal) return GlobalMemory(thread, op, address, bytes, access);
    if constexpr (kPlace == Place::kLocal) return LocalMemory(thread, op, address, bytes);
    if constexpr (kPlace == Place::kShared) {
      return SharedMemory(thread, op, Read<uint32_t>(thread, op.a) + static_cast<uint64_t>(op.imm), bytes);
    }
    return GenericMemory(thread, op, address, bytes, access);
  }
}

// Aligned accesses of one element are single loads and stores of the host, so other threads of the host
// that poll see them whole; acquire and release cost nothing extra on the hosts this runs on.
template <Place kPlace, class T>
Step Load(Thread& thread, const Op& op) {
  const std::byte* from = Locate<kPlace>(thread, op, sizeof(T), Access::kRead);
  if (from == nullptr) return Step::kFault;
  T value;
  if constexpr (kPlace == Place::kFrame || kPlace == Place::kParameter) {
    std::memcpy(&value, from, sizeof value);
  } else {
    value = __atomic_load_n(reinterpret_cast<const T*>(from), __ATOMIC_ACQUIRE);
  }
  Write<T>(thread, op.d, value);
  return Step::kNext;
}

template <Place kPlace, class T>
Step Store(Thread& thread, const Op& op) {
  std::byte* to = Locate<kPlace>(thread, op, sizeof(T), Access::kWrite);
  if (to == nullptr) return Step::kFault;
  const T value = Read<T>(thread, op.b);
  if constexpr (kPlace == Place::kFrame || kPlace == Place::kParameter) {
    std::memcpy(to, &value, sizeof value);
  } else {
    __atomic_store_n(reinterpret_cast<T*>(to), value, __ATOMIC_RELEASE);
  }
  return Step::kNext;
}

template <Place kPlace, class T>
Step LoadVector(Thread& thread, const Op& op) {
  const SlotList& slots = *static_cast<const SlotList*>(op.extra);
  const std::byte* from =
      Locate<kPlace>(thread, op, static_cast<uint32_t>(slots.size() * sizeof(T)), Access::kRead);
  if (from == nullptr) return Step::kFault;
  // Copied first: an element may overwrite the register that holds the address.
  T values[8];
  std::memcpy(values, from, slots.size() * sizeof(T));
  for (size_t i = 0; i < slots.size(); ++i) Write<T>(thread, slots[i], values[i]);
  return Step::kNext;
}

template <Place kPlace, class T>
Step StoreVector(Thread& thread, const Op& op) {
  const SlotList& slots = *static_cast<const SlotList*>(op.extra);
  std::byte* to = Locate<kPlace>(thread, op, static_cast<uint32_t>(slots.size() * sizeof(T)), Access::kWrite);
  if (to == nullptr) return Step::kFault;
  T values[8];
  for (size_t i = 0; i < slots.size(); ++i) values[i] = Read<T>(thread, slots[i]);
  std::memcpy(to, values, slots.size() * sizeof(T));
  return Step::kNext;
}

template <Place kPlace, class T>
Handler HandlerOf(bool store, bool vector) {
  if (store) return vector ? &StoreVector<kPlace, T> : &Store<kPlace, T>;
  return vector ? &LoadVector<kPlace, T> : &Load<kPlace, T>;
}

template <Place kPlace>
Handler AccessOfType(Type type, bool store, bool vector) {
  const bool extend = ptx::IsSigned(type);
  switch (ptx::Bytes(type)) {
    case 1:
      return extend ? HandlerOf<kPlace, int8_t>(store, vector) : HandlerOf<kPlace, uint8_t>(store, vector);
    case 2:
      return extend ? HandlerOf<kPlace, int16_t>(store, vector) : HandlerOf<kPlace, uint16_t>(store, vector);
    case 4:
      return extend ? HandlerOf<kPlace, int32_t>(store, vector) : HandlerOf<kPlace, uint32_t>(store, vector);
    case 8:
      return HandlerOf<kPlace, uint64_t>(store, vector);
    default:
      return nullptr;
  }
}

Handler AccessHandler(Place place, Type type, bool store, bool vector) {
  switch (place) {
    case Place::kGeneric:
      return AccessOfType<Place::kGeneric>(type, store, vector);
    case Place::kGlobal:
      return AccessOfType<Place::kGlobal>(type, store, vector);
    case Place::kShared:
      return AccessOfType<Place::kShared>(type, store, vector);
    case Place::kLocal:
      return AccessOfType<Place::kLocal>(type, store, vector);
    case Place::kFrame:
      return AccessOfType<Place::kFrame>(type, store, vector);
    default:
      return AccessOfType<Place::kParameter>(type, store, vector);
  }
}

// Consistency, scope and cache hints: execution is as ordered as the strongest of them.
void TakeHints(Lowering& lowering) {
  lowering.TakeOneOf({"volatile", "relaxed", "acquire", "release", "weak", "mmio"});
  lowering.TakeOneOf({"cta", "cluster", "gpu", "sys"});
  lowering.TakeOneOf({"ca", "cg", "cs", "lu", "cv", "wb", "wt"});
  lowering.Take("nc");
  lowering.TakeOneOf(
      {"L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate"});
  lowering.TakeOneOf({"L2::evict_normal", "L2::evict_first", "L2::evict_last"});
  lowering.TakeOneOf({"L2::64B", "L2::128B", "L2::256B"});
}

Place TakePlace(Lowering& lowering) {
  if (lowering.TakeOneOf({"global", "const"})) return Place::kGlobal;
  if (lowering.TakeOneOf({"shared", "shared::cta"})) return Place::kShared;
  if (lowering.Take("local")) return Place::kLocal;
  if (lowering.TakeOneOf({"param", "param::entry", "param::func"})) return Place::kParameter;
  return Place::kGeneric;
}

// The place and Op::a, Op::imm of an access of `bytes` bytes at operand `index`.
Place PlaceAddress(Lowering& lowering, size_t index, Place place, uint32_t bytes, Op& op) {
  const Operand& operand = lowering.operand(index);
  const bool by_name = operand.kind == OperandKind::kAddress && operand.elements.size() == 1 &&
                       operand.elements[0].kind == OperandKind::kSymbol &&
                       operand.elements[0].symbol->space == Space::kParam;
  if (!by_name) {
    const Address address = lowering.AddressOf(index);
    op.a = address.slot;
    op.imm = address.offset;
    // A computed parameter address is the host address of the launch's copy.
    return place == Place::kParameter ? Place::kGeneric : place;
  }
  const ptx::Symbol& symbol = *operand.elements[0].symbol;
  const int64_t offset = operand.offset + operand.elements[0].offset;
  if (place != Place::kParameter || offset < 0 || static_cast<uint64_t>(offset) + bytes > symbol.bytes) {
    lowering.Fail("an access lies outside of parameter '" + symbol.name + "'");
  }
  if (lowering.InFrame(symbol)) {
    op.imm = lowering.FrameOffset(symbol) + offset;
    return Place::kFrame;
  }
  op.imm = lowering.EntryOffset(symbol) + offset;
  return Place::kParameter;
}

void LowerAccess(Lowering& lowering, bool store) {
  TakeHints(lowering);
  const Place space = TakePlace(lowering);
  TakeHints(lowering);
  const uint32_t width = lowering.Take("v2") ? 2 : lowering.Take("v4") ? 4 : lowering.Take("v8") ? 8 : 1;
  const Type type = lowering.TakeType();
  const uint32_t bytes = ptx::Bytes(type);
  const size_t value_index = store ? 1 : 0;
  const Operand& value = lowering.operand(value_index);
  const bool vector = value.kind == OperandKind::kVector;
  if (vector ? value.elements.size() != width : width != 1) lowering.Fail("a vector has the wrong size");
  if (bytes * width > 64) lowering.Unsupported();
  Op op;
  const Place place = PlaceAddress(lowering, store ? 0 : 1, space, bytes * width, op);
  if (store && place == Place::kParameter) lowering.Fail("kernel parameters cannot be written");
  const auto slot = [&](const Operand& operand) {
    return store ? lowering.SourceOf(operand, type) : lowering.DestinationOf(operand);
  };
  if (vector) {
    SlotList slots;
    for (const Operand& element : value.elements) slots.push_back(slot(element));
    op.extra = lowering.KeepSlots(std::move(slots));
  } else {
    (store ? op.b : op.d) = slot(value);
  }
  const Handler handler = AccessHandler(place, type, store, vector);
  if (handler == nullptr || type == Type::kPred) lowering.Unsupported();
  lowering.Emit(handler, op);
}

Step Nothing(Thread&, const Op&) {
  return Step::kNext;
}

Step Copy(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[op.a];
  return Step::kNext;
}

// Shared addresses are often kept in 32-bit registers; the window's offsets fit.
Step SharedToGeneric(Thread& thread, const Op& op) {
  thread.regs[op.d] = reinterpret_cast<uintptr_t>(thread.block->shared) + thread.regs[op.a];
  return Step::kNext;
}

Step GenericToShared(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[op.a] - reinterpret_cast<uintptr_t>(thread.block->shared);
  return Step::kNext;
}

Step LocalToGeneric(Thread& thread, const Op& op) {
  thread.regs[op.d] = reinterpret_cast<uintptr_t>(thread.local) + thread.regs[op.a];
  return Step::kNext;
}

Step GenericToLocal(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[op.a] - reinterpret_cast<uintptr_t>(thread.local);
  return Step::kNext;
}

void LowerConvertAddress(Lowering& lowering) {
  const bool to_space = lowering.Take("to");
  const Place place = TakePlace(lowering);
  const Type type = lowering.TakeType();
  Handler handler = Copy;
  if (place == Place::kShared) handler = to_space ? GenericToShared : SharedToGeneric;
  if (place == Place::kLocal) handler = to_space ? GenericToLocal : LocalToGeneric;
  if (place == Place::kGeneric || ptx::Bytes(type) != 8) lowering.Unsupported();
  lowering.EmitUnary(handler, type);
}

bool Within(uint64_t address, const std::byte* start, uint32_t size) {
  return address - reinterpret_cast<uintptr_t>(start) < size;
}

Step IsShared(Thread& thread, const Op& op) {
  thread.regs[op.d] = Within(thread.regs[op.a], thread.block->shared, thread.block->shared_bytes);
  return Step::kNext;
}

Step IsLocal(Thread& thread, const Op& op) {
  thread.regs[op.d] = Within(thread.regs[op.a], thread.local, thread.local_window);
  return Step::kNext;
}

Step IsGlobal(Thread& thread, const Op& op) {
  const uint64_t address = thread.regs[op.a];
  thread.regs[op.d] = !Within(address, thread.block->shared, thread.block->shared_bytes) &&
                      !Within(address, thread.local, thread.local_window);
  return Step::kNext;
}

// Constants and parameters lie in global memory here.
Step IsNever(Thread& thread, const Op& op) {
  thread.regs[op.d] = 0;
  return Step::kNext;
}

void LowerIsSpace(Lowering& lowering) {
  Handler handler = nullptr;
  if (lowering.TakeOneOf({"shared", "shared::cta"})) handler = IsShared;
  if (lowering.Take("local")) handler = IsLocal;
  if (lowering.Take("global")) handler = IsGlobal;
  if (lowering.TakeOneOf({"const", "param"})) handler = IsNever;
  lowering.EmitUnary(handler, Type::kU64);
}

// cp.async of Op::mode bytes, done at once. Op::b: shared address, Op::a: global; Op::c: source bytes.
Step CopyAsync(Thread& thread, const Op& op) {
  const uint64_t to_address = Read<uint32_t>(thread, op.b) + static_cast<uint64_t>(op.mode2);
  std::byte* to = SharedMemory(thread, op, to_address, op.mode);
  if (to == nullptr) return Step::kFault;
  const uint32_t wanted = std::min<uint32_t>(Read<uint32_t>(thread, op.c), op.mode);
  std::memset(to, 0, op.mode);
  if (wanted == 0) return Step::kNext;
  const std::byte* from =
      GlobalMemory(thread, op, thread.regs[op.a] + static_cast<uint64_t>(op.imm), op.mode, Access::kRead);
  if (from == nullptr) return Step::kFault;
  std::memcpy(to, from, wanted);
  return Step::kNext;
}

// Copies complete when they are issued, so committing and waiting have nothing to do.
void LowerCopy(Lowering& lowering) {
  if (!lowering.Take("async")) lowering.Unsupported();
  if (lowering.TakeOneOf({"commit_group", "wait_group", "wait_all"})) {
    lowering.Emit(Nothing, {});
    return;
  }
  TakeHints(lowering);
  if (!lowering.TakeOneOf({"shared", "shared::cta"}) || !lowering.Take("global")) lowering.Unsupported();
  const int64_t bytes = lowering.Constant(2);
  if (bytes != 4 && bytes != 8 && bytes != 16) lowering.Fail("a copy size is not 4, 8 or 16");
  const Address to = lowering.AddressOf(0);
  const Address from = lowering.AddressOf(1);
  if (to.offset < 0 || to.offset > 255) lowering.Fail("a shared address offset above 255 is not supported");
  Op op;
  op.mode = static_cast<uint8_t>(bytes);
  op.mode2 = static_cast<uint8_t>(to.offset);
  op.b = to.slot;
  op.a = from.slot;
  op.imm = from.offset;
  op.c = lowering.operand_count() > 3 ? lowering.Source(3, Type::kU32)
                                      : lowering.ConstantSlot(static_cast<uint64_t>(bytes));
  lowering.Emit(CopyAsync, op);
}

void LowerPrefetch(Lowering& lowering) {
  lowering.TakeOneOf({"global", "local", "const", "param"});
  lowering.TakeOneOf({"L1", "L2", "L2::evict_last", "L2::evict_normal"});
  lowering.Emit(Nothing, {});
}

void LowerDiscard(Lowering& lowering) {
  lowering.Take("global");
  lowering.TakeOneOf({"L2", "L2::evict_normal"});
  lowering.TakeOneOf({"L2::128B", "128B"});
  lowering.Emit(Nothing, {});
}

}  // namespace

std::byte* GlobalMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes, Access access) {
  if ((address & (bytes - 1)) != 0) return Misaligned(thread, op, address, bytes);
  LaunchState& launch = *thread.block->launch;
  if (launch.memory->Contains(address, bytes, access) || InLaunch(launch, address, bytes)) {
    return reinterpret_cast<std::byte*>(static_cast<uintptr_t>(address));
  }
  return Outside(thread, op, "global", address, bytes);
}

std::byte* SharedMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes) {
  if ((address & (bytes - 1)) != 0) return Misaligned(thread, op, address, bytes);
  const uint32_t size = thread.block->shared_bytes;
  if (address < size && bytes <= size - address) return thread.block->shared + address;
  return Outside(thread, op, "shared", address, bytes);
}

std::byte* LocalMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes) {
  if ((address & (bytes - 1)) != 0) return Misaligned(thread, op, address, bytes);
  const uint32_t size = thread.local_window;
  if (address < size && bytes <= size - address) return thread.local + address;
  return Outside(thread, op, "local", address, bytes);
}

std::byte* GenericMemory(Thread& thread, const Op& op, uint64_t address, uint32_t bytes, Access access) {
  const uint64_t in_shared = address - reinterpret_cast<uintptr_t>(thread.block->shared);
  if (in_shared < thread.block->shared_bytes) return SharedMemory(thread, op, in_shared, bytes);
  const uint64_t in_local = address - reinterpret_cast<uintptr_t>(thread.local);
  if (in_local < thread.local_window) return LocalMemory(thread, op, in_local, bytes);
  return GlobalMemory(thread, op, address, bytes, access);
}

void AddMemoryInstructions(LowerTable& table) {
  table["ld"] = [](Lowering& lowering) { LowerAccess(lowering, false); };
  table["ldu"] = [](Lowering& lowering) { LowerAccess(lowering, false); };
  table["st"] = [](Lowering& lowering) { LowerAccess(lowering, true); };
  table["cvta"] = LowerConvertAddress;
  table["isspacep"] = LowerIsSpace;
  table["cp"] = LowerCopy;
  table["prefetch"] = LowerPrefetch;
  table["prefetchu"] = LowerPrefetch;
  table["discard"] = LowerDiscard;
  table["applypriority"] = LowerDiscard;
}

}  // namespace causeway::software_gpu
