// SPDX-License-Identifier: Apache-2.0
// How one parameter of a driver call travels. A row of the kind CALL or GUEST (ivshmem_ring/calls.def)
// names one direction for each parameter; the parameter's type P comes from cuda.h. ivshmem_ring/README.md
// lists all directions.
//
// Each direction has a Held<P> with these functions, which Shape (shape.h) calls. In the guest:
//   Send      writes the parameter into the request; may run twice, with Undo between, if there was no room
//   Receive   stores what came back, after the call succeeded
//   Undo      takes back what Send prepared, after the call or a Send has failed
// On the host, in this order, and each for all parameters before the next:
//   Load      reads the parameter from the request and validates it
//   Arg       gives the driver its argument; an error here still keeps the call from the driver
//   Reply     writes what comes back into the reply, after the driver's call succeeded
// `guest` (guest_lib/stream/remote.h) and `host` (host_backend/worker/objects/objects.h) know the handles of
// their side. They turn handles into wire handles (ToWire) and back (ToDriver), make them (Make, Bind), end
// them (Forget, ToEnd), and find out which handle an object has already (Settle, BindOrKnown). These
// functions return no errors: an error is left in the cursor `w` or `r` (wire.h), and Shape looks there. In
// the guest that is CUDA_ERROR_INVALID_VALUE for a null pointer where there must be none.
//
// Held objects exist on the host alone. What the driver is given lies in the Held object or, for text, in the
// request, so both live until the driver's call is over. On each side one thread runs all these for a call.
#pragma once
#include <array>
#include <tuple>
#include <vector>

#include "ivshmem_ring/protocol/admit.h"
#include "ivshmem_ring/protocol/flat.h"
#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/protocol/wire.h"

namespace causeway {

// The base of directions of which nothing comes back. A call that is posted has no others.
struct NoReply {
  static constexpr bool kReplies = false;
};
// The base of directions of which something comes back.
struct Replies {
  static constexpr bool kReplies = true;
};

// Bases of Held<P>, with what most directions leave out. Of a parameter that only goes to the host:
struct GoesToHost {
  static void Receive(auto&, Reader&, auto, const auto&) {}
  static void Undo(auto&, auto, const auto&) {}
  void Reply(auto&, Writer&) {}
};
// Of a pointer, not null, through which something only comes back:
struct ComesBack {
  static void Send(auto&, Writer& w, auto p, const auto&) {
    if (p == nullptr) w.Fail(CUDA_ERROR_INVALID_VALUE);
  }
  static void Undo(auto&, auto, const auto&) {}
  void Load(auto&, Reader&) {}
};

// The next value of a request, as far as the driver may see it; what Admit refuses fails the reader.
template <class T>
void GetAdmitted(Reader& r, T& value) {
  value = r.Get<T>();
  if (const CUresult refusal = Admit(value); refusal != CUDA_SUCCESS) r.Fail(refusal);
}

// T, for a P that is T* or const T*.
template <class P>
using Pointee = std::remove_const_t<std::remove_pointer_t<P>>;

// A value that goes to the host: a number, an enum, a flat struct, a device address or a handle.
struct In : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(kFlat<P> || Handle<P>, "In is for values and handles: say how the pointee travels");
    P value{};
    static void Send(auto& guest, Writer& w, P p, const auto&) {
      if constexpr (Handle<P>) {
        w.Put(guest.ToWire(p, w));
      } else {
        w.Put(p);
      }
    }
    void Load(auto& host, Reader& r) {
      if constexpr (Handle<P>) {
        value = reinterpret_cast<P>(host.ToDriver(kTakenKind<P>, r.Get<WireHandle>(), r));
      } else {
        GetAdmitted(r, value);
      }
    }
    P Arg(Writer&, const auto&) { return value; }
  };
};

// A word of flags, of which only the bits in `known` may reach the driver
// (ivshmem_ring/protocol/known_values.h).
template <uint64_t known>
struct Flags : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_integral_v<P>, "Flags is for words of flags");
    P value{};
    static void Send(auto&, Writer& w, P p, const auto&) { w.Put(p); }
    void Load(auto&, Reader& r) {
      value = r.Get<P>();
      if (!OnlyFlags(value, known)) r.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    P Arg(Writer&, const auto&) { return value; }
  };
};

// A handle whose object the call ends. Both sides forget it after the driver's call has succeeded. On the
// host the call reaches the driver only when the object has no other user (Shape::Serve).
struct Drop : NoReply {
  static constexpr bool kEnds = true;
  template <class P>
  struct Held : GoesToHost {
    static_assert(Handle<P>, "Drop is for handles");
    static constexpr HandleKind kKind = kKindOf<P>;
    P value{};
    WireHandle wire = 0;
    static void Send(auto& guest, Writer& w, P p, const auto&) { w.Put(guest.ToWire(p, w)); }
    static void Receive(auto& guest, Reader&, P p, const auto&) { guest.Forget(p); }
    void Load(auto& host, Reader& r) {
      wire = r.Get<WireHandle>();
      value = reinterpret_cast<P>(host.ToEnd(kKindOf<P>, wire, r));
    }
    P Arg(Writer&, const auto&) { return value; }
  };
};
template <class Direction>
concept Ends = requires {
  Direction::kEnds;
};

