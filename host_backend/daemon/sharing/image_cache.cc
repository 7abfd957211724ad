// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/sharing/image_cache.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <tuple>

#include "ivshmem_ring/tls/hexadecimal.h"

namespace causeway::daemon {

bool IsSealedImage(int file, uint64_t bytes) {
  constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;
  struct stat found {};
  const int seals = fcntl(file, F_GET_SEALS);  // files in memory alone have any; fstat asks nobody about them
  return seals >= 0 && (seals & kSeals) == kSeals && fstat(file, &found) == 0 &&
         uint64_t(found.st_size) == bytes + kImagePadding;
}

SharingResult ImageCache::MayPut(uint64_t bytes) const {
  if (scope_bytes_ == 0) return SharingResult::kForbidden;
  return bytes == 0 || bytes > scope_bytes_ ? SharingResult::kFull : SharingResult::kOk;
}

bool ImageCache::Has(const std::string& scope, const ImageHash& hash) const {
  const auto found = scopes_.find(scope);
  return found != scopes_.end() && found->second.places.contains(hash);
}

void ImageCache::EraseOldest(Scope scope) {
  OfScope& own = scope->second;
  Kept& oldest = own.kept.back();
  if (oldest.key != 0) {
    vault_->Drop(oldest.key);
    --own.recorded;
    --recorded_;
  }
  own.bytes -= oldest.bytes;
  status_.bytes -= oldest.bytes;
  --status_.images;
  own.places.erase(oldest.hash);
  own.kept.pop_back();
  if (own.kept.empty()) scopes_.erase(scope);
}

ImageCache::Scope ImageCache::Largest(bool by_bytes) {
  const auto size = [by_bytes](Scope scope) {
    const OfScope& own = scope->second;
    return std::tuple(by_bytes ? own.bytes : own.kept.size(), ~own.kept.back().used);
  };
  Scope largest = scopes_.begin();
  for (Scope at = scopes_.begin(); at != scopes_.end(); ++at) {
    if (size(at) > size(largest)) largest = at;
  }
  return largest;
}

SharingResult ImageCache::Put(const std::string& scope, const ImageHash& hash, uint64_t bytes,
                              WorkerFd file) {
  return Insert(scope, hash, bytes, std::move(file), 0);
}

// Before it is found: a daemon that follows knows all that this one has given away.
void ImageCache::Record(Scope scope, Kept& image) {
  OfScope& own = scope->second;
  if (vault_ == nullptr) return;
  if (image.key == 0) {
    if (!vault_->keeps() || own.recorded >= kMaxKeptOfScope || recorded_ >= kMaxKept) return;
    image.key = vault_->NewKey(Vault::Kind::kImage);
    vault_->Put(image.key,
                {{"scope", scope->first}, {"hash", HexadecimalText(image.hash)}, {"bytes", image.bytes}},
                {{"image", image.file.get()}}, 0, image.file.account());
  }
  ++own.recorded;
  ++recorded_;
}

// What is left in the vault ends with the taking over.
void ImageCache::Resume() {
  for (Vault::Record* record : vault_->All(Vault::Kind::kImage)) {
    const auto scope = record->state.at("scope").get<std::string>();
    const auto bytes = record->state.at("bytes").get<uint64_t>();
    ImageHash hash{};
    WorkerFd file(record->Take("image"));
    const bool fits = MayPut(bytes) == SharingResult::kOk && status_.images < max_images_ &&
                      status_.bytes + bytes <= kFullScopes * scope_bytes_ && recorded_ < kMaxKept;
    if (!fits || !ReadHexadecimal(record->state.at("hash").get<std::string>(), hash) || Has(scope, hash) ||
        !IsSealedImage(file.get(), bytes))
      continue;
    const auto own = scopes_.find(scope);
    if (own != scopes_.end() &&
        (own->second.bytes + bytes > scope_bytes_ || own->second.recorded >= kMaxKeptOfScope))
      continue;
    Insert(scope, hash, bytes, std::move(file), vault_->Adopt(*record).key);
  }
}

SharingResult ImageCache::Insert(const std::string& scope, const ImageHash& hash, uint64_t bytes,
                                 WorkerFd file, uint64_t key) {
  if (const SharingResult result = MayPut(bytes); result != SharingResult::kOk) return result;
  if (!file || !IsSealedImage(file.get(), bytes)) return SharingResult::kForbidden;
  if (Has(scope, hash)) return SharingResult::kOk;
  for (auto own = scopes_.find(scope); own != scopes_.end() && own->second.bytes + bytes > scope_bytes_;) {
    EraseOldest(own);
    own = scopes_.find(scope);
  }
  while (!scopes_.empty() && status_.images >= max_images_) EraseOldest(Largest(false));
  while (!scopes_.empty() && status_.bytes + bytes > kFullScopes * scope_bytes_) EraseOldest(Largest(true));
  const Scope place = scopes_.try_emplace(scope).first;
  OfScope& own = place->second;
  own.kept.push_front({hash, bytes, ++uses_, std::move(file), key});
  own.places[hash] = own.kept.begin();
  Record(place, own.kept.front());
  own.bytes += bytes;
  ++status_.images;
  status_.bytes += bytes;
  return SharingResult::kOk;
}

SharingResult ImageCache::Get(const std::string& scope, const ImageHash& hash, uint64_t bytes,
                              UniqueFd* file) {
  if (scope_bytes_ == 0) return SharingResult::kForbidden;
  const auto of_scope = scopes_.find(scope);
  if (of_scope == scopes_.end() || !of_scope->second.places.contains(hash) ||
      of_scope->second.places[hash]->bytes != bytes) {
    ++status_.not_found;
    return SharingResult::kUnknown;
  }
  OfScope& own = of_scope->second;
  const auto found = own.places[hash];
  own.kept.splice(own.kept.begin(), own.kept, found);
  found->used = ++uses_;
  file->reset(fcntl(found->file.get(), F_DUPFD_CLOEXEC, 0));
  ++status_.found;
  return *file ? SharingResult::kOk : SharingResult::kFull;
}

}  // namespace causeway::daemon
