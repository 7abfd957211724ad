// SPDX-License-Identifier: Apache-2.0
// What work does to the device's memory is for the program to order, by streams and events: natively no tool
// of the host sees it. TSan is not to report a guest's races as races of this process, but to see what work
// reads and writes in the memory of the host.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstring>

#ifdef __SANITIZE_THREAD__
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace causeway::software_gpu {

// While one lives, what the calling thread touches is the device's.
class ScopedDeviceAccess {
 public:
#ifdef __SANITIZE_THREAD__
  ScopedDeviceAccess() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~ScopedDeviceAccess() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  ScopedDeviceAccess() {}
  ~ScopedDeviceAccess() {}
#endif
  ScopedDeviceAccess(const ScopedDeviceAccess&) = delete;
  ScopedDeviceAccess& operator=(const ScopedDeviceAccess&) = delete;
};

// std::memmove; says which side is the device's memory.
inline void Move(void* to, bool to_device, const void* from, bool from_device, size_t bytes) {
#ifdef __SANITIZE_THREAD__
  if (to_device != from_device) {
    std::byte piece[4096];
    for (size_t at = 0; at < bytes; at += sizeof piece) {
      const size_t step = std::min(sizeof piece, bytes - at);
      const auto* source = static_cast<const std::byte*>(from) + at;
      auto* target = static_cast<std::byte*>(to) + at;
      if (from_device) {
        const ScopedDeviceAccess access;
        std::memcpy(piece, source, step);
      } else {
        std::memcpy(piece, source, step);
      }
      if (to_device) {
        const ScopedDeviceAccess access;
        std::memcpy(target, piece, step);
      } else {
        std::memcpy(target, piece, step);
      }
    }
    return;
  }
  if (to_device) {
    const ScopedDeviceAccess access;
    std::memmove(to, from, bytes);
    return;
  }
#else
  (void)to_device;
  (void)from_device;
#endif
  std::memmove(to, from, bytes);
}

}  // namespace causeway::software_gpu
