// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace sharing_facts {

// A channel group that NVIDIA's library made for this process. Its time slice is how long the GPU serves the group before
// it looks at the next one.
struct ChannelGroup {
  int descriptor;  // of the control device on which it was made
  std::uint32_t client, handle;
  std::uint32_t engine;      // 1: compute; 9 and above: copies
  std::uint64_t library_us;  // the slice that the library itself set last; 0: none
};

// What an RM control of ours answered. `system` is errno when the kernel refused the ioctl, else 0; `status` is the
// driver's own code, 0 for success (0x1b: insufficient permissions, 0x1f: invalid argument, 0x56: not supported).
struct ControlAnswer {
  int system;
  std::uint32_t status;
  bool well() const { return system == 0 && status == 0; }
};

// The groups seen so far in this process: this program's own `ioctl` stands before the C library's, as in public sniffers,
// and notes what NVIDIA's library asks. Empty where the driver is not NVIDIA's, or asks by other means.
std::vector<ChannelGroup> GroupsOfThisProcess();

// The slice of one group of this process, in microseconds. Nothing that concerns other processes or the whole GPU is asked.
ControlAnswer GetTimeSlice(const ChannelGroup& group, std::uint64_t* microseconds);
ControlAnswer SetTimeSlice(const ChannelGroup& group, std::uint64_t microseconds);

}  // namespace sharing_facts
