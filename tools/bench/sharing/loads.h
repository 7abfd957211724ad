// SPDX-License-Identifier: Apache-2.0
// What the processes of a row do on the GPU. All of this runs in children of a Crew and throws its Failure.
#pragma once
#include <cstdint>

#include "tools/bench/crew/crew.h"
#include "tools/bench/crew/driver.h"
#include "tools/bench/sharing/rows.h"

namespace causeway::bench::sharing {

// How a kernel is made that takes so long on the idle GPU.
struct Kernel {
  uint32_t rounds = 0;  // Gpu::LaunchWork
  double us = 0;        // as it was measured
};

// What a load needs to know that the row does not say.
struct LoadPlan {
  Load load;
  Kernel kernel;
  double request_gap_us = 0;  // of kInference: between two requests, on average
  uint64_t seed = 1;
  // Of a training's step; of a request, and of each of its tokens.
  int most_batch = 400;  // kernels of kFull that one event is behind
  int step_kernels = 40, tokens = 8, token_kernels = 120;
};

// Finds the kernel that takes so long. On a GPU that nobody else uses.
Kernel Calibrate(const Gpu& gpu, double wanted_us);
// Milliseconds of a request of kInference with nobody else and no gap.
double RequestMs(const Gpu& gpu, const LoadPlan& plan);
// The whole life of a process: it says when it is ready, works, at least one unit, has State::kEnded, and waits for the end of the crew. Its units of work (Cell::count)
// are kernels, copies, requests and steps; its samples are nanoseconds of each, of a request from the moment at which it was due.
void Run(Stage& stage, Cell& cell, const LoadPlan& plan);

// A context that does nothing.
void Idle(Stage& stage, Cell& cell);

// Cell::values of those that check what they get.
enum CheckValue { kLongestBeforeNs, kLongestNs, kWrongBytes, kErrorCode };
// Copies words to the device, has a kernel change them, copies them back and compares, over and over. The longest round counts as
// one before until Stage::word is set.
void CheckWords(Stage& stage, Cell& cell, uint64_t seed);

// In the order of the kernels' names in tools/bench/crew/kernels.h; the last is to be killed by the parent.
inline constexpr const char* kFaultNames[] = {
    "bad address",           "trap",          "assert", "misaligned address",
    "shared memory overrun", "stack overrun", "killed"};
inline constexpr int kFaults = 6, kKilled = 6;
// Does so to its own context, after it is ready; Cell::values[kErrorCode] is what it was told. kKilled: keeps the GPU busy.
void Misbehave(Stage& stage, Cell& cell, int fault);

// Measures one VM alone: rounds of launches, waits and copies, each while Stage::turn is `turn`; as it comes into
// Cell::values, by OnOffValue, in picoseconds; then it gives the turn back (0).
enum OnOffValue { kLaunchDrained, kLaunchAndWait, kToDevice, kToHost, kOnOffValues };
void MeasureAlone(Stage& stage, Cell& cell, uint32_t turn, bool quick);

}  // namespace causeway::bench::sharing
