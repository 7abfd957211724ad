// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace causeway::payload {

// The receiving process: serves one sending process, which comes to the listener, until that has gone. The exit status.
int ServeReceiving(int listener);

}  // namespace causeway::payload
