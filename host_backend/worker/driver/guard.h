// SPDX-License-Identifier: Apache-2.0
// Guards: functions of the worker that stand in the driver's table (driver.h) in the place of the driver's own.
#pragma once

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

template <class Member>
struct MemberType;
template <class Function>
struct MemberType<Function Driver::*> {
  using Type = Function;
};
// The function type of &Driver::cuName.
template <auto entry>
using EntryType = typename MemberType<decltype(entry)>::Type;

// The guards that stand there for one reason. What they stand before can be called by code that can name the
// Reason: one in an unnamed namespace is known to its file alone, so nothing else gets past the guard.
template <class Reason>
struct Guards {
  // What the guard of `entry` stands before: the driver's function, or the guard of another reason.
  template <auto entry>
  static inline constinit EntryType<entry> own = nullptr;

  // Puts a guard in the table; not where the library lacks the function. Once for each entry, before any call.
  template <auto entry>
  static void Put(Driver& driver, EntryType<entry> guard) {
    own<entry> = driver.*entry;
    if (Has(own<entry>)) driver.*entry = guard;
  }
};

}  // namespace causeway::host
