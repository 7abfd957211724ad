// SPDX-License-Identifier: Apache-2.0
// A worker that crashes logs where: in which libraries and at which offsets, and what was last written to
// stderr, where the C library says why it aborts. It logs no address of its memory.
#pragma once

namespace causeway::host {

// Installs the signal handlers. To be called once, before there are other threads and after
// Output::Redirect(). The signal then ends the process as before.
void NoteCrashes();

}  // namespace causeway::host
