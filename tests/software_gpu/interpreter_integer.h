// SPDX-License-Identifier: Apache-2.0
// Handlers made from function objects, and the integer halves of instructions that floats share.
#pragma once
#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {

template <class T, class F>
Step Unary(Thread& thread, const Op& op) {
  Write<T>(thread, op.d, F()(Read<T>(thread, op.a)));
  return Step::kNext;
}

template <class T, class F>
Step Binary(Thread& thread, const Op& op) {
  Write<T>(thread, op.d, F()(Read<T>(thread, op.a), Read<T>(thread, op.b)));
  return Step::kNext;
}

template <class T, class F>
Step Ternary(Thread& thread, const Op& op) {
  Write<T>(thread, op.d, F()(Read<T>(thread, op.a), Read<T>(thread, op.b), Read<T>(thread, op.c)));
  return Step::kNext;
}

// The instance of F for an integer type of 16 to 64 bits; null for other types.
template <template <class> class F>
Handler IntegerUnary(Type type) {
  switch (type) {
    case Type::kU16:
    case Type::kB16:
      return Unary<uint16_t, F<uint16_t>>;
    case Type::kU32:
    case Type::kB32:
      return Unary<uint32_t, F<uint32_t>>;
    case Type::kU64:
    case Type::kB64:
      return Unary<uint64_t, F<uint64_t>>;
    case Type::kS16:
      return Unary<int16_t, F<int16_t>>;
    case Type::kS32:
      return Unary<int32_t, F<int32_t>>;
    case Type::kS64:
      return Unary<int64_t, F<int64_t>>;
    default:
      return nullptr;
  }
}

template <template <class> class F>
Handler IntegerBinary(Type type) {
  switch (type) {
    case Type::kU16:
    case Type::kB16:
      return Binary<uint16_t, F<uint16_t>>;
    case Type::kU32:
    case Type::kB32:
      return Binary<uint32_t, F<uint32_t>>;
    case Type::kU64:
    case Type::kB64:
      return Binary<uint64_t, F<uint64_t>>;
    case Type::kS16:
      return Binary<int16_t, F<int16_t>>;
    case Type::kS32:
      return Binary<int32_t, F<int32_t>>;
    case Type::kS64:
      return Binary<int64_t, F<int64_t>>;
    default:
      return nullptr;
  }
}

template <template <class> class F>
Handler IntegerTernary(Type type) {
  switch (type) {
    case Type::kU16:
    case Type::kB16:
      return Ternary<uint16_t, F<uint16_t>>;
    case Type::kU32:
    case Type::kB32:
      return Ternary<uint32_t, F<uint32_t>>;
    case Type::kU64:
    case Type::kB64:
      return Ternary<uint64_t, F<uint64_t>>;
    case Type::kS16:
      return Ternary<int16_t, F<int16_t>>;
    case Type::kS32:
      return Ternary<int32_t, F<int32_t>>;
    case Type::kS64:
      return Ternary<int64_t, F<int64_t>>;
    default:
      return nullptr;
  }
}

// The type has been taken; the other modifiers have not.
void LowerIntegerAdd(Lowering& lowering, Type type);
void LowerIntegerSubtract(Lowering& lowering, Type type);
void LowerIntegerMultiply(Lowering& lowering, Type type);
void LowerIntegerMad(Lowering& lowering, Type type);
void LowerIntegerDivide(Lowering& lowering, Type type);
void LowerIntegerMinimum(Lowering& lowering, Type type);
void LowerIntegerMaximum(Lowering& lowering, Type type);
void LowerIntegerAbsolute(Lowering& lowering, Type type);
void LowerIntegerNegate(Lowering& lowering, Type type);

}  // namespace causeway::software_gpu
