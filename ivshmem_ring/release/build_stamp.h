// SPDX-License-Identifier: Apache-2.0
// Which release a library or program is of, and of which rows: what guest, daemon and worker tell each other
// before they talk (docs/versions.md). It lies in the file as one block behind a tag, so that a file can be asked
// without being run. Its form never changes.
#pragma once
#include <cstdint>

namespace causeway {

inline constexpr uint32_t kReleaseBytes = 32;

struct BuildStamp {
  char tag[16];                 // "causeway-stamp-1"
  uint64_t api_hash;            // of all rows: kWireHash (api_hash.h)
  char release[kReleaseBytes];  // "0.1.0", NUL-terminated, zeros behind it
};
static_assert(sizeof(BuildStamp) == 56);

// In a source file of its own, so that nothing of it is written into the code that asks for it.
extern const BuildStamp kBuildStamp;

}  // namespace causeway
