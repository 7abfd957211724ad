// SPDX-License-Identifier: Apache-2.0
// Lowering: from parsed PTX instructions to decoded operations. Each instruction family registers a
// function that reads modifiers and operands and emits one or more operations.
#pragma once
#include <map>
#include <unordered_map>
#include <utility>

#include "tests/software_gpu/interpreter_code.h"
#include "tests/software_gpu/ptx_lexer.h"
#include "tests/software_gpu/ptx_syntax.h"

namespace causeway::software_gpu {

using ptx::Operand;
using ptx::OperandKind;
using ptx::Space;
using ptx::Type;

// Where a module's things lie; filled before functions are lowered.
struct ModuleLayout {
  std::unordered_map<const ptx::Symbol*, uint32_t> variables;       // global and const: index in variables()
  std::unordered_map<const ptx::Symbol*, uint32_t> shared_offsets;  // of statically sized shared variables
  std::unordered_map<std::string_view, FunctionCode*> functions;    // with a body
  std::unordered_map<std::string, uint32_t> variables_by_name;
};

struct Address {
  uint32_t slot = 0;
  int64_t offset = 0;
};

class Lowering {
 public:
  Lowering(const ModuleLayout& layout, const ptx::Function& source, FunctionCode& code);

  // Lowers the whole function. Throws ptx::Error naming what is not supported.
  void Run();

  const ptx::Instruction& instruction() const { return *instruction_; }
  size_t operand_count() const { return instruction_->operands.size(); }
  const Operand& operand(size_t index) const;

  // Modifiers are consumed by whoever understands them; one that is left over is an error.
  bool Take(std::string_view modifier);
  bool TakeOneOf(std::initializer_list<std::string_view> modifiers);
  Type TakeType();  // the first that is a type; error when none is left
  bool HasModifier() const { return !modifiers_.empty(); }
  std::string_view FirstModifier() const;  // error when none is left
  bool FirstModifierIs(std::string_view name) const { return HasModifier() && modifiers_.front() == name; }

  uint32_t Source(size_t index, Type type) { return SourceOf(operand(index), type); }
  uint32_t SourceOf(const Operand& operand, Type type);
  uint32_t Destination(size_t index) { return DestinationOf(operand(index)); }
  uint32_t DestinationOf(const Operand& operand);  // `_` is a slot that nobody reads
  Type RegisterType(const Operand& operand) const;
  Address AddressOf(size_t index);
  // The value of an operand that must be an integer constant.
  int64_t Constant(size_t index);
  bool IsConstant(size_t index) const { return operand(index).kind == OperandKind::kInteger; }

  uint32_t ConstantSlot(uint64_t bits);
  uint32_t NewSlot();
  const SlotList* KeepSlots(SlotList slots);
  // .param variables of .func code live in the frame.
  bool InFrame(const ptx::Symbol& symbol) const { return frame_offsets_.count(&symbol) != 0; }
  uint32_t FrameOffset(const ptx::Symbol& symbol) const { return frame_offsets_.at(&symbol); }
  uint32_t EntryOffset(const ptx::Symbol& symbol) const { return entry_offsets_.at(&symbol); }

  void Emit(Handler handler, Op op);
  // An operation that computes an operand and therefore runs whatever the guard says.
  void EmitUnguarded(Handler handler, Op op);
  // Common shapes: d = f(a), f(a, b), f(a, b, c), all of one type.
  void EmitUnary(Handler handler, Type type);
  void EmitBinary(Handler handler, Type type);
  void EmitTernary(Handler handler, Type type);
  // `handler` gets the operation that instruction `operand.index` starts with in Op::extra.
  void EmitBranch(Handler handler, const Operand& label);
  void EmitBranchTable(Handler handler, uint32_t slot, std::string_view table);
  void EmitCall(Handler direct, Handler system, Handler indirect);

  [[noreturn]] void Fail(const std::string& what) const;
  [[noreturn]] void Unsupported() const;

 private:
  void PlaceSymbols();
  void LowerInstruction();
  void ResolveBranches();
  uint32_t SymbolAddress(const Operand& operand);
  uint32_t SpecialRegister(std::string_view name);
  uint32_t FloatConstant(const Operand& operand, Type type);
  FrameBytes ArgumentBytes(const Operand& operand);

  const ModuleLayout& layout_;
  const ptx::Function& source_;
  FunctionCode& code_;
  const ptx::Instruction* instruction_ = nullptr;
  std::vector<std::string_view> modifiers_;
  std::unordered_map<const ptx::Symbol*, uint32_t> frame_offsets_, entry_offsets_, local_offsets_;
  std::unordered_map<uint64_t, uint32_t> constants_;
  std::map<std::pair<uint32_t, int64_t>, uint32_t> relocated_;
  std::vector<uint32_t> op_of_instruction_;
  std::vector<std::pair<size_t, uint32_t>> branches_;  // operation, instruction
  std::vector<std::pair<size_t, const ptx::BranchTargets*>> tables_;
  std::unordered_map<std::string_view, const std::string*> texts_;
};

using LowerFunction = void (*)(Lowering&);
using LowerTable = std::unordered_map<std::string_view, LowerFunction>;

// One per instruction family; each adds the instructions it implements.
void AddIntegerInstructions(LowerTable& table);
void AddBitInstructions(LowerTable& table);
void AddArithmeticInstructions(LowerTable& table);
void AddApproximateInstructions(LowerTable& table);
void AddCompareInstructions(LowerTable& table);
void AddConvertInstructions(LowerTable& table);
void AddMoveInstructions(LowerTable& table);
void AddMemoryInstructions(LowerTable& table);
void AddAtomicInstructions(LowerTable& table);
void AddControlInstructions(LowerTable& table);
void AddWarpInstructions(LowerTable& table);
void AddBarrierInstructions(LowerTable& table);
void AddTextureInstructions(LowerTable& table);

void LowerWarpBarrier(Lowering& lowering);  // bar.warp.sync

// The handler that writes special register `name` to Op::d; null when there is none.
Handler FindSpecialRegister(std::string_view name);
// Writers of addresses to Op::d: local frame + imm, dynamic shared memory + imm, kernel parameters + imm.
Step LocalFrameAddress(Thread& thread, const Op& op);
Step DynamicSharedAddress(Thread& thread, const Op& op);
Step ParameterAddress(Thread& thread, const Op& op);
Step NotPredicate(Thread& thread, const Op& op);
// What the end of a function's text does.
Step Return(Thread& thread, const Op& op);
// vprintf, malloc, free, __assertfail; null for other names.
SystemCall FindSystemCall(std::string_view name);

}  // namespace causeway::software_gpu
