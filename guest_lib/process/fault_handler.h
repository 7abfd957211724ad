// SPDX-License-Identifier: Apache-2.0
// This library's one SIGSEGV handler. The parts of the library that take pages away from running threads
// claim the faults that follow. Every other fault goes to the handler that was installed before.
#pragma once
#include <cstdint>

namespace causeway::guest {

struct PageFault {
  uint64_t address;
  bool write;
};

// A claim is called in the signal handler of the faulting thread, for an access that a page's protection
// forbids. True: the access is to be tried again. It may call only what is safe in a signal handler.
using FaultClaim = bool (*)(const PageFault& fault);

enum class FaultOwner { kManagedMemory, kPageExchange, kCount };  // claims are asked in this order

// Installs the handler on top of the present one, so that a handler which the program has installed since is
// called for other faults. The handler stays installed, because a fault may arrive long after what caused it.
// Any thread.
void InstallFaultHandler(FaultOwner owner, FaultClaim claim);

}  // namespace causeway::guest
