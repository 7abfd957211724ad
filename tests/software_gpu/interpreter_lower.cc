// SPDX-License-Identifier: Apache-2.0
// Lowering of functions: slots, constants, symbols, branches and calls.
#include "tests/software_gpu/interpreter_lower.h"

#include <algorithm>
#include <bit>

namespace causeway::software_gpu {
namespace {

constexpr uint32_t kMaxFrameBytes = 1u << 26;

const LowerTable& Instructions() {
  static const LowerTable table = [] {
    LowerTable all;
    AddIntegerInstructions(all);
    AddBitInstructions(all);
    AddArithmeticInstructions(all);
    AddApproximateInstructions(all);
    AddCompareInstructions(all);
    AddConvertInstructions(all);
    AddMoveInstructions(all);
    AddMemoryInstructions(all);
    AddAtomicInstructions(all);
    AddControlInstructions(all);
    AddWarpInstructions(all);
    AddBarrierInstructions(all);
    AddTextureInstructions(all);
    return all;
  }();
  return table;
}

uint32_t RoundUp(uint64_t value, uint64_t align) {
  return static_cast<uint32_t>((value + align - 1) / align * align);
}

}  // namespace

Lowering::Lowering(const ModuleLayout& layout, const ptx::Function& source, FunctionCode& code)
    : layout_(layout), source_(source), code_(code) {
  code_.frame.resize(source.registers.size());
}

void Lowering::Run() {
  PlaceSymbols();
  for (const ptx::Instruction& instruction : source_.body) {
    instruction_ = &instruction;
    op_of_instruction_.push_back(static_cast<uint32_t>(code_.ops.size()));
    LowerInstruction();
  }
  op_of_instruction_.push_back(static_cast<uint32_t>(code_.ops.size()));
  Op end;
  end.handler = Return;
  code_.ops.push_back(end);
  ResolveBranches();
}

void Lowering::PlaceSymbols() {
  uint64_t local = 0;
  uint64_t entry = 0;
  for (const ptx::Symbol& symbol : source_.symbols) {
    if (symbol.space == Space::kLocal) {
      local = RoundUp(local, symbol.align);
      local_offsets_[&symbol] = static_cast<uint32_t>(local);
      local += symbol.bytes;
    } else if (symbol.entry_parameter) {
      entry = RoundUp(entry, symbol.align);
      entry_offsets_[&symbol] = static_cast<uint32_t>(entry);
      entry += symbol.bytes;
    } else {
      frame_offsets_[&symbol] = static_cast<uint32_t>(code_.frame.size() * 8);
      code_.frame.resize(code_.frame.size() + (symbol.bytes + 7) / 8);
    }
    if (local > kMaxFrameBytes || entry > kMaxFrameBytes || code_.frame.size() > kMaxFrameBytes / 8) {
      throw ptx::Error(symbol.line, "the variables of '" + source_.name + "' are too large");
    }
  }
  code_.local_bytes = RoundUp(local, 16);
  if (source_.entry) return;
  const auto region = [&](const ptx::Symbol* symbol) {
    return FrameBytes{FrameOffset(*symbol), static_cast<uint32_t>(symbol->bytes)};
  };
  for (const ptx::Symbol* symbol : source_.parameters) code_.parameters.push_back(region(symbol));
  for (const ptx::Symbol* symbol : source_.results) code_.results.push_back(region(symbol));
}

void Lowering::LowerInstruction() {
  const auto entry = Instructions().find(instruction_->base);
  if (entry == Instructions().end()) Unsupported();
  modifiers_ = instruction_->modifiers;
  entry->second(*this);
  if (!modifiers_.empty()) Fail("unsupported modifier '." + std::string(modifiers_.front()) + "'");
}

void Lowering::ResolveBranches() {
  for (const auto& [op, target] : branches_) code_.ops[op].extra = &code_.ops[op_of_instruction_[target]];
  for (const auto& [op, targets] : tables_) {
    std::vector<const Op*> table;
    for (const Operand& label : targets->labels) {
      if (label.index == ptx::kNoIndex) {
        throw ptx::Error(code_.ops[op].line, "unknown label '" + std::string(label.name) + "'");
      }
      table.push_back(&code_.ops[op_of_instruction_[label.index]]);
    }
    code_.branch_tables.push_back(std::move(table));
    code_.ops[op].extra = &code_.branch_tables.back();
  }
}

const Operand& Lowering::operand(size_t index) const {
  if (index >= instruction_->operands.size()) Fail("too few operands");
  return instruction_->operands[index];
}

bool Lowering::Take(std::string_view modifier) {
  const auto found = std::find(modifiers_.begin(), modifiers_.end(), modifier);
  if (found == modifiers_.end()) return false;
  modifiers_.erase(found);
  return true;
}

bool Lowering::TakeOneOf(std::initializer_list<std::string_view> modifiers) {
  return std::any_of(modifiers.begin(), modifiers.end(), [&](std::string_view name) { return Take(name); });
}

Type Lowering::TakeType() {
  for (auto it = modifiers_.begin(); it != modifiers_.end(); ++it) {
    const Type type = ptx::ParseType(*it);
    if (type == Type::kNone) continue;
    modifiers_.erase(it);
    return type;
  }
  Unsupported();
}

std::string_view Lowering::FirstModifier() const {
  if (modifiers_.empty()) Unsupported();
  return modifiers_.front();
}

uint32_t Lowering::SourceOf(const Operand& operand, Type type) {
  switch (operand.kind) {
    case OperandKind::kRegister:
      if (!operand.negated) return operand.index;
      {
        Op op;
        op.a = operand.index;
        op.d = NewSlot();
        EmitUnguarded(NotPredicate, op);
        return op.d;
      }
    case OperandKind::kInteger:
      return ConstantSlot(type == Type::kPred ? operand.bits != 0 : operand.bits);
    case OperandKind::kFloat32:
    case OperandKind::kFloat64:
      return FloatConstant(operand, type);
    case OperandKind::kSpecial:
      return SpecialRegister(operand.name);
    case OperandKind::kSymbol:
      return SymbolAddress(operand);
    case OperandKind::kName: {
      const auto function = layout_.functions.find(operand.name);
      if (function == layout_.functions.end()) Fail("unknown name '" + std::string(operand.name) + "'");
      return ConstantSlot(reinterpret_cast<uintptr_t>(function->second));
    }
    default:
      Fail("an operand has an unsupported form");
  }
}

uint32_t Lowering::FloatConstant(const Operand& operand, Type type) {
  if (operand.kind == OperandKind::kFloat64 && type == Type::kF32) {
    return ConstantSlot(std::bit_cast<uint32_t>(static_cast<float>(std::bit_cast<double>(operand.bits))));
  }
  if (operand.kind == OperandKind::kFloat32 && type == Type::kF64) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(operand.bits));
    return ConstantSlot(std::bit_cast<uint64_t>(static_cast<double>(value)));
  }
  if (ptx::Bytes(type) < 4) Fail("a float constant stands where 16 bits belong");
  return ConstantSlot(operand.bits);
}

