// SPDX-License-Identifier: Apache-2.0
// The images kept.
#include "host_backend/daemon/image_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <iterator>

namespace causeway::daemon {
namespace {

// Whoever maps it reads `bytes` that never change.
bool IsSealed(int file, uint64_t bytes) {
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  struct stat found {};
  return (fcntl(file, F_GET_SEALS) & kSeals) == kSeals && fstat(file, &found) == 0 &&
         uint64_t(found.st_size) == bytes + kImagePadding;
}

}  // namespace

void ImageCache::Erase(Place place) {
  const auto scope = bytes_.find(place->scope);
  scope->second -= place->bytes;
  if (scope->second == 0) bytes_.erase(scope);
  --status_.images;
  status_.bytes -= place->bytes;
  places_.erase({place->scope, place->hash});
  kept_.erase(place);
}

SharingResult ImageCache::Put(const std::string& scope, const ImageHash& hash, uint64_t bytes,
                              UniqueFd file) {
  if (scope_bytes_ == 0) return SharingResult::kForbidden;
  if (bytes == 0 || bytes > scope_bytes_) return SharingResult::kFull;
  if (!file || !IsSealed(file.get(), bytes)) return SharingResult::kForbidden;
  if (places_.contains({scope, hash})) return SharingResult::kOk;
  for (auto at = kept_.end();
       at != kept_.begin() && bytes_.contains(scope) && bytes_[scope] + bytes > scope_bytes_;) {
    const auto oldest = std::prev(at);
    if (oldest->scope == scope) {
      Erase(oldest);  // `at`, behind it, stays
    } else {
      at = oldest;
    }
  }
  if (status_.images >= max_images_ && !kept_.empty()) Erase(std::prev(kept_.end()));
  kept_.push_front({scope, hash, bytes, std::move(file)});
  places_[{scope, hash}] = kept_.begin();
  bytes_[scope] += bytes;
  ++status_.images;
  status_.bytes += bytes;
  return SharingResult::kOk;
}

SharingResult ImageCache::Get(const std::string& scope, const ImageHash& hash, uint64_t bytes,
                              UniqueFd* file) {
  if (scope_bytes_ == 0) return SharingResult::kForbidden;
  const auto found = places_.find({scope, hash});
  if (found == places_.end() || found->second->bytes != bytes) {
    ++status_.not_found;
    return SharingResult::kUnknown;
  }
  kept_.splice(kept_.begin(), kept_, found->second);
  file->reset(fcntl(found->second->file.get(), F_DUPFD_CLOEXEC, 0));
  ++status_.found;
  return *file ? SharingResult::kOk : SharingResult::kFull;
}

}  // namespace causeway::daemon
