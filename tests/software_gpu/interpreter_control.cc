// SPDX-License-Identifier: Apache-2.0
// Control flow: branches, calls, returns, exit and trap.
#include <algorithm>

#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

constexpr size_t kMaxCallDepth = 16384;

Step Branch(Thread& thread, const Op& op) {
  thread.pc = static_cast<const Op*>(op.extra);
  return Step::kNext;
}

Step BranchIndexed(Thread& thread, const Op& op) {
  const auto& table = *static_cast<const std::vector<const Op*>*>(op.extra);
  const uint32_t index = Read<uint32_t>(thread, op.a);
  if (index >= table.size())
    return RaiseFault(thread, op, 718, "the branch index is past the end of its table");
  thread.pc = table[index];
  return Step::kNext;
}

void CopyRegions(std::byte* to, const std::vector<FrameBytes>& to_regions, const std::byte* from,
                 const std::vector<FrameBytes>& from_regions) {
  const size_t count = std::min(to_regions.size(), from_regions.size());
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(to + to_regions[i].offset, from + from_regions[i].offset,
                std::min(to_regions[i].bytes, from_regions[i].bytes));
  }
}

Step Enter(Thread& thread, const Op& op, const FunctionCode& callee, const CallSite& site) {
  if (thread.calls.size() >= kMaxCallDepth) return RaiseFault(thread, op, 700, "the call stack overflowed");
  const uint32_t local_base = thread.local_base + thread.function->local_bytes;
  if (callee.local_bytes > thread.local_window - local_base) {
    return RaiseFault(thread, op, 700, "the stack in local memory overflowed");
  }
  thread.calls.push_back({thread.pc, thread.function, &site, thread.frame_base, thread.local_base});
  const size_t base = thread.frame_base + thread.function->frame.size();
  if (thread.registers.size() < base + callee.frame.size()) {
    thread.registers.resize(std::max(base + callee.frame.size(), thread.registers.size() * 2));
  }
  const auto* caller_frame = reinterpret_cast<const std::byte*>(thread.registers.data() + thread.frame_base);
  thread.frame_base = base;
  thread.regs = thread.registers.data() + base;
  std::copy(callee.frame.begin(), callee.frame.end(), thread.regs);
  CopyRegions(reinterpret_cast<std::byte*>(thread.regs), callee.parameters, caller_frame, site.arguments);
  thread.function = &callee;
  thread.local_base = local_base;
  thread.pc = callee.ops.data();
  return Step::kNext;
}

Step CallDirect(Thread& thread, const Op& op) {
  const CallSite& site = *static_cast<const CallSite*>(op.extra);
  return Enter(thread, op, *site.callee, site);
}

Step CallIndirect(Thread& thread, const Op& op) {
  const uint64_t target = Read<uint64_t>(thread, op.a);
  for (const FunctionCode& function : *thread.block->launch->functions) {
    if (reinterpret_cast<uintptr_t>(&function) != target || function.entry) continue;
    return Enter(thread, op, function, *static_cast<const CallSite*>(op.extra));
  }
  return RaiseFault(thread, op, 718, "the function pointer does not point to a function");
}

Step CallSystem(Thread& thread, const Op& op) {
  const CallSite& site = *static_cast<const CallSite*>(op.extra);
  auto* frame = reinterpret_cast<std::byte*>(thread.regs);
  std::vector<std::byte*> arguments;
  for (const FrameBytes& argument : site.arguments) arguments.push_back(frame + argument.offset);
  return site.system_call(thread, op, arguments,
                          site.results.empty() ? nullptr : frame + site.results[0].offset);
}

Step Exit(Thread& thread, const Op&) {
  thread.state = ThreadState::kExited;
  return Step::kExit;
}

Step Trap(Thread& thread, const Op& op) {
  return RaiseFault(thread, op, 719, "a trap was executed");
}

Step Nothing(Thread&, const Op&) {
  return Step::kNext;
}

void LowerBranch(Lowering& lowering) {
  lowering.Take("uni");
  lowering.EmitBranch(Branch, lowering.operand(0));
}

void LowerBranchIndexed(Lowering& lowering) {
  lowering.Take("uni");
  if (!lowering.Take("idx")) lowering.Unsupported();
  const uint32_t slot = lowering.Source(0, Type::kU32);
  lowering.EmitBranchTable(BranchIndexed, slot, lowering.operand(1).name);
}

void LowerCall(Lowering& lowering) {
  lowering.Take("uni");
  lowering.EmitCall(CallDirect, CallSystem, CallIndirect);
}

void LowerReturn(Lowering& lowering) {
  lowering.Take("uni");
  lowering.Emit(Return, {});
}

}  // namespace

Step Return(Thread& thread, const Op& op) {
  if (thread.calls.empty()) return Exit(thread, op);
  const CallRecord record = thread.calls.back();
  thread.calls.pop_back();
  const auto* callee_frame = reinterpret_cast<const std::byte*>(thread.regs);
  thread.regs = thread.registers.data() + record.frame_base;
  CopyRegions(reinterpret_cast<std::byte*>(thread.regs), record.site->results, callee_frame,
              thread.function->results);
  thread.frame_base = record.frame_base;
  thread.local_base = record.local_base;
  thread.function = record.caller;
  thread.pc = record.return_to;
  return Step::kNext;
}

void AddControlInstructions(LowerTable& table) {
  table["bra"] = LowerBranch;
  table["brx"] = LowerBranchIndexed;
  table["call"] = LowerCall;
  table["ret"] = LowerReturn;
  table["exit"] = [](Lowering& lowering) { lowering.Emit(Exit, {}); };
  table["trap"] = [](Lowering& lowering) { lowering.Emit(Trap, {}); };
  table["brkpt"] = [](Lowering& lowering) { lowering.Emit(Nothing, {}); };
  table["pmevent"] = [](Lowering& lowering) {
    lowering.Take("mask");
    lowering.Emit(Nothing, {});
  };
}

}  // namespace causeway::software_gpu
