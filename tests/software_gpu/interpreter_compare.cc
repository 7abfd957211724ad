// SPDX-License-Identifier: Apache-2.0
// setp, set, selp, slct.
#include "tests/software_gpu/interpreter_float.h"
#include "tests/software_gpu/interpreter_integer.h"

namespace causeway::software_gpu {
namespace {

// The order of kCompareNames. An unordered comparison is true when an operand is NaN.
enum Comparison : uint8_t {
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kLower,
  kLowerSame,
  kHigher,
  kHigherSame,
  kEqualU,
  kNotEqualU,
  kLessU,
  kLessEqualU,
  kGreaterU,
  kGreaterEqualU,
  kNumber,
  kNan,
};
constexpr std::string_view kCompareNames[] = {"eq", "ne",  "lt",  "le",  "gt",  "ge",  "lo",  "ls",  "hi",
                                              "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"};
enum Combination : uint8_t { kNone, kAnd, kOr, kXor };

template <class T>
bool Compare(uint8_t comparison, T x, T y) {
  if constexpr (std::is_floating_point_v<T>) {
    const bool unordered = std::isnan(x) || std::isnan(y);
    if (comparison == kNumber) return !unordered;
    if (comparison == kNan) return unordered;
    if (unordered) return comparison >= kEqualU;
    if (comparison >= kEqualU) comparison = static_cast<uint8_t>(comparison - kEqualU);
  }
  switch (comparison) {
    case kEqual:
      return x == y;
    case kNotEqual:
      return x != y;
    case kLess:
    case kLower:
      return x < y;
    case kLessEqual:
    case kLowerSame:
      return x <= y;
    case kGreater:
    case kHigher:
      return x > y;
    default:
      return x >= y;
  }
}

bool Combine(uint8_t combination, bool result, bool with) {
  switch (combination) {
    case kAnd:
      return result && with;
    case kOr:
      return result || with;
    case kXor:
      return result != with;
    default:
      return result;
  }
}

// Op::mode: comparison; Op::mode2: combination, kFlushSubnormals.
template <class T>
bool CompareSlots(Thread& thread, const Op& op, int half) {
  if constexpr (kIsNarrow<T>) {
    T x{static_cast<uint16_t>(thread.regs[op.a] >> (16 * half))};
    T y{static_cast<uint16_t>(thread.regs[op.b] >> (16 * half))};
    if ((op.mode2 & kFlushSubnormals) != 0) {
      x = FlushSubnormal(x);
      y = FlushSubnormal(y);
    }
    return Compare(op.mode, ToDouble(x), ToDouble(y));
  } else {
    T x = Read<T>(thread, op.a);
    T y = Read<T>(thread, op.b);
    if constexpr (std::is_floating_point_v<T>) {
      if ((op.mode2 & kFlushSubnormals) != 0) {
        x = FlushSubnormal(x);
        y = FlushSubnormal(y);
      }
    }
    return Compare(op.mode, x, y);
  }
}

template <class T>
Step SetPredicate(Thread& thread, const Op& op) {
  const bool result = CompareSlots<T>(thread, op, 0);
  const bool with = (thread.regs[op.c] & 1) != 0;
  const uint8_t combination = op.mode2 & 3;
  thread.regs[op.d] = Combine(combination, result, with);
  if (op.e != kNoSlot) thread.regs[op.e] = Combine(combination, !result, with);
  return Step::kNext;
}

template <class T, uint8_t kComparison>
Step SetPredicateFast(Thread& thread, const Op& op) {
  thread.regs[op.d] = Compare<T>(kComparison, Read<T>(thread, op.a), Read<T>(thread, op.b));
  return Step::kNext;
}

// Packed: one predicate for each half.
template <class H>
Step SetPredicatePair(Thread& thread, const Op& op) {
  const bool low = CompareSlots<H>(thread, op, 0);
  const bool high = CompareSlots<H>(thread, op, 1);
  const bool with = (thread.regs[op.c] & 1) != 0;
  thread.regs[op.d] = Combine(op.mode2 & 3, low, with);
  if (op.e != kNoSlot) thread.regs[op.e] = Combine(op.mode2 & 3, high, with);
  return Step::kNext;
}

// Op::imm: what true writes (for each half, if packed).
template <class T, int kCount>
Step SetValue(Thread& thread, const Op& op) {
  uint64_t packed = 0;
  for (int i = 0; i < kCount; ++i) {
    const bool result = Combine(op.mode2 & 3, CompareSlots<T>(thread, op, i), (thread.regs[op.c] & 1) != 0);
    if (result) packed |= static_cast<uint64_t>(op.imm) << (16 * i);
  }
  thread.regs[op.d] = packed;
  return Step::kNext;
}

template <class T>
Handler FastHandler(uint8_t comparison) {
  switch (comparison) {
    case kEqual:
      return SetPredicateFast<T, kEqual>;
    case kNotEqual:
      return SetPredicateFast<T, kNotEqual>;
    case kLess:
    case kLower:
      return SetPredicateFast<T, kLess>;
    case kLessEqual:
    case kLowerSame:
      return SetPredicateFast<T, kLessEqual>;
    case kGreater:
    case kHigher:
      return SetPredicateFast<T, kGreater>;
    case kGreaterEqual:
    case kHigherSame:
      return SetPredicateFast<T, kGreaterEqual>;
    default:
      return SetPredicate<T>;
  }
}

template <class T>
Handler PredicateHandlerOf(const Op& op) {
  return op.mode2 == 0 && op.e == kNoSlot ? FastHandler<T>(op.mode) : SetPredicate<T>;
}

Handler PredicateHandler(Type type, const Op& op) {
  switch (type) {
    case Type::kU16:
    case Type::kB16:
      return PredicateHandlerOf<uint16_t>(op);
    case Type::kU32:
    case Type::kB32:
      return PredicateHandlerOf<uint32_t>(op);
    case Type::kU64:
    case Type::kB64:
      return PredicateHandlerOf<uint64_t>(op);
    case Type::kS16:
      return PredicateHandlerOf<int16_t>(op);
    case Type::kS32:
      return PredicateHandlerOf<int32_t>(op);
    case Type::kS64:
      return PredicateHandlerOf<int64_t>(op);
    case Type::kF32:
      return PredicateHandlerOf<float>(op);
    case Type::kF64:
      return PredicateHandlerOf<double>(op);
    case Type::kF16:
      return SetPredicate<Half>;
    case Type::kBF16:
      return SetPredicate<BFloat>;
    case Type::kF16x2:
      return SetPredicatePair<Half>;
    case Type::kBF16x2:
      return SetPredicatePair<BFloat>;
    default:
      return nullptr;
  }
}

Handler ValueHandler(Type type) {
  switch (type) {
    case Type::kU16:
    case Type::kB16:
      return SetValue<uint16_t, 1>;
    case Type::kU32:
    case Type::kB32:
      return SetValue<uint32_t, 1>;
    case Type::kU64:
    case Type::kB64:
      return SetValue<uint64_t, 1>;
    case Type::kS16:
      return SetValue<int16_t, 1>;
    case Type::kS32:
      return SetValue<int32_t, 1>;
    case Type::kS64:
      return SetValue<int64_t, 1>;
    case Type::kF32:
      return SetValue<float, 1>;
    case Type::kF64:
      return SetValue<double, 1>;
    case Type::kF16:
      return SetValue<Half, 1>;
    case Type::kBF16:
      return SetValue<BFloat, 1>;
    case Type::kF16x2:
      return SetValue<Half, 2>;
    case Type::kBF16x2:
      return SetValue<BFloat, 2>;
    default:
      return nullptr;
  }
}

void TakeComparison(Lowering& lowering, Op& op) {
  bool known = false;
  for (uint8_t i = 0; i < std::size(kCompareNames); ++i) {
    if (known || !lowering.Take(kCompareNames[i])) continue;
    op.mode = i;
    known = true;
  }
  if (!known) lowering.Unsupported();
  if (lowering.Take("and")) op.mode2 = kAnd;
  if (lowering.Take("or")) op.mode2 = kOr;
  if (lowering.Take("xor")) op.mode2 = kXor;
  if (lowering.Take("ftz")) op.mode2 |= kFlushSubnormals;
}

void TakeOperands(Lowering& lowering, Type type, Op& op) {
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  if ((op.mode2 & 3) != kNone) op.c = lowering.Source(3, Type::kPred);
}

void LowerSetPredicate(Lowering& lowering) {
  Op op;
  TakeComparison(lowering, op);
  const Type type = lowering.TakeType();
  const Operand& result = lowering.operand(0);
  const bool pair = result.kind == OperandKind::kPair;
  op.d = lowering.DestinationOf(pair ? result.elements[0] : result);
  if (pair) op.e = lowering.DestinationOf(result.elements[1]);
  TakeOperands(lowering, type, op);
  const Handler handler = PredicateHandler(type, op);
  if (handler == nullptr) lowering.Unsupported();
  lowering.Emit(handler, op);
}

int64_t TrueValue(Lowering& lowering, Type result, Type compared) {
  const bool packed = compared == Type::kF16x2 || compared == Type::kBF16x2;
  switch (result) {
    case Type::kU32:
    case Type::kS32:
      return packed ? 0xffff : 0xffffffff;
    case Type::kU16:
    case Type::kS16:
      return 0xffff;
    case Type::kF32:
      return 0x3f800000;
    case Type::kF16:
    case Type::kF16x2:
      return 0x3c00;
    case Type::kBF16:
    case Type::kBF16x2:
      return 0x3f80;
    default:
      lowering.Unsupported();
  }
}

void LowerSet(Lowering& lowering) {
  Op op;
  TakeComparison(lowering, op);
  const Type result = lowering.TakeType();
  const Type type = lowering.TakeType();
  op.imm = TrueValue(lowering, result, type);
  op.d = lowering.Destination(0);
  TakeOperands(lowering, type, op);
  const Handler handler = ValueHandler(type);
  if (handler == nullptr) lowering.Unsupported();
  lowering.Emit(handler, op);
}

Step Select(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[(thread.regs[op.c] & 1) != 0 ? op.a : op.b];
  return Step::kNext;
}

void LowerSelect(Lowering& lowering) {
  const Type type = lowering.TakeType();
  Op op;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  op.c = lowering.Source(3, Type::kPred);
  lowering.Emit(Select, op);
}

template <class T>
Step SelectBySign(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[Read<T>(thread, op.c) >= 0 ? op.a : op.b];
  return Step::kNext;
}

void LowerSelectBySign(Lowering& lowering) {
  if (lowering.Take("ftz")) lowering.Unsupported();
  const Type type = lowering.TakeType();
  const Type sign = lowering.TakeType();
  if (sign != Type::kS32 && sign != Type::kF32) lowering.Unsupported();
  Op op;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  op.c = lowering.Source(3, sign);
  lowering.Emit(sign == Type::kS32 ? SelectBySign<int32_t> : SelectBySign<float>, op);
}

}  // namespace

void AddCompareInstructions(LowerTable& table) {
  table["setp"] = LowerSetPredicate;
  table["set"] = LowerSet;
  table["selp"] = LowerSelect;
  table["slct"] = LowerSelectBySign;
}

}  // namespace causeway::software_gpu
