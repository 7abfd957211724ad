// SPDX-License-Identifier: Apache-2.0
// How one parameter of a driver call travels. A row of calls.def names one direction per parameter; the
// parameter's type comes from cuda.h.
//
// Each direction has a Held<P>. In the guest: Send writes the parameter, Receive stores what came back, Undo
// takes back what Send prepared when the call fails. On the host, in this order and each over all parameters:
// Load (read and validate), Arg (what the driver is given), the driver call, Reply.
#pragma once
#include <cstdlib>
#include <tuple>
#include <vector>

#include "ivshmem_ring/protocol/admit.h"
#include "ivshmem_ring/protocol/flat.h"
#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/protocol/wire.h"

namespace causeway {

struct NoReply {  // what a direction that only goes to the host shares with its like
  static constexpr bool kReplies = false;
};
struct Replies {
  static constexpr bool kReplies = true;
};

template <class P>
using Pointee = std::remove_const_t<std::remove_pointer_t<P>>;

// A value: number, enum, flat struct, device pointer or handle.
struct In : NoReply {
  template <class P>
  struct Held {
    static_assert(kFlat<P> || Handle<P>, "In is for values and handles: say how the pointee travels");
    P value{};
    static void Send(auto& guest, Writer& w, P p, const auto&) {
      if constexpr (Handle<P>) {
        w.Put(guest.ToWire(p, w));
      } else {
        w.Put(p);
      }
    }
    static void Receive(auto&, Reader&, P, const auto&) {}
    static void Undo(auto&, P, const auto&) {}
    void Load(auto& host, Reader& r) {
      if constexpr (Handle<P>) {
        value = reinterpret_cast<P>(host.ToDriver(kTakenKind<P>, r.Get<WireHandle>(), r));
      } else {
        value = r.Get<P>();
        if (const CUresult refusal = Admit(value); refusal != CUDA_SUCCESS) r.Fail(refusal);
      }
    }
    P Arg(Writer&, const auto&) { return value; }
    void Reply(auto&, Writer&) {}
  };
};

// A word of flags of which only the bits in `known` may reach the driver
// (ivshmem_ring/protocol/known_values.h).
template <uint64_t known>
struct Flags : NoReply {
  template <class P>
  struct Held {
    static_assert(std::is_integral_v<P>, "Flags is for words of flags");
    P value{};
    static void Send(auto&, Writer& w, P p, const auto&) { w.Put(p); }
    static void Receive(auto&, Reader&, P, const auto&) {}
    static void Undo(auto&, P, const auto&) {}
    void Load(auto&, Reader& r) {
      value = r.Get<P>();
      if (!OnlyFlags(value, known)) r.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    P Arg(Writer&, const auto&) { return value; }
    void Reply(auto&, Writer&) {}
  };
};

// A handle that the call ends: forgotten on both sides once the driver has said yes. On the host the call is
// the object's last user's (Shape::Serve).
struct Drop : NoReply {
  static constexpr bool kEnds = true;
  template <class P>
  struct Held {
    static_assert(Handle<P>, "Drop is for handles");
    static constexpr HandleKind kKind = kKindOf<P>;
    P value{};
    WireHandle wire = 0;
    static void Send(auto& guest, Writer& w, P p, const auto&) { w.Put(guest.ToWire(p, w)); }
    static void Receive(auto& guest, Reader&, P p, const auto&) { guest.Forget(p); }
    static void Undo(auto&, P, const auto&) {}
    void Load(auto& host, Reader& r) {
      wire = r.Get<WireHandle>();
      value = reinterpret_cast<P>(host.ToEnd(kKindOf<P>, wire, r));
    }
    P Arg(Writer&, const auto&) { return value; }
    void Reply(auto&, Writer&) {}
  };
};
template <class Direction>
concept Ends = requires {
  Direction::kEnds;
};

// T* through which the driver returns a new object; the guest makes the handle, so the call can be posted.
struct New : NoReply {
  template <class P>
  struct Held {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && Handle<T>, "New needs a pointer to a handle");
    T value{};
    WireHandle wire = 0;
    static void Send(auto& guest, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      *p = guest.template Make<T>(w);
      w.Put(guest.ToWire(*p, w));
    }
    static void Receive(auto&, Reader&, P, const auto&) {}
    static void Undo(auto& guest, P p, const auto&) {
      if (p != nullptr) guest.Forget(*p);
    }
    void Load(auto&, Reader& r) { wire = r.Get<WireHandle>(); }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto& host, Writer& w) { host.Bind(kKindOf<T>, wire, reinterpret_cast<void*>(value), w); }
  };
};

