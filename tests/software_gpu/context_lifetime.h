// SPDX-License-Identifier: Apache-2.0
// Birth and death of contexts; used by context.cc and context_lifetime.cc only.
#pragma once

#include "tests/software_gpu/context.h"

namespace causeway::software_gpu {

void RegisterContext(const ContextRef& context);    // gives it its handle
void UnregisterContext(const ContextRef& context);  // its handle becomes unknown; pops it if current

// Drains the context, runs its storage destructors and frees everything it owns. A primary context's object
// and handle survive.
void EndContext(const ContextRef& context);

}  // namespace causeway::software_gpu
