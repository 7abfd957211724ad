// SPDX-License-Identifier: Apache-2.0
// Parked pages: the program's own anonymous pages, while pages of the region replace them. They are kept at
// another address until the registration ends, because fresh pages would cost more than all the rest then,
// and parked ones keep what the program asked of them (madvise, NUMA policy). After a moment the kernel may
// take them when memory is short (MADV_FREE; a thread of its own does that, since it takes as long as
// copying, and once more at the first write to each page). A forked child has none of them.
//
// `aside` is the address at which pages are parked, `bytes` their size. Any thread may call these functions.
#pragma once
#include <cstddef>
#include <cstdint>

#include "guest_lib/host_register/page_exchange.h"

namespace causeway::guest {

// Reserves room for all pages of `mapping`, as ExchangePages wants it. Null: the pages are to be freed at
// once, because they are few, or cannot be told from a file's, or an eighth of all memory is parked.
std::byte* ReserveAside(const Mapping& mapping);
// To be called when the pages were moved there.
void KeepAside(std::byte* aside, uint64_t bytes);
// Whether there still are pages: the program may never have touched them, and the kernel may have taken them.
// The page in the middle is looked at for all.
bool AreThere(std::byte* aside, uint64_t bytes);
// To be called before the pages go back: the kernel may not take them any more, and forked children get them.
void StopWaiting(std::byte* aside, uint64_t bytes);
// The same, and makes them writable; may be called before it is certain that they go back. False: it failed.
bool WakeAside(std::byte* aside, uint64_t bytes);
// To be called when the pages are back, or were never moved: so many bytes are no longer parked.
void ForgetAside(uint64_t bytes);
// The same, and unmaps what is there.
void DropAside(std::byte* aside, uint64_t bytes);

}  // namespace causeway::guest
