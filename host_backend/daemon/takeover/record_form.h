// SPDX-License-Identifier: Apache-2.0
// What the text of each kind of record has to have, so that who takes it over may read it without looking for errors.
#pragma once
#include <chrono>
#include <cstdint>
#include <string_view>

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
// Whether the daemon can wait for this descriptor, where it waits for descriptors of that name: a file of another kind would end the daemon,
// or keep it busy for ever. A descriptor of any other name passes, because nobody waits for it.
bool HasSort(std::string_view name, int descriptor);
// The field "opened_ns" of a session; no later than now.
std::chrono::steady_clock::time_point OpenedOf(const Json& state);

}  // namespace causeway::daemon
