// SPDX-License-Identifier: Apache-2.0
// mov with its vector forms, and special registers.
#include <chrono>

#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

Step Move(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.regs[op.a];
  return Step::kNext;
}

// d = concatenation of the slots' low Op::mode bytes, first lowest.
Step Pack(Thread& thread, const Op& op) {
  uint64_t packed = 0;
  auto* to = reinterpret_cast<std::byte*>(&packed);
  for (const uint32_t slot : *static_cast<const SlotList*>(op.extra)) {
    std::memcpy(to, &thread.regs[slot], op.mode);
    to += op.mode;
  }
  thread.regs[op.d] = packed;
  return Step::kNext;
}

Step Unpack(Thread& thread, const Op& op) {
  const uint64_t packed = thread.regs[op.a];
  const auto* from = reinterpret_cast<const std::byte*>(&packed);
  for (const uint32_t slot : *static_cast<const SlotList*>(op.extra)) {
    uint64_t element = 0;
    std::memcpy(&element, from, op.mode);
    thread.regs[slot] = element;
    from += op.mode;
  }
  return Step::kNext;
}

void LowerMove(Lowering& lowering) {
  const Type type = lowering.TakeType();
  if (type == Type::kB128) lowering.Unsupported();
  const bool unpack = lowering.operand(0).kind == OperandKind::kVector;
  const bool pack = lowering.operand(1).kind == OperandKind::kVector;
  if (!pack && !unpack) return lowering.EmitUnary(Move, type);
  if (pack && unpack) lowering.Unsupported();
  const Operand& vector = lowering.operand(unpack ? 0 : 1);
  const size_t count = vector.elements.size();
  if ((count != 2 && count != 4) || ptx::Bytes(type) < count) lowering.Fail("a vector has the wrong size");
  Op op;
  op.mode = static_cast<uint8_t>(ptx::Bytes(type) / count);
  SlotList slots;
  for (const Operand& element : vector.elements) {
    slots.push_back(unpack ? lowering.DestinationOf(element) : lowering.SourceOf(element, Type::kB32));
  }
  op.extra = lowering.KeepSlots(std::move(slots));
  if (unpack) {
    op.a = lowering.Source(1, type);
  } else {
    op.d = lowering.Destination(0);
  }
  lowering.Emit(unpack ? Unpack : Pack, op);
}

Step Set(Thread& thread, const Op& op, uint64_t value) {
  thread.regs[op.d] = value;
  return Step::kNext;
}

const Launch& LaunchOf(const Thread& thread) {
  return *thread.block->launch->launch;
}

uint64_t Nanoseconds(const Thread&) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

uint64_t Clock(const Thread&) {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
}

uint64_t Workspace(const Thread& thread) {
  LaunchState& launch = *thread.block->launch;
  return launch.launch->cooperative ? reinterpret_cast<uintptr_t>(&launch.workspace) : 0;
}

uint64_t GridId(const Thread& thread) {
  return reinterpret_cast<uintptr_t>(thread.block->launch);
}

