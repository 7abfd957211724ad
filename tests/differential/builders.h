// SPDX-License-Identifier: Apache-2.0
// Structs and arrays that calls point to, made from a seed when the call is about to run: mostly valid, of objects and
// memory that exist then, now and then wrong in one place.
#pragma once
#include <cstring>

#include "tests/differential/world.h"

namespace causeway::differential {

// One call that is being made ready.
struct Building {
  World& world;
  Random random;
  const Call& call;
  uint64_t stream_key = kLegacyKey;
  bool lasting = false;        // only permanent objects and memory: they are used after the call
  Object* function = nullptr;  // that the call launches
  std::vector<Region*> used;   // by this call: a copy never overlaps itself
  std::byte* scratch = nullptr;
  size_t scratch_left = 0;
  std::string* text = nullptr;  // where it is told what was built; null: nowhere

  template <class T>
  T* Take(size_t count = 1) {
    const size_t bytes = (sizeof(T) * count + 15) / 16 * 16;
    if (bytes > scratch_left) return nullptr;
    auto* at = reinterpret_cast<T*>(scratch);
    std::memset(scratch, 0, bytes);
    scratch += bytes;
    scratch_left -= bytes;
    return at;
  }
  // A handle of that kind, or null.
  template <class T>
  T Some(bool permanent_only = false);
  // Memory that the call may use, of a place in `places`; 0 where there is none.
  uint64_t Memory(std::initializer_list<Place> places, uint32_t alignment = 1);
  uint64_t DeviceMemory(uint32_t alignment = 4);
  uint64_t HostMemory();
  void Tell(const char* format, ...) __attribute__((format(printf, 2, 3)));
};

using Builder = void (*)(Building& building, std::byte* at);
inline constexpr size_t kBuiltBytes = 512;  // the most that a builder writes at `at`

// The builder for a parameter, by its type, its name and its row; null where none is needed.
Builder BuilderFor(const Row& row, size_t parameter);

template <class T>
T Building::Some(bool permanent_only) {
  const Object* object = world.Choose(random, kKindOf<T>, [&](const Object& one) {
    return (!one.foreign || random.Chance(20)) && !((permanent_only || lasting) && one.id >= kFirstMade) &&
           one.is_kernel == std::is_same_v<T, CUkernel>;
  });
  return object == nullptr ? nullptr : reinterpret_cast<T>(object->raw);
}

}  // namespace causeway::differential
