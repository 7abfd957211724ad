// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tests/bench/sharing_facts/parts/parts.h"
#include "tools/bench/crew/crew.h"
#include "tools/bench/crew/driver.h"

namespace sharing_facts {

// Launches a tiny kernel and waits for it until the crew is over; each round is a sample. Pauses `pause_us` between rounds.
void LaunchAndWait(const Gpu& gpu, Stage& stage, Cell& cell, int pause_us = 0);
// Keeps the GPU's queue filled with kernels of `rounds`, about four milliseconds ahead, until the crew is over. The count
// is that of kernels known to be finished.
void Saturate(const Gpu& gpu, Stage& stage, Cell& cell, std::uint32_t rounds, double kernel_us);
// p50 and p99 of the samples of some children, and what they did together in a second.
void TellLatencies(Report& report, const std::string& row, const Crew& crew, int first, int count,
                   double calls_per_s);
// Lets a crew go whose first `count` children launch and wait, for the plan's time, and tells their latencies. What each
// did in that time; empty, and a row that says why, when the crew did not become ready.
std::vector<double> TellTogether(Plan& plan, const std::string& row, Crew& crew, int count);
// How many units children [first, first + count) finish in `seconds` from now, each.
std::vector<double> CountsOver(Crew& crew, int first, int count, double seconds);
// Rounds of a kernel of `microseconds`, measured by a process that has the GPU to itself. 0 and a row of words on failure.
std::uint32_t Calibrate(Report& report, double microseconds);

}  // namespace sharing_facts
