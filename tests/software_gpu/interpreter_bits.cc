// SPDX-License-Identifier: Apache-2.0
// Logic, shifts, bit fields, byte permutation and dot products.
#include <algorithm>
#include <bit>

#include "tests/software_gpu/interpreter_integer.h"

namespace causeway::software_gpu {
namespace {

template <class T>
struct And {
  T operator()(T x, T y) const { return static_cast<T>(x & y); }
};
template <class T>
struct Or {
  T operator()(T x, T y) const { return static_cast<T>(x | y); }
};
template <class T>
struct Xor {
  T operator()(T x, T y) const { return static_cast<T>(x ^ y); }
};
template <class T>
struct Not {
  T operator()(T x) const { return static_cast<T>(~x); }
};
template <class T>
struct LogicalNot {
  T operator()(T x) const { return x == 0 ? 1 : 0; }
};

uint64_t ReverseBits(uint64_t value, int bits) {
  uint64_t reversed = 0;
  for (int i = 0; i < bits; ++i) reversed |= (value >> i & 1) << (bits - 1 - i);
  return reversed;
}
template <class T>
struct Reverse {
  T operator()(T x) const { return static_cast<T>(ReverseBits(x, sizeof(T) * 8)); }
};

// Slots of predicates hold 0 or 1, so bitwise operations serve them too; only `not` differs.
template <template <class> class F>
void LowerLogic(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (type == Type::kPred) return lowering.EmitBinary(Binary<uint64_t, F<uint64_t>>, type);
  lowering.EmitBinary(IntegerBinary<F>(type), type);
}

void LowerNot(Lowering& lowering) {
  const Type type = lowering.TakeType();
  lowering.EmitUnary(type == Type::kPred ? NotPredicate : IntegerUnary<Not>(type), type);
}

// The shift distance is 32 bits wide whatever the type; distances past the width shift everything out.
template <class T>
Step ShiftLeft(Thread& thread, const Op& op) {
  const uint32_t distance = Read<uint32_t>(thread, op.b);
  const T value = Read<T>(thread, op.a);
  Write<T>(thread, op.d,
           distance >= sizeof(T) * 8 ? T{0} : static_cast<T>(static_cast<uint64_t>(value) << distance));
  return Step::kNext;
}

template <class T>
Step ShiftRight(Thread& thread, const Op& op) {
  const uint32_t distance = std::min<uint32_t>(Read<uint32_t>(thread, op.b), sizeof(T) * 8);
  const T value = Read<T>(thread, op.a);
  T result;
  if (distance < sizeof(T) * 8) {
    result = static_cast<T>(value >> distance);
  } else {
    result = std::is_signed_v<T> && value < 0 ? static_cast<T>(~T{0}) : T{0};
  }
  Write<T>(thread, op.d, result);
  return Step::kNext;
}

template <bool kLeft>
void LowerShift(Lowering& lowering) {
  const Type type = lowering.TakeType();
  Op op;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, Type::kU32);
  Handler handler = nullptr;
  switch (type) {
    case Type::kB16:
    case Type::kU16:
      handler = kLeft ? ShiftLeft<uint16_t> : ShiftRight<uint16_t>;
      break;
    case Type::kB32:
    case Type::kU32:
      handler = kLeft ? ShiftLeft<uint32_t> : ShiftRight<uint32_t>;
      break;
    case Type::kB64:
    case Type::kU64:
      handler = kLeft ? ShiftLeft<uint64_t> : ShiftRight<uint64_t>;
      break;
    case Type::kS16:
      handler = ShiftRight<int16_t>;
      break;
    case Type::kS32:
      handler = ShiftRight<int32_t>;
      break;
    case Type::kS64:
      handler = ShiftRight<int64_t>;
      break;
    default:
      lowering.Unsupported();
  }
  lowering.Emit(handler, op);
}

// Op::mode: 1 left; Op::mode2: 1 wraps the distance, else clamps it to 32.
Step FunnelShift(Thread& thread, const Op& op) {
  const uint64_t both =
      static_cast<uint64_t>(Read<uint32_t>(thread, op.b)) << 32 | Read<uint32_t>(thread, op.a);
  const uint32_t given = Read<uint32_t>(thread, op.c);
  const uint32_t distance = op.mode2 != 0 ? given & 31 : std::min(given, 32u);
  uint64_t result;
  if (op.mode != 0) {
    result = distance == 32 ? both : both << distance >> 32;
  } else {
    result = both >> distance;
  }
  Write<uint32_t>(thread, op.d, static_cast<uint32_t>(result));
  return Step::kNext;
}

void LowerFunnelShift(Lowering& lowering) {
  Op op;
  op.mode = lowering.Take("l") ? 1 : 0;
  if (op.mode == 0 && !lowering.Take("r")) lowering.Unsupported();
  op.mode2 = lowering.Take("wrap") ? 1 : 0;
  lowering.Take("clamp");
  if (lowering.TakeType() != Type::kB32) lowering.Unsupported();
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, Type::kB32);
  op.b = lowering.Source(2, Type::kB32);
  op.c = lowering.Source(3, Type::kU32);
  lowering.Emit(FunnelShift, op);
}

