// SPDX-License-Identifier: Apache-2.0
// The registry of created streams, for the engine and the stream calls.
#pragma once

#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {

Registry<CUstream, Stream>& Streams();

// For calls that work in the context of their stream where none is current; the default streams have none of
// their own.
template <typename Body>
CUresult InContextOfStream(const char* function, CUstream handle, const Body& body) {
  const StreamRef stream = CurrentContext() == nullptr ? Streams().Find(handle) : nullptr;
  const ContextRef own = stream != nullptr ? stream->context.lock() : nullptr;
  if (own == nullptr) return InContext(function, body);
  const ScopedCurrentContext scope(own);
  return InContext(function, body);
}

}  // namespace causeway::software_gpu
