// SPDX-License-Identifier: Apache-2.0
// atom and red. They are atomic operations of the host, sequentially consistent, so they hold against
// other threads of the process and against the host's own view of mapped memory.
#include <algorithm>

#include "tests/software_gpu/interpreter_float.h"
#include "tests/software_gpu/interpreter_integer.h"

namespace causeway::software_gpu {
namespace {

enum AtomicSpace : uint8_t { kGenericSpace, kGlobalSpace, kSharedSpace };

std::byte* AtomicMemory(Thread& thread, const Op& op, uint32_t bytes) {
  const auto offset = static_cast<uint64_t>(op.imm);
  if (op.mode == kGlobalSpace)
    return GlobalMemory(thread, op, thread.regs[op.a] + offset, bytes, Access::kWrite);
  if (op.mode == kSharedSpace) return SharedMemory(thread, op, Read<uint32_t>(thread, op.a) + offset, bytes);
  return GenericMemory(thread, op, thread.regs[op.a] + offset, bytes, Access::kWrite);
}

// Op::b is the operand; the old value goes to Op::d. F maps (old, operand) to new, as bits of U.
template <class U, class F>
Step Modify(Thread& thread, const Op& op) {
  auto* memory = reinterpret_cast<U*>(AtomicMemory(thread, op, sizeof(U)));
  if (memory == nullptr) return Step::kFault;
  const U operand = Read<U>(thread, op.b);
  U old = __atomic_load_n(memory, __ATOMIC_RELAXED);
  while (!__atomic_compare_exchange_n(memory, &old, F()(old, operand), false, __ATOMIC_SEQ_CST,
                                      __ATOMIC_RELAXED)) {
  }
  if (op.d != kNoSlot) Write<U>(thread, op.d, old);
  return Step::kNext;
}

template <class U>
Step CompareAndSwap(Thread& thread, const Op& op) {
  auto* memory = reinterpret_cast<U*>(AtomicMemory(thread, op, sizeof(U)));
  if (memory == nullptr) return Step::kFault;
  U old = Read<U>(thread, op.b);
  __atomic_compare_exchange_n(memory, &old, Read<U>(thread, op.c), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
  if (op.d != kNoSlot) Write<U>(thread, op.d, old);
  return Step::kNext;
}

template <class U>
struct Add {
  U operator()(U x, U y) const { return static_cast<U>(x + y); }
};
template <class U>
struct And {
  U operator()(U x, U y) const { return x & y; }
};
template <class U>
struct Or {
  U operator()(U x, U y) const { return x | y; }
};
template <class U>
struct Xor {
  U operator()(U x, U y) const { return x ^ y; }
};
template <class U>
struct Exchange {
  U operator()(U, U y) const { return y; }
};
template <class U>
struct Increment {
  U operator()(U x, U y) const { return x >= y ? 0 : x + 1; }
};
template <class U>
struct Decrement {
  U operator()(U x, U y) const { return x == 0 || x > y ? y : x - 1; }
};
template <class T>
struct Minimum {
  using U = std::make_unsigned_t<T>;
  U operator()(U x, U y) const { return static_cast<U>(std::min(static_cast<T>(x), static_cast<T>(y))); }
};
template <class T>
struct Maximum {
  using U = std::make_unsigned_t<T>;
  U operator()(U x, U y) const { return static_cast<U>(std::max(static_cast<T>(x), static_cast<T>(y))); }
};
template <class T, class U>
struct AddFloat {
  U operator()(U x, U y) const { return std::bit_cast<U>(std::bit_cast<T>(x) + std::bit_cast<T>(y)); }
};

enum NarrowOperation { kNarrowAdd, kNarrowMinimum, kNarrowMaximum };
template <class H, class U, NarrowOperation kOperation>
struct NarrowFloat {
  U operator()(U x, U y) const {
    U result = 0;
    for (unsigned i = 0; i < sizeof(U) / 2; ++i) {
      const double a = ToDouble(H{static_cast<uint16_t>(x >> (16 * i))});
      const double b = ToDouble(H{static_cast<uint16_t>(y >> (16 * i))});
      const double value = kOperation == kNarrowAdd       ? AddToOdd(a, b)
                           : kOperation == kNarrowMinimum ? MinimumOf(a, b, 0)
                                                          : MaximumOf(a, b, 0);
      result = static_cast<U>(result | static_cast<U>(FromDouble<H>(value, kNearestEven).bits) << (16 * i));
    }
    return result;
  }
};

template <template <class> class F>
Handler BitsHandler(Type type) {
  if (ptx::Bytes(type) == 4) return Modify<uint32_t, F<uint32_t>>;
  return ptx::Bytes(type) == 8 ? Modify<uint64_t, F<uint64_t>> : nullptr;
}

template <template <class> class F>
Handler OrderedHandler(Type type) {
  switch (type) {
    case Type::kU32:
      return Modify<uint32_t, F<uint32_t>>;
    case Type::kU64:
      return Modify<uint64_t, F<uint64_t>>;
    case Type::kS32:
      return Modify<uint32_t, F<int32_t>>;
    case Type::kS64:
      return Modify<uint64_t, F<int64_t>>;
    default:
      return nullptr;
  }
}

template <NarrowOperation kOperation>
Handler NarrowHandler(Type type) {
  switch (type) {
    case Type::kF16:
      return Modify<uint16_t, NarrowFloat<Half, uint16_t, kOperation>>;
    case Type::kF16x2:
      return Modify<uint32_t, NarrowFloat<Half, uint32_t, kOperation>>;
    case Type::kBF16:
      return Modify<uint16_t, NarrowFloat<BFloat, uint16_t, kOperation>>;
    case Type::kBF16x2:
      return Modify<uint32_t, NarrowFloat<BFloat, uint32_t, kOperation>>;
    default:
      return nullptr;
  }
}

Handler AtomicHandler(std::string_view name, Type type) {
  const bool is_float = ptx::IsFloat(type);
  if (name == "add") {
    if (type == Type::kF32) return Modify<uint32_t, AddFloat<float, uint32_t>>;
    if (type == Type::kF64) return Modify<uint64_t, AddFloat<double, uint64_t>>;
    return is_float ? NarrowHandler<kNarrowAdd>(type) : BitsHandler<Add>(type);
  }
  if (name == "min") return is_float ? NarrowHandler<kNarrowMinimum>(type) : OrderedHandler<Minimum>(type);
  if (name == "max") return is_float ? NarrowHandler<kNarrowMaximum>(type) : OrderedHandler<Maximum>(type);
  if (name == "and") return BitsHandler<And>(type);
  if (name == "or") return BitsHandler<Or>(type);
  if (name == "xor") return BitsHandler<Xor>(type);
  if (name == "exch") return BitsHandler<Exchange>(type);
  if (name == "inc") return BitsHandler<Increment>(type);
  if (name == "dec") return BitsHandler<Decrement>(type);
  if (name != "cas") return nullptr;
  switch (ptx::Bytes(type)) {
    case 2:
      return CompareAndSwap<uint16_t>;
    case 4:
      return CompareAndSwap<uint32_t>;
    case 8:
      return CompareAndSwap<uint64_t>;
    default:
      return nullptr;
  }
}

void LowerAtomic(Lowering& lowering, bool returns) {
  lowering.TakeOneOf({"relaxed", "acquire", "release", "acq_rel"});
  lowering.TakeOneOf({"cta", "cluster", "gpu", "sys"});
  Op op;
  if (lowering.Take("global")) op.mode = kGlobalSpace;
  if (lowering.TakeOneOf({"shared", "shared::cta"})) op.mode = kSharedSpace;
  lowering.Take("noftz");
  const std::string_view name = lowering.FirstModifier();
  lowering.Take(name);
  lowering.Take("noftz");
  const Type type = lowering.TakeType();
  const Handler handler = AtomicHandler(name, type);
  if (handler == nullptr || lowering.HasModifier()) lowering.Unsupported();
  size_t next = 0;
  if (returns) op.d = lowering.Destination(next++);
  const Address address = lowering.AddressOf(next++);
  op.a = address.slot;
  op.imm = address.offset;
  op.b = lowering.Source(next++, type);
  if (name == "cas") op.c = lowering.Source(next++, type);
  if (next != lowering.operand_count()) lowering.Unsupported();
  lowering.Emit(handler, op);
}

}  // namespace

void AddAtomicInstructions(LowerTable& table) {
  table["atom"] = [](Lowering& lowering) { LowerAtomic(lowering, true); };
  table["red"] = [](Lowering& lowering) { LowerAtomic(lowering, false); };
}

}  // namespace causeway::software_gpu