uint32_t Lowering::SpecialRegister(std::string_view name) {
  if (name == "WARP_SZ") return ConstantSlot(kWarpLanes);
  const Handler handler = FindSpecialRegister(name);
  if (handler == nullptr) Fail("unsupported special register '" + std::string(name) + "'");
  if (name.starts_with("%reserved_smem")) code_.reserved_shared = true;
  Op op;
  op.d = NewSlot();
  EmitUnguarded(handler, op);
  return op.d;
}

uint32_t Lowering::SymbolAddress(const Operand& operand) {
  const ptx::Symbol& symbol = *operand.symbol;
  Op op;
  op.imm = operand.offset;
  Handler handler = nullptr;
  switch (symbol.space) {
    case Space::kGlobal:
    case Space::kConst: {
      const std::pair<uint32_t, int64_t> key{layout_.variables.at(&symbol), operand.offset};
      const auto known = relocated_.find(key);
      if (known != relocated_.end()) return known->second;
      const uint32_t slot = NewSlot();
      code_.relocations.push_back({slot, key.first, operand.offset});
      relocated_[key] = slot;
      return slot;
    }
    case Space::kShared: {
      const auto placed = layout_.shared_offsets.find(&symbol);
      if (placed != layout_.shared_offsets.end()) {
        return ConstantSlot(placed->second + static_cast<uint64_t>(operand.offset));
      }
      handler = DynamicSharedAddress;
      break;
    }
    case Space::kLocal:
      op.imm += local_offsets_.at(&symbol);
      handler = LocalFrameAddress;
      break;
    default:
      if (!symbol.entry_parameter) Fail("the address of a parameter of a .func is not supported");
      op.imm += EntryOffset(symbol);
      handler = ParameterAddress;
      break;
  }
  op.d = NewSlot();
  EmitUnguarded(handler, op);
  return op.d;
}

uint32_t Lowering::DestinationOf(const Operand& operand) {
  if (operand.kind == OperandKind::kSink) return NewSlot();
  if (operand.kind != OperandKind::kRegister || operand.negated) Fail("a destination is not a register");
  return operand.index;
}

Type Lowering::RegisterType(const Operand& operand) const {
  return operand.kind == OperandKind::kRegister ? source_.registers[operand.index] : Type::kNone;
}

Address Lowering::AddressOf(size_t index) {
  const Operand& address = operand(index);
  if (address.kind != OperandKind::kAddress || address.elements.size() != 1) Fail("an address is missing");
  const Operand& base = address.elements[0];
  if (base.kind == OperandKind::kInteger) {
    return {ConstantSlot(0), static_cast<int64_t>(base.bits + static_cast<uint64_t>(address.offset))};
  }
  if (base.kind != OperandKind::kRegister && base.kind != OperandKind::kSymbol) {
    Fail("unknown name '" + std::string(base.name) + "' in an address");
  }
  return {SourceOf(base, Type::kU64), address.offset};
}

