// SPDX-License-Identifier: Apache-2.0
// The worker's half of the images that a VM's processes share (host_backend/daemon/sharing/image_cache.h):
// memory files that are mapped, and made of what a guest sent.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/messages/image_hash.h"

namespace causeway::host {

class DaemonLink;

// An image that the daemon keeps, mapped privately: writes stay this process's own, so that a driver that
// wrote there could not harm others.
class KeptImage {
 public:
  // Null: it cannot be mapped.
  static std::unique_ptr<KeptImage> Map(int file, uint64_t bytes);
  ~KeptImage();
  KeptImage(const KeptImage&) = delete;
  KeptImage& operator=(const KeptImage&) = delete;
  // kImagePadding zeros follow them.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  explicit KeptImage(std::span<const std::byte> bytes) : bytes_(bytes) {}
  std::span<const std::byte> bytes_;
};

enum class KeptImages { kFound, kUnknown, kNotKept };

// Asks for an image that a guest knows by hash. kNotKept: this daemon keeps none.
KeptImages FindImage(DaemonLink* daemon, const ImageHash& hash, uint64_t bytes,
                     std::unique_ptr<KeptImage>* image);
// Has the daemon keep what a guest has sent, under the hash computed here. Null: it does not, or need not.
std::unique_ptr<KeptImage> KeepImage(DaemonLink* daemon, std::span<const std::byte> bytes);

}  // namespace causeway::host
