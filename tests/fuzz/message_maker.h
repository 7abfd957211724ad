// SPDX-License-Identifier: Apache-2.0
// Messages that are nearly valid, from an input's bytes: every opcode with a body of its form, handles alive,
// stale and made up, bulk buffers of every size, images of garbage.
#pragma once
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/script.h"

namespace causeway::fuzz {

Message MakeMessage(Input& input);

}  // namespace causeway::fuzz
