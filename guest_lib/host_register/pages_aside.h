// SPDX-License-Identifier: Apache-2.0
// The program's own anonymous pages, while pages of the region stand in for them. They wait at another
// address until the registration ends: getting fresh ones then would cost more than all the rest, and so they
// keep what the program asked of them (madvise, NUMA policy). Where they wait for longer than a moment, the
// kernel may take them when anybody needs memory (MADV_FREE, from a thread of its own: it takes as long as
// copying, and once more at the first write to each page); a forked child has none of them.
#pragma once
#include <cstddef>
#include <cstdint>

#include "guest_lib/host_register/page_exchange.h"

namespace causeway::guest {

// A place for all pages of `mapping`, as ExchangePages wants it. Null: they shall be freed at once, because
// they are few, nobody could tell them from a file's, or an eighth of the machine's memory waits already.
std::byte* ReserveAside(const Mapping& mapping);
// The pages have gone there.
void KeepAside(std::byte* aside, uint64_t bytes);
// Whether there are any: the program may never have touched them, and the kernel may have taken them. One in
// the middle is asked for all.
bool AreThere(std::byte* aside, uint64_t bytes);
// The kernel may not take them any more, and forked children may have them: they are about to go back.
void StopWaiting(std::byte* aside, uint64_t bytes);
// The same, and they can be written; may be said before it is certain that they go back. False: they cannot.
bool WakeAside(std::byte* aside, uint64_t bytes);
// They are back, or never came: `bytes` wait no longer.
void ForgetAside(uint64_t bytes);
// The same, and what is mapped there goes.
void DropAside(std::byte* aside, uint64_t bytes);

}  // namespace causeway::guest
