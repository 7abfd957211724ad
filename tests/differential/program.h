// SPDX-License-Identifier: Apache-2.0
// A program of driver calls as data, and as text. An argument names what it means, not a value: an object by the call that
// made it, an address by a region and an offset. So a program can lose calls and still be run on any library.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "tests/differential/rows.h"

namespace causeway::differential {

enum class ArgumentKind : uint8_t {
  kNumber,    // `number`: integers, enums, flags, devices, the bits of a float
  kNull,      // a null pointer or handle
  kObject,    // the object with that id
  kObjects,   // a pointer to `count` handles, of the ids in `list`
  kRegion,    // the address of region `number` plus `offset`
  kWild,      // an address or handle that means nothing: `number`
  kOut,       // a pointer to scratch, of which the first word is `number`
  kBuilt,     // a pointer to structs, or a struct, that `number` seeds (builders.h)
  kText,      // text number `number` (texts.h)
  kFunction,  // the tool's own callback
  kCounter,   // the address of counter `number`, which callbacks count up
};

struct Argument {
  ArgumentKind kind = ArgumentKind::kNull;
  uint8_t count = 0;
  uint32_t offset = 0;
  uint64_t number = 0;
  uint32_t list[4] = {};
};

struct Call {
  uint32_t id = 0;  // its number in the program as generated: kept when others are dropped
  uint8_t thread = 0;
  const Row* row = nullptr;
  Argument arguments[kMostParameters];
};

// Ids of objects and regions: below kFirstMade they exist before the program, above they are made by a call's parameter.
inline constexpr uint32_t kFirstMade = 256;
inline constexpr uint32_t kElements = 8;  // of an array of new handles
constexpr uint32_t MadeId(uint32_t call, size_t parameter, size_t element) {
  return kFirstMade +
         (call * static_cast<uint32_t>(kMostParameters) + static_cast<uint32_t>(parameter)) * kElements +
         static_cast<uint32_t>(element);
}

std::string ToText(const Call& call);
std::optional<Call> FromText(const std::string& line);

}  // namespace causeway::differential
