// SPDX-License-Identifier: Apache-2.0
// Byte strings that are too large for one message, in pieces of one bulk buffer.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "guest_lib/session.h"

namespace causeway::guest {

// `copy` writes the bytes [at, at + to.size()) of what is sent.
using BlobCopy = std::function<void(uint64_t at, std::span<std::byte> to)>;
CUresult SendBlob(ChannelLease& lease, uint64_t bytes, const BlobCopy& copy);

// What the last call on this channel left to be fetched.
CUresult FetchBlob(ChannelLease& lease, uint64_t bytes, std::vector<std::byte>* to);

// For a copy made of parts: those bytes of [begin, begin + size) that lie in [at, at + to.size()).
void CopyPart(uint64_t at, std::span<std::byte> to, const void* from, uint64_t begin, uint64_t size);

}  // namespace causeway::guest
