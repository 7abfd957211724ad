// SPDX-License-Identifier: Apache-2.0
#include "tests/differential/world.h"

#include <algorithm>

namespace causeway::differential {

void World::BeginProgram() {
  if (!sealed_) {
    sealed_ = true;
    permanent_objects_ = objects.size();
    permanent_regions_ = regions.size();
  }
  objects.resize(permanent_objects_);
  regions.resize(permanent_regions_);
  for (Region& region : regions) region.owner = region.capture_owner = 0;
  capturing_.clear();
  capture_unordered = false;
}

Object& World::Add(Object object) {
  objects.push_back(object);
  return objects.back();
}
Region& World::AddRegion(Region region) {
  regions.push_back(region);
  return regions.back();
}

Object* World::Find(uint32_t id) {
  for (Object& object : objects) {
    if (object.id == id && object.alive) return &object;
  }
  return nullptr;
}
Region* World::FindRegion(uint32_t id) {
  for (Region& region : regions) {
    if (region.id == id && region.alive) return &region;
  }
  return nullptr;
}
Object* World::FindRaw(HandleKind kind, uint64_t raw) {
  for (Object& object : objects) {
    if (object.alive && object.raw == raw && object.kind == kind) return &object;
  }
  return nullptr;
}

void World::End(uint32_t id) {
  for (Object& object : objects) {
    if (object.id == id) object.alive = false;
  }
  for (size_t i = 0; i < objects.size(); ++i) {
    if (objects[i].alive && objects[i].parent == id) End(objects[i].id);
  }
  for (Region& region : regions) {
    if (region.parent == id && id != 0) region.alive = false;
  }
}
void World::EndRegion(uint32_t id) {
  for (Region& region : regions) {
    if (region.id == id) region.alive = false;
  }
}

const Region* World::RegionOf(uint64_t address) const {
  const Region* found = nullptr;
  for (const Region& region : regions) {
    const bool inside =
        address >= region.base && (address < region.base + region.bytes || address == region.base);
    if (region.alive && region.base != 0 && inside && (found == nullptr || region.bytes < found->bytes))
      found = &region;
  }
  return found;
}

namespace {

constexpr uint64_t kSmallest = 4096;  // no handle or address is smaller
bool LooksLikeAddress(uint64_t word) {
  return word >= uint64_t{1} << 32 && word < uint64_t{1} << 48;
}

}  // namespace

uint64_t World::Named(uint64_t word, bool pointers) const {
  if (word < kSmallest) return word;
  for (const Object& object : objects) {
    if (object.alive && object.raw == word) return uint64_t{0xb0} << 56 | object.id;
  }
  if (const Region* region = RegionOf(word))
    return uint64_t{0xb1} << 56 | uint64_t{region->id} << 32 | (word - region->base);
  return pointers && LooksLikeAddress(word) ? uint64_t{0xb2} << 56 : word;
}

std::string World::NamedText(uint64_t word, bool pointers) const {
  if (word < kSmallest) return std::to_string(word);
  for (const Object& object : objects) {
    if (object.alive && object.raw == word) return "object" + std::to_string(object.id);
  }
  if (const Region* region = RegionOf(word)) {
    return "region" + std::to_string(region->id) + "+" + std::to_string(word - region->base);
  }
  if (pointers && LooksLikeAddress(word)) return "an address";
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(word));
  return text;
}

void World::Capturing(uint64_t stream_key, bool begins) {
  std::erase(capturing_, stream_key);
  if (!begins) return;
  if (capturing_.empty()) {
    capture_unordered = false;
    for (Region& region : regions) region.capture_owner = 0;
  }
  capturing_.push_back(stream_key);
}
bool World::IsCapturing(uint64_t stream_key) const {
  return std::find(capturing_.begin(), capturing_.end(), stream_key) != capturing_.end();
}

// While a capture is under way, a stream may belong to it without being known here (it has waited for one of its events):
// then a region has one user among all streams.
bool World::CanAcquire(const Region& region, uint64_t stream_key) const {
  const bool idle = region.owner == 0 || region.owner == stream_key;
  if (!AnyCapture()) return true;
  if (region.capture_owner != 0 && region.capture_owner != stream_key) return false;
  return idle || IsCapturing(stream_key);
}

bool World::Acquire(Region& region, uint64_t stream_key) {
  if (!CanAcquire(region, stream_key)) return false;
  if (AnyCapture()) region.capture_owner = stream_key;
  if (IsCapturing(stream_key)) return true;
  if (region.owner != 0 && region.owner != stream_key && !Quiesce()) return false;
  region.owner = stream_key;
  return true;
}

uint32_t World::CurrentMade() {
  CUcontext current = nullptr;
  if (DRIVER(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || current == nullptr || current == base) return 0;
  const Object* object = FindRaw(HandleKind::kContext, reinterpret_cast<uint64_t>(current));
  return object != nullptr && object->id >= kFirstMade ? object->id : 0;
}

uint64_t World::KeyOf(uint64_t raw, bool per_thread, int thread) {
  if (raw > 2) return raw;
  CUcontext current = nullptr;
  uint64_t context = 0;
  if (DRIVER(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current != nullptr && current != base) {
    const Object* object = FindRaw(HandleKind::kContext, reinterpret_cast<uint64_t>(current));
    context = object == nullptr ? 1 : object->id;
  }
  const bool own = raw == 2 || (raw == 0 && per_thread);
  return (own ? kFirstPerThreadKey + static_cast<uint64_t>(thread) : kLegacyKey) | context << 48;
}

bool IsSticky(CUresult result) {
  return (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_LAUNCH_TIMEOUT) ||
         (result >= CUDA_ERROR_ASSERT && result <= CUDA_ERROR_LAUNCH_FAILED &&
          result != CUDA_ERROR_TOO_MANY_PEERS && result != CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
          result != CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED) ||
         result == CUDA_ERROR_ECC_UNCORRECTABLE;
}

bool World::Quiesce() {
  if (AnyCapture() || broken) return false;
  bool waited = true;
  for (const Object& object : objects) {
    if (object.kind != HandleKind::kContext || !object.alive) continue;
    if (DRIVER(cuCtxPushCurrent_v2)(reinterpret_cast<CUcontext>(object.raw)) != CUDA_SUCCESS) continue;
    CUcontext popped = nullptr;
    const CUresult result = DRIVER(cuCtxSynchronize)();
    DRIVER(cuCtxPopCurrent_v2)(&popped);
    broken = broken || IsSticky(result);
    // One that a reset has ended has no work; a capture that nobody knows of here forbids to wait.
    waited = waited && (result == CUDA_SUCCESS || result == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  }
  if (broken || !waited) return false;
  for (Region& region : regions) region.owner = 0;
  return true;
}

}  // namespace causeway::differential
