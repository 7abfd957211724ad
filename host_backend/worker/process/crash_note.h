// SPDX-License-Identifier: Apache-2.0
// A worker that crashes says where: in which libraries and at which offsets, and what was last written to
// stderr, where the C library tells why it aborts and which nobody would read any more. Its log takes no
// address of its memory.
#pragma once

namespace causeway::host {

// Once, before there are other threads and after Output::Redirect(). The signal then ends the process as
// before.
void NoteCrashes();

}  // namespace causeway::host
