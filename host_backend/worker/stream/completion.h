// SPDX-License-Identifier: Apache-2.0
// Marks: the GPU tells the guest by itself how far a stream has come.
#pragma once
#include <cstdint>

#include "host_backend/worker/driver/driver.h"

namespace causeway::host {

struct Request;
class Session;

// Behind the stream's work until now the GPU writes the posted record's sequence plus one into the word at
// `offset` in the region. Where the GPU would write it late because other VMs copy, and the stream is done at once, the calling
// thread writes it.
CUresult WriteMark(Session& session, const Request& request, CUstream stream, uint64_t offset);

}  // namespace causeway::host
