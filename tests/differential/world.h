// SPDX-License-Identifier: Apache-2.0
// What exists while a program runs: objects, memory, captures. The generator chooses from it, answers are named by it, and
// it keeps programs free of races: memory that a stream uses is given to another stream only when the first is done.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "tests/differential/program.h"
#include "tests/differential/random.h"

namespace causeway::differential {

// Kinds of objects that the rows pass as numbers.
inline constexpr auto kTextureObject = static_cast<HandleKind>(40);
inline constexpr auto kSurfaceObject = static_cast<HandleKind>(41);
inline constexpr auto kConditional = static_cast<HandleKind>(42);

struct Object {
  uint32_t id = 0;
  HandleKind kind = HandleKind::kNone;
  uint64_t raw = 0;
  uint32_t parent = 0;  // ends with it; 0: with nothing
  bool alive = true;
  bool own = false;        // the program may end it
  bool foreign = false;    // of another context
  bool is_kernel = false;  // a CUkernel, of kind kFunction
  int8_t kernel = -1;      // of functions: the number in kKernelNames
  bool unordered = false;  // of graphs: launching it could be a race
  bool opaque = false;     // of graphs: has nodes that are not known here
  bool readable = true;    // of arrays: has contents that are known
};

enum class Place : uint8_t { kDevice, kPinned, kPageable, kManaged, kReserved, kWords, kOther };

struct Region {
  uint32_t id = 0;
  Place place = Place::kDevice;
  uint64_t base = 0;
  uint64_t bytes = 0;
  uint32_t parent = 0;
  bool alive = true;
  bool own = false;    // the program may free it
  bool usable = true;  // its contents are known and it may be read and written
  bool dirty = false;
  bool large = false;  // too large to be looked at after each program
  uint64_t owner = 0;  // the key of the stream that used it last; 0: nothing is under way
  uint64_t capture_owner = 0;
};

// A stream as an owner of memory.
inline constexpr uint64_t kLegacyKey = 1, kEndedKey = 3, kFirstPerThreadKey = 16;
// The stream with that key, as the thread that has it may name it.
inline CUstream StreamOfKey(uint64_t key) {
  const uint64_t number = key & 0xffff'ffff'ffff;
  return reinterpret_cast<CUstream>(number == kLegacyKey ? 1 : number < 4096 ? 2 : key);
}

// An error after which its context does no more.
bool IsSticky(CUresult result);

class World {
 public:
  // Objects and regions of earlier programs are forgotten; the permanent ones stay.
  void BeginProgram();

  Object& Add(Object object);
  Region& AddRegion(Region region);
  Object* Find(uint32_t id);
  Region* FindRegion(uint32_t id);
  Object* FindRaw(HandleKind kind, uint64_t raw);
  // A living object of that kind, null where there is none. `wanted` may refuse.
  template <class Wanted>
  Object* Choose(Random& random, HandleKind kind, Wanted wanted);
  void End(uint32_t id);  // an object, and what ends with it
  void EndRegion(uint32_t id);

  // A word of an answer by what it means: the same on every library. `pointers`: of what looks like an address only that.
  uint64_t Named(uint64_t word, bool pointers) const;
  std::string NamedText(uint64_t word, bool pointers) const;

  // Whether work of the stream may use the region now; waits for its last user if that can be.
  // What `raw` names for a call that the calling thread makes, which is number `thread` of the program: the default streams
  // are the current context's, and the thread's.
  uint64_t KeyOf(uint64_t raw, bool per_thread, int thread);
  // The current context if the program has made it, whose end ends what is made in it; else 0.
  uint32_t CurrentMade();
  bool Acquire(Region& region, uint64_t stream_key);
  bool CanAcquire(const Region& region, uint64_t stream_key) const;
  // All memory is idle afterwards; false if a capture forbids to wait, or the context is broken.
  bool Quiesce();
  void Capturing(uint64_t stream_key, bool begins);
  void EndCapturing() { capturing_.clear(); }
  bool IsCapturing(uint64_t stream_key) const;
  bool AnyCapture() const { return !capturing_.empty(); }

  std::vector<Object> objects;
  std::vector<Region> regions;
  CUcontext base = nullptr;        // current when a program begins
  bool capture_unordered = false;  // the captures under way may have lost edges
  bool broken = false;

 private:
  const Region* RegionOf(uint64_t address) const;

  size_t permanent_objects_ = 0, permanent_regions_ = 0;
  bool sealed_ = false;
  std::vector<uint64_t> capturing_;
};

template <class Wanted>
Object* World::Choose(Random& random, HandleKind kind, Wanted wanted) {
  uint32_t count = 0;
  for (const Object& object : objects) count += object.kind == kind && object.alive && wanted(object) ? 1 : 0;
  if (count == 0) return nullptr;
  uint32_t left = random.Below(count);
  for (Object& object : objects) {
    if (object.kind == kind && object.alive && wanted(object) && left-- == 0) return &object;
  }
  return nullptr;
}

}  // namespace causeway::differential
