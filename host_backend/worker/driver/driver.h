// SPDX-License-Identifier: Apache-2.0
// The driver library that a worker runs calls on: NVIDIA's, or another that exports the same names, opened by
// path. One table has the function of each name, and all calls of the driver go through it: those of generic
// rows, of handlers written by hand, and of the worker itself. Some entries are guards (guard.h), which for
// example count memory and then call the driver. The calls that must pass by a guard are named (Uncounted in
// host_backend/worker/accounting/accounting.h, UncountedUserObjects in user_objects.h).
#pragma once
#include <string>

#include "ivshmem_ring/protocol/call.h"

namespace causeway::host {

// Stands for a function that the library lacks.
template <class... P>
CUresult Lacking(P...) {
  return CUDA_ERROR_NOT_SUPPORTED;
}
// Whether the library has all of them.
template <class... P>
constexpr bool Has(CUresult (*entry)(P...)) {
  return entry != &Lacking<P...>;
}
template <class... Entries>
constexpr bool HasAll(Entries... entries) {
  return (Has(entries) && ...);
}

// Each entry can be called: where the library lacks the function, it answers CUDA_ERROR_NOT_SUPPORTED.
struct Driver {
#define CALL(fn, ...) decltype(&::fn) fn;
#define GUEST CALL
#define CUSTOM CALL
#define LOCAL CALL
#include "ivshmem_ring/calls.def"

 private:
  friend bool OpenDriver(const std::string& path, std::string* error);  // guarded_driver.h
  // False, and one sentence in *error, if the library cannot be opened or lacks what every session needs.
  bool Resolve(const std::string& path, std::string* error);
};

// The process's table. Any thread may use it, because it does not change once a session is served.
const Driver& TheDriver();
// The same, for OpenDriver, and for tests that are the driver themselves.
Driver& DriverToFill();

}  // namespace causeway::host
