// SPDX-License-Identifier: Apache-2.0
// How one parameter of an NVML call travels. A direction here is like one of
// ivshmem_ring/protocol/directions.h, but it also names the parameter's type, P, since NVML's header is not
// needed to build. In the guest Send writes the parameter and Receive stores what came back; on the host Load
// validates, Arg gives the library its argument, and Reply answers. `complete` is false when the library
// found an array too small: then only counts come back.
#pragma once
#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "ivshmem_ring/protocol/nvml_api.h"
#include "ivshmem_ring/protocol/wire.h"

namespace causeway::nvml {

using U32 = uint32_t;
using I32 = int32_t;
using U64 = uint64_t;

// Cursors (wire.h) keep their error as a CUresult, in which NVML's result is stored here. The error 1 is the
// one that a cursor sets by itself when it runs over its end.
inline constexpr auto kUninitializedFailure = static_cast<CUresult>(1000);
inline CUresult AsFailure(Return result) {
  return result == Return::kUninitialized ? kUninitializedFailure : static_cast<CUresult>(result);
}
inline Return FailureOf(CUresult error) {
  if (error == CUDA_ERROR_INVALID_VALUE) return Return::kInvalidArgument;
  return error == kUninitializedFailure ? Return::kUninitialized : static_cast<Return>(error);
}

// Limits of one message. A caller that asks for more gets as much as if it had asked for the limit.
inline constexpr uint32_t kMaxTextBytes = 1024;
inline constexpr uint32_t kMaxStructBytes = 3072;
inline constexpr uint32_t kMaxListElements = 224;
inline constexpr uint32_t kMaxListBytes = 3584;

template <size_t I>
uint32_t CountOf(const auto& parameters) {
  using Parameter = std::tuple_element_t<I, std::decay_t<decltype(parameters)>>;
  if constexpr (requires(Parameter held) { held.value; }) {
    return static_cast<uint32_t>(std::get<I>(parameters).value);
  } else if constexpr (std::is_pointer_v<Parameter>) {
    return *std::get<I>(parameters);
  } else {
    return static_cast<uint32_t>(std::get<I>(parameters));
  }
}

// A device. In the guest its handle is one of the guest library's; in a message it is the device's number.
struct Device {
  using P = DeviceHandle;
  P value = nullptr;
  static void Send(auto& guest, Writer& w, P p, const auto&) {
    const int index = guest.IndexOf(p);
    if (index < 0) return w.Fail(AsFailure(Return::kInvalidArgument));
    w.Put(static_cast<uint32_t>(index));
  }
  static void Receive(Reader&, P, const auto&, bool) {}
  void Load(auto& host, Reader& r) {
    value = host.DeviceAt(r.Get<uint32_t>());
    if (value == nullptr) r.Fail(AsFailure(Return::kInvalidArgument));
  }
  P Arg(Writer&, const auto&) { return value; }
  void Reply(Writer&, const auto&, bool) {}
};

// A number that goes to the host.
template <class T>
struct In {
  using P = T;
  T value{};
  static void Send(auto&, Writer& w, P p, const auto&) { w.Put(p); }
  static void Receive(Reader&, P, const auto&, bool) {}
  void Load(auto&, Reader& r) { value = r.Get<T>(); }
  P Arg(Writer&, const auto&) { return value; }
  void Reply(Writer&, const auto&, bool) {}
};

// The size in bytes of a text or buffer that comes back.
struct Length {
  using P = uint32_t;
  uint32_t value = 0;
  static void Send(auto&, Writer& w, P p, const auto&) { w.Put(p); }
  static void Receive(Reader&, P, const auto&, bool) {}
  void Load(auto&, Reader& r) { value = std::min(r.Get<uint32_t>(), kMaxTextBytes); }
  P Arg(Writer&, const auto&) { return value; }
  void Reply(Writer&, const auto&, bool) {}
};

// A T* through which one number comes back.
template <class T>
struct Out {
  using P = T*;
  T value{};
  static void Send(auto&, Writer& w, P p, const auto&) {
    if (p == nullptr) w.Fail(AsFailure(Return::kInvalidArgument));
  }
  static void Receive(Reader& r, P p, const auto&, bool complete) {
    if (complete) *p = r.Get<T>();
  }
  void Load(auto&, Reader&) {}
  P Arg(Writer&, const auto&) { return &value; }
  void Reply(Writer& w, const auto&, bool complete) {
    if (complete) w.Put(value);
  }
};

// A struct without pointers that comes back. A newer library may know a longer struct, hence the room behind
// it.
template <uint32_t bytes>
struct OutBytes {
  using P = void*;
  static_assert(bytes <= kMaxStructBytes);
  alignas(8) std::byte value[bytes + 512]{};
  static void Send(auto&, Writer& w, P p, const auto&) {
    if (p == nullptr) w.Fail(AsFailure(Return::kInvalidArgument));
  }
  static void Receive(Reader& r, P p, const auto&, bool complete) {
    const std::byte* from = complete ? r.Take(bytes) : nullptr;
    if (from != nullptr) std::memcpy(p, from, bytes);
  }
  void Load(auto&, Reader&) {}
  P Arg(Writer&, const auto&) { return value; }
  void Reply(Writer& w, const auto&, bool complete) {
    if (complete) w.PutBytes(value, bytes);
  }
};

// A struct that begins with NVML_STRUCT_VERSION and travels both ways. Only the versions that the row names,
// as V(version, bytes), are known to hold no pointers; any other is refused as NVML refuses one that it does
// not know.
template <uint32_t... versions>
struct Versioned {
  using P = void*;
  alignas(8) std::byte value[kMaxStructBytes + 512]{};
  uint32_t bytes = 0;
  static bool Known(uint32_t version) { return ((version == versions) || ...); }
  static uint32_t Bytes(uint32_t version) { return version & 0xffffff; }
  static_assert((((versions & 0xffffff) <= kMaxStructBytes) && ...));

