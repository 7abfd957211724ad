// SPDX-License-Identifier: Apache-2.0
// Float arithmetic, and the choice between integer and float for instructions that both have.
#include "tests/software_gpu/interpreter_float.h"
#include "tests/software_gpu/interpreter_integer.h"

namespace causeway::software_gpu {
namespace {

// Function objects over float and double, and for the narrow formats over their values as double.
struct Add {
  template <class T>
  T operator()(T x, T y) const {
    return x + y;
  }
  static double Narrow(double x, double y) { return AddToOdd(x, y); }
};
struct Subtract {
  template <class T>
  T operator()(T x, T y) const {
    return x - y;
  }
  static double Narrow(double x, double y) { return AddToOdd(x, -y); }
};
struct Multiply {
  template <class T>
  T operator()(T x, T y) const {
    return x * y;
  }
  static double Narrow(double x, double y) { return x * y; }
};
struct Divide {
  template <class T>
  T operator()(T x, T y) const {
    return x / y;
  }
};
struct FusedMultiplyAdd {
  template <class T>
  T operator()(T x, T y, T z) const {
    return std::fma(x, y, z);
  }
  // The product of two narrow values is exact in double.
  static double Narrow(double x, double y, double z) { return AddToOdd(x * y, z); }
};

template <class T>
T Finish(T value, uint8_t mode) {
  if ((mode & kFlushSubnormals) != 0) value = FlushSubnormal(value);
  if ((mode & (kSaturate | kRelu)) != 0) value = static_cast<T>(ApplyClamps(value, mode));
  return Canonical(value);
}

template <class T>
T Operand1(T value, uint8_t mode) {
  return (mode & kFlushSubnormals) != 0 ? FlushSubnormal(value) : value;
}

template <class T, class F>
Step FloatBinary(Thread& thread, const Op& op) {
  Write<T>(thread, op.d, Canonical(F()(Read<T>(thread, op.a), Read<T>(thread, op.b))));
  return Step::kNext;
}

template <class T, class F>
Step FloatBinaryMode(Thread& thread, const Op& op) {
  const volatile T x = Operand1(Read<T>(thread, op.a), op.mode);
  const volatile T y = Operand1(Read<T>(thread, op.b), op.mode);
  volatile T result;
  {
    const RoundingScope scope(op.mode);
    result = F()(T{x}, T{y});
  }
  Write<T>(thread, op.d, Finish<T>(result, op.mode));
  return Step::kNext;
}

template <class T, class F>
Step FloatTernary(Thread& thread, const Op& op) {
  Write<T>(thread, op.d, Canonical(F()(Read<T>(thread, op.a), Read<T>(thread, op.b), Read<T>(thread, op.c))));
  return Step::kNext;
}

template <class T, class F>
Step FloatTernaryMode(Thread& thread, const Op& op) {
  const volatile T x = Operand1(Read<T>(thread, op.a), op.mode);
  const volatile T y = Operand1(Read<T>(thread, op.b), op.mode);
  const volatile T z = Operand1(Read<T>(thread, op.c), op.mode);
  volatile T result;
  {
    const RoundingScope scope(op.mode);
    result = F()(T{x}, T{y}, T{z});
  }
  Write<T>(thread, op.d, Finish<T>(result, op.mode));
  return Step::kNext;
}

template <class H>
H NarrowOperand(Thread& thread, uint32_t slot, int half, uint8_t mode) {
  const H value{static_cast<uint16_t>(thread.regs[slot] >> (16 * half))};
  return Operand1(value, mode);
}

template <class H>
uint64_t NarrowResult(double value, uint8_t mode) {
  H result = FromDouble<H>(ApplyClamps(value, mode), static_cast<Rounding>(mode & 7));
  if ((mode & kFlushSubnormals) != 0) result = FlushSubnormal(result);
  return result.bits;
}

// kCount values of format H, packed into one slot.
template <class H, int kCount, class F>
Step NarrowBinary(Thread& thread, const Op& op) {
  uint64_t packed = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = ToDouble(NarrowOperand<H>(thread, op.a, i, op.mode));
    const double y = ToDouble(NarrowOperand<H>(thread, op.b, i, op.mode));
    packed |= NarrowResult<H>(F::Narrow(x, y), op.mode) << (16 * i);
  }
  thread.regs[op.d] = packed;
  return Step::kNext;
}

template <class H, int kCount, class F>
Step NarrowTernary(Thread& thread, const Op& op) {
  uint64_t packed = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = ToDouble(NarrowOperand<H>(thread, op.a, i, op.mode));
    const double y = ToDouble(NarrowOperand<H>(thread, op.b, i, op.mode));
    const double z = ToDouble(NarrowOperand<H>(thread, op.c, i, op.mode));
    packed |= NarrowResult<H>(F::Narrow(x, y, z), op.mode) << (16 * i);
  }
  thread.regs[op.d] = packed;
  return Step::kNext;
}