// Selector nibbles of the special prmt modes, by the low two bits of c.
constexpr uint16_t kPermuteModes[7][4] = {
    {},                                // by nibbles of c itself
    {0x3210, 0x4321, 0x5432, 0x6543},  // f4e
    {0x5670, 0x6701, 0x7012, 0x0123},  // b4e
    {0x0000, 0x1111, 0x2222, 0x3333},  // rc8
    {0x3210, 0x3211, 0x3222, 0x3333},  // ecl
    {0x0000, 0x1110, 0x2210, 0x3210},  // ecr
    {0x1010, 0x3232, 0x1010, 0x3232},  // rc16
};
constexpr std::string_view kPermuteNames[] = {"", "f4e", "b4e", "rc8", "ecl", "ecr", "rc16"};

Step Permute(Thread& thread, const Op& op) {
  const uint64_t both =
      static_cast<uint64_t>(Read<uint32_t>(thread, op.b)) << 32 | Read<uint32_t>(thread, op.a);
  uint32_t selector = Read<uint32_t>(thread, op.c);
  if (op.mode != 0) selector = kPermuteModes[op.mode][selector & 3];
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    const uint32_t nibble = selector >> (4 * i) & 15;
    auto byte = static_cast<uint8_t>(both >> (8 * (nibble & 7)));
    if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= static_cast<uint32_t>(byte) << (8 * i);
  }
  Write<uint32_t>(thread, op.d, result);
  return Step::kNext;
}

void LowerPermute(Lowering& lowering) {
  if (lowering.TakeType() != Type::kB32) lowering.Unsupported();
  Op op;
  for (uint8_t i = 1; i < std::size(kPermuteNames); ++i) {
    if (lowering.Take(kPermuteNames[i])) op.mode = i;
  }
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, Type::kB32);
  op.b = lowering.Source(2, Type::kB32);
  op.c = lowering.Source(3, Type::kB32);
  lowering.Emit(Permute, op);
}

// d = bits [pos, pos + len) of a, the highest one existing replicated above for signed types.
template <class T>
Step ExtractField(Thread& thread, const Op& op) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  const auto value = static_cast<uint64_t>(Read<std::make_unsigned_t<T>>(thread, op.a));
  const uint32_t position = Read<uint32_t>(thread, op.b) & 0xff;
  const uint32_t length = Read<uint32_t>(thread, op.c) & 0xff;
  uint64_t result = position >= kBits ? 0 : value >> position;
  bool sign = false;
  if (std::is_signed_v<T> && length != 0) {
    sign = (value >> std::min(position + length - 1, kBits - 1) & 1) != 0;
  }
  const uint32_t kept = position >= kBits ? 0 : std::min(length, kBits - position);
  const uint64_t mask = kept >= 64 ? ~0ull : (1ull << kept) - 1;
  result = (result & mask) | (sign ? ~mask : 0);
  Write<T>(thread, op.d, static_cast<T>(result));
  return Step::kNext;
}

