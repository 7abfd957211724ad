// SPDX-License-Identifier: Apache-2.0
// Runs the threads of a block on the calling thread, a turn at a time.
#pragma once
#include <memory>

#include "tests/software_gpu/interpreter_code.h"

namespace causeway::software_gpu {

enum class Turn {
  kMore,      // threads are left; call again
  kFinished,  // every thread has exited
  kFault,     // LaunchState::fault says why
};

class BlockRunner {
 public:
  // Allocates shared and local memory and `launch.launch->block` threads; `launch` outlives this.
  explicit BlockRunner(LaunchState& launch);

  // Puts all threads at the kernel's start as block `index`.
  void Start(Dim3 index);

  // Every thread runs until it waits, exits or has used up its instruction budget at least once, so
  // threads that spin on what others write see it some time later.
  Turn RunTurn();

 private:
  bool RunWarp(uint32_t warp);
  Turn End(int instruction, const char* why);

  LaunchState& launch_;
  Block block_;
  uint32_t warps_ = 0;
  bool faulted_ = false;
  // A launch may take as many turns as so many blocks: a grid of billions of short ones ends as well.
  static constexpr uint64_t kBlocksForTurns = 1000;
  uint64_t turns_ = 0;         // of the block
  uint64_t launch_turns_ = 0;  // of all blocks that this runner had
  std::unique_ptr<std::byte[]> shared_, local_;
};

// Called when a thread arrived at barrier `barrier` or exited: releases whom it was the last for.
void ReleaseBarriers(Block& block);

// Lets lanes `first` to `last` of a warp (indices in Block::threads, past the end) do every operation that
// all of its participants have reached; true if there was one.
bool ResolveWarp(Block& block, uint32_t first, uint32_t last);
// To be called when nothing else can go on: answers activemask to lanes that wait for it at one place.
bool ResolveActiveMask(Block& block, uint32_t first, uint32_t last);

}  // namespace causeway::software_gpu
