// SPDX-License-Identifier: Apache-2.0
// Module images that processes of one VM or user have loaded, as sealed memory files by the hash of what they
// hold. Workers map them, so an image is sent once and lies in memory once, however many processes load it.
// No scope sees another's; each is bounded, and all together by a number of descriptors: the longest unused
// goes.
#pragma once
#include <cstdint>
#include <list>
#include <map>
#include <string>

#include "host_backend/unique_fd.h"
#include "host_backend/worker_control.h"
#include "ivshmem_ring/image_hash.h"

namespace causeway::daemon {

struct ImageCacheStatus {
  uint64_t images = 0, bytes = 0;  // kept now
  uint64_t found = 0, not_found = 0;
};

class ImageCache {
 public:
  // `scope_bytes` 0: nothing is kept.
  ImageCache(uint64_t scope_bytes, size_t max_images) : scope_bytes_(scope_bytes), max_images_(max_images) {}

  // Refuses what is not sealed or not of that size (`bytes` and kImagePadding).
  SharingResult Put(const std::string& scope, const ImageHash& hash, uint64_t bytes, UniqueFd file);
  // *file is a new descriptor.
  SharingResult Get(const std::string& scope, const ImageHash& hash, uint64_t bytes, UniqueFd* file);
  const ImageCacheStatus& status() const { return status_; }

 private:
  struct Kept {
    std::string scope;
    ImageHash hash;
    uint64_t bytes;
    UniqueFd file;
  };
  using Place = std::list<Kept>::iterator;
  void Erase(Place place);

  const uint64_t scope_bytes_;
  const size_t max_images_;
  std::list<Kept> kept_;  // the last used first
  std::map<std::pair<std::string, ImageHash>, Place> places_;
  std::map<std::string, uint64_t> bytes_;  // by scope
  ImageCacheStatus status_;
};

}  // namespace causeway::daemon
