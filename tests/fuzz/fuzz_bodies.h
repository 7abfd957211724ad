// SPDX-License-Identifier: Apache-2.0
// Pieces of messages that a hostile guest may send: handles alive, stale and made up, numbers of every size.
#pragma once
#include <cstring>
#include <initializer_list>

#include "ivshmem_ring/protocol/handle.h"
#include "ivshmem_ring/transport/layout.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/script.h"

namespace causeway::fuzz {

using Bytes = ScriptVector<std::byte>;

inline constexpr uint64_t kWindow = 0x200000000000;
inline constexpr size_t kHandlesOfKind = 2;  // few, so that stale and live numbers meet

// A number that a guest may send for a handle of that kind.
inline WireHandle SomeHandle(Input& input, HandleKind kind) {
  const uint8_t choice = input.Byte();
  if (choice < 12) return input.Word();
  if (choice < 20) return kLegacyStreamWire;
  if (choice < 40) return 0;
  if (choice < 44) kind = static_cast<HandleKind>(choice);
  return MakeWireHandle(kind, choice > 240,
                        static_cast<uint32_t>(kind) * kHandlesOfKind + choice % kHandlesOfKind);
}

inline uint64_t SomeNumber(Input& input) {
  const uint8_t choice = input.Byte();
  if (choice < 150) return choice % 5;
  if (choice < 190) return kWindow + kGranuleBytes * (choice % 32) + (choice % 3);
  if (choice < 220) return uint64_t{1} << choice % 64;
  return input.Word();
}

inline void Put(Bytes& body, const void* from, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(from);
  body.insert(body.end(), at, at + bytes);
}

template <class T>
T& Append(Bytes& body) {
  body.resize(body.size() + sizeof(T));
  return *reinterpret_cast<T*>(body.data() + body.size() - sizeof(T));
}

// A body of a struct of words: each a small number, an address, or garbage.
template <class T>
T& AppendNumbers(Input& input, Bytes& body) {
  const size_t at = body.size();
  body.resize(at + sizeof(T));
  for (size_t i = 0; i + 8 <= sizeof(T); i += 8) {
    const uint64_t word = SomeNumber(input) | SomeNumber(input) << 32;
    std::memcpy(body.data() + at + i, &word, sizeof word);
  }
  return *reinterpret_cast<T*>(body.data() + at);
}

inline void MakeHandles(Input& input, Bytes& body, std::initializer_list<HandleKind> kinds) {
  for (const HandleKind kind : kinds) Append<WireHandle>(body) = SomeHandle(input, kind);
}

}  // namespace causeway::fuzz
