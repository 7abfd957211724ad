// SPDX-License-Identifier: Apache-2.0
// Integer arithmetic. add, sub, mul, div and the others that also exist for floats come here through
// AddArithmeticInstructions(), which looks at the type.
#include "tests/software_gpu/interpreter_integer.h"

#include <algorithm>
#include <limits>

namespace causeway::software_gpu {
namespace {

template <class T>
using Wide =
    std::conditional_t<sizeof(T) == 8, std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>,
                       std::conditional_t<std::is_signed_v<T>, int64_t, uint64_t>>;
template <class T>
using Unsigned = std::make_unsigned_t<T>;
// Arithmetic that wraps, also for signed types and those that C++ promotes to int.
template <class T>
T Wrap(uint64_t value) {
  return static_cast<T>(value);
}
template <class T>
uint64_t Bits(T value) {
  return static_cast<uint64_t>(value);
}

template <class T>
struct Add {
  T operator()(T x, T y) const { return Wrap<T>(Bits(x) + Bits(y)); }
};
template <class T>
struct Subtract {
  T operator()(T x, T y) const { return Wrap<T>(Bits(x) - Bits(y)); }
};
template <class T>
struct MultiplyLow {
  T operator()(T x, T y) const { return Wrap<T>(Bits(x) * Bits(y)); }
};
template <class T>
struct MultiplyHigh {
  T operator()(T x, T y) const {
    return static_cast<T>(static_cast<Wide<T>>(x) * static_cast<Wide<T>>(y) >> (sizeof(T) * 8));
  }
};
// What the hardware gives for a division by zero: all ones, and the dividend as the remainder.
template <class T>
struct Divide {
  T operator()(T x, T y) const {
    if (y == 0) return static_cast<T>(~T{0});
    if constexpr (std::is_signed_v<T>) {
      if (y == -1) return Wrap<T>(0 - Bits(x));
    }
    return static_cast<T>(x / y);
  }
};
template <class T>
struct Remainder {
  T operator()(T x, T y) const {
    if (y == 0) return x;
    if constexpr (std::is_signed_v<T>) {
      if (y == -1) return 0;
    }
    return static_cast<T>(x % y);
  }
};
template <class T>
struct Minimum {
  T operator()(T x, T y) const { return std::min(x, y); }
};
template <class T>
struct Maximum {
  T operator()(T x, T y) const { return std::max(x, y); }
};
template <class T>
struct Absolute {
  T operator()(T x) const { return x < 0 ? Wrap<T>(0 - Bits(x)) : x; }
};
template <class T>
struct Negate {
  T operator()(T x) const { return Wrap<T>(0 - Bits(x)); }
};
template <class T>
struct Saturate {
  static T Of(int64_t value) {
    return static_cast<T>(
        std::clamp<int64_t>(value, std::numeric_limits<T>::min(), std::numeric_limits<T>::max()));
  }
};
struct AddSaturated {
  int32_t operator()(int32_t x, int32_t y) const { return Saturate<int32_t>::Of(int64_t{x} + y); }
};
struct SubtractSaturated {
  int32_t operator()(int32_t x, int32_t y) const { return Saturate<int32_t>::Of(int64_t{x} - y); }
};
template <class T>
struct MadLow {
  T operator()(T x, T y, T z) const { return Wrap<T>(Bits(x) * Bits(y) + Bits(z)); }
};
template <class T>
struct MadHigh {
  T operator()(T x, T y, T z) const { return Wrap<T>(Bits(MultiplyHigh<T>()(x, y)) + Bits(z)); }
};
struct MadHighSaturated {
  int32_t operator()(int32_t x, int32_t y, int32_t z) const {
    return Saturate<int32_t>::Of(int64_t{MultiplyHigh<int32_t>()(x, y)} + z);
  }
};
template <class T>
struct SumOfDifferences {
  T operator()(T x, T y, T z) const {
    const uint64_t difference = x < y ? Bits(y) - Bits(x) : Bits(x) - Bits(y);
    return Wrap<T>(Bits(z) + difference);
  }
};
// Only the low 24 bits of the operands count.
template <class T>
int64_t Product24(T x, T y) {
  const auto low = [](T value) {
    const uint32_t bits = static_cast<uint32_t>(value) << 8;
    return std::is_signed_v<T> ? int64_t{static_cast<int32_t>(bits) >> 8} : int64_t{bits >> 8};
  };
  return low(x) * low(y);
}
template <class T>
struct Mul24Low {
  T operator()(T x, T y) const { return Wrap<T>(Bits(Product24(x, y))); }
};
template <class T>
struct Mul24High {
  T operator()(T x, T y) const { return static_cast<T>(Product24(x, y) >> 16); }
};
template <class T>
struct Mad24Low {
  T operator()(T x, T y, T z) const { return Wrap<T>(Bits(Product24(x, y)) + Bits(z)); }
};
template <class T>
struct Mad24High {
  T operator()(T x, T y, T z) const { return Wrap<T>(Bits(Product24(x, y) >> 16) + Bits(z)); }
};

template <class T, class R>
Step MultiplyWide(Thread& thread, const Op& op) {
  const R x = Read<T>(thread, op.a);
  const R y = Read<T>(thread, op.b);
  Write<R>(thread, op.d, Wrap<R>(Bits(x) * Bits(y)));
  return Step::kNext;
}

template <class T, class R>
Step MadWide(Thread& thread, const Op& op) {
  const R x = Read<T>(thread, op.a);
  const R y = Read<T>(thread, op.b);
  Write<R>(thread, op.d, Wrap<R>(Bits(x) * Bits(y) + Bits(Read<R>(thread, op.c))));
  return Step::kNext;
}

// Carry bits of Op::mode.
enum CarryMode : uint8_t { kReadsCarry = 1, kWritesCarry = 2, kSubtracts = 4 };

template <class T>
Step WithCarry(Thread& thread, uint8_t mode, uint32_t d, T x, T y) {
  using U = unsigned __int128;
  const U in = (mode & kReadsCarry) != 0 && thread.carry ? 1 : 0;
  // For subtraction the flag is the borrow, which is what subc expects back.
  const U sum = (mode & kSubtracts) != 0 ? static_cast<U>(x) - static_cast<U>(y) - in
                                         : static_cast<U>(x) + static_cast<U>(y) + in;
  if ((mode & kWritesCarry) != 0) thread.carry = (sum >> (sizeof(T) * 8) & 1) != 0;
  Write<T>(thread, d, static_cast<T>(sum));
  return Step::kNext;
}

template <class T>
Step AddCarry(Thread& thread, const Op& op) {
  return WithCarry<T>(thread, op.mode, op.d, Read<T>(thread, op.a), Read<T>(thread, op.b));
}

// Op::mode2: the high half of the product.
template <class T>
Step MadCarry(Thread& thread, const Op& op) {
  using S = std::make_signed_t<T>;
  const T x = Read<T>(thread, op.a);
  const T y = Read<T>(thread, op.b);
  T product = static_cast<T>(x * y);
  if (op.mode2 == 1) product = MultiplyHigh<T>()(x, y);
  if (op.mode2 == 2) product = static_cast<T>(MultiplyHigh<S>()(static_cast<S>(x), static_cast<S>(y)));
  return WithCarry<T>(thread, op.mode, op.d, product, Read<T>(thread, op.c));
}

template <template <class> class F>
Handler WideHandler(Type type) {
  switch (type) {
    case Type::kU16:
      return F<uint16_t>::template Of<uint32_t>();
    case Type::kS16:
      return F<int16_t>::template Of<int32_t>();
    case Type::kU32:
      return F<uint32_t>::template Of<uint64_t>();
    case Type::kS32:
      return F<int32_t>::template Of<int64_t>();
    default:
      return nullptr;
  }
}
template <class T>
struct MultiplyWideHandler {
  template <class R>
  static Handler Of() {
    return MultiplyWide<T, R>;
  }
};
template <class T>
struct MadWideHandler {
  template <class R>
  static Handler Of() {
    return MadWide<T, R>;
  }
};

void EmitCarry(Lowering& lowering, Type type, uint8_t mode) {
  if (lowering.Take("cc")) mode |= kWritesCarry;
  if (ptx::Bytes(type) < 4) lowering.Unsupported();
  Op op;
  op.mode = mode;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  lowering.Emit(ptx::Bytes(type) == 8 ? AddCarry<uint64_t> : AddCarry<uint32_t>, op);
}

void EmitMadCarry(Lowering& lowering, Type type, bool high, bool reads) {
  Op op;
  op.mode = reads ? kReadsCarry : 0;
  if (lowering.Take("cc")) op.mode |= kWritesCarry;
  if (ptx::Bytes(type) < 4) lowering.Unsupported();
  op.mode2 = !high ? 0 : ptx::IsSigned(type) ? 2 : 1;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  op.c = lowering.Source(3, type);
  lowering.Emit(ptx::Bytes(type) == 8 ? MadCarry<uint64_t> : MadCarry<uint32_t>, op);
}

void LowerMadCarry(Lowering& lowering) {
  const bool high = lowering.Take("hi");
  lowering.Take("lo");
  const Type type = lowering.TakeType();
  EmitMadCarry(lowering, type, high, true);
}

template <template <class> class Low, template <class> class High>
void LowerMul24(Lowering& lowering) {
  const bool high = lowering.Take("hi");
  lowering.Take("lo");
  const Type type = lowering.TakeType();
  const bool is_signed = type == Type::kS32;
  if (!is_signed && type != Type::kU32) lowering.Unsupported();
  if (high)
    return lowering.EmitBinary(is_signed ? Binary<int32_t, High<int32_t>> : Binary<uint32_t, High<uint32_t>>,
                               type);
  lowering.EmitBinary(is_signed ? Binary<int32_t, Low<int32_t>> : Binary<uint32_t, Low<uint32_t>>, type);
}

void LowerMad24(Lowering& lowering) {
  const bool high = lowering.Take("hi");
  lowering.Take("lo");
  const Type type = lowering.TakeType();
  const bool is_signed = type == Type::kS32;
  if (!is_signed && type != Type::kU32) lowering.Unsupported();
  if (high) {
    return lowering.EmitTernary(
        is_signed ? Ternary<int32_t, Mad24High<int32_t>> : Ternary<uint32_t, Mad24High<uint32_t>>, type);
  }
  lowering.EmitTernary(
      is_signed ? Ternary<int32_t, Mad24Low<int32_t>> : Ternary<uint32_t, Mad24Low<uint32_t>>, type);
}

}  // namespace

void LowerIntegerAdd(Lowering& lowering, Type type) {
  if (lowering.Take("sat")) {
    if (type != Type::kS32) lowering.Unsupported();
    return lowering.EmitBinary(Binary<int32_t, AddSaturated>, type);
  }
  if (lowering.Take("cc")) return EmitCarry(lowering, type, kWritesCarry);
  lowering.EmitBinary(IntegerBinary<Add>(type), type);
}

void LowerIntegerSubtract(Lowering& lowering, Type type) {
  if (lowering.Take("sat")) {
    if (type != Type::kS32) lowering.Unsupported();
    return lowering.EmitBinary(Binary<int32_t, SubtractSaturated>, type);
  }
  if (lowering.Take("cc")) return EmitCarry(lowering, type, kWritesCarry | kSubtracts);
  lowering.EmitBinary(IntegerBinary<Subtract>(type), type);
}

void LowerIntegerMultiply(Lowering& lowering, Type type) {
  if (lowering.Take("wide")) return lowering.EmitBinary(WideHandler<MultiplyWideHandler>(type), type);
  if (lowering.Take("hi")) return lowering.EmitBinary(IntegerBinary<MultiplyHigh>(type), type);
  if (!lowering.Take("lo")) lowering.Unsupported();
  lowering.EmitBinary(IntegerBinary<MultiplyLow>(type), type);
}

void LowerIntegerMad(Lowering& lowering, Type type) {
  if (lowering.Take("wide")) return lowering.EmitTernary(WideHandler<MadWideHandler>(type), type);
  const bool high = lowering.Take("hi");
  if (!high && !lowering.Take("lo")) lowering.Unsupported();
  if (lowering.FirstModifierIs("cc")) return EmitMadCarry(lowering, type, high, false);
  if (lowering.Take("sat")) {
    if (!high || type != Type::kS32) lowering.Unsupported();
    return lowering.EmitTernary(Ternary<int32_t, MadHighSaturated>, type);
  }
  lowering.EmitTernary(high ? IntegerTernary<MadHigh>(type) : IntegerTernary<MadLow>(type), type);
}

void LowerIntegerDivide(Lowering& lowering, Type type) {
  lowering.EmitBinary(IntegerBinary<Divide>(type), type);
}
void LowerIntegerMinimum(Lowering& lowering, Type type) {
  if (lowering.Take("relu")) lowering.Unsupported();
  lowering.EmitBinary(IntegerBinary<Minimum>(type), type);
}
void LowerIntegerMaximum(Lowering& lowering, Type type) {
  if (lowering.Take("relu")) lowering.Unsupported();
  lowering.EmitBinary(IntegerBinary<Maximum>(type), type);
}
void LowerIntegerAbsolute(Lowering& lowering, Type type) {
  lowering.EmitUnary(IntegerUnary<Absolute>(type), type);
}
void LowerIntegerNegate(Lowering& lowering, Type type) {
  lowering.EmitUnary(IntegerUnary<Negate>(type), type);
}

void AddIntegerInstructions(LowerTable& table) {
  table["rem"] = [](Lowering& lowering) {
    const Type type = lowering.TakeType();
    lowering.EmitBinary(IntegerBinary<Remainder>(type), type);
  };
  table["sad"] = [](Lowering& lowering) {
    const Type type = lowering.TakeType();
    lowering.EmitTernary(IntegerTernary<SumOfDifferences>(type), type);
  };
  table["addc"] = [](Lowering& lowering) { EmitCarry(lowering, lowering.TakeType(), kReadsCarry); };
  table["subc"] = [](Lowering& lowering) {
    EmitCarry(lowering, lowering.TakeType(), kReadsCarry | kSubtracts);
  };
  table["madc"] = LowerMadCarry;
  table["mul24"] = LowerMul24<Mul24Low, Mul24High>;
  table["mad24"] = LowerMad24;
}

}  // namespace causeway::software_gpu
