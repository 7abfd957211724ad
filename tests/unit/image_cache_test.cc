// SPDX-License-Identifier: Apache-2.0
// Module images that the daemon keeps: each scope its own, bounded, and nothing that could change.
#include "host_backend/daemon/sharing/image_cache.h"
#include "host_backend/daemon/sharing/image_hashing.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

namespace causeway::daemon {
namespace {

constexpr int kAllSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

WorkerFd File(uint64_t bytes, int seals = kAllSeals) {
  WorkerFd file(memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
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
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 100, WorkerFd(open("/dev/null", O_RDONLY | O_CLOEXEC))),
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

TEST(ImageCacheTest, WhoeverHasMostGivesWayToOthers) {
  ImageCache few(1000, 8);
  EXPECT_EQ(few.Put("vm:quiet", Hash(1), 10, File(10)), SharingResult::kOk);
  for (uint8_t hash = 1; hash <= 50; ++hash)
    EXPECT_EQ(few.Put("vm:loud", Hash(hash), 1, File(1)), SharingResult::kOk);
  EXPECT_TRUE(Has(few, "vm:quiet", 1, 10)) << "by number";
  EXPECT_EQ(few.status().images, 8u);
  ImageCache small(100, 4096);
  EXPECT_EQ(small.Put("vm:quiet", Hash(1), 50, File(50)), SharingResult::kOk);
  for (int user = 0; user < 40; ++user)
    EXPECT_EQ(small.Put("uid:" + std::to_string(user), Hash(1), 100, File(100)), SharingResult::kOk);
  EXPECT_TRUE(Has(small, "vm:quiet", 1, 50)) << "by bytes";
  EXPECT_LE(small.status().bytes, ImageCache::kFullScopes * 100);
}

// Runs the loop until so many results have come.
std::map<uint64_t, bool> Hashed(std::vector<ImageToHash> images, uint64_t scope_bytes, size_t* refused) {
  EventLoop loop;
  std::map<uint64_t, bool> results;
  ImageHashing hashing(loop, scope_bytes,
                       [&](const ImageToHash& image, bool true_hash) { results[image.session] = true_hash; });
  size_t taken = 0;
  for (ImageToHash& image : images) taken += hashing.Add(std::move(image)) ? 1 : 0;
  *refused = images.size() - taken;
  loop.Run([&] { return results.size() == taken; });
  return results;
}

ImageToHash Stated(uint64_t session, std::string bytes, std::string padding, const std::string& scope) {
  ImageHasher hasher;
  hasher.Add(bytes.data(), bytes.size());
  ImageToHash image{scope, session, hasher.Finish(), bytes.size(), {}};
  image.file = WorkerFd(memfd_create("image", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  padding.resize(kImagePadding);
  const std::string all = bytes + padding;
  EXPECT_EQ(write(image.file.get(), all.data(), all.size()), ssize_t(all.size()));
  return image;
}

TEST(ImageHashingTest, OnlyWhatHasTheHashThatItSaysIsTrue) {
  std::vector<ImageToHash> images;
  images.push_back(Stated(1, "an image", "", "vm:one"));
  images.push_back(Stated(2, std::string(3 << 20, 'x'), "", "vm:one"));
  images.push_back(Stated(3, "an image", "", "vm:two"));
  images.back().stated[31] ^= 1;
  images.push_back(Stated(4, "an image", std::string(kImagePadding - 1, '\0') + "x", "vm:two"));
  images.push_back(Stated(5, "an image", "", "vm:two"));
  images.back().bytes += kImagePadding;  // than the file has
  size_t refused = 0;
  const auto results = Hashed(std::move(images), 64 << 20, &refused);
  EXPECT_EQ(refused, 0u);
  EXPECT_EQ(results, (std::map<uint64_t, bool>{{1, true}, {2, true}, {3, false}, {4, false}, {5, false}}));
}

TEST(ImageHashingTest, WhatWaitsOfOneScopeIsBounded) {
  std::vector<ImageToHash> images;
  for (uint64_t i = 0; i < 2 * ImageHashing::kMostOfScope; ++i)
    images.push_back(Stated(i, std::string(8 << 20, char('a' + i % 26)), "", "vm:loud"));
  images.push_back(Stated(1000, "an image", "", "vm:quiet"));
  size_t refused = 0;
  const auto results = Hashed(std::move(images), 64 << 20, &refused);
  EXPECT_GE(refused, 2 * ImageHashing::kMostOfScope - 16) << "of bytes";
  EXPECT_TRUE(results.at(1000));
}

TEST(ImageCacheTest, NothingIsKeptWithoutRoom) {
  ImageCache cache(0, 16);
  UniqueFd file;
  EXPECT_EQ(cache.Put("vm:one", Hash(1), 10, File(10)), SharingResult::kForbidden);
  EXPECT_EQ(cache.Get("vm:one", Hash(1), 10, &file), SharingResult::kForbidden);
}

}  // namespace
}  // namespace causeway::daemon