template <class F>
Handler NarrowBinaryHandler(Type type) {
  switch (type) {
    case Type::kF16:
      return NarrowBinary<Half, 1, F>;
    case Type::kF16x2:
      return NarrowBinary<Half, 2, F>;
    case Type::kBF16:
      return NarrowBinary<BFloat, 1, F>;
    case Type::kBF16x2:
      return NarrowBinary<BFloat, 2, F>;
    default:
      return nullptr;
  }
}

template <class F>
Handler BinaryHandler(Type type, uint8_t mode) {
  if (type == Type::kF32) return mode == 0 ? FloatBinary<float, F> : FloatBinaryMode<float, F>;
  if (type == Type::kF64) return mode == 0 ? FloatBinary<double, F> : FloatBinaryMode<double, F>;
  return NarrowBinaryHandler<F>(type);
}

Handler FmaHandler(Type type, uint8_t mode) {
  using F = FusedMultiplyAdd;
  switch (type) {
    case Type::kF32:
      return mode == 0 ? FloatTernary<float, F> : FloatTernaryMode<float, F>;
    case Type::kF64:
      return mode == 0 ? FloatTernary<double, F> : FloatTernaryMode<double, F>;
    case Type::kF16:
      return NarrowTernary<Half, 1, F>;
    case Type::kF16x2:
      return NarrowTernary<Half, 2, F>;
    case Type::kBF16:
      return NarrowTernary<BFloat, 1, F>;
    case Type::kBF16x2:
      return NarrowTernary<BFloat, 2, F>;
    default:
      return nullptr;
  }
}

void EmitBinaryMode(Lowering& lowering, Handler handler, Type type, uint8_t mode) {
  if (handler == nullptr) lowering.Unsupported();
  Op op;
  op.mode = mode;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  lowering.Emit(handler, op);
}

template <class F, void (*kInteger)(Lowering&, Type)>
void LowerAddLike(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (ptx::IsInteger(type)) return kInteger(lowering, type);
  const uint8_t mode = TakeFloatMode(lowering);
  EmitBinaryMode(lowering, BinaryHandler<F>(type, mode), type, mode);
}

void LowerDivide(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (ptx::IsInteger(type)) return LowerIntegerDivide(lowering, type);
  lowering.TakeOneOf({"approx", "full"});
  const uint8_t mode = TakeFloatMode(lowering);
  Handler handler = nullptr;
  if (type == Type::kF32) handler = mode == 0 ? FloatBinary<float, Divide> : FloatBinaryMode<float, Divide>;
  if (type == Type::kF64) handler = mode == 0 ? FloatBinary<double, Divide> : FloatBinaryMode<double, Divide>;
  EmitBinaryMode(lowering, handler, type, mode);
}

void LowerFma(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (ptx::IsInteger(type)) return LowerIntegerMad(lowering, type);
  Op op;
  op.mode = TakeFloatMode(lowering);
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  op.c = lowering.Source(3, type);
  const Handler handler = FmaHandler(type, op.mode);
  if (handler == nullptr) lowering.Unsupported();
  lowering.Emit(handler, op);
}

// Op::mode2: 0 minimum, 1 maximum.
template <class T>
Step FloatMinMax(Thread& thread, const Op& op) {
  const T x = Operand1(Read<T>(thread, op.a), op.mode);
  const T y = Operand1(Read<T>(thread, op.b), op.mode);
  const T result = op.mode2 == 0 ? MinimumOf(x, y, op.mode) : MaximumOf(x, y, op.mode);
  Write<T>(thread, op.d, Canonical(result));
  return Step::kNext;
}

template <class H, int kCount>
Step NarrowMinMax(Thread& thread, const Op& op) {
  uint64_t packed = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = ToDouble(NarrowOperand<H>(thread, op.a, i, op.mode));
    const double y = ToDouble(NarrowOperand<H>(thread, op.b, i, op.mode));
    const double result = op.mode2 == 0 ? MinimumOf(x, y, op.mode) : MaximumOf(x, y, op.mode);
    packed |= NarrowResult<H>(result, op.mode) << (16 * i);
  }
  thread.regs[op.d] = packed;
  return Step::kNext;
}