  static void Send(auto&, Writer& w, P p, const auto&) {
    uint32_t version = 0;
    if (p == nullptr) return w.Fail(AsFailure(Return::kInvalidArgument));
    std::memcpy(&version, p, sizeof version);
    if (!Known(version)) return w.Fail(AsFailure(Return::kVersionMismatch));
    w.PutBytes(p, Bytes(version));
  }
  static void Receive(Reader& r, P p, const auto&, bool complete) {
    uint32_t version = 0;
    std::memcpy(&version, p, sizeof version);
    const std::byte* from = complete ? r.Take(Bytes(version)) : nullptr;
    if (from != nullptr) std::memcpy(p, from, Bytes(version));
  }
  void Load(auto&, Reader& r) {
    const auto version = r.Get<uint32_t>();
    if (!Known(version)) return r.Fail(AsFailure(Return::kVersionMismatch));
    std::memcpy(value, &version, sizeof version);
    const std::byte* rest = r.Take(Bytes(version) - sizeof version);
    if (rest == nullptr) return;
    std::memcpy(value + sizeof version, rest, Bytes(version) - sizeof version);
    bytes = Bytes(version);
  }
  P Arg(Writer&, const auto&) { return value; }
  void Reply(Writer& w, const auto&, bool complete) {
    if (complete) w.PutBytes(value, bytes);
  }
};

// A char* to which text comes back. Parameter I, a Length, is its size in bytes.
template <size_t I>
struct OutText {
  using P = char*;
  std::vector<char> text;
  static void Send(auto&, Writer& w, P p, const auto&) {
    if (p == nullptr) w.Fail(AsFailure(Return::kInvalidArgument));
  }
  static void Receive(Reader& r, P p, const auto& args, bool complete) {
    if (!complete) return;
    const auto bytes = r.Get<uint32_t>();
    const std::byte* from = r.Take(bytes);
    if (from != nullptr && bytes <= CountOf<I>(args)) std::memcpy(p, from, bytes);
  }
  void Load(auto&, Reader&) {}
  P Arg(Writer&, const auto& held) {
    text.assign(CountOf<I>(held) + 1, '\0');
    return text.data();
  }
  void Reply(Writer& w, const auto& held, bool complete) {
    if (!complete) return;
    const auto bytes =
        static_cast<uint32_t>(std::min(std::strlen(text.data()) + 1, size_t{CountOf<I>(held)}));
    w.Put(bytes);
    w.PutBytes(text.data(), bytes);
  }
};

// A char* to which text of at most `bytes` comes back; the caller states no size.
template <uint32_t bytes>
struct OutFixedText {
  using P = char*;
  char text[bytes + 512]{};
  static void Send(auto&, Writer& w, P p, const auto&) {
    if (p == nullptr) w.Fail(AsFailure(Return::kInvalidArgument));
  }
  static void Receive(Reader& r, P p, const auto&, bool complete) {
    const std::byte* from = complete ? r.Take(bytes) : nullptr;
    if (from != nullptr) std::memcpy(p, from, strnlen(reinterpret_cast<const char*>(from), bytes - 1) + 1);
  }
  void Load(auto&, Reader&) {}
  P Arg(Writer&, const auto&) { return text; }
  void Reply(Writer& w, const auto&, bool complete) {
    text[bytes - 1] = '\0';
    if (complete) w.PutBytes(text, bytes);
  }
};

// A buffer to which bytes come back. Parameter I, a Length, is its size in bytes.
template <size_t I>
struct OutBuffer {
  using P = void*;
  std::vector<std::byte> bytes;
  static void Send(auto&, Writer& w, P p, const auto&) {
    if (p == nullptr) w.Fail(AsFailure(Return::kInvalidArgument));
  }
  static void Receive(Reader& r, P p, const auto& args, bool complete) {
    const uint32_t count = std::min(CountOf<I>(args), kMaxTextBytes);
    const std::byte* from = complete ? r.Take(count) : nullptr;
    if (from != nullptr) std::memcpy(p, from, count);
  }
  void Load(auto&, Reader&) {}
  P Arg(Writer&, const auto& held) {
    bytes.resize(CountOf<I>(held) + size_t{8});
    return bytes.data();
  }
  void Reply(Writer& w, const auto& held, bool complete) {
    if (complete) w.PutBytes(bytes.data(), CountOf<I>(held));
  }
};

// The number of 64-bit words that a set of processors or nodes has.
inline constexpr uint32_t kMaxWords = 64;
struct WordCount {
  using P = uint32_t;
  uint32_t value = 0;
  static void Send(auto&, Writer& w, P p, const auto&) { w.Put(p); }
  static void Receive(Reader&, P, const auto&, bool) {}
  void Load(auto&, Reader& r) { value = std::min(r.Get<uint32_t>(), kMaxWords); }
  P Arg(Writer&, const auto&) { return value; }
  void Reply(Writer&, const auto&, bool) {}
};
template <size_t I>
struct OutWords {
  using P = void*;
  uint64_t words[kMaxWords]{};
  static void Send(auto&, Writer& w, P p, const auto&) {
    if (p == nullptr) w.Fail(AsFailure(Return::kInvalidArgument));
  }
  static void Receive(Reader& r, P p, const auto& args, bool complete) {
    if (!complete) return;
    std::memset(p, 0, CountOf<I>(args) * sizeof(uint64_t));
    const size_t bytes = std::min(CountOf<I>(args), kMaxWords) * sizeof(uint64_t);
    if (const std::byte* from = r.Take(bytes)) std::memcpy(p, from, bytes);
  }
  void Load(auto&, Reader&) {}
  P Arg(Writer&, const auto&) { return words; }
  void Reply(Writer& w, const auto& held, bool complete) {
    if (complete) w.PutBytes(words, CountOf<I>(held) * sizeof(uint64_t));
  }
};

// A count that travels both ways: at first the room, in elements, then the number of elements that there are.
struct InOutCount {
  using P = uint32_t*;
  uint32_t room = 0;
  uint32_t value = 0;
  static void Send(auto&, Writer& w, P p, const auto&) {
    if (p == nullptr) return w.Fail(AsFailure(Return::kInvalidArgument));
    w.Put(*p);
  }
  static void Receive(Reader& r, P p, const auto&, bool) { *p = r.Get<uint32_t>(); }
  void Load(auto&, Reader& r) { room = value = std::min(r.Get<uint32_t>(), kMaxListElements); }
  P Arg(Writer&, const auto&) { return &value; }
  void Reply(Writer& w, const auto&, bool) { w.Put(value); }
};

// Elements of `size` bytes that come back, or null. Parameter I, which comes before, is their InOutCount.
template <size_t I, uint32_t size>
struct OutList {
  using P = void*;
  bool wanted = false;
  std::vector<std::byte> bytes;
  static void Send(auto&, Writer& w, P p, const auto&) { w.Put(static_cast<uint8_t>(p != nullptr)); }
  static void Receive(Reader& r, P p, const auto&, bool complete) {
    if (!complete || p == nullptr) return;
    const auto count = r.Get<uint32_t>();
    if (const std::byte* from = r.Take(size_t{count} * size)) std::memcpy(p, from, size_t{count} * size);
  }
  void Load(auto&, Reader& r) { wanted = r.Get<uint8_t>() == 1; }
  P Arg(Writer&, const auto& held) {
    bytes.resize(size_t{std::get<I>(held).room} * size + size);
    return wanted ? bytes.data() : nullptr;
  }
  void Reply(Writer& w, const auto& held, bool complete) {
    if (!complete || !wanted) return;
    const uint32_t count = std::min(std::get<I>(held).value, std::get<I>(held).room);
    w.Put(count);
    w.PutBytes(bytes.data(), size_t{count} * size);
  }
};

// Elements of `size` bytes that travel both ways. Parameter I is their number.
template <size_t I, uint32_t size>
struct InOutArray {
  using P = void*;
  std::vector<std::byte> bytes;
  static void Send(auto&, Writer& w, P p, const auto& args) {
    const uint64_t count = CountOf<I>(args);
    if (p == nullptr || count * size > kMaxListBytes) return w.Fail(AsFailure(Return::kInvalidArgument));
    w.Put(static_cast<uint32_t>(count));
    w.PutBytes(p, count * size);
  }
  static void Receive(Reader& r, P p, const auto& args, bool complete) {
    const size_t count = size_t{CountOf<I>(args)} * size;
    const std::byte* from = complete ? r.Take(count) : nullptr;
    if (from != nullptr) std::memcpy(p, from, count);
  }
  void Load(auto&, Reader& r) {
    const uint64_t count = r.Get<uint32_t>();
    const std::byte* from = count * size <= kMaxListBytes ? r.Take(count * size) : nullptr;
    if (from == nullptr) return r.Fail(AsFailure(Return::kInvalidArgument));
    bytes.assign(from, from + count * size);
  }
  P Arg(Writer& w, const auto& held) {
    if (bytes.size() != size_t{CountOf<I>(held)} * size) w.Fail(AsFailure(Return::kInvalidArgument));
    return bytes.data();
  }
  void Reply(Writer& w, const auto&, bool complete) {
    if (complete) w.PutBytes(bytes.data(), bytes.size());
  }
};

}  // namespace causeway::nvml
