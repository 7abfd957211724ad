// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/slices/channel_groups.h"

#include <errno.h>
#include <stdio.h>

#include <algorithm>
#include <cstring>

namespace causeway::host {
namespace {

// The driver's interface, as its published headers give it.
constexpr uint32_t kMagic = 'F', kFree = 0x29, kControl = 0x2a, kAllocate = 0x2b;
constexpr uint32_t kGroupClass = 0xa06c, kSetTimeSlice = 0xa06c0103, kGetTimeSlice = 0xa06c0104;
constexpr uint32_t kComputeEngine = 1;
constexpr size_t kMostGroups = 256;  // of contexts and green contexts of one process

struct ControlParameters {
  uint32_t client, object, command, flags;
  void* parameters;
  uint32_t size, status;
};
static_assert(sizeof(ControlParameters) == 32);

// Both forms of an allocation begin so; they differ in where the status is.
struct Allocation {
  uint32_t root, parent, object, object_class;
  void* parameters;
};
constexpr size_t kShortAllocation = 32, kLongAllocation = 48;
constexpr size_t kShortStatus = 28, kLongStatus = 40;

struct GroupParameters {
  uint32_t error, ecc_error, address_space, engine;
};

struct FreeParameters {
  uint32_t root, parent, object, status;
};

}  // namespace

void ChannelGroups::Note(int descriptor, unsigned long request, const void* argument) {
  if (argument == nullptr || ((request >> 8) & 0xff) != kMagic) return;
  const auto* bytes = static_cast<const char*>(argument);
  const size_t size = (request >> 16) & 0x3fff;
  switch (request & 0xff) {
    case kAllocate:
      return NoteAllocation(descriptor, bytes, size);
    case kControl:
      return NoteControl(bytes, size);
    case kFree:
      return NoteFree(bytes, size);
    default:
      return;
  }
}

void ChannelGroups::NoteAllocation(int descriptor, const char* bytes, size_t size) {
  if (size != kShortAllocation && size != kLongAllocation) return;
  Allocation made;
  std::memcpy(&made, bytes, sizeof made);
  uint32_t status = 0;
  std::memcpy(&status, bytes + (size == kShortAllocation ? kShortStatus : kLongStatus), sizeof status);
  if (made.object_class != kGroupClass || status != 0 || made.parameters == nullptr) return;
  GroupParameters parameters;
  std::memcpy(&parameters, made.parameters, sizeof parameters);
  if (parameters.engine != kComputeEngine) return;
  const std::lock_guard lock(mutex_);
  if (groups_.size() < kMostGroups) groups_.push_back({descriptor, made.root, made.object, 0});
}

// What the library sets itself is what comes back when nobody else wants the GPU.
void ChannelGroups::NoteControl(const char* bytes, size_t size) {
  if (size != sizeof(ControlParameters)) return;
  ControlParameters asked;
  std::memcpy(&asked, bytes, sizeof asked);
  if (asked.command != kSetTimeSlice || asked.status != 0 || asked.parameters == nullptr) return;
  uint64_t slice_us = 0;
  std::memcpy(&slice_us, asked.parameters, sizeof slice_us);
  const std::lock_guard lock(mutex_);
  for (Group& group : groups_) {
    if (group.client == asked.client && group.handle == asked.object) group.library_us = slice_us;
  }
}

void ChannelGroups::NoteFree(const char* bytes, size_t size) {
  if (size != sizeof(FreeParameters)) return;
  FreeParameters freed;
  std::memcpy(&freed, bytes, sizeof freed);
  if (freed.status != 0) return;
  const std::lock_guard lock(mutex_);
  std::erase_if(groups_, [&](const Group& group) {
    return group.client == freed.root && (group.handle == freed.object || freed.object == freed.root);
  });
}

ChannelGroups::Answer ChannelGroups::Control(const Group& group, uint32_t command, uint64_t* slice_us) const {
  ControlParameters control{group.client, group.handle, command, 0, slice_us, sizeof *slice_us, 0};
  constexpr unsigned long kRequest = (3ul << 30) | (sizeof control << 16) | (kMagic << 8) | kControl;
  if (ask_(group.descriptor, kRequest, &control) != 0) return {errno, 0};
  return {0, control.status};
}

void ChannelGroups::GiveUp(const std::string& why) {
  off_ = true;
  log_("the time slices of this process's kernels stay the driver's, because " + why +
       ": kernels that run on for long compete with those of other VMs by equal slices");
}

// The driver must answer what its library has set: else these numbers mean something else here.
bool ChannelGroups::Probe(const Group& group) {
  uint64_t slice_us = 0;
  const Answer answer = Control(group, kGetTimeSlice, &slice_us);
  char why[96];
  if (!answer.ok()) {
    snprintf(why, sizeof why, "this driver does not tell them (errno %d, status 0x%x)", answer.system,
             answer.status);
    GiveUp(why);
  } else if (group.library_us == 0 || slice_us != group.library_us) {
    snprintf(why, sizeof why, "this driver says %llu us where its library has set %llu",
             static_cast<unsigned long long>(slice_us), static_cast<unsigned long long>(group.library_us));
    GiveUp(why);
  }
  return !off_;
}

// A group that does not answer any more has ended with what it belonged to; if none does, the driver is another one.
bool ChannelGroups::Set(uint32_t microseconds) {
  const std::lock_guard lock(mutex_);
  if (off_ || groups_.empty()) return false;
  if (!probed_ && !Probe(groups_.back())) return false;
  probed_ = true;
  Answer refused;
  std::erase_if(groups_, [&](const Group& group) {
    uint64_t slice_us = microseconds == 0 ? group.library_us : microseconds;
    if (slice_us == 0) return false;
    const Answer answer = Control(group, kSetTimeSlice, &slice_us);
    if (!answer.ok()) refused = answer;
    return !answer.ok();
  });
  if (!groups_.empty()) return true;
  char why[96];
  snprintf(why, sizeof why, "this driver does not set them (errno %d, status 0x%x)", refused.system,
           refused.status);
  GiveUp(why);
  return false;
}

size_t ChannelGroups::count() const {
  const std::lock_guard lock(mutex_);
  return groups_.size();
}

}  // namespace causeway::host