template <bool kMaximum>
void LowerMinMax(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (ptx::IsInteger(type)) {
    return kMaximum ? LowerIntegerMaximum(lowering, type) : LowerIntegerMinimum(lowering, type);
  }
  Op op;
  op.mode = TakeFloatMode(lowering);
  op.mode2 = kMaximum ? 1 : 0;
  if (lowering.Take("NaN")) op.mode |= kNanWins;
  if (lowering.operand_count() != 3) lowering.Unsupported();
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  switch (type) {
    case Type::kF32:
      return lowering.Emit(FloatMinMax<float>, op);
    case Type::kF64:
      return lowering.Emit(FloatMinMax<double>, op);
    case Type::kF16:
      return lowering.Emit(NarrowMinMax<Half, 1>, op);
    case Type::kF16x2:
      return lowering.Emit(NarrowMinMax<Half, 2>, op);
    case Type::kBF16:
      return lowering.Emit(NarrowMinMax<BFloat, 1>, op);
    case Type::kBF16x2:
      return lowering.Emit(NarrowMinMax<BFloat, 2>, op);
    default:
      lowering.Unsupported();
  }
}

// Sign bits of a type's values within a slot.
uint64_t SignBits(Type type) {
  switch (ptx::Bytes(type)) {
    case 8:
      return 1ull << 63;
    case 4:
      return type == Type::kF32 ? 0x80000000u : 0x80008000u;
    default:
      return 0x8000;
  }
}

// Op::imm: sign bits. Narrow and double values are changed as bits alone.
Step NegateBits(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[op.a] ^ static_cast<uint64_t>(op.imm);
  return Step::kNext;
}
Step AbsoluteBits(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[op.a] & ~static_cast<uint64_t>(op.imm);
  return Step::kNext;
}
template <bool kNegate>
Step FlushedSign(Thread& thread, const Op& op) {
  const float value = FlushSubnormal(Read<float>(thread, op.a));
  Write<float>(thread, op.d, kNegate ? -value : std::fabs(value));
  return Step::kNext;
}

template <bool kNegate>
void LowerSign(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (ptx::IsInteger(type)) {
    return kNegate ? LowerIntegerNegate(lowering, type) : LowerIntegerAbsolute(lowering, type);
  }
  Op op;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.imm = static_cast<int64_t>(SignBits(type));
  const bool flush = lowering.Take("ftz");
  if (flush && type == Type::kF32) return lowering.Emit(FlushedSign<kNegate>, op);
  lowering.Emit(kNegate ? NegateBits : AbsoluteBits, op);
}

template <class T>
Step CopySign(Thread& thread, const Op& op) {
  Write<T>(thread, op.d, std::copysign(Read<T>(thread, op.b), Read<T>(thread, op.a)));
  return Step::kNext;
}

enum TestProperty : uint8_t { kFinite, kInfinite, kNumber, kNotANumber, kNormal, kSubnormal };

template <class T>
Step TestValue(Thread& thread, const Op& op) {
  const T value = Read<T>(thread, op.a);
  const int kind = std::fpclassify(value);
  bool result = false;
  switch (op.mode) {
    case kFinite:
      result = std::isfinite(value);
      break;
    case kInfinite:
      result = kind == FP_INFINITE;
      break;
    case kNumber:
      result = kind != FP_NAN;
      break;
    case kNotANumber:
      result = kind == FP_NAN;
      break;
    case kNormal:
      result = kind == FP_NORMAL;
      break;
    default:
      result = kind == FP_SUBNORMAL;
      break;
  }
  thread.regs[op.d] = result;
  return Step::kNext;
}

void LowerTest(Lowering& lowering) {
  static constexpr std::string_view kNames[] = {"finite",     "infinite", "number",
                                                "notanumber", "normal",   "subnormal"};
  const Type type = lowering.TakeType();
  Op op;
  bool known = false;
  for (uint8_t i = 0; i < std::size(kNames); ++i) {
    if (!lowering.Take(kNames[i])) continue;
    op.mode = i;
    known = true;
  }
  if (!known || (type != Type::kF32 && type != Type::kF64)) lowering.Unsupported();
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  lowering.Emit(type == Type::kF32 ? TestValue<float> : TestValue<double>, op);
}

}  // namespace

void AddArithmeticInstructions(LowerTable& table) {
  table["add"] = LowerAddLike<Add, LowerIntegerAdd>;
  table["sub"] = LowerAddLike<Subtract, LowerIntegerSubtract>;
  table["mul"] = LowerAddLike<Multiply, LowerIntegerMultiply>;
  table["div"] = LowerDivide;
  table["fma"] = LowerFma;
  table["mad"] = LowerFma;
  table["min"] = LowerMinMax<false>;
  table["max"] = LowerMinMax<true>;
  table["neg"] = LowerSign<true>;
  table["abs"] = LowerSign<false>;
  table["testp"] = LowerTest;
  table["copysign"] = [](Lowering& lowering) {
    const Type type = lowering.TakeType();
    if (type != Type::kF32 && type != Type::kF64) lowering.Unsupported();
    lowering.EmitBinary(type == Type::kF32 ? CopySign<float> : CopySign<double>, type);
  };
}

}  // namespace causeway::software_gpu
