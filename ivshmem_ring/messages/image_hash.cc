// SPDX-License-Identifier: Apache-2.0
// libcrypto's block function and nothing around it, linked statically: the guest's library needs only libc.
#define OPENSSL_API_COMPAT 0x10100000L  // SHA256_*, without the providers that newer interfaces bring along
#include "ivshmem_ring/messages/image_hash.h"

#include <openssl/sha.h>

namespace causeway {

static_assert(sizeof(SHA256_CTX) == 112 && alignof(SHA256_CTX) <= 8);

ImageHasher::ImageHasher() {
  SHA256_Init(reinterpret_cast<SHA256_CTX*>(state_));
}

void ImageHasher::Add(const void* bytes, size_t size) {
  SHA256_Update(reinterpret_cast<SHA256_CTX*>(state_), bytes, size);
}

ImageHash ImageHasher::Finish() {
  ImageHash hash;
  SHA256_Final(hash.data(), reinterpret_cast<SHA256_CTX*>(state_));
  return hash;
}

}  // namespace causeway
