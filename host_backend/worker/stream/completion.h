// SPDX-License-Identifier: Apache-2.0
// Marks: the GPU tells the guest by itself how far a stream has come.
#pragma once
#include <cstdint>

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

struct Request;
class Session;

// Behind the stream's work until now the GPU writes the posted record's sequence plus one into the word at
// `offset` in the region. Where the GPU would write it late because others copy, and the stream is done at once, the calling
// thread writes it. `is_awaited`: the guest's thread waits for it, and does not look at it some time later.
CUresult WriteMark(Session& session, Request& request, CUstream stream, uint64_t offset,
                   bool is_awaited = true);

}  // namespace causeway::host
