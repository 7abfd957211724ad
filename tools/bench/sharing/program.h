// SPDX-License-Identifier: Apache-2.0
// The work of a process that is a program of its own: a script of PyTorch's (torch_load.py), which lies as causeway-bench-torch beside
// this program. In children of a Crew; throws its Failure with what the script says where it does not come to work.
#pragma once
#include <string>

#include "tools/bench/crew/crew.h"
#include "tools/bench/sharing/loads.h"

namespace causeway::bench::sharing {

// Reads the script. Before a process becomes another user's, who may not be able to.
void ReadProgram();
// As Run: each line of the script is a sample, and a unit of work. The library of Causeway's that it is to use is found by
// LD_LIBRARY_PATH.
void RunProgram(Stage& stage, Cell& cell, const LoadPlan& plan);
// Milliseconds of one of its units with nobody else and no gap.
double ProgramUnitMs(const std::string& mode);

}  // namespace causeway::bench::sharing
