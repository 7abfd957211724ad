// SPDX-License-Identifier: Apache-2.0
// How one parameter of an NVML call travels: directions as in ivshmem_ring/protocol/directions.h, and some of
// those themselves. Each also names the parameter's type, P, since NVML's header is not needed to build.
#pragma once
#include <algorithm>
#include <cstring>
#include <vector>

#include "ivshmem_ring/nvml/nvml_api.h"
#include "ivshmem_ring/protocol/shape.h"

namespace causeway {

// Cursors keep their error as a CUresult, into which these put a result of NVML's: CUDA_ERROR_INVALID_VALUE (1)
// means kInvalidArgument, and others keep their number, but for kUninitialized, whose number is 1 as well.
namespace nvml {
inline constexpr auto kUninitializedFailure = static_cast<CUresult>(1000);
inline CUresult AsFailure(Return result) {
  return result == Return::kUninitialized ? kUninitializedFailure : static_cast<CUresult>(result);
}
}  // namespace nvml

// After kInsufficientSize, where an array was too small, only counts come back.
template <>
struct Results<nvml::Return> {
  static nvml::Return FailureOf(CUresult error) {
    if (error == CUDA_ERROR_INVALID_VALUE) return nvml::Return::kInvalidArgument;
    return error == nvml::kUninitializedFailure ? nvml::Return::kUninitialized
                                                : static_cast<nvml::Return>(error);
  }
  static constexpr nvml::Return kBrokenReply = nvml::Return::kUnknown;
  static bool Answers(nvml::Return result, bool in_full) {
    return result == nvml::Return::kSuccess || (!in_full && result == nvml::Return::kInsufficientSize);
  }
};

}  // namespace causeway

namespace causeway::nvml {

using U32 = uint32_t;
using I32 = int32_t;
using U64 = uint64_t;

// Limits of one message. A caller that asks for more gets as much as if it had asked for the limit.
inline constexpr uint32_t kMaxTextBytes = 1024;
inline constexpr uint32_t kMaxStructBytes = 3072;
inline constexpr uint32_t kMaxListElements = 224;
inline constexpr uint32_t kMaxListBytes = 3584;
inline constexpr uint32_t kMaxWords = 64;
// A newer library may know a longer struct or text, hence room behind it.
inline constexpr uint32_t kSlackBytes = 512;

// A direction of the driver's rows, for a parameter of type T.
template <class Direction, class T>
struct Typed : Direction {
  using P = T;
};
// A number that goes to the host.
template <class T>
struct In : Typed<causeway::In, T> {};
// A T* through which one number comes back.
template <class T>
struct Out : Typed<causeway::Out, T*> {};

// A device. In the guest its handle is one of the guest library's; in a message it is the device's number.
struct Device : Typed<NoReply, DeviceHandle> {
  template <class T>
  struct Held : GoesToHost {
    T value = nullptr;
    static void Send(auto& guest, Writer& w, T p, const auto&) {
      const int index = guest.IndexOf(p);
      if (index < 0) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(static_cast<uint32_t>(index));
    }
    void Load(auto& host, Reader& r) {
      value = host.DeviceAt(r.Get<uint32_t>());
      if (value == nullptr) r.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    T Arg(Writer&, const auto&) { return value; }
  };
};

// A number of which the library gets `most` at the most: the size in bytes of a text or buffer that comes
// back, or the number of 64-bit words that a set of processors or nodes has.
template <uint32_t most>
struct UpTo : Typed<causeway::In, uint32_t> {
  template <class T>
  struct Held : causeway::In::Held<T> {
    void Load(auto&, Reader& r) { this->value = std::min(r.Get<T>(), most); }
  };
};
using Length = UpTo<kMaxTextBytes>;
using WordCount = UpTo<kMaxWords>;

// A struct without pointers that comes back.
template <uint32_t bytes>
struct OutBytes : Typed<Replies, void*> {
  static_assert(bytes <= kMaxStructBytes);
  template <class T>
  struct Held : ComesBack {
    alignas(8) std::byte value[bytes + kSlackBytes]{};
    static void Receive(auto&, Reader& r, T p, const auto&) { r.GetBytes(p, bytes); }
    void* Arg(Writer&, const auto&) { return value; }
    void Reply(auto&, Writer& w) { w.PutBytes(value, bytes); }
  };
};

// A struct that begins with NVML_STRUCT_VERSION and travels both ways. Only the versions that the row names,
// as V(version, bytes), are known to hold no pointers; any other gets NVML's refusal.
template <uint32_t... versions>
struct Versioned : Typed<Replies, void*> {
  static bool Known(uint32_t version) { return ((version == versions) || ...); }
  static constexpr uint32_t Bytes(uint32_t version) { return version & 0xffffff; }
  static_assert(((Bytes(versions) <= kMaxStructBytes) && ...));

