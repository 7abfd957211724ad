// SPDX-License-Identifier: Apache-2.0
// Parts of the sentences that refuse a guest because library and host are of different releases. By them `causeway doctor` in a guest
// knows such a refusal, which travels as a sentence alone and may be that of a host of another release: so they stay as they are.
#pragma once

namespace causeway {

// The library's, where the host's daemon serves its own release alone.
inline constexpr char kSameReleaseNeeded[] = "install the same release on both sides";
// The daemon's, before the digits of the package's name.
inline constexpr char kWorkerNeeded[] = "install causeway-worker-";

}  // namespace causeway
