// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/sharing_facts/channel_group.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <mutex>

namespace sharing_facts {
namespace {

// The driver's interface, as its published headers give it.
constexpr std::uint32_t kMagic = 'F', kControl = 0x2a, kAllocate = 0x2b;
constexpr std::uint32_t kGroupClass = 0xa06c, kSetTimeSlice = 0xa06c0103, kGetTimeSlice = 0xa06c0104;

struct Control {
  std::uint32_t client, object, command, flags;
  void* parameters;
  std::uint32_t size, status;
};
static_assert(sizeof(Control) == 32);

// Both forms of an allocation begin so; they differ in where the status is.
struct Allocation {
  std::uint32_t root, parent, object, object_class;
  void* parameters;
};
constexpr std::size_t kShortAllocation = 32, kLongAllocation = 48;
constexpr std::size_t kShortStatus = 28, kLongStatus = 40;

struct GroupParameters {
  std::uint32_t error, ecc_error, address_space, engine;
};

std::mutex& Lock() {
  static std::mutex lock;
  return lock;
}
std::vector<ChannelGroup>& Groups() {
  static std::vector<ChannelGroup> groups;
  return groups;
}

void NoteAllocation(int descriptor, const char* argument, std::size_t size) {
  if (size != kShortAllocation && size != kLongAllocation) return;
  Allocation made;
  std::memcpy(&made, argument, sizeof(made));
  std::uint32_t status = 0;
  std::memcpy(&status, argument + (size == kShortAllocation ? kShortStatus : kLongStatus), sizeof(status));
  if (made.object_class != kGroupClass || status != 0) return;
  GroupParameters parameters{};
  if (made.parameters != nullptr) std::memcpy(&parameters, made.parameters, sizeof(parameters));
  const std::lock_guard held(Lock());
  Groups().push_back({descriptor, made.root, made.object, parameters.engine, 0});
}

void NoteControl(const char* argument, std::size_t size) {
  if (size != sizeof(Control)) return;
  Control asked;
  std::memcpy(&asked, argument, sizeof(asked));
  if (asked.command != kSetTimeSlice || asked.status != 0 || asked.parameters == nullptr) return;
  std::uint64_t slice = 0;
  std::memcpy(&slice, asked.parameters, sizeof(slice));
  const std::lock_guard held(Lock());
  for (ChannelGroup& group : Groups()) {
    if (group.client == asked.client && group.handle == asked.object) group.library_us = slice;
  }
}

ControlAnswer Ask(const ChannelGroup& group, std::uint32_t command, std::uint64_t* slice) {
  Control control{group.client, group.handle, command, 0, slice, sizeof(*slice), 0};
  constexpr unsigned long kRequest = (3ul << 30) | (sizeof(Control) << 16) | (kMagic << 8) | kControl;
  if (syscall(SYS_ioctl, group.descriptor, kRequest, &control) != 0) return {errno, 0};
  return {0, control.status};
}

}  // namespace

std::vector<ChannelGroup> GroupsOfThisProcess() {
  const std::lock_guard held(Lock());
  return Groups();
}

ControlAnswer GetTimeSlice(const ChannelGroup& group, std::uint64_t* microseconds) {
  *microseconds = 0;
  return Ask(group, kGetTimeSlice, microseconds);
}

ControlAnswer SetTimeSlice(const ChannelGroup& group, std::uint64_t microseconds) {
  return Ask(group, kSetTimeSlice, &microseconds);
}

}  // namespace sharing_facts

// Stands before the C library's function for every library of the process. Does what that does, and looks at what NVIDIA's
// library asked once it is answered.
extern "C" __attribute__((visibility("default"))) int ioctl(int descriptor, unsigned long request, ...) {
  va_list arguments;
  va_start(arguments, request);
  void* argument = va_arg(arguments, void*);
  va_end(arguments);
  const long answer = syscall(SYS_ioctl, descriptor, request, argument);
  const int error = errno;
  if (answer == 0 && argument != nullptr && ((request >> 8) & 0xff) == sharing_facts::kMagic) {
    const auto* bytes = static_cast<const char*>(argument);
    const std::size_t size = (request >> 16) & 0x3fff;
    if ((request & 0xff) == sharing_facts::kAllocate) sharing_facts::NoteAllocation(descriptor, bytes, size);
    if ((request & 0xff) == sharing_facts::kControl) sharing_facts::NoteControl(bytes, size);
  }
  errno = error;
  return static_cast<int>(answer);
}