// The number that the guest gives to a new object of that kind, if it can be one.
inline WireHandle GetFresh(Reader& r, HandleKind kind) {
  const auto wire = r.Get<WireHandle>();
  if (r.ok() && !IsNumberOf(kind, wire)) r.Fail(CUDA_ERROR_INVALID_VALUE);
  return wire;
}

// A T* through which the driver returns a new object. The guest makes the handle, so the call can be
// asynchronous. It must not be null.
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
    void Load(auto&, Reader& r) { wire = GetFresh(r, kKindOf<T>); }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto& host, Writer& w) { host.Bind(kKindOf<T>, wire, reinterpret_cast<void*>(value), w); }
  };
};

// A T* through which the driver returns an object that may have a handle already. The guest sends a fresh
// handle, and the reply says which one the object has. It must not be null.
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
    void Load(auto&, Reader& r) { fresh = GetFresh(r, kKindOf<T>); }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto& host, Writer& w) {
      w.Put(host.BindOrKnown(kKindOf<T>, fresh, reinterpret_cast<void*>(value), w));
    }
  };
};

// A T* through which one flat T comes back; it must not be null.
struct Out : Replies {
  template <class P>
  struct Held : ComesBack {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "Out needs a pointer to one flat T");
    T value{};
    static void Receive(auto&, Reader& r, P p, const auto&) { *p = r.Get<T>(); }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto&, Writer& w) {
      Conceal(value);
      w.Put(value);
    }
  };
};

// The same for a T* that may be null. One byte tells the host whether it is null.
struct OutOrNull : Replies {
  template <class P>
  struct Held : ComesBack {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "OutOrNull needs a pointer to one flat T");
    T value{};
    bool wanted = false;
    static void Send(auto&, Writer& w, P p, const auto&) { w.Put(static_cast<uint8_t>(p != nullptr)); }
    static void Receive(auto&, Reader& r, P p, const auto&) {
      if (p != nullptr) *p = r.Get<T>();
    }
    void Load(auto&, Reader& r) { wanted = r.Get<uint8_t>() == 1; }
    P Arg(Writer&, const auto&) { return wanted ? &value : nullptr; }
    void Reply(auto&, Writer& w) {
      Conceal(value);
      if (wanted) w.Put(value);
    }
  };
};

// A T* to one flat T that the driver reads and writes; it must not be null.
struct InOut : Replies {
  template <class P>
  struct Held : ComesBack {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "InOut needs a pointer to one flat T");
    T value{};
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(*p);
    }
    static void Receive(auto&, Reader& r, P p, const auto&) { *p = r.Get<T>(); }
    void Load(auto&, Reader& r) { GetAdmitted(r, value); }
    P Arg(Writer&, const auto&) { return &value; }
    void Reply(auto&, Writer& w) {
      Conceal(value);
      w.Put(value);
    }
  };
};

// A const T* to one flat T that goes to the host; it must not be null.
struct InOne : NoReply {
  template <class P>
  struct Held : GoesToHost {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && kFlat<T>, "InOne needs a pointer to one flat T");
    T value{};
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(*p);
    }
    void Load(auto&, Reader& r) { GetAdmitted(r, value); }
    P Arg(Writer&, const auto&) { return &value; }
  };
};

// As InOne, of a call that only asks about what is described: it may be what a guest cannot have.
struct InQuestion : NoReply {
  template <class P>
  struct Held : InOne::Held<P> {
    void Load(auto&, Reader& r) {
      this->value = r.Get<Pointee<P>>();
      if (const CUresult result = AdmitQuestion(this->value)) r.Fail(result);
    }
  };
};

// A const char* to NUL-terminated text that goes to the host; it must not be null.
struct InString : NoReply {
  template <class P>
  struct Held : GoesToHost {
    static_assert(std::is_same_v<P, const char*>, "InString needs const char*");
    const char* value = nullptr;
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      const size_t bytes = std::strlen(p) + 1;
      w.Put(static_cast<uint32_t>(bytes));
      w.PutBytes(p, bytes);
    }
    void Load(auto&, Reader& r) {
      const auto bytes = r.Get<uint32_t>();
      const std::byte* text = r.Take(bytes);
      if (text == nullptr || bytes == 0 || text[bytes - 1] != std::byte{0})
        return r.Fail(CUDA_ERROR_INVALID_VALUE);
      value = reinterpret_cast<const char*>(text);
    }
    P Arg(Writer&, const auto&) { return value; }
  };
};

