// SPDX-License-Identifier: Apache-2.0
// Where the source of an asynchronous pageable copy is kept while the driver captures it. The driver reads it
// before its call returns, unless the stream is being captured: then a graph keeps the address and reads
// there at each launch. A guest library makes such a copy a node by itself; of one that does not, the graph
// shall find bytes of the guest's and nothing else. So this memory holds only those, and is never given back.
#pragma once
#include <cstddef>
#include <cstdint>

namespace causeway::host {

// A copy of the bytes, at most kBulkBytes of them, until the calling thread's next one. Null: no memory.
const std::byte* KeepCaptured(const std::byte* bytes, uint64_t count);

}  // namespace causeway::host
