// SPDX-License-Identifier: Apache-2.0
// The time slices of the channel groups that NVIDIA's library makes in this process. Which these are it tells nobody; its kernel
// interface is therefore looked at (noted_ioctl.cc): what is noted is the number of each group, and nothing is changed. The
// two controls that set and get a slice concern a process's own groups and need no rights; nothing of the whole GPU is asked.
// They are no documented interface: where a driver answers otherwise than expected, slices stay as they are.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <vector>

#include "host_backend/worker/slices/time_slices.h"

namespace causeway::host {

// Any thread.
class ChannelGroups final : public TimeSlices {
 public:
  // As ioctl(2): 0, or -1 and errno.
  using Ask = int (*)(int descriptor, unsigned long request, void* argument);
  ChannelGroups(Ask ask, std::function<void(const std::string&)> log) : ask_(ask), log_(std::move(log)) {}

  // What NVIDIA's library has asked with success; `argument` is what the kernel has answered.
  void Note(int descriptor, unsigned long request, const void* argument);

  bool Set(uint32_t microseconds) override;
  // Those of compute work, which alone have a slice that matters.
  size_t count() const;

 private:
  struct Group {
    int descriptor;
    uint32_t client, handle;
    uint64_t library_us;  // what the library itself set last; 0: nothing
  };
  struct Answer {
    int system = 0;       // errno, or 0
    uint32_t status = 0;  // the driver's own code, 0: success
    bool ok() const { return system == 0 && status == 0; }
  };
  void NoteAllocation(int descriptor, const char* bytes, size_t size);
  void NoteControl(const char* bytes, size_t size);
  void NoteFree(const char* bytes, size_t size);
  Answer Control(const Group& group, uint32_t command, uint64_t* slice_us) const;
  bool Probe(const Group& group);
  void GiveUp(const std::string& why);

  const Ask ask_;
  const std::function<void(const std::string&)> log_;
  mutable std::mutex mutex_;  // of what follows
  std::vector<Group> groups_;
  bool off_ = false, probed_ = false;
};

// Of this process, in the worker (noted_ioctl.cc).
ChannelGroups& TheChannelGroups();

}  // namespace causeway::host
