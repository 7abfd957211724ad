// SPDX-License-Identifier: Apache-2.0
// Barriers of a block (bar, barrier), fences, and instructions that only give way.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/software_gpu/interpreter_block.h"
#include "tests/software_gpu/interpreter_lower.h"

namespace causeway::software_gpu {
namespace {

// What Op::mode of a barrier operation asks for.
enum BarrierMode : uint8_t { kWait, kArrive, kPopulation, kAnd, kOr };

// Op::a: barrier number; Op::b: thread count or kNoSlot; Op::c: predicate of a reduction.
Step ArriveAtBarrier(Thread& thread, const Op& op) {
  const uint32_t number = Read<uint32_t>(thread, op.a);
  if (number >= kBarriers) return RaiseFault(thread, op, 715, "the barrier number is above 15");
  Barrier& barrier = thread.block->barriers[number];
  barrier.in_use = true;
  ++barrier.arrived;
  barrier.expected = op.b == kNoSlot ? 0 : Read<uint32_t>(thread, op.b);
  if (op.mode >= kPopulation) barrier.true_count += thread.regs[op.c] & 1;
  if (op.mode == kArrive) {
    ReleaseBarriers(*thread.block);
    return Step::kNext;
  }
  thread.state = ThreadState::kBarrier;
  thread.barrier = number;
  thread.wait_op = &op;
  return Step::kPark;
}

void Release(Block& block, uint32_t number) {
  Barrier& barrier = block.barriers[number];
  for (Thread& thread : block.threads) {
    if (thread.state != ThreadState::kBarrier || thread.barrier != number) continue;
    const Op& op = *thread.wait_op;
    if (op.mode == kPopulation) thread.regs[op.d] = barrier.true_count;
    if (op.mode == kAnd) thread.regs[op.d] = barrier.true_count == barrier.arrived;
    if (op.mode == kOr) thread.regs[op.d] = barrier.true_count != 0;
    thread.state = ThreadState::kRunnable;
  }
  barrier = {};
}

Step Fence(Thread&, const Op&) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return Step::kNext;
}

Step GiveWay(Thread& thread, const Op&) {
  thread.used_up = true;
  return Step::kPark;
}

// Op::a: nanoseconds. A thread that is alone in its block sleeps, so that a kernel that waits takes no processor from
// those that it waits for; among others it gives way to them. Where turns are limited nobody wants to wait: a grid of
// such threads would sleep for 20 s (SOFTWARE_GPU_LAUNCH_TURNS=20) before it has had too many.
Step Sleep(Thread& thread, const Op& op) {
  constexpr uint32_t kMostNanoseconds = 1'000'000;
  if (thread.block->live == 1 && thread.block->launch->launch->most_turns == 0)
    std::this_thread::sleep_for(
        std::chrono::nanoseconds(std::min(Read<uint32_t>(thread, op.a), kMostNanoseconds)));
  return GiveWay(thread, op);
}

BarrierMode TakeReduction(Lowering& lowering) {
  if (lowering.Take("popc")) return kPopulation;
  if (lowering.Take("and")) return kAnd;
  if (lowering.Take("or")) return kOr;
  lowering.Unsupported();
}

// bar and barrier: [.cta].{sync, arrive, red.op.type}[.aligned]
void LowerBarrier(Lowering& lowering) {
  lowering.Take("cta");
  lowering.Take("aligned");
  Op op;
  op.b = kNoSlot;
  size_t next = 0;
  if (lowering.Take("red")) {
    op.mode = TakeReduction(lowering);
    lowering.TakeType();
    op.d = lowering.Destination(next++);
    op.a = lowering.Source(next++, Type::kU32);
    if (lowering.operand_count() > 3) op.b = lowering.Source(next++, Type::kU32);
    op.c = lowering.Source(next, Type::kPred);
  } else {
    if (lowering.Take("arrive")) {
      op.mode = kArrive;
    } else if (!lowering.Take("sync")) {
      lowering.Unsupported();
    }
    op.a = lowering.Source(0, Type::kU32);
    if (lowering.operand_count() > 1) op.b = lowering.Source(1, Type::kU32);
  }
  lowering.Emit(ArriveAtBarrier, op);
}

void LowerFence(Lowering& lowering) {
  lowering.TakeOneOf({"sc", "acq_rel", "acquire", "release"});
  lowering.TakeOneOf({"cta", "cluster", "gpu", "sys", "gl"});
  lowering.Emit(Fence, {});
}

}  // namespace

void ReleaseBarriers(Block& block) {
  for (uint32_t number = 0; number < kBarriers; ++number) {
    const Barrier& barrier = block.barriers[number];
    if (!barrier.in_use) continue;
    const uint32_t expected = barrier.expected != 0 ? barrier.expected : block.live;
    if (barrier.arrived >= expected) Release(block, number);
  }
}

void AddBarrierInstructions(LowerTable& table) {
  table["bar"] = [](Lowering& lowering) {
    if (lowering.FirstModifier() == "warp") return LowerWarpBarrier(lowering);
    LowerBarrier(lowering);
  };
  table["barrier"] = LowerBarrier;
  table["membar"] = LowerFence;
  table["fence"] = LowerFence;
  table["nanosleep"] = [](Lowering& lowering) {
    lowering.TakeType();
    Op op;
    op.a = lowering.Source(0, Type::kU32);
    lowering.Emit(Sleep, op);
  };
}

}  // namespace causeway::software_gpu
