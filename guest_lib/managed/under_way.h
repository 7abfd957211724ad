// SPDX-License-Identifier: Apache-2.0
// The two words by which those who send work and those who serve pages know of each other.
#pragma once
#include <atomic>

namespace causeway::guest::work {

// Set by the pager while there are pages to care for.
inline std::atomic<bool> watched{false};

// Whether work that may touch them was sent and not waited for. Kept by MessageMark
// (guest_lib/managed/work.h) while `watched`; at first anything may be.
inline std::atomic<bool> under_way{true};

}  // namespace causeway::guest::work