const std::unordered_map<std::string_view, Handler>& SpecialRegisters() {
  static const std::unordered_map<std::string_view, Handler> table = {
      {"%tid.x", [](Thread& t, const Op& op) { return Set(t, op, t.index.x); }},
      {"%tid.y", [](Thread& t, const Op& op) { return Set(t, op, t.index.y); }},
      {"%tid.z", [](Thread& t, const Op& op) { return Set(t, op, t.index.z); }},
      {"%ntid.x", [](Thread& t, const Op& op) { return Set(t, op, LaunchOf(t).block.x); }},
      {"%ntid.y", [](Thread& t, const Op& op) { return Set(t, op, LaunchOf(t).block.y); }},
      {"%ntid.z", [](Thread& t, const Op& op) { return Set(t, op, LaunchOf(t).block.z); }},
      {"%ctaid.x", [](Thread& t, const Op& op) { return Set(t, op, t.block->index.x); }},
      {"%ctaid.y", [](Thread& t, const Op& op) { return Set(t, op, t.block->index.y); }},
      {"%ctaid.z", [](Thread& t, const Op& op) { return Set(t, op, t.block->index.z); }},
      {"%nctaid.x", [](Thread& t, const Op& op) { return Set(t, op, LaunchOf(t).grid.x); }},
      {"%nctaid.y", [](Thread& t, const Op& op) { return Set(t, op, LaunchOf(t).grid.y); }},
      {"%nctaid.z", [](Thread& t, const Op& op) { return Set(t, op, LaunchOf(t).grid.z); }},
      {"%laneid", [](Thread& t, const Op& op) { return Set(t, op, t.lane); }},
      {"%warpid", [](Thread& t, const Op& op) { return Set(t, op, t.warp); }},
      {"%nwarpid", [](Thread& t, const Op& op) { return Set(t, op, 32); }},
      {"%smid", [](Thread& t, const Op& op) { return Set(t, op, 0); }},
      {"%nsmid", [](Thread& t, const Op& op) { return Set(t, op, 1); }},
      {"%gridid", [](Thread& t, const Op& op) { return Set(t, op, GridId(t)); }},
      {"%lanemask_eq", [](Thread& t, const Op& op) { return Set(t, op, (1ull << t.lane)); }},
      {"%lanemask_lt", [](Thread& t, const Op& op) { return Set(t, op, (1ull << t.lane) - 1); }},
      {"%lanemask_le", [](Thread& t, const Op& op) { return Set(t, op, (2ull << t.lane) - 1); }},
      {"%lanemask_gt",
       [](Thread& t, const Op& op) { return Set(t, op, ~((2ull << t.lane) - 1) & 0xffffffffu); }},
      {"%lanemask_ge",
       [](Thread& t, const Op& op) { return Set(t, op, ~((1ull << t.lane) - 1) & 0xffffffffu); }},
      {"%clock", [](Thread& t, const Op& op) { return Set(t, op, Clock(t) & 0xffffffffu); }},
      {"%clock_hi", [](Thread& t, const Op& op) { return Set(t, op, (Clock(t) >> 32)); }},
      {"%clock64", [](Thread& t, const Op& op) { return Set(t, op, Clock(t)); }},
      {"%globaltimer", [](Thread& t, const Op& op) { return Set(t, op, Nanoseconds(t)); }},
      {"%globaltimer_lo", [](Thread& t, const Op& op) { return Set(t, op, Nanoseconds(t) & 0xffffffffu); }},
      {"%globaltimer_hi", [](Thread& t, const Op& op) { return Set(t, op, (Nanoseconds(t) >> 32)); }},
      {"%envreg1", [](Thread& t, const Op& op) { return Set(t, op, (Workspace(t) >> 32)); }},
      {"%envreg2", [](Thread& t, const Op& op) { return Set(t, op, Workspace(t) & 0xffffffffu); }},
      {"%dynamic_smem_size",
       [](Thread& t, const Op& op) { return Set(t, op, LaunchOf(t).dynamic_shared_bytes); }},
      // Cooperative groups keep their barriers here; the part with index 1 is theirs.
      {"%reserved_smem_offset_begin",
       [](Thread& t, const Op& op) { return Set(t, op, t.block->reserved_offset); }},
      {"%reserved_smem_offset_end",
       [](Thread& t, const Op& op) { return Set(t, op, t.block->reserved_offset + kReservedSharedBytes); }},
      {"%reserved_smem_offset_cap",
       [](Thread& t, const Op& op) { return Set(t, op, t.block->reserved_offset + kReservedSharedBytes); }},
      {"%reserved_smem_offset_0",
       [](Thread& t, const Op& op) { return Set(t, op, t.block->reserved_offset); }},
      {"%reserved_smem_offset_1",
       [](Thread& t, const Op& op) { return Set(t, op, t.block->reserved_offset + 32); }},
      {"%total_smem_size", [](Thread& t, const Op& op) { return Set(t, op, t.block->shared_bytes); }},
  };
  return table;
}

}  // namespace

Handler FindSpecialRegister(std::string_view name) {
  const auto found = SpecialRegisters().find(name);
  return found == SpecialRegisters().end() ? nullptr : found->second;
}

Step LocalFrameAddress(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.local_base + static_cast<uint64_t>(op.imm);
  return Step::kNext;
}

Step DynamicSharedAddress(Thread& thread, const Op& op) {
  thread.regs[op.d] = thread.block->launch->static_shared_bytes + static_cast<uint64_t>(op.imm);
  return Step::kNext;
}

Step ParameterAddress(Thread& thread, const Op& op) {
  thread.regs[op.d] =
      reinterpret_cast<uintptr_t>(thread.block->launch->parameters.data()) + static_cast<uint64_t>(op.imm);
  return Step::kNext;
}

Step NotPredicate(Thread& thread, const Op& op) {
  thread.regs[op.d] = (thread.regs[op.a] & 1) ^ 1;
  return Step::kNext;
}

void AddMoveInstructions(LowerTable& table) {
  table["mov"] = LowerMove;
}

}  // namespace causeway::software_gpu
