// SPDX-License-Identifier: Apache-2.0
// This library's one SIGSEGV handler. Parts of the library that take pages away from running threads claim
// the faults that follow; every other fault goes to the handler that was there before.
#pragma once
#include <cstdint>

namespace causeway::guest {

struct PageFault {
  uint64_t address;
  bool write;
};

// Called in the signal handler of the faulting thread, for accesses that a page's protection forbids. True:
// the access is worth another try.
using FaultClaim = bool (*)(const PageFault& fault);

enum class FaultOwner { kManagedMemory, kPageExchange, kCount };  // asked in this order

// Puts the handler on top of what is installed now, so a handler that the program installed since is chained
// to. It stays: a fault may arrive long after what caused it.
void InstallFaultHandler(FaultOwner owner, FaultClaim claim);

}  // namespace causeway::guest
