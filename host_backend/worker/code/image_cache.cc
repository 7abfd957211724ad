// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/code/image_cache.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "host_backend/worker/process/daemon_link.h"

namespace causeway::host {
namespace {

UniqueFd SealedFile(std::span<const std::byte> bytes) {
  UniqueFd file(memfd_create("causeway-image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file || ftruncate(file.get(), static_cast<off_t>(bytes.size() + kImagePadding)) != 0) return {};
  for (size_t at = 0; at < bytes.size();) {
    const ssize_t written = write(file.get(), bytes.data() + at, bytes.size() - at);
    if (written <= 0) return {};
    at += static_cast<size_t>(written);
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0)
    return {};
  return file;
}

}  // namespace

std::unique_ptr<KeptImage> KeptImage::Map(int file, uint64_t bytes) {
  void* at = mmap(nullptr, bytes + kImagePadding, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  if (at == MAP_FAILED) return nullptr;
  return std::unique_ptr<KeptImage>(new KeptImage({static_cast<const std::byte*>(at), bytes}));
}

KeptImage::~KeptImage() {
  munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size() + kImagePadding);
}

KeptImages FindImage(DaemonLink* daemon, const ImageHash& hash, uint64_t bytes,
                     std::unique_ptr<KeptImage>* image) {
  if (daemon == nullptr) return KeptImages::kNotKept;
  UniqueFd file;
  const CUresult result = daemon->GetImage(hash, bytes, &file);
  if (result == CUDA_ERROR_NOT_PERMITTED) return KeptImages::kNotKept;
  if (result == CUDA_SUCCESS && file) *image = KeptImage::Map(file.get(), bytes);
  return *image != nullptr ? KeptImages::kFound : KeptImages::kUnknown;
}

std::unique_ptr<KeptImage> KeepImage(DaemonLink* daemon, std::span<const std::byte> bytes) {
  if (daemon == nullptr || bytes.size() < kLeastKeptImageBytes) return nullptr;
  const UniqueFd file = SealedFile(bytes);
  if (!file) return nullptr;
  ImageHasher hasher;
  hasher.Add(bytes.data(), bytes.size());
  if (daemon->PutImage(hasher.Finish(), bytes.size(), file.get()) != CUDA_SUCCESS) return nullptr;
  return KeptImage::Map(file.get(), bytes.size());
}

}  // namespace causeway::host
