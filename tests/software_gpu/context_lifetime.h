// SPDX-License-Identifier: Apache-2.0
// Birth and death of contexts; used by context.cc and context_lifetime.cc only.
#pragma once

#include "tests/software_gpu/context.h"

namespace causeway::software_gpu {

void RegisterContext(const ContextRef& context);  // gives it its handle
void PopIfCurrent(const ContextRef& context);

// Drains the context, runs its storage destructors and frees everything it owns. The object and
// its handle survive, so that a destroyed context is recognised.
void EndContext(const ContextRef& context);

}  // namespace causeway::software_gpu
