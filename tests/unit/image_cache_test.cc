// SPDX-License-Identifier: Apache-2.0
// Module images that the daemon keeps: each scope its own, bounded, and nothing that could change.
#include "host_backend/daemon/image_cache.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

namespace causeway::daemon {
namespace {

constexpr int kAllSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

UniqueFd File(uint64_t bytes, int seals = kAllSeals) {
  UniqueFd file(memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes + kImagePadding)), 0);
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

ImageHash Hash(uint8_t first) {
  ImageHash hash{};
  hash[0] = first;
  return hash;
}

bool Has(ImageCache& cache, const std::string& scope, uint8_t hash, uint64_t bytes) {
  UniqueFd file;
  const SharingResult result = cache.Get(scope, Hash(hash), bytes, &file);
  EXPECT_EQ(result == SharingResult::kOk, static_cast<bool>(file));
  return result == SharingResult::kOk;
}

TEST(ImageCacheTest, AnImageIsItsScopes) {
  ImageCache cache(1000, 16);
  ASSERT_EQ(cache.Put("vm:one", Hash(1), 100, File(100)), SharingResult::kOk);
  EXPECT_TRUE(Has(cache, "vm:one", 1, 100));
  EXPECT_FALSE(Has(cache, "vm:two", 1, 100));
  EXPECT_FALSE(Has(cache, "", 1, 100));
  EXPECT_FALSE(Has(cache, "vm:one", 2, 100));
  EXPECT_FALSE(Has(cache, "vm:one", 1, 99)) << "who asks knows its size";
  EXPECT_EQ(cache.status().found, 1u);
  EXPECT_EQ(cache.status().not_found, 4u);
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 100, File(100)), SharingResult::kOk);
  EXPECT_EQ(cache.status().images, 1u);
  EXPECT_EQ(cache.status().bytes, 100u);
}

TEST(ImageCacheTest, RefusesWhatMayChange) {
  ImageCache cache(1000, 16);
  for (const int missing : {F_SEAL_SEAL, F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_WRITE}) {
    EXPECT_EQ(cache.Put("vm:one", Hash(1), 100, File(100, kAllSeals & ~missing)), SharingResult::kForbidden);
  }
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 100, File(101)), SharingResult::kForbidden);
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 100, {}), SharingResult::kForbidden);
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 100, UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC))),
            SharingResult::kForbidden);
  EXPECT_EQ(cache.Put("vm:one", Hash(1), ~uint64_t{0}, File(1)), SharingResult::kFull);
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 0, File(0)), SharingResult::kFull);
  EXPECT_EQ(cache.status().images, 0u);
}

TEST(ImageCacheTest, TheLongestUnusedGoes) {
  ImageCache cache(300, 16);
  for (const uint8_t hash : {1, 2, 3}) {
    EXPECT_EQ(cache.Put("vm:one", Hash(hash), 100, File(100)), SharingResult::kOk);
    EXPECT_EQ(cache.Put("vm:two", Hash(hash), 100, File(100)), SharingResult::kOk);
  }
  EXPECT_TRUE(Has(cache, "vm:one", 1, 100));
  EXPECT_EQ(cache.Put("vm:one", Hash(4), 150, File(150)), SharingResult::kOk);
  EXPECT_TRUE(Has(cache, "vm:one", 1, 100));
  EXPECT_FALSE(Has(cache, "vm:one", 2, 100));
  EXPECT_FALSE(Has(cache, "vm:one", 3, 100));
  for (const uint8_t hash : {1, 2, 3}) EXPECT_TRUE(Has(cache, "vm:two", hash, 100)) << "another's limit";
  EXPECT_EQ(cache.Put("vm:one", Hash(5), 301, File(301)), SharingResult::kFull);
  EXPECT_EQ(cache.status().images, 5u);
  EXPECT_EQ(cache.status().bytes, 550u);
}

TEST(ImageCacheTest, DescriptorsAreBoundedForAll) {
  ImageCache cache(1000, 3);
  for (uint8_t hash = 1; hash <= 5; ++hash)
    EXPECT_EQ(cache.Put("vm:" + std::to_string(hash), Hash(hash), 10, File(10)), SharingResult::kOk);
  EXPECT_EQ(cache.status().images, 3u);
  EXPECT_FALSE(Has(cache, "vm:2", 2, 10));
  EXPECT_TRUE(Has(cache, "vm:5", 5, 10));
}

TEST(ImageCacheTest, NothingIsKeptWithoutRoom) {
  ImageCache cache(0, 16);
  UniqueFd file;
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 10, File(10)), SharingResult::kForbidden);
  EXPECT_EQ(cache.Get("vm:one", Hash(1), 10, &file), SharingResult::kForbidden);
}

}  // namespace
}  // namespace causeway::daemon
