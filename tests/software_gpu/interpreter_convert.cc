// SPDX-License-Identifier: Apache-2.0
// cvt between all integer and float types.
#include <algorithm>

#include "tests/software_gpu/interpreter_float.h"
#include "tests/software_gpu/interpreter_integer.h"

namespace causeway::software_gpu {
namespace {

// Op::mode2: how a float becomes integral.
enum IntegralRounding : uint8_t { kKeep, kToNearest, kTruncate, kFloor, kCeiling };

template <class D, class S>
Step IntegerToInteger(Thread& thread, const Op& op) {
  Write<D>(thread, op.d, static_cast<D>(Read<S>(thread, op.a)));
  return Step::kNext;
}

template <class D, class S>
Step IntegerToIntegerSaturated(Thread& thread, const Op& op) {
  const auto value = static_cast<__int128>(Read<S>(thread, op.a));
  const auto low = static_cast<__int128>(std::numeric_limits<D>::min());
  const auto high = static_cast<__int128>(std::numeric_limits<D>::max());
  Write<D>(thread, op.d, static_cast<D>(std::clamp(value, low, high)));
  return Step::kNext;
}

double RoundIntegral(double value, uint8_t rounding) {
  switch (rounding) {
    case kToNearest:
      return std::nearbyint(value);
    case kTruncate:
      return std::trunc(value);
    case kFloor:
      return std::floor(value);
    case kCeiling:
      return std::ceil(value);
    default:
      return value;
  }
}

// Out of range gives the nearest value of the type; NaN gives 0, or only the top bit when one of the types
// has 64 bits.
template <class D, class S>
Step FloatToInteger(Thread& thread, const Op& op) {
  S source = Read<S>(thread, op.a);
  if ((op.mode & kFlushSubnormals) != 0) source = FlushSubnormal(source);
  const double value = RoundIntegral(ToDouble(source), op.mode2);
  D result;
  // 2^(bits) is a double, the largest value of a 64-bit type is not.
  const double limit = std::ldexp(1.0, static_cast<int>(sizeof(D) * 8) - (std::is_signed_v<D> ? 1 : 0));
  if (std::isnan(value)) {
    result = sizeof(D) == 8 || sizeof(S) == 8 ? static_cast<D>(D{1} << (sizeof(D) * 8 - 1)) : D{0};
  } else if (value >= limit) {
    result = std::numeric_limits<D>::max();
  } else if (value <= static_cast<double>(std::numeric_limits<D>::min())) {
    result = std::numeric_limits<D>::min();
  } else {
    result = static_cast<D>(value);
  }
  Write<D>(thread, op.d, result);
  return Step::kNext;
}

template <class D, class S>
Step IntegerToFloat(Thread& thread, const Op& op) {
  const volatile S source = Read<S>(thread, op.a);
  D result{};
  if constexpr (kIsNarrow<D>) {
    // Through double, with a sticky last bit where 64 bits do not fit.
    volatile double wide;
    {
      const RoundingScope scope(kTowardZero);
      wide = static_cast<double>(source);
    }
    double exact = wide;
    if (static_cast<__int128>(exact) != static_cast<__int128>(S{source})) {
      exact = std::bit_cast<double>(std::bit_cast<uint64_t>(exact) | 1);
    }
    result = FromDouble<D>(ApplyClamps(exact, op.mode), static_cast<Rounding>(op.mode & 7));
  } else {
    volatile D converted;
    {
      const RoundingScope scope(op.mode);
      converted = static_cast<D>(source);
    }
    result = static_cast<D>(ApplyClamps(converted, op.mode));
  }
  Write<D>(thread, op.d, result);
  return Step::kNext;
}

template <class D, class S>
Step IntegerToFloatNearest(Thread& thread, const Op& op) {
  Write<D>(thread, op.d, static_cast<D>(Read<S>(thread, op.a)));
  return Step::kNext;
}

template <class D, class S>
D ConvertFloat(S source, const Op& op) {
  if ((op.mode & kFlushSubnormals) != 0 && sizeof(S) == 4) source = FlushSubnormal(source);
  const double value = ApplyClamps(RoundIntegral(ToDouble(source), op.mode2), op.mode);
  D result = FromDouble<D>(value, static_cast<Rounding>(op.mode & 7));
  if ((op.mode & kFlushSubnormals) != 0 && sizeof(D) == 4) result = FlushSubnormal(result);
  return result;
}

template <class D, class S>
Step FloatToFloat(Thread& thread, const Op& op) {
  Write<D>(thread, op.d, ConvertFloat<D>(Read<S>(thread, op.a), op));
  return Step::kNext;
}

// The first source goes to the high half.
template <class D>
Step FloatsToPacked(Thread& thread, const Op& op) {
  const uint64_t high = ConvertFloat<D>(Read<float>(thread, op.a), op).bits;
  const uint64_t low = ConvertFloat<D>(Read<float>(thread, op.b), op).bits;
  thread.regs[op.d] = high << 16 | low;
  return Step::kNext;
}

template <class D, class S>
Handler ConvertHandler(const Op& op) {
  constexpr bool kFromInteger = std::is_integral_v<S>;
  if constexpr (std::is_integral_v<D> && kFromInteger) {
    return (op.mode & kSaturate) != 0 ? IntegerToIntegerSaturated<D, S> : IntegerToInteger<D, S>;
  } else if constexpr (std::is_integral_v<D>) {
    return FloatToInteger<D, S>;
  } else if constexpr (kFromInteger) {
    if constexpr (!kIsNarrow<D>) {
      if (op.mode == 0) return IntegerToFloatNearest<D, S>;
    }
    return IntegerToFloat<D, S>;
  } else {
    return FloatToFloat<D, S>;
  }
}

template <class D>
Handler HandlerFrom(Type source, const Op& op) {
  switch (source) {
    case Type::kU8:
    case Type::kB8:
      return ConvertHandler<D, uint8_t>(op);
    case Type::kU16:
    case Type::kB16:
      return ConvertHandler<D, uint16_t>(op);
    case Type::kU32:
    case Type::kB32:
      return ConvertHandler<D, uint32_t>(op);
    case Type::kU64:
    case Type::kB64:
      return ConvertHandler<D, uint64_t>(op);
    case Type::kS8:
      return ConvertHandler<D, int8_t>(op);
    case Type::kS16:
      return ConvertHandler<D, int16_t>(op);
    case Type::kS32:
      return ConvertHandler<D, int32_t>(op);
    case Type::kS64:
      return ConvertHandler<D, int64_t>(op);
    case Type::kF16:
      return ConvertHandler<D, Half>(op);
    case Type::kBF16:
      return ConvertHandler<D, BFloat>(op);
    case Type::kF32:
      return ConvertHandler<D, float>(op);
    case Type::kF64:
      return ConvertHandler<D, double>(op);
    default:
      return nullptr;
  }
}

Handler HandlerTo(Type target, Type source, const Op& op) {
  switch (target) {
    case Type::kU8:
    case Type::kB8:
      return HandlerFrom<uint8_t>(source, op);
    case Type::kU16:
    case Type::kB16:
      return HandlerFrom<uint16_t>(source, op);
    case Type::kU32:
    case Type::kB32:
      return HandlerFrom<uint32_t>(source, op);
    case Type::kU64:
    case Type::kB64:
      return HandlerFrom<uint64_t>(source, op);
    case Type::kS8:
      return HandlerFrom<int8_t>(source, op);
    case Type::kS16:
      return HandlerFrom<int16_t>(source, op);
    case Type::kS32:
      return HandlerFrom<int32_t>(source, op);
    case Type::kS64:
      return HandlerFrom<int64_t>(source, op);
    case Type::kF16:
      return HandlerFrom<Half>(source, op);
    case Type::kBF16:
      return HandlerFrom<BFloat>(source, op);
    case Type::kF32:
      return HandlerFrom<float>(source, op);
    case Type::kF64:
      return HandlerFrom<double>(source, op);
    default:
      return nullptr;
  }
}

void LowerConvert(Lowering& lowering) {
  Op op;
  if (lowering.Take("rni")) op.mode2 = kToNearest;
  if (lowering.Take("rzi")) op.mode2 = kTruncate;
  if (lowering.Take("rmi")) op.mode2 = kFloor;
  if (lowering.Take("rpi")) op.mode2 = kCeiling;
  op.mode = TakeFloatMode(lowering);
  const Type target = lowering.TakeType();
  const Type source = lowering.TakeType();
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, source);
  if (target == Type::kF16x2 || target == Type::kBF16x2) {
    if (source != Type::kF32 || lowering.operand_count() != 3) lowering.Unsupported();
    op.b = lowering.Source(2, source);
    return lowering.Emit(target == Type::kF16x2 ? FloatsToPacked<Half> : FloatsToPacked<BFloat>, op);
  }
  const Handler handler = HandlerTo(target, source, op);
  if (handler == nullptr || lowering.operand_count() != 2) lowering.Unsupported();
  lowering.Emit(handler, op);
}

}  // namespace

void AddConvertInstructions(LowerTable& table) {
  table["cvt"] = LowerConvert;
}

}  // namespace causeway::software_gpu