// The most elements of one array. Both sides refuse a larger count with CUDA_ERROR_INVALID_VALUE before they
// multiply it with anything, so that no size overflows.
inline constexpr uint64_t kMaxElements = 1u << 16;

// The value of parameter I, which must be an integer. `parameters` are the guest's arguments, or the host's
// Held objects.
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

// A const T* to as many elements as parameter I says, which go to the host. They are flat or handles. With
// the count 0 the pointer may be null, and the driver gets a null one then and only then: some calls answer
// otherwise to it (cuMemPoolSetAccess).
template <size_t I>
struct InArray : NoReply {
  template <class P>
  struct Held : GoesToHost {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && (kFlat<T> || Handle<T>),
                  "InArray needs a pointer to flat Ts or handles");
    static constexpr uint64_t kIsNull = ~uint64_t{0};  // in place of the count
    std::vector<T> values;
    T none{};  // what the driver's pointer shows to where there are no elements
    uint64_t count = 0;
    bool is_null = false;
    static void Send(auto& guest, Writer& w, P p, const auto& args) {
      const uint64_t count = CountOf<I>(args);
      if (count > kMaxElements || (p == nullptr && count != 0)) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.Put(p != nullptr ? count : kIsNull);
      for (uint64_t i = 0; i < count && w.ok(); ++i) {
        if constexpr (Handle<T>) {
          w.Put(guest.ToWire(p[i], w));
        } else {
          w.Put(p[i]);
        }
      }
    }
    void Load(auto& host, Reader& r) {
      count = r.Get<uint64_t>();
      is_null = count == kIsNull;
      if (is_null) count = 0;
      if (count > kMaxElements || count > r.left()) return r.Fail(CUDA_ERROR_INVALID_VALUE);
      values.resize(count);
      for (T& value : values) {
        if constexpr (Handle<T>) {
          value = reinterpret_cast<T>(host.ToDriver(kTakenKind<T>, r.Get<WireHandle>(), r));
        } else {
          GetAdmitted(r, value);
        }
      }
    }
    P Arg(Writer& w, const auto& held) {
      if (count != CountOf<I>(held)) w.Fail(CUDA_ERROR_INVALID_VALUE);  // the message states two counts
      if (count == 0) return is_null ? nullptr : &none;
      return values.data();
    }
  };
};

// A T* through which as many flat elements as parameter I says come back. Never null, even with the count 0.
template <size_t I>
struct OutArray : Replies {
  template <class P>
  struct Held : ComesBack {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "OutArray needs a pointer to flat Ts");
    std::vector<T> values;
    static void Send(auto&, Writer& w, P p, const auto& args) {
      if (p == nullptr || CountOf<I>(args) > kMaxElements) w.Fail(CUDA_ERROR_INVALID_VALUE);
    }
    static void Receive(auto&, Reader& r, P p, const auto& args) {
      const uint64_t bytes = CountOf<I>(args) * sizeof(T);
      r.GetBytes(p, bytes);
    }
    P Arg(Writer& w, const auto& held) {
      const uint64_t count = CountOf<I>(held);
      if (count > kMaxElements) return w.Fail(CUDA_ERROR_INVALID_VALUE), nullptr;
      values.resize(count);
      return values.data();
    }
    void Reply(auto&, Writer& w) { w.PutBytes(values.data(), values.size() * sizeof(T)); }
  };
};

// A pointer to N flat values that go to the host; it must not be null.
template <size_t N>
struct InFixed : NoReply {
  template <class P>
  struct Held : GoesToHost {
    using T = Pointee<P>;
    static_assert(std::is_pointer_v<P> && kFlat<T>, "InFixed needs a pointer to flat Ts");
    std::array<T, N> values{};
    static void Send(auto&, Writer& w, P p, const auto&) {
      if (p == nullptr) return w.Fail(CUDA_ERROR_INVALID_VALUE);
      w.PutBytes(p, N * sizeof(T));
    }
    void Load(auto&, Reader& r) {
      for (T& value : values) GetAdmitted(r, value);
    }
    P Arg(Writer&, const auto&) { return values.data(); }
  };
};

// A pointer to N flat values that come back; it must not be null.
template <size_t N>
struct OutFixed : Replies {
  template <class P>
  struct Held : ComesBack {
    using T = std::remove_pointer_t<P>;
    static_assert(std::is_pointer_v<P> && !std::is_const_v<T> && kFlat<T>,
                  "OutFixed needs a pointer to flat Ts");
    std::array<T, N> values{};
    static void Receive(auto&, Reader& r, P p, const auto&) { r.GetBytes(p, N * sizeof(T)); }
    P Arg(Writer&, const auto&) { return values.data(); }
    void Reply(auto&, Writer& w) { w.PutBytes(values.data(), sizeof values); }
  };
};

struct Any {};  // stands in REFUSE rows, whose parameters do not travel

}  // namespace causeway
