// SPDX-License-Identifier: Apache-2.0
// Module images that processes of one VM or user have loaded, as sealed memory files by the hash of what they
// hold. Workers map them, so an image is sent once and lies in memory once, however many processes load it.
// No scope sees another's. Bytes and descriptors are bounded for each scope and for all together. When all
// together have too many, the image goes that was unused longest in the scope that has most, so that no scope
// can empty another's cache.
//
// The next daemon goes on with them, but for those beyond the bounds of what is kept, as with SharedObjects: they are sent again.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "host_backend/common/worker_control.h"
#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/takeover/vault.h"
#include "ivshmem_ring/messages/image_hash.h"

namespace causeway::daemon {

struct ImageCacheStatus {
  uint64_t images = 0, bytes = 0;  // kept now
  uint64_t found = 0, not_found = 0;
};

// Whether the file has `bytes` and kImagePadding bytes, and cannot be changed any more.
bool IsSealedImage(int file, uint64_t bytes);

class ImageCache {
 public:
  // How many scopes may have their whole part at once.
  static constexpr uint64_t kFullScopes = 16;
  static constexpr size_t kMaxKeptOfScope = 512, kMaxKept = 2048;

  // `scope_bytes` 0: nothing is kept.
  ImageCache(uint64_t scope_bytes, size_t max_images) : scope_bytes_(scope_bytes), max_images_(max_images) {}

  ImageCache(const ImageCache&) = delete;
  ImageCache& operator=(const ImageCache&) = delete;

  // Where images are kept for the next daemon; it outlives this. Before the first Put; without it none is kept.
  void Use(Vault* vault) { vault_ = vault; }
  // Those that a daemon of before has left, in the order in which they came; as many as this one's bounds allow.
  void Resume();

  // Whether an image of that size may be kept: kOk, kFull (it is too large), or kForbidden (none is kept).
  SharingResult MayPut(uint64_t bytes) const;
  bool Has(const std::string& scope, const ImageHash& hash) const;
  // Keeps an image. `hash` is as the daemon itself computed it (image_hashing.h). Files that are not sealed,
  // or not of that size, are refused.
  SharingResult Put(const std::string& scope, const ImageHash& hash, uint64_t bytes, WorkerFd file);
  // *file is a new descriptor.
  SharingResult Get(const std::string& scope, const ImageHash& hash, uint64_t bytes, UniqueFd* file);
  const ImageCacheStatus& status() const { return status_; }
  uint64_t scope_bytes() const { return scope_bytes_; }

 private:
  struct Kept {
    ImageHash hash;
    uint64_t bytes;
    uint64_t used;  // uses_ at its last use
    WorkerFd file;
    uint64_t key = 0;  // of its record; 0: none
  };
  struct OfScope {
    std::list<Kept> kept;  // the last used first
    std::map<ImageHash, std::list<Kept>::iterator> places;
    uint64_t bytes = 0;
    size_t recorded = 0;
  };
  using Scope = std::map<std::string, OfScope>::iterator;
  // `key`: of its record; 0: it has none yet.
  SharingResult Insert(const std::string& scope, const ImageHash& hash, uint64_t bytes, WorkerFd file,
                       uint64_t key);
  void Record(Scope scope, Kept& image);
  void EraseOldest(Scope scope);
  // The scope with the most bytes, or the most images; among equals the one that was unused longest.
  Scope Largest(bool by_bytes);

  const uint64_t scope_bytes_;
  const size_t max_images_;
  Vault* vault_ = nullptr;
  size_t recorded_ = 0;
  uint64_t uses_ = 0;
  std::map<std::string, OfScope> scopes_;  // those that have any
  ImageCacheStatus status_;
};

}  // namespace causeway::daemon