int64_t Lowering::Constant(size_t index) {
  if (!IsConstant(index)) Fail("an operand must be an integer constant");
  return static_cast<int64_t>(operand(index).bits);
}

uint32_t Lowering::ConstantSlot(uint64_t bits) {
  const auto [entry, added] = constants_.try_emplace(bits, static_cast<uint32_t>(code_.frame.size()));
  if (added) code_.frame.push_back(bits);
  return entry->second;
}

uint32_t Lowering::NewSlot() {
  code_.frame.push_back(0);
  return static_cast<uint32_t>(code_.frame.size() - 1);
}

const SlotList* Lowering::KeepSlots(SlotList slots) {
  code_.slot_lists.push_back(std::move(slots));
  return &code_.slot_lists.back();
}

void Lowering::Emit(Handler handler, Op op) {
  op.guard = instruction_->guard;
  op.guard_negated = instruction_->guard_negated;
  EmitUnguarded(handler, op);
}

void Lowering::EmitUnguarded(Handler handler, Op op) {
  op.handler = handler;
  op.line = instruction_->line;
  const std::string*& text = texts_[instruction_->opcode];
  if (text == nullptr) {
    code_.texts.emplace_back(instruction_->opcode);
    text = &code_.texts.back();
  }
  op.text = text;
  code_.ops.push_back(op);
}

void Lowering::EmitUnary(Handler handler, Type type) {
  if (handler == nullptr) Unsupported();
  Op op;
  op.d = Destination(0);
  op.a = Source(1, type);
  Emit(handler, op);
}

void Lowering::EmitBinary(Handler handler, Type type) {
  if (handler == nullptr) Unsupported();
  Op op;
  op.d = Destination(0);
  op.a = Source(1, type);
  op.b = Source(2, type);
  Emit(handler, op);
}

void Lowering::EmitTernary(Handler handler, Type type) {
  if (handler == nullptr) Unsupported();
  Op op;
  op.d = Destination(0);
  op.a = Source(1, type);
  op.b = Source(2, type);
  op.c = Source(3, type);
  Emit(handler, op);
}

void Lowering::EmitBranch(Handler handler, const Operand& label) {
  if (label.kind != OperandKind::kName || label.index == ptx::kNoIndex) {
    Fail("unknown label '" + std::string(label.name) + "'");
  }
  branches_.emplace_back(code_.ops.size(), label.index);
  Emit(handler, {});
}

void Lowering::EmitBranchTable(Handler handler, uint32_t slot, std::string_view table) {
  for (const ptx::BranchTargets& targets : source_.branch_targets) {
    if (targets.name != table) continue;
    tables_.emplace_back(code_.ops.size(), &targets);
    Op op;
    op.a = slot;
    Emit(handler, op);
    return;
  }
  Fail("unknown list of branch targets '" + std::string(table) + "'");
}

FrameBytes Lowering::ArgumentBytes(const Operand& operand) {
  if (operand.kind != OperandKind::kSymbol || !InFrame(*operand.symbol)) {
    Fail("a call's arguments and results must be .param variables");
  }
  return {FrameOffset(*operand.symbol), static_cast<uint32_t>(operand.symbol->bytes)};
}

void Lowering::EmitCall(Handler direct, Handler system, Handler indirect) {
  CallSite site;
  size_t next = 0;
  if (operand(0).kind == OperandKind::kList) {
    for (const Operand& result : operand(next++).elements) site.results.push_back(ArgumentBytes(result));
  }
  const Operand& target = operand(next++);
  if (next < operand_count() && operand(next).kind == OperandKind::kList) {
    for (const Operand& argument : operand(next).elements) site.arguments.push_back(ArgumentBytes(argument));
  }
  Op op;
  Handler handler = indirect;
  if (target.kind == OperandKind::kRegister) {
    op.a = target.index;
    code_.calls = true;
  } else if (const auto known = layout_.functions.find(target.name); known != layout_.functions.end()) {
    site.callee = known->second;
    code_.calls = true;
    handler = direct;
  } else {
    site.system_call = FindSystemCall(target.name);
    handler = system;
    if (site.system_call == nullptr) {
      Fail("the function '" + std::string(target.name) + "' has no body here and is no known system call");
    }
  }
  code_.call_sites.push_back(std::move(site));
  op.extra = &code_.call_sites.back();
  Emit(handler, op);
}

void Lowering::Fail(const std::string& what) const {
  throw ptx::Error(instruction_->line, what + " in '" + std::string(instruction_->opcode) + "'");
}

void Lowering::Unsupported() const {
  throw ptx::Error(instruction_->line, "unsupported instruction '" + std::string(instruction_->opcode) + "'");
}

}  // namespace causeway::software_gpu
