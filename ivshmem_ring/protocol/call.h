// SPDX-License-Identifier: Apache-2.0
// A driver call as a message, derived from its declaration in cuda.h and its row in calls.def.
#pragma once
#include <cstdint>
#include <string_view>
#include <tuple>
#include <utility>

#include "ivshmem_ring/protocol/array_directions.h"
#include "ivshmem_ring/protocol/operation.h"
#include "ivshmem_ring/protocol/struct_directions.h"

namespace causeway {

constexpr uint64_t Fnv1a(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

// Both sides state this before they talk, so two builds that disagree on a row refuse each other.
// The number in front counts changes of the bodies of the session's own messages.
#define OPERATION(name, text, ...) "S" #name #__VA_ARGS__
#define CALL(...) "C" #__VA_ARGS__
#define POST(...) "P" #__VA_ARGS__
#define GUEST(...) "G" #__VA_ARGS__
#define CUSTOM(...) "X" #__VA_ARGS__
inline constexpr uint64_t kApiHash = Fnv1a("12"
#include "ivshmem_ring/calls.def"
#include "ivshmem_ring/operations.def"
                                           ) ^
                                     CUDA_VERSION;

// The template arguments are the shape of a call, not its name: calls of one shape share their code.
template <class Function, class... Directions>
struct Shape;
template <class... P, class... Directions>
struct Shape<CUresult (*)(P...), Directions...> {
  static_assert(sizeof...(P) == sizeof...(Directions), "one direction per parameter");

  // In the guest. `guest` starts calls and knows its handles (guest_lib/stream/remote.h).
  static CUresult Wait(auto& guest, Op op, P... p) {
    const std::tuple<P...> args{p...};
    auto call = guest.StartCall(op);
    Writer& w = call.writer();
    (Directions::template Held<P>::Send(guest, w, p, args), ...);
    if (w.full()) {  // arrays larger than a record
      (Directions::template Held<P>::Undo(guest, p, args), ...);
      call.Enlarge();
      (Directions::template Held<P>::Send(guest, w, p, args), ...);
    }
    const CUresult result = w.ok() ? call.Finish() : w.error();
    if (result != CUDA_SUCCESS) {
      (Directions::template Held<P>::Undo(guest, p, args), ...);
      return result;
    }
    Reader& r = call.reader();
    (Directions::template Held<P>::Receive(guest, r, p, args), ...);
    return r.ok() ? CUDA_SUCCESS : CUDA_ERROR_UNKNOWN;
  }

  static CUresult Post(auto& guest, Op op, P... p) {
    static_assert((!Directions::kReplies && ...), "a posted call has nothing to bring back");
    const std::tuple<P...> args{p...};
    auto post = guest.StartPost(op);
    Writer& w = post.writer();
    (Directions::template Held<P>::Send(guest, w, p, args), ...);
    const CUresult result = w.ok() ? post.Finish() : w.error();
    if (result != CUDA_SUCCESS) {
      (Directions::template Held<P>::Undo(guest, p, args), ...);
      return result;
    }
    Reader none;
    (Directions::template Held<P>::Receive(guest, none, p, args), ...);
    return CUDA_SUCCESS;
  }

  // On the host. `host` knows the session's handles; `driver` is the entry point.
  static CUresult Serve(auto& host, CUresult (*driver)(P...), Reader& r, Writer& w) {
    return Serve(host, driver, r, w, std::index_sequence_for<P...>{});
  }

 private:
  template <size_t... I>
  static CUresult Serve(auto& host, CUresult (*driver)(P...), Reader& r, Writer& w,
                        std::index_sequence<I...>) {
    std::tuple<typename Directions::template Held<P>...> held;
    (std::get<I>(held).Load(host, r), ...);
    if (!r.ok()) return r.error();
    const std::tuple<P...> args{std::get<I>(held).Arg(w, held)...};
    if (!w.ok()) return w.error();
    const auto call = [driver, args] { return std::apply(driver, args); };
    if constexpr ((Ends<Directions> || ...)) {
      // By value: the host may call after this returns.
      static_assert(((Ends<Directions> || std::is_same_v<Directions, In>)&&...));
      CUresult result = CUDA_SUCCESS;
      const auto end = [&](const auto& ended) {
        result = host.End(ended.kKind, ended.wire, ended.value, call);
      };
      (
          [&] {
            if constexpr (Ends<Directions>) end(std::get<I>(held));
          }(),
          ...);
      return result;
    }
    CUresult result = host.Prepare();
    if (result == CUDA_SUCCESS) result = call();
    if (result != CUDA_SUCCESS) return result;
    (std::get<I>(held).Reply(host, w), ...);
    return w.error();
  }
};

// The shape of a row that has directions: RowShape<Op::cuMemAlloc_v2>.
template <Op op>
struct RowOf;
#define CALL(fn, meaning, ...)                                      \
  template <>                                                       \
  struct RowOf<Op::fn> {                                            \
    using Type = Shape<decltype(&::fn) __VA_OPT__(, ) __VA_ARGS__>; \
  };
#define POST CALL
#define GUEST CALL
#include "ivshmem_ring/calls.def"
template <Op op>
using RowShape = typename RowOf<op>::Type;

}  // namespace causeway
