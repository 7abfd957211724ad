// SPDX-License-Identifier: Apache-2.0
// A call as a message: both sides of it, derived from the function's type and one direction for each parameter
// (directions.h). Both interfaces, the driver's and NVML's, are made of it.
#pragma once
#include <tuple>
#include <utility>

#include "ivshmem_ring/protocol/directions.h"

namespace causeway {

// What a shape knows of an interface's results, of which 0 is success. FailureOf() is the result for the error
// that a cursor keeps, and kBrokenReply the one for a reply that ends too early. Answers(): whether something
// comes back after a call with this result, and with `in_full` whether all that the row names does.
template <class Result>
struct Results;
template <>
struct Results<CUresult> {
  static CUresult FailureOf(CUresult error) { return error; }
  static constexpr CUresult kBrokenReply = CUDA_ERROR_UNKNOWN;
  static bool Answers(CUresult result, bool) { return result == CUDA_SUCCESS; }
};
// Whether a direction answers also where not all comes back: it says so itself.
template <class Direction>
inline constexpr bool kInPart = requires {
  Direction::kAnswersInPart;
};

// The template arguments are the shape of a call, not its name: calls of one shape share their code.
template <class Function, class... Directions>
struct Shape;
template <class Result, class... P, class... Directions>
struct Shape<Result (*)(P...), Directions...> {
  static_assert(sizeof...(P) == sizeof...(Directions), "one direction per parameter");
  using Function = Result (*)(P...);
  using Of = Results<Result>;

  // In the guest. `guest` starts calls and knows its handles (guest_lib/stream/remote.h, guest_lib/nvml/nvml.h).
  static Result Wait(auto& guest, auto op, P... p) {
    const std::tuple<P...> args{p...};
    auto call = guest.StartCall(op);
    Writer& w = call.writer();
    (Directions::template Held<P>::Send(guest, w, p, args), ...);
    if constexpr (requires { call.Enlarge(); }) {
      if (w.full()) {  // arrays larger than a record
        (Directions::template Held<P>::Undo(guest, p, args), ...);
        call.Enlarge();
        (Directions::template Held<P>::Send(guest, w, p, args), ...);
      }
    }
    const Result result = w.ok() ? call.Finish() : Of::FailureOf(w.error());
    if (!Of::Answers(result, false)) {
      (Directions::template Held<P>::Undo(guest, p, args), ...);
      return result;
    }
    Reader& r = call.reader();
    ((Of::Answers(result, !kInPart<Directions>) ? Directions::template Held<P>::Receive(guest, r, p, args)
                                                : void()),
     ...);
    return r.ok() ? result : Of::kBrokenReply;
  }

  static Result Post(auto& guest, auto op, P... p) {
    static_assert((!Directions::kReplies && ...), "a posted call has nothing to bring back");
    const std::tuple<P...> args{p...};
    auto post = guest.StartPost(op);
    Writer& w = post.writer();
    (Directions::template Held<P>::Send(guest, w, p, args), ...);
    const Result result = w.ok() ? post.Finish() : w.error();
    if (result != CUDA_SUCCESS) {
      (Directions::template Held<P>::Undo(guest, p, args), ...);
      return result;
    }
    Reader none;
    (Directions::template Held<P>::Receive(guest, none, p, args), ...);
    return CUDA_SUCCESS;
  }

  // On the host. `host` knows the session's handles; `driver` is the entry point.
  static Result Serve(auto& host, Function driver, Reader& r, Writer& w) {
    return Serve(host, driver, r, w, std::index_sequence_for<P...>{});
  }

 private:
  template <size_t... I>
  static Result Serve(auto& host, Function driver, Reader& r, Writer& w, std::index_sequence<I...>) {
    std::tuple<typename Directions::template Held<P>...> held;
    (std::get<I>(held).Load(host, r), ...);
    if (!r.ok()) return Of::FailureOf(r.error());
    const std::tuple<P...> args{std::get<I>(held).Arg(w, held)...};
    if (!w.ok()) return Of::FailureOf(w.error());
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
    Result result = host.Prepare();
    if (result == Result{}) result = call();
    if (!Of::Answers(result, false)) return result;
    ((Of::Answers(result, !kInPart<Directions>) ? std::get<I>(held).Reply(host, w) : void()), ...);
    return w.ok() ? result : Of::FailureOf(w.error());
  }
};

}  // namespace causeway
