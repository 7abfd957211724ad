// SPDX-License-Identifier: Apache-2.0
// Scheduling of a block's threads, and faults.
#include "tests/software_gpu/interpreter_block.h"

#include <algorithm>
#include <cstdio>

namespace causeway::software_gpu {
namespace {

// Long enough that switching costs nothing, short enough that a lock's holder runs soon.
constexpr uint32_t kInstructionBudget = 20000;

Step RunThread(Thread& thread) {
  for (uint32_t left = kInstructionBudget; left != 0; --left) {
    const Op& op = *thread.pc++;
    if (op.guard != kNoSlot && ((thread.regs[op.guard] & 1) != 0) == op.guard_negated) continue;
    const Step step = op.handler(thread, op);
    if (step != Step::kNext) return step;
  }
  thread.used_up = true;
  return Step::kPark;
}

std::unique_ptr<std::byte[]> Uninitialised(size_t bytes) {
  return std::unique_ptr<std::byte[]>(new std::byte[bytes]);
}

constexpr size_t kSharedAlign = 1024;

}  // namespace

Step RaiseFault(Thread& thread, const Op& op, int cuda_error, const std::string& what) {
  LaunchState& launch = *thread.block->launch;
  char where[200];
  const Dim3& block = thread.block->index;
  std::snprintf(where, sizeof where, ", block (%u, %u, %u), thread (%u, %u, %u), PTX line %d '", block.x,
                block.y, block.z, thread.index.x, thread.index.y, thread.index.z, op.line);
  launch.fault.cuda_error = cuda_error;
  launch.fault.message =
      "kernel '" + launch.kernel->name + "'" + where + (op.text != nullptr ? *op.text : "") + "': " + what;
  return Step::kFault;
}

BlockRunner::BlockRunner(LaunchState& launch) : launch_(launch) {
  const Dim3 size = launch.launch->block;
  const uint32_t count = size.x * size.y * size.z;
  block_.launch = &launch;
  block_.shared_bytes = launch.static_shared_bytes + launch.launch->dynamic_shared_bytes;
  block_.reserved_offset = (block_.shared_bytes + 15) / 16 * 16;
  if (launch.reserved_shared) block_.shared_bytes = block_.reserved_offset + kReservedSharedBytes;
  shared_ = Uninitialised(size_t{block_.shared_bytes} + kSharedAlign);
  const uintptr_t start = reinterpret_cast<uintptr_t>(shared_.get());
  block_.shared = shared_.get() + (kSharedAlign - start % kSharedAlign) % kSharedAlign;
  std::memset(block_.shared, 0, block_.shared_bytes);
  local_ = Uninitialised(size_t{count} * launch.local_window + 16);
  warps_ = (count + kWarpLanes - 1) / kWarpLanes;
  block_.threads.resize(count);
  for (uint32_t i = 0; i < count; ++i) {
    Thread& thread = block_.threads[i];
    thread.block = &block_;
    thread.local = local_.get() + size_t{i} * launch.local_window;
    thread.local_window = launch.local_window;
    thread.linear = i;
    thread.lane = i % kWarpLanes;
    thread.warp = i / kWarpLanes;
    thread.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
  }
}

void BlockRunner::Start(Dim3 index) {
  turns_ = 0;
  const FunctionCode& entry = *launch_.entry;
  block_.index = index;
  if (launch_.reserved_shared) std::memset(block_.shared + block_.reserved_offset, 0, kReservedSharedBytes);
  block_.live = static_cast<uint32_t>(block_.threads.size());
  std::fill(std::begin(block_.barriers), std::end(block_.barriers), Barrier{});
  for (Thread& thread : block_.threads) {
    if (thread.registers.size() < entry.frame.size()) thread.registers.resize(entry.frame.size());
    std::copy(entry.frame.begin(), entry.frame.end(), thread.registers.begin());
    thread.regs = thread.registers.data();
    thread.pc = entry.ops.data();
    thread.function = &entry;
    thread.calls.clear();
    thread.frame_base = 0;
    thread.local_base = 0;
    thread.state = ThreadState::kRunnable;
    thread.carry = false;
    thread.used_up = false;
  }
}

Turn BlockRunner::RunTurn() {
  const auto kept = launch_.memory->Keep();
  bool ran = false;
  if (launch_.launch->most_turns != 0 && ++turns_ > launch_.launch->most_turns)
    return End(0, "the block took more turns than SOFTWARE_GPU_LAUNCH_TURNS allows");
  if (launch_.launch->most_turns != 0 && ++launch_turns_ > launch_.launch->most_turns * kBlocksForTurns)
    return End(0, "the launch took more turns than SOFTWARE_GPU_LAUNCH_TURNS allows");
  for (uint32_t warp = 0; warp < warps_; ++warp) {
    ran |= RunWarp(warp);
    if (faulted_) return Turn::kFault;
  }
  if (block_.live == 0) return Turn::kFinished;
  if (ran) return Turn::kMore;
  // Natively such a block hangs; here every thread waits for one that cannot come.
  return End(-1, "the block is deadlocked: this thread waits for threads that never arrive");
}

// False when no thread of the warp could run.
bool BlockRunner::RunWarp(uint32_t warp) {
  const uint32_t first = warp * kWarpLanes;
  const uint32_t last = std::min(first + kWarpLanes, static_cast<uint32_t>(block_.threads.size()));
  bool ran = false;
  for (uint32_t i = first; i < last; ++i) block_.threads[i].used_up = false;
  while (true) {
    for (uint32_t i = first; i < last; ++i) {
      Thread& thread = block_.threads[i];
      if (thread.state != ThreadState::kRunnable || thread.used_up) continue;
      ran = true;
      const Step step = RunThread(thread);
      if (step == Step::kFault) {
        faulted_ = true;
        return true;
      }
      if (step == Step::kExit) --block_.live;
      if (thread.state != ThreadState::kRunnable) ReleaseBarriers(block_);
    }
    const auto can_run = [](const Thread& thread) {
      return thread.state == ThreadState::kRunnable && !thread.used_up;
    };
    if (ResolveWarp(block_, first, last)) continue;
    if (std::any_of(block_.threads.begin() + first, block_.threads.begin() + last, can_run)) continue;
    if (ResolveActiveMask(block_, first, last)) continue;
    return ran;
  }
}

// Error 702 of the first thread that still runs, at its next instruction (0) or at the one that it waits in
// (-1).
Turn BlockRunner::End(int instruction, const char* why) {
  for (Thread& thread : block_.threads) {
    if (thread.state == ThreadState::kExited) continue;
    RaiseFault(thread, thread.pc[instruction], 702, why);
    return Turn::kFault;
  }
  return Turn::kFinished;
}

}  // namespace causeway::software_gpu
