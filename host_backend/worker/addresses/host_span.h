// SPDX-License-Identifier: Apache-2.0
// Bytes that lie in one arena or one registration of the session: the only host memory that a guest can name
// in a message. Arenas alone makes such a value, from an offset or address and a size that were read once;
// whatever copies takes it, not the numbers. Its addresses stay the guest's for good (guest_addresses.h), so
// that it may be kept by copies, graphs and the driver for as long as they like.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::host {

class HostSpan {
 public:
  HostSpan() = default;  // none: what was named is not the session's
  explicit operator bool() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  uint64_t bytes() const { return bytes_; }

 private:
  friend class Arenas;
  HostSpan(std::byte* data, uint64_t bytes) : data_(data), bytes_(bytes) {}

  std::byte* data_ = nullptr;
  uint64_t bytes_ = 0;
};

}  // namespace causeway::host
