// SPDX-License-Identifier: Apache-2.0
// cuCheckpointProcess* of this process by others. As with NVIDIA's driver a thread waits on a pipe that they
// open by /proc/PID/fd; its name says which it is, and which takes the answer.
#pragma once

namespace causeway::software_gpu {

// Once, at cuInit.
void ListenForCheckpoints();

}  // namespace causeway::software_gpu
