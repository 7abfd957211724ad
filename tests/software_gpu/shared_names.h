// SPDX-License-Identifier: Apache-2.0
// What processes that use the software GPU see of each other, as a driver's device nodes would tell: names in
// /dev/shm, since a confined process can look into no other by /proc.
#pragma once
#include <sys/types.h>

#include <string>

namespace causeway::software_gpu {

inline constexpr const char* kSharedFolder = "/dev/shm";
inline constexpr const char* kSharedPrefix = "software-gpu.";

// Of a device's memory in the process.
std::string SharedPath(pid_t pid, int device);

// A new, empty file for the memory of a device of this process; -1: none can be made. Removes what processes
// left that are gone.
int MakeSharedFile(int device);

// This process has a context from now on.
void NoteUse();

}  // namespace causeway::software_gpu