// T* through which the driver returns an object that may have a handle already. The guest sends a fresh one;
// the reply says which one it is.
struct OutHandle : Replies {
  template <class P>
  struct Held {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && Handle<T>, "OutHandle needs a pointer to a handle");
    T value{};
    WireHandle fresh = 0;
    static void Send(auto& guest, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      *p = guest.template Make<T>(w);
      w.Put(guest.ToWire(*p, w));
    }
    static void Receive(auto& guest, Reader& r, P p, const auto&) {
      *p = guest.template Settle<T>(*p, r.Get<WireHandle>());
    }
    static void Undo(auto& guest, P p, const auto&) {
      if (p != nullptr) guest.Forget(*p);
    }
    void Load(auto&, Reader& r) { fresh = r.Get<WireHandle>(); }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto& host, Writer& w) {
      w.Put(host.BindOrKnown(kKindOf<T>, fresh, reinterpret_cast<void*>(value), w));
    }
  };
};

// T*, required; one flat T comes back.
struct Out : Replies {
  template <class P>
  struct Held {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "Out needs a pointer to one flat T");
    T value{};
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) w.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    static void Receive(auto&, Reader& r, P p, const auto&) { *p = r.Get<T>(); }
    static void Undo(auto&, P, const auto&) {}
    void Load(auto&, Reader&) {}
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto&, Writer& w) {
      Conceal(value);
      w.Put(value);
    }
  };
};

// T* that the driver accepts as null. Null-ness travels as a byte.
struct OutOrNull : Replies {
  template <class P>
  struct Held {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "OutOrNull needs a pointer to one flat T");
    T value{};
    bool wanted = false;
    static void Send(auto&, Writer& w, P p, const auto&) { w.Put(static_cast<uint8_t>(p != nullptr)); }
    static void Receive(auto&, Reader& r, P p, const auto&) {
      if (p != nullptr) *p = r.Get<T>();
    }
    static void Undo(auto&, P, const auto&) {}
    void Load(auto&, Reader& r) { wanted = r.Get<uint8_t>() == 1; }
    P Arg(Writer&, const auto&) { return wanted ? &value : nullptr; }
    void Reply(auto&, Writer& w) {
      Conceal(value);
      if (wanted) w.Put(value);
    }
  };
};

// T*, required, read and written by the driver.
struct InOut : Replies {
  template <class P>
  struct Held {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "InOut needs a pointer to one flat T");
    T value{};
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(*p);
    }
    static void Receive(auto&, Reader& r, P p, const auto&) { *p = r.Get<T>(); }
    static void Undo(auto&, P, const auto&) {}
    void Load(auto&, Reader& r) {
      value = r.Get<T>();
      if (const CUresult refusal = Admit(value); refusal != CUDA_SUCCESS) r.Fail(refusal);
    }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto&, Writer& w) {
      Conceal(value);
      w.Put(value);
    }
  };
};

// const T*, required; one flat T goes.
struct InOne : NoReply {
  template <class P>
  struct Held {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && kFlat<T>, "InOne needs a pointer to one flat T");
    T value{};
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(*p);
    }
    static void Receive(auto&, Reader&, P, const auto&) {}
    static void Undo(auto&, P, const auto&) {}
    void Load(auto&, Reader& r) {
      value = r.Get<T>();
      if (const CUresult refusal = Admit(value); refusal != CUDA_SUCCESS) r.Fail(refusal);
    }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto&, Writer&) {}
  };
};

