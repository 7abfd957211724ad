// SPDX-License-Identifier: Apache-2.0
// Properties of PTX's types.
#include "tests/software_gpu/ptx_syntax.h"

#include <array>

namespace causeway::software_gpu::ptx {
namespace {

struct TypeName {
  std::string_view name;
  Type type;
  uint32_t bytes;
};

constexpr std::array<TypeName, 20> kTypeNames = {{
    {"pred", Type::kPred, 1},   {"u8", Type::kU8, 1},      {"u16", Type::kU16, 2},
    {"u32", Type::kU32, 4},     {"u64", Type::kU64, 8},    {"s8", Type::kS8, 1},
    {"s16", Type::kS16, 2},     {"s32", Type::kS32, 4},    {"s64", Type::kS64, 8},
    {"b8", Type::kB8, 1},       {"b16", Type::kB16, 2},    {"b32", Type::kB32, 4},
    {"b64", Type::kB64, 8},     {"b128", Type::kB128, 16}, {"f16", Type::kF16, 2},
    {"f16x2", Type::kF16x2, 4}, {"bf16", Type::kBF16, 2},  {"bf16x2", Type::kBF16x2, 4},
    {"f32", Type::kF32, 4},     {"f64", Type::kF64, 8},
}};

}  // namespace

Type ParseType(std::string_view name) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.name == name) return entry.type;
  }
  return Type::kNone;
}

uint32_t Bytes(Type type) {
  for (const TypeName& entry : kTypeNames) {
    if (entry.type == type) return entry.bytes;
  }
  return 0;
}

bool IsSigned(Type type) {
  return type >= Type::kS8 && type <= Type::kS64;
}
bool IsFloat(Type type) {
  return type >= Type::kF16;
}
bool IsInteger(Type type) {
  return type >= Type::kU8 && type <= Type::kB64;
}

}  // namespace causeway::software_gpu::ptx