void LowerExtractField(Lowering& lowering) {
  const Type type = lowering.TakeType();
  Op op;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, Type::kU32);
  op.c = lowering.Source(3, Type::kU32);
  switch (type) {
    case Type::kU32:
      return lowering.Emit(ExtractField<uint32_t>, op);
    case Type::kU64:
      return lowering.Emit(ExtractField<uint64_t>, op);
    case Type::kS32:
      return lowering.Emit(ExtractField<int32_t>, op);
    case Type::kS64:
      return lowering.Emit(ExtractField<int64_t>, op);
    default:
      lowering.Unsupported();
  }
}

// d = b with its bits [c, c + e) replaced by the low ones of a.
template <class T>
Step InsertField(Thread& thread, const Op& op) {
  constexpr uint32_t kBits = sizeof(T) * 8;
  const T value = Read<T>(thread, op.a);
  const T base = Read<T>(thread, op.b);
  const uint32_t position = Read<uint32_t>(thread, op.c) & 0xff;
  const uint32_t length = Read<uint32_t>(thread, op.e) & 0xff;
  if (position >= kBits || length == 0) {
    Write<T>(thread, op.d, base);
    return Step::kNext;
  }
  const uint32_t kept = std::min(length, kBits - position);
  const T ones = kept >= kBits ? static_cast<T>(~T{0}) : static_cast<T>((T{1} << kept) - 1);
  const T mask = static_cast<T>(ones << position);
  Write<T>(thread, op.d, static_cast<T>((base & ~mask) | (static_cast<T>(value << position) & mask)));
  return Step::kNext;
}

void LowerInsertField(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (ptx::Bytes(type) < 4) lowering.Unsupported();
  Op op;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  op.b = lowering.Source(2, type);
  op.c = lowering.Source(3, Type::kU32);
  op.e = lowering.Source(4, Type::kU32);
  lowering.Emit(ptx::Bytes(type) == 8 ? InsertField<uint64_t> : InsertField<uint32_t>, op);
}

// Position of the highest bit that is no sign bit; all ones if there is none. Op::mode: as a shift left.
template <class T>
Step FindHighest(Thread& thread, const Op& op) {
  using U = std::make_unsigned_t<T>;
  constexpr int kBits = sizeof(T) * 8;
  const T value = Read<T>(thread, op.a);
  const U bits = static_cast<U>(value < 0 ? ~value : value);
  uint32_t result = ~0u;
  if (bits != 0) {
    const int position = kBits - 1 - std::countl_zero(bits);
    result = static_cast<uint32_t>(op.mode != 0 ? kBits - 1 - position : position);
  }
  Write<uint32_t>(thread, op.d, result);
  return Step::kNext;
}

void LowerFindHighest(Lowering& lowering) {
  Op op;
  op.mode = lowering.Take("shiftamt") ? 1 : 0;
  const Type type = lowering.TakeType();
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, type);
  switch (type) {
    case Type::kU32:
      return lowering.Emit(FindHighest<uint32_t>, op);
    case Type::kU64:
      return lowering.Emit(FindHighest<uint64_t>, op);
    case Type::kS32:
      return lowering.Emit(FindHighest<int32_t>, op);
    case Type::kS64:
      return lowering.Emit(FindHighest<int64_t>, op);
    default:
      lowering.Unsupported();
  }
}

template <class T, bool kPopulation>
Step CountBits(Thread& thread, const Op& op) {
  const T value = Read<T>(thread, op.a);
  Write<uint32_t>(thread, op.d,
                  static_cast<uint32_t>(kPopulation ? std::popcount(value) : std::countl_zero(value)));
  return Step::kNext;
}