// const char*, NUL-terminated, required.
struct InString : NoReply {
  template <class P>
  struct Held {
    static_assert(std::is_same_v<P, const char*>, "InString needs const char*");
    const char* value = nullptr;
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      const size_t bytes = std::strlen(p) + 1;
      w.Put(static_cast<uint32_t>(bytes));
      w.PutBytes(p, bytes);
    }
    static void Receive(auto&, Reader&, P, const auto&) {}
    static void Undo(auto&, P, const auto&) {}
    void Load(auto&, Reader& r) {
      const auto bytes = r.Get<uint32_t>();
      const std::byte* text = r.Take(bytes);
      if (text == nullptr || bytes == 0 || text[bytes - 1] != std::byte{0})
        return r.Fail(CUDA_ERROR_INVALID_VALUE);
      value = reinterpret_cast<const char*>(text);
    }
    P Arg(Writer&, const auto&) { return value; }
    void Reply(auto&, Writer&) {}
  };
};

// Counts above this are refused before any multiplication.
inline constexpr uint64_t kMaxElements = 1u << 16;

// The value of parameter I, which must be an integer, in the guest's arguments or the host's held values.
template <size_t I>
uint64_t CountOf(const auto& parameters) {
  using Parameter = std::tuple_element_t<I, std::decay_t<decltype(parameters)>>;
  if constexpr (requires(Parameter held) { held.value; }) {
    static_assert(std::is_integral_v<decltype(Parameter::value)>, "the count must be an integer parameter");
    return static_cast<uint64_t>(std::get<I>(parameters).value);
  } else {
    static_assert(std::is_integral_v<Parameter>, "the count must be an integer parameter");
    return static_cast<uint64_t>(std::get<I>(parameters));
  }
}

// const T*; parameter I is the element count. Elements are flat or handles. Null is allowed with count 0.
template <size_t I>
struct InArray : NoReply {
  template <class P>
  struct Held {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && (kFlat<T> || Handle<T>),
                  "InArray needs a pointer to flat Ts or handles");
    std::vector<T> values;
    uint64_t count = 0;
    static void Send(auto& guest, Writer& w, P p, const auto& args) {
      const uint64_t count = CountOf<I>(args);
      if (count > kMaxElements || (p == nullptr && count != 0)) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(count);
      for (uint64_t i = 0; i < count && w.ok(); ++i) {
        if constexpr (Handle<T>) {
          w.Put(guest.ToWire(p[i], w));
        } else {
          w.Put(p[i]);
        }
      }
    }
    static void Receive(auto&, Reader&, P, const auto&) {}
    static void Undo(auto&, P, const auto&) {}
    void Load(auto& host, Reader& r) {
      count = r.Get<uint64_t>();
      if (count > kMaxElements || count > r.left()) return r.Fail(CUDA_ERROR_INVALID_VALUE);
      values.resize(count);
      for (T& value : values) {
        if constexpr (Handle<T>) {
          value = reinterpret_cast<T>(host.ToDriver(kTakenKind<T>, r.Get<WireHandle>(), r));
        } else {
          value = r.Get<T>();
          if (const CUresult refusal = Admit(value); refusal != CUDA_SUCCESS) r.Fail(refusal);
        }
      }
    }
    P Arg(Writer& w, const auto& held) {
      if (count != CountOf<I>(held)) w.Fail(CUDA_ERROR_INVALID_VALUE);  // two different counts: refused
      return count != 0 ? values.data() : nullptr;
    }
    void Reply(auto&, Writer&) {}
  };
};

// T*; parameter I is how many flat elements come back.
template <size_t I>
struct OutArray : Replies {
  template <class P>
  struct Held {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "OutArray needs a pointer to flat Ts");
    std::vector<T> values;
    static void Send(auto&, Writer& w, P p, const auto& args) {
      if (p == nullptr || CountOf<I>(args) > kMaxElements) w.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    static void Receive(auto&, Reader& r, P p, const auto& args) {
      const uint64_t bytes = CountOf<I>(args) * sizeof(T);
      if (const std::byte* from = r.Take(bytes)) std::memcpy(p, from, bytes);
    }
    static void Undo(auto&, P, const auto&) {}
    void Load(auto&, Reader&) {}
    P Arg(Writer& w, const auto& held) {
      const uint64_t count = CountOf<I>(held);
      if (count > kMaxElements) return w.Fail(CUDA_ERROR_INVALID_VALUE), nullptr;
      values.resize(count);
      return values.data();
    }
    void Reply(auto&, Writer& w) { w.PutBytes(values.data(), values.size() * sizeof(T)); }
  };
};

struct Any {};  // for REFUSE rows, whose parameters do not travel

}  // namespace causeway
