// SPDX-License-Identifier: Apache-2.0
// Changes scripts as scripts: whole messages come and go, numbers become handles that the script has made
// alive, addresses and sizes that lie on a limit. libFuzzer calls this instead of flipping bits, and
// driver_main.cc does.
#include <algorithm>
#include <array>
#include <cstring>
#include <random>

#include "ivshmem_ring/protocol/call.h"
#include "tests/fuzz/fuzz_region.h"
#include "tests/fuzz/message_maker.h"
#include "tests/fuzz/script.h"

namespace causeway::fuzz {
namespace {

using Random = std::minstd_rand;

constexpr uint64_t kLimits[] = {
    0,          1,          2,          3,           4,          7,          8,
    15,         16,         31,         32,          33,         63,         64,
    65,         127,        128,        255,         256,        1023,       4095,
    4096,       4097,       8192,       65535,       65536,      1u << 20,   (1u << 20) + 1,
    2u << 20,   4u << 20,   1u << 30,   0x7fffffff,  0x80000000, 0xfffffffe, 0xffffffff,
    1ull << 32, 1ull << 40, 1ull << 47, ~0ull << 12, ~0ull - 1,  ~0ull,      0x8000000000000000};

bool IsHandle(uint64_t word) {
  const auto kind = static_cast<uint32_t>(WireKind(word));
  return kind != 0 && kind < static_cast<uint32_t>(HandleKind::kCount) && WireIndex(word) < kMaxHandles;
}

uint64_t WordAt(std::span<const std::byte> bytes, size_t at) {
  uint64_t word;
  std::memcpy(&word, bytes.data() + at, sizeof word);
  return word;
}

// The handles that messages before `end` name, and so may have made.
ScriptVector<WireHandle> HandlesBefore(const Script& script, size_t end) {
  ScriptVector<WireHandle> handles;
  for (size_t i = 0; i < end; ++i) {
    if (IsHandle(script[i].head.context)) handles.push_back(script[i].head.context);
    for (size_t at = 0; at + 8 <= std::min<size_t>(script[i].body.size(), 512); at += 4) {
      if (const uint64_t word = WordAt(script[i].body, at); IsHandle(word)) handles.push_back(word);
    }
  }
  return handles;
}

// Of the same kind if there is one.
WireHandle SomeLiveHandle(const ScriptVector<WireHandle>& handles, WireHandle instead_of, Random& random) {
  ScriptVector<WireHandle> fitting;
  for (const WireHandle handle : handles) {
    if (WireKind(handle) == WireKind(instead_of)) fitting.push_back(handle);
  }
  const auto& from = fitting.empty() || random() % 16 == 0 ? handles : fitting;
  return from.empty() ? instead_of : from[random() % from.size()];
}

uint64_t SomeWord(const Script& script, uint64_t old, Random& random) {
  switch (random() % 8) {
    case 0:
      return old + random() % 33 - 16;
    case 1:
      return old ^ uint64_t { 1 } << random() % 64;
    case 2:
      return PlaceWord(static_cast<uint8_t>(1 + random() % 64),
                       static_cast<uint32_t>(random() % 4 == 0 ? random() : 0));
    case 3:  // in the region: as an offset or as an address
      return (random() % 2 != 0 ? kFuzzWindow : 0) + kGranuleBytes * (random() % 130) + random() % 3 * 4096;
    case 4:
      return kFuzzHostMemory + 4096 * (random() % 64) + (random() % 4 == 0 ? random() % 4096 : 0);
    case 5: {  // a word that another message has
      const Message& other = script[random() % script.size()];
      if (other.body.size() >= 8) return WordAt(other.body, random() % (other.body.size() - 7) & ~size_t{3});
      return old;
    }
    default:
      return kLimits[random() % std::size(kLimits)];
  }
}

void ChangeBody(Script& script, size_t index, Random& random) {
  Message& message = script[index];
  auto& body = message.body;
  auto& target = !message.bulk.empty() && random() % 4 == 0 ? message.bulk : body;
  if (target.empty()) return target.resize(random() % 64);
  if (random() % 16 == 0) return target.resize(std::min<size_t>(random() % (target.size() + 32), 4000));
  const size_t at = random() % target.size() & ~size_t{random() % 4 == 0 ? 0u : 3u};
  if (at + 8 > target.size() || random() % 8 == 0) {
    target[std::min(at, target.size() - 1)] ^= static_cast<std::byte>(1 + random() % 255);
    return;
  }
  uint64_t word = WordAt(target, at);
  if (IsHandle(word) && random() % 4 != 0) {
    word = SomeLiveHandle(HandlesBefore(script, index), word, random);
  } else {
    word = SomeWord(script, word, random);
  }
  std::memcpy(target.data() + at, &word, random() % 3 == 0 ? 4 : 8);
}

void ChangeHead(Script& script, size_t index, Random& random) {
  MessageHead& head = script[index].head;
  switch (random() % 8) {
    case 0:
      head.flags ^= static_cast<uint16_t>(1u << random() % 12);
      break;
    case 1:
      head.link = static_cast<uint8_t>(random() % (kScriptChannels + 1));
      break;
    case 2:
      head.bulk_bytes = static_cast<uint32_t>(kLimits[random() % 28]);
      break;
    case 3:
      head.place = static_cast<uint8_t>(random() % 64);
      break;
    case 4:
      head.op = static_cast<uint16_t>(random() % (static_cast<uint32_t>(Op::kCount) + 1));
      break;
    case 5:
      head.context =
          SomeLiveHandle(HandlesBefore(script, index), MakeWireHandle(HandleKind::kContext, 0, 1), random);
      break;
    case 6:
      head.stream =
          SomeLiveHandle(HandlesBefore(script, index), MakeWireHandle(HandleKind::kStream, 0, 1), random);
      break;
    default:
      head.thread = static_cast<uint16_t>(random() % 4);
      break;
  }
}

// A message that is nearly valid, with the script's own handles where it names some.
Message Fresh(const Script& script, size_t index, Random& random) {
  std::array<uint8_t, 400> bytes;
  for (size_t at = 0; at < bytes.size(); at += 2) {
    const auto two = static_cast<uint16_t>(random() >> 8);
    std::memcpy(&bytes[at], &two, sizeof two);
  }
  Input input(bytes.data(), bytes.size());
  Message message = MakeMessage(input);
  const auto handles = HandlesBefore(script, index);
  if (handles.empty()) return message;
  if (random() % 4 != 0) {
    message.head.context = SomeLiveHandle(handles, MakeWireHandle(HandleKind::kContext, 0, 1), random);
    if (WireKind(message.head.context) != HandleKind::kContext) message.head.context = 0;
  }
  for (size_t at = 0; at + 8 <= message.body.size(); at += 4) {
    uint64_t word = WordAt(message.body, at);
    if (!IsHandle(word) || random() % 4 == 0) continue;
    word = SomeLiveHandle(handles, word, random);
    std::memcpy(message.body.data() + at, &word, sizeof word);
    at += 4;
  }
  return message;
}

void Change(ScriptPrefix& prefix, Script& script, Random& random) {
  const auto place = [&] { return script.begin() + static_cast<ptrdiff_t>(random() % (script.size() + 1)); };
  if (script.empty()) {
    script.push_back(Fresh(script, 0, random));
    return;
  }
  const size_t index = random() % script.size();
  switch (random() % 16) {
    case 0:
      prefix.seed = random();
      prefix.over_tcp = random() % 16 == 0;
      prefix.limited = random() % 4 == 0 ? static_cast<uint8_t>(random() % 64) : 0;
      prefix.in_order = static_cast<uint8_t>(random() % 3 == 0 ? 255 : random() % kMostMessages);
      break;
    case 1:
    case 2: {
      const auto at = place();
      Message fresh = Fresh(script, static_cast<size_t>(at - script.begin()), random);
      script.insert(at, std::move(fresh));
      break;
    }
    case 3:
      script.erase(script.begin() + static_cast<ptrdiff_t>(index));
      break;
    case 4: {
      Message again = script[index];
      script.insert(place(), std::move(again));
      break;
    }
    case 5:
      std::swap(script[index], script[random() % script.size()]);
      break;
    case 6:
    case 7:
      ChangeHead(script, index, random);
      break;
    default:
      ChangeBody(script, index, random);
      break;
  }
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
  using namespace causeway::fuzz;
  ScriptMemory::Reset();
  Random random(seed + 1);
  ScriptPrefix prefix = ReadPrefix({data, size});
  Script script = ParseScript({data, size});
  for (auto changes = 1 + random() % 4; changes > 0; --changes) Change(prefix, script, random);
  return WriteScript(prefix, script, {data, max_size});
}

extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* first, size_t first_size, const uint8_t* second,
                                            size_t second_size, uint8_t* out, size_t most, unsigned seed) {
  using namespace causeway::fuzz;
  ScriptMemory::Reset();
  Random random(seed + 1);
  const ScriptPrefix prefix = ReadPrefix({first, first_size});
  Script script = ParseScript({first, first_size});
  const Script other = ParseScript({second, second_size});
  // One whole behind the other, or a part of it in between.
  size_t begin = 0, end = other.size();
  if (random() % 2 == 0 && !other.empty()) {
    begin = random() % other.size();
    end = begin + 1 + random() % (other.size() - begin);
  }
  const size_t at = random() % 2 == 0 ? script.size() : random() % (script.size() + 1);
  script.insert(script.begin() + static_cast<ptrdiff_t>(at), other.begin() + static_cast<ptrdiff_t>(begin),
                other.begin() + static_cast<ptrdiff_t>(end));
  return WriteScript(prefix, script, {out, most});
}
