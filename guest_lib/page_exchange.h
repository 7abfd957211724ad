// SPDX-License-Identifier: Apache-2.0
// Pages of this process are replaced by others at the same address, with the same bytes, while other threads
// go on: a piece is made read-only, copied into its replacement, and the replacement moved over it in one
// system call. A thread that writes to the piece meanwhile faults, waits in our handler and writes again.
//
// What this cannot hide: a system call that writes into the piece during its window (microseconds a MiB)
// answers EFAULT, and a thread whose own stack top lies in the piece must have an alternate signal stack; the
// caller's own stack is taken care of.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace causeway::guest {

// One mapping of this process, cut to the range that was asked for.
struct Mapping {
  uint64_t begin, end;
  int protection;  // PROT_*
  bool shared;
  uint64_t offset;  // of `begin` in its file
  uint64_t device, inode;
};

// What is mapped at [begin, end), in order. False if a page of it is not mapped.
bool ReadMappings(uint64_t begin, uint64_t end, std::vector<Mapping>* mappings);

// Moves the pages at `fresh` (ours, writable, as many) to `piece`, with the piece's bytes and protection.
// False: the first `*done` bytes are replaced, the others as before.
bool ExchangePages(const Mapping& piece, std::byte* fresh, uint64_t* done);

// Runs `work` on a stack that lies outside [begin, end): another thread's, if need be.
void AwayFrom(uint64_t begin, uint64_t end, void (*work)(void*), void* argument);

// No exchange may be under way while the process forks.
void LockExchange();
void UnlockExchange();

}  // namespace causeway::guest