  template <class T>
  struct Held : ComesBack {
    alignas(8) std::byte value[kMaxStructBytes + kSlackBytes]{};
    uint32_t bytes = 0;
    static uint32_t VersionOf(const void* p) {
      uint32_t version;
      std::memcpy(&version, p, sizeof version);
      return version;
    }
    static void Send(auto&, Writer& w, T p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      if (!Known(VersionOf(p))) return w.Fail(AsFailure(Return::kVersionMismatch));
      w.PutBytes(p, Bytes(VersionOf(p)));
    }
    static void Receive(auto&, Reader& r, T p, const auto&) { r.GetBytes(p, Bytes(VersionOf(p))); }
    void Load(auto&, Reader& r) {
      const auto version = r.Get<uint32_t>();
      if (!Known(version)) return r.Fail(AsFailure(Return::kVersionMismatch));
      bytes = Bytes(version);
      std::memcpy(value, &version, sizeof version);
      r.GetBytes(value + sizeof version, bytes - sizeof version);
    }
    T Arg(Writer&, const auto&) { return value; }
    void Reply(auto&, Writer& w) { w.PutBytes(value, bytes); }
  };
};

// A char* to which text comes back. Parameter I, a Length, is its size in bytes.
template <size_t I>
struct OutText : Typed<Replies, char*> {
  template <class T>
  struct Held : ComesBack {
    std::vector<char> text;
    static void Receive(auto&, Reader& r, T p, const auto& args) {
      const auto bytes = r.Get<uint32_t>();
      if (bytes <= CountOf<I>(args)) r.GetBytes(p, bytes);
    }
    T Arg(Writer&, const auto& held) {
      text.assign(CountOf<I>(held) + 1, '\0');
      return text.data();
    }
    void Reply(auto&, Writer& w) {
      const size_t bytes = std::min(std::strlen(text.data()) + 1, text.size() - 1);
      w.Put(static_cast<uint32_t>(bytes));
      w.PutBytes(text.data(), bytes);
    }
  };
};

// A char* to which text of at most `bytes` comes back; the caller states no size.
template <uint32_t bytes>
struct OutFixedText : Typed<Replies, char*> {
  template <class T>
  struct Held : ComesBack {
    char text[bytes + kSlackBytes]{};
    static void Receive(auto&, Reader& r, T p, const auto&) {
      const auto* from = reinterpret_cast<const char*>(r.Take(bytes));
      if (from != nullptr) std::memcpy(p, from, strnlen(from, bytes - 1) + 1);
    }
    T Arg(Writer&, const auto&) { return text; }
    void Reply(auto&, Writer& w) {
      text[bytes - 1] = '\0';
      w.PutBytes(text, bytes);
    }
  };
};

// As many elements of `size` bytes as parameter I says come back. What the caller asks for beyond `most`, the
// limit of that parameter, is cleared.
template <size_t I, uint32_t size, uint32_t most>
struct OutElements : Typed<Replies, void*> {
  template <class T>
  struct Held : ComesBack {
    std::vector<std::byte> bytes;
    static void Receive(auto&, Reader& r, T p, const auto& args) {
      const uint64_t count = CountOf<I>(args), sent = std::min<uint64_t>(count, most);
      r.GetBytes(p, sent * size);
      std::memset(static_cast<std::byte*>(p) + sent * size, 0, (count - sent) * size);
    }
    T Arg(Writer&, const auto& held) {
      bytes.reserve(CountOf<I>(held) * size + 1);  // so data() is not null
      bytes.resize(CountOf<I>(held) * size);
      return bytes.data();
    }
    void Reply(auto&, Writer& w) { w.PutBytes(bytes.data(), bytes.size()); }
  };
};
template <size_t I>
using OutBuffer = OutElements<I, 1, kMaxTextBytes>;
template <size_t I>
using OutWords = OutElements<I, sizeof(uint64_t), kMaxWords>;

// A count that travels both ways: at first the room, in elements, then the number of elements that there are,
// also when they were more.
struct InOutCount : Typed<causeway::InOut, uint32_t*> {
  static constexpr bool kAnswersInPart = true;
  template <class T>
  struct Held : causeway::InOut::Held<T> {
    void Load(auto&, Reader& r) { this->value = std::min(r.Get<uint32_t>(), kMaxListElements); }
  };
};

// Elements of `size` bytes that come back, or null. Parameter I, which comes before, is their InOutCount.
template <size_t I, uint32_t size>
struct OutList : Typed<Replies, void*> {
  template <class T>
  struct Held : ComesBack {
    std::vector<std::byte> bytes;
    const uint32_t* count = nullptr;
    uint32_t room = 0;
    bool wanted = false;
    static void Send(auto&, Writer& w, T p, const auto&) { w.Put(static_cast<uint8_t>(p != nullptr)); }
    static void Receive(auto&, Reader& r, T p, const auto&) {
      if (p != nullptr) r.GetBytes(p, size_t{r.Get<uint32_t>()} * size);
    }
    void Load(auto&, Reader& r) { wanted = r.Get<uint8_t>() == 1; }
    T Arg(Writer&, const auto& held) {
      count = &std::get<I>(held).value;
      room = *count;
      bytes.resize(size_t{room} * size + size);
      return wanted ? bytes.data() : nullptr;
    }
    void Reply(auto&, Writer& w) {
      if (!wanted) return;
      const uint32_t filled = std::min(*count, room);
      w.Put(filled);
      w.PutBytes(bytes.data(), size_t{filled} * size);
    }
  };
};

// Elements of `size` bytes that travel both ways. Parameter I is their number.
template <size_t I, uint32_t size>
struct InOutArray : Typed<Replies, void*> {
  template <class T>
  struct Held : ComesBack {
    std::vector<std::byte> bytes;
    static void Send(auto&, Writer& w, T p, const auto& args) {
      const uint64_t count = CountOf<I>(args);
      if (p == nullptr || count > kMaxListBytes / size) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(static_cast<uint32_t>(count));
      w.PutBytes(p, count * size);
    }
    static void Receive(auto&, Reader& r, T p, const auto& args) { r.GetBytes(p, CountOf<I>(args) * size); }
    void Load(auto&, Reader& r) {
      const auto count = r.Get<uint32_t>();
      if (count > kMaxListBytes / size) return r.Fail(CUDA_ERROR_INVALID_VALUE);
      bytes.resize(size_t{count} * size);
      r.GetBytes(bytes.data(), bytes.size());
    }
    T Arg(Writer& w, const auto& held) {
      if (bytes.size() != CountOf<I>(held) * size) w.Fail(CUDA_ERROR_INVALID_VALUE);
      return bytes.data();
    }
    void Reply(auto&, Writer& w) { w.PutBytes(bytes.data(), bytes.size()); }
  };
};

}  // namespace causeway::nvml
