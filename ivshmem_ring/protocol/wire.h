// SPDX-License-Identifier: Apache-2.0
// Cursors over the body of one message: Writer fills it, Reader takes it apart. Both are bounded, and both
// are sticky: after the first failure nothing moves and the error stays, so a caller checks once, at the end.
// A cursor does not own the memory, which must outlive it, and belongs to one thread.
#pragma once
#include <cstddef>
#include <cstring>
#include <span>
#include <type_traits>

#include "ivshmem_ring/protocol/driver_api.h"

namespace causeway {

class Writer {
 public:
  explicit Writer(std::span<std::byte> space)
      : begin_(space.data()), at_(space.data()), end_(space.data() + space.size()) {}

  // The next `bytes` of the space, to be filled. Null once the cursor has failed or the space is used up.
  std::byte* Reserve(size_t bytes) {
    if (error_ != CUDA_SUCCESS || bytes > static_cast<size_t>(end_ - at_)) {
      full_ = full_ || error_ == CUDA_SUCCESS;
      Fail(CUDA_ERROR_INVALID_VALUE);
      return nullptr;
    }
    std::byte* here = at_;
    at_ += bytes;
    return here;
  }
  void PutBytes(const void* bytes, size_t count) {
    std::byte* to = Reserve(count);
    if (to != nullptr && count != 0) std::memcpy(to, bytes, count);
  }
  template <class T>
  void Put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    PutBytes(&value, sizeof value);
  }
  // The first error stays.
  void Fail(CUresult error) {
    if (error_ == CUDA_SUCCESS) error_ = error;
  }
  bool ok() const { return error_ == CUDA_SUCCESS; }
  CUresult error() const { return error_; }
  // Whether it failed because the space is too small.
  bool full() const { return full_; }
  size_t size() const { return static_cast<size_t>(at_ - begin_); }

 private:
  std::byte* begin_;
  std::byte* at_;
  std::byte* end_;
  CUresult error_ = CUDA_SUCCESS;
  bool full_ = false;
};

class Reader {
 public:
  Reader() = default;
  explicit Reader(std::span<const std::byte> bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  // The next `bytes` of the message. Null once the cursor has failed or fewer are left.
  const std::byte* Take(size_t bytes) {
    if (error_ != CUDA_SUCCESS || bytes > static_cast<size_t>(end_ - at_)) {
      is_cut_ = is_cut_ || error_ == CUDA_SUCCESS;
      Fail(CUDA_ERROR_INVALID_VALUE);
      return nullptr;
    }
    const std::byte* here = at_;
    at_ += bytes;
    return here;
  }
  // Copies the next `bytes` of the message, if Take() would give them.
  void GetBytes(void* to, size_t bytes) {
    const std::byte* from = Take(bytes);
    if (from != nullptr && bytes != 0) std::memcpy(to, from, bytes);
  }
  // The next value; all zero once the cursor has failed. A bool cannot be read: its byte may hold any bits.
  template <class T>
  T Get() {
    static_assert(std::is_trivially_copyable_v<T> && !std::is_same_v<T, bool>);
    T value{};
    if (const std::byte* from = Take(sizeof value)) std::memcpy(&value, from, sizeof value);
    return value;
  }
  void Fail(CUresult error) {
    if (error_ == CUDA_SUCCESS) error_ = error;
  }
  bool ok() const { return error_ == CUDA_SUCCESS; }
  CUresult error() const { return error_; }
  // Whether it failed because the message is too short, which no library of ours would send.
  bool is_cut() const { return is_cut_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }

 private:
  const std::byte* at_ = nullptr;
  const std::byte* end_ = nullptr;
  CUresult error_ = CUDA_SUCCESS;
  bool is_cut_ = false;
};

}  // namespace causeway
