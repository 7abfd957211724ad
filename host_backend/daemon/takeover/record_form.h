// SPDX-License-Identifier: Apache-2.0
// What the text of each kind of record has to have, so that who takes it over may read it without looking for errors.
#pragma once
#include "host_backend/daemon/takeover/vault.h"

namespace causeway::daemon {

// Whether all fields that readers of that kind ask for are there and of their types. More fields do no harm: later versions
// add them.
bool HasForm(Vault::Kind kind, const Json& state);

}  // namespace causeway::daemon