template <bool kPopulation>
void LowerCount(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (ptx::Bytes(type) < 4) lowering.Unsupported();
  lowering.EmitUnary(
      ptx::Bytes(type) == 8 ? CountBits<uint64_t, kPopulation> : CountBits<uint32_t, kPopulation>, type);
}

// Bit i of the table in Op::imm is the result for the operand bits a = i & 4, b = i & 2, c = i & 1.
Step Lookup3(Thread& thread, const Op& op) {
  const uint32_t a = Read<uint32_t>(thread, op.a);
  const uint32_t b = Read<uint32_t>(thread, op.b);
  const uint32_t c = Read<uint32_t>(thread, op.c);
  uint32_t result = 0;
  for (uint32_t i = 0; i < 8; ++i) {
    if ((op.imm >> i & 1) == 0) continue;
    result |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
  }
  Write<uint32_t>(thread, op.d, result);
  return Step::kNext;
}

void LowerLookup3(Lowering& lowering) {
  if (lowering.TakeType() != Type::kB32) lowering.Unsupported();
  Op op;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, Type::kB32);
  op.b = lowering.Source(2, Type::kB32);
  op.c = lowering.Source(3, Type::kB32);
  op.imm = lowering.Constant(4);
  lowering.Emit(Lookup3, op);
}

// Sums of 4 products of bytes, or of 2 products of 16 with 8 bits. Op::mode: bit 0 a signed, bit 1 b
// signed; Op::mode2: 0 dp4a, 1 dp2a.lo, 2 dp2a.hi.
Step DotProduct(Thread& thread, const Op& op) {
  const uint32_t a = Read<uint32_t>(thread, op.a);
  const uint32_t b = Read<uint32_t>(thread, op.b);
  uint32_t sum = Read<uint32_t>(thread, op.c);
  const auto field = [](uint32_t bits, int shift, int width, bool is_signed) {
    const uint32_t top = bits << (32 - shift - width);
    return is_signed ? static_cast<int32_t>(top) >> (32 - width) : static_cast<int32_t>(top >> (32 - width));
  };
  const int count = op.mode2 == 0 ? 4 : 2;
  for (int i = 0; i < count; ++i) {
    const int width = op.mode2 == 0 ? 8 : 16;
    const int b_byte = op.mode2 == 2 ? i + 2 : i;
    const int32_t x = field(a, i * width, width, (op.mode & 1) != 0);
    const int32_t y = field(b, b_byte * 8, 8, (op.mode & 2) != 0);
    sum += static_cast<uint32_t>(x) * static_cast<uint32_t>(y);
  }
  Write<uint32_t>(thread, op.d, sum);
  return Step::kNext;
}

template <bool kFour>
void LowerDotProduct(Lowering& lowering) {
  Op op;
  if (!kFour) op.mode2 = lowering.Take("hi") ? 2 : 1;
  lowering.Take("lo");
  const Type a = lowering.TakeType();
  const Type b = lowering.TakeType();
  op.mode = static_cast<uint8_t>((a == Type::kS32 ? 1 : 0) | (b == Type::kS32 ? 2 : 0));
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, Type::kB32);
  op.b = lowering.Source(2, Type::kB32);
  op.c = lowering.Source(3, Type::kB32);
  lowering.Emit(DotProduct, op);
}

// A mask of b ones from bit a on. Op::mode: wraps both, else clamps them to 32.
Step MakeMask(Thread& thread, const Op& op) {
  uint32_t position = Read<uint32_t>(thread, op.a);
  uint32_t width = Read<uint32_t>(thread, op.b);
  position = op.mode != 0 ? position & 31 : std::min(position, 32u);
  width = op.mode != 0 ? width & 31 : std::min(width, 32u);
  Write<uint32_t>(thread, op.d, static_cast<uint32_t>(((1ull << width) - 1) << position));
  return Step::kNext;
}

