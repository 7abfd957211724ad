// SPDX-License-Identifier: Apache-2.0
// What the text of each kind of record has to have, so that who takes it over may read it without looking for errors.
#pragma once
#include <cstdint>

#include "host_backend/common/json.h"

namespace causeway::daemon {

enum class RecordKind : uint8_t {
  kListener = 1,
  kFolders,
  kAccount,
  kWorker,
  kConnection,
  kSession,
  kRegion,
  kDoorbell,
  kStream,
  kShared,
  kImage,
  kShares  // of the GPUs' time, as administrators have set it
};

// Whether all fields that readers of that kind ask for are there and of their types. More fields do no harm: later versions
// add them, and their readers do without them.
bool HasForm(RecordKind kind, const Json& state);

}  // namespace causeway::daemon
