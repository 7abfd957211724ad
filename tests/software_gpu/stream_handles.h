// SPDX-License-Identifier: Apache-2.0
// The registry of created streams, for the engine and the stream calls.
#pragma once

#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {

Registry<CUstream, Stream>& Streams();

}  // namespace causeway::software_gpu