// Extends a from b bits on. Op::mode: 1 wraps b, else clamps; Op::mode2: signed.
Step ExtendFrom(Thread& thread, const Op& op) {
  const uint32_t value = Read<uint32_t>(thread, op.a);
  uint32_t bits = Read<uint32_t>(thread, op.b);
  bits = op.mode != 0 ? bits & 31 : std::min(bits, 32u);
  uint32_t result = 0;
  if (bits != 0) {
    const uint32_t top = value << (32 - bits);
    result =
        op.mode2 != 0 ? static_cast<uint32_t>(static_cast<int32_t>(top) >> (32 - bits)) : top >> (32 - bits);
  }
  Write<uint32_t>(thread, op.d, result);
  return Step::kNext;
}

void LowerMaskLike(Lowering& lowering, Handler handler) {
  Op op;
  op.mode = lowering.Take("wrap") ? 1 : 0;
  lowering.Take("clamp");
  op.mode2 = lowering.TakeType() == Type::kS32 ? 1 : 0;
  op.d = lowering.Destination(0);
  op.a = lowering.Source(1, Type::kB32);
  op.b = lowering.Source(2, Type::kU32);
  lowering.Emit(handler, op);
}

// The position of the n-th set bit of a from bit b on, upwards for n > 0, downwards for n < 0.
Step FindNthSet(Thread& thread, const Op& op) {
  const uint32_t mask = Read<uint32_t>(thread, op.a);
  const auto base = static_cast<int32_t>(Read<uint32_t>(thread, op.b) & 31);
  const int32_t n = Read<int32_t>(thread, op.c);
  uint32_t result = ~0u;
  const int32_t step = n < 0 ? -1 : 1;
  int64_t left = n < 0 ? -static_cast<int64_t>(n) : n;
  if (n == 0) {
    if ((mask >> base & 1) != 0) result = static_cast<uint32_t>(base);
  } else {
    for (int32_t i = base; i >= 0 && i < 32 && left > 0; i += step) {
      if ((mask >> i & 1) != 0 && --left == 0) result = static_cast<uint32_t>(i);
    }
  }
  Write<uint32_t>(thread, op.d, result);
  return Step::kNext;
}

}  // namespace

void AddBitInstructions(LowerTable& table) {
  table["and"] = LowerLogic<And>;
  table["or"] = LowerLogic<Or>;
  table["xor"] = LowerLogic<Xor>;
  table["not"] = LowerNot;
  table["cnot"] = [](Lowering& lowering) {
    const Type type = lowering.TakeType();
    lowering.EmitUnary(IntegerUnary<LogicalNot>(type), type);
  };
  table["shl"] = LowerShift<true>;
  table["shr"] = LowerShift<false>;
  table["shf"] = LowerFunnelShift;
  table["prmt"] = LowerPermute;
  table["bfe"] = LowerExtractField;
  table["bfi"] = LowerInsertField;
  table["bfind"] = LowerFindHighest;
  table["brev"] = [](Lowering& lowering) {
    const Type type = lowering.TakeType();
    lowering.EmitUnary(IntegerUnary<Reverse>(type), type);
  };
  table["clz"] = LowerCount<false>;
  table["popc"] = LowerCount<true>;
  table["lop3"] = LowerLookup3;
  table["dp4a"] = LowerDotProduct<true>;
  table["dp2a"] = LowerDotProduct<false>;
  table["bmsk"] = [](Lowering& lowering) { LowerMaskLike(lowering, MakeMask); };
  table["szext"] = [](Lowering& lowering) { LowerMaskLike(lowering, ExtendFrom); };
  table["fns"] = [](Lowering& lowering) {
    const Type type = lowering.TakeType();
    lowering.EmitTernary(FindNthSet, type);
  };
}

}  // namespace causeway::software_gpu
