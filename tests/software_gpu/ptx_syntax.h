// SPDX-License-Identifier: Apache-2.0
// What the PTX parser produces: a module of symbols and functions, instructions still in PTX's own terms.
// String views point into the PTX text, which must outlive the module.
#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace causeway::software_gpu::ptx {

enum class Type : uint8_t {
  kNone,
  kPred,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kF16,
  kF16x2,
  kBF16,
  kBF16x2,
  kF32,
  kF64,
};

// "u32" to kU32; kNone when the name is no type.
Type ParseType(std::string_view name);
uint32_t Bytes(Type type);  // 1 for predicates
bool IsSigned(Type type);   // s8 to s64
bool IsFloat(Type type);    // includes the packed ones
bool IsInteger(Type type);  // u, s and b types

enum class Space : uint8_t { kGeneric, kParam, kGlobal, kConst, kShared, kLocal };

// `bytes` of the initialiser at `offset` hold (address of `name` + addend) >> shift.
struct InitialAddress {
  size_t offset = 0;
  uint32_t bytes = 8;
  std::string name;
  int64_t addend = 0;
  int shift = 0;
  int line = 0;
};

// A variable or parameter of any space.
struct Symbol {
  std::string name;
  Space space = Space::kGlobal;
  bool managed = false;   // .attribute(.managed)
  bool external = false;  // .extern: dynamic shared memory, or defined elsewhere in the text
  bool entry_parameter = false;
  bool callee_parameter = false;  // a parameter or result of a .func
  size_t bytes = 0;
  size_t align = 1;
  int line = 0;
  std::vector<std::byte> initial;  // empty, or `bytes` long
  std::vector<InitialAddress> addresses;
  uint32_t index = 0;  // of global, const and shared symbols: position in Module::symbols
};

enum class OperandKind : uint8_t {
  kRegister,  // `index`; `negated` for !%p
  kInteger,   // `bits`
  kFloat32,   // `bits`
  kFloat64,   // `bits`
  kSymbol,    // `symbol` + `offset`
  kName,      // label, function or call prototype: `name`; branch targets have `index`
  kSpecial,   // special register `name`
  kSink,      // _
  kAddress,   // [elements[0] + offset]
  kVector,    // {elements}
  kPair,      // elements[0]|elements[1]
  kList,      // (elements)
};

struct Operand {
  OperandKind kind = OperandKind::kSink;
  bool negated = false;
  uint32_t index = 0;
  int64_t offset = 0;
  uint64_t bits = 0;
  const Symbol* symbol = nullptr;
  std::string_view name;
  std::vector<Operand> elements;
};

inline constexpr uint32_t kNoIndex = ~0u;

struct Instruction {
  int line = 0;
  std::string_view opcode;                  // as written, with modifiers
  std::string_view base;                    // before the first dot
  std::vector<std::string_view> modifiers;  // between the dots
  uint32_t guard = kNoIndex;                // register
  bool guard_negated = false;
  std::vector<Operand> operands;
};

struct BranchTargets {
  std::string_view name;
  std::vector<Operand> labels;
};

struct Function {
  std::string name;
  bool entry = false;
  bool has_body = false;
  int line = 0;
  std::vector<Symbol*> parameters, results;
  uint32_t max_threads_per_block = 1024;
  std::deque<Symbol> symbols;     // parameters and .param/.local variables of the body
  std::vector<Type> registers;    // type by register index
  std::vector<Instruction> body;  // label operands hold instruction indices, body.size() at most
  std::deque<BranchTargets> branch_targets;
};

struct Module {
  std::deque<Symbol> symbols;  // .global, .const and .shared, also those declared inside functions
  std::deque<Function> functions;
};

// Throws Error.
Module ParseModule(std::string_view text);

}  // namespace causeway::software_gpu::ptx
