// SPDX-License-Identifier: Apache-2.0
// What the daemon keeps for processes that share: nothing of one VM or user opens in another.
#include "host_backend/daemon/sharing/shared_objects.h"

#include <fcntl.h>
#include <gtest/gtest.h>

namespace causeway::daemon {
namespace {

SharedBytes Bytes(uint8_t first) {
  SharedBytes bytes{};
  bytes[0] = first;
  return bytes;
}

WorkerFd SomeDescriptor() {
  return WorkerFd(open("/dev/null", O_RDONLY | O_CLOEXEC));
}

TEST(SharedObjectsTest, ATokenOpensInItsScopeOnly) {
  SharedObjects objects(16);
  Token token{};
  ASSERT_EQ(objects.Put("vm:one", 1, SharedKind::kIpcMemory, Bytes(7), {}, &token), SharingResult::kOk);
  SharedBytes bytes{};
  UniqueFd none;
  EXPECT_EQ(objects.Get("vm:one", SharedKind::kIpcMemory, token, &bytes, &none), SharingResult::kOk);
  EXPECT_EQ(bytes, Bytes(7));
  for (const char* other : {"vm:two", "uid:0", "uid:1000", "tcp:127.0.0.1", ""}) {
    bytes = {};
    EXPECT_EQ(objects.Get(other, SharedKind::kIpcMemory, token, &bytes, &none), SharingResult::kUnknown)
        << other;
    EXPECT_EQ(bytes, SharedBytes{});
    EXPECT_EQ(objects.Drop(other, 1, token), SharingResult::kUnknown);
  }
}

TEST(SharedObjectsTest, TheDriversBytesAreNotTheToken) {
  SharedObjects objects(16);
  Token one{}, two{}, again{};
  ASSERT_EQ(objects.Put("vm:one", 1, SharedKind::kIpcMemory, Bytes(7), {}, &one), SharingResult::kOk);
  ASSERT_EQ(objects.Put("vm:two", 2, SharedKind::kIpcMemory, Bytes(7), {}, &two), SharingResult::kOk);
  EXPECT_NE(one, two);
  ASSERT_EQ(objects.Put("vm:one", 1, SharedKind::kIpcMemory, Bytes(7), {}, &again), SharingResult::kOk);
  EXPECT_EQ(one, again);  // asked for twice, as natively
  SharedBytes bytes{};
  UniqueFd none;
  Token guessed = one;
  guessed[15] ^= 1;
  EXPECT_EQ(objects.Get("vm:one", SharedKind::kIpcMemory, guessed, &bytes, &none), SharingResult::kUnknown);
  EXPECT_EQ(objects.Get("vm:one", SharedKind::kIpcEvent, one, &bytes, &none), SharingResult::kUnknown);
}

TEST(SharedObjectsTest, BytesEndWithTheirSessionDescriptorsWithTheLast) {
  SharedObjects objects(16);
  Token memory{}, file{};
  ASSERT_EQ(objects.Put("vm:one", 1, SharedKind::kIpcMemory, Bytes(7), {}, &memory), SharingResult::kOk);
  ASSERT_EQ(objects.Put("vm:one", 1, SharedKind::kMemory, {}, SomeDescriptor(), &file), SharingResult::kOk);
  objects.EndSession("vm:one", 1, false);
  SharedBytes bytes{};
  UniqueFd got;
  EXPECT_EQ(objects.Get("vm:one", SharedKind::kIpcMemory, memory, &bytes, &got), SharingResult::kUnknown);
  EXPECT_EQ(objects.Get("vm:one", SharedKind::kMemory, file, &bytes, &got), SharingResult::kOk);
  EXPECT_TRUE(bool(got));
  objects.EndSession("vm:one", 2, true);
  EXPECT_EQ(objects.Get("vm:one", SharedKind::kMemory, file, &bytes, &got), SharingResult::kUnknown);
  EXPECT_EQ(objects.size(), 0u);
  EXPECT_EQ(objects.descriptors(), 0u);
}

TEST(SharedObjectsTest, OnlyItsSessionDropsAnObject) {
  SharedObjects objects(16);
  Token file{};
  ASSERT_EQ(objects.Put("vm:one", 1, SharedKind::kMemory, {}, SomeDescriptor(), &file), SharingResult::kOk);
  EXPECT_EQ(objects.Drop("vm:one", 2, file), SharingResult::kUnknown);
  EXPECT_EQ(objects.Drop("vm:one", 1, file), SharingResult::kOk);
  EXPECT_EQ(objects.Drop("vm:one", 1, file), SharingResult::kUnknown);
  EXPECT_EQ(objects.descriptors(), 0u);
}

TEST(SharedObjectsTest, Bounds) {
  SharedObjects objects(3);
  Token token{};
  const auto put = [&](const char* scope, uint64_t session) {
    return objects.Put(scope, session, SharedKind::kMemory, {}, SomeDescriptor(), &token);
  };
  EXPECT_EQ(put("vm:one", 1), SharingResult::kOk);
  EXPECT_EQ(put("vm:one", 1), SharingResult::kOk);
  EXPECT_EQ(put("vm:one", 3), SharingResult::kFull) << "half of what others leave";
  EXPECT_EQ(put("vm:two", 2), SharingResult::kOk);
  EXPECT_EQ(put("vm:two", 2), SharingResult::kFull);
  SharedBytes bytes{};
  SharingResult last = SharingResult::kOk;
  size_t kept = 0;
  for (size_t i = 0; i < SharedObjects::kMaxPerSession + 10; ++i) {
    bytes[1] = uint8_t(i);
    bytes[2] = uint8_t(i >> 8);
    last = objects.Put("vm:two", 2, SharedKind::kIpcMemory, bytes, {}, &token);
    kept += last == SharingResult::kOk ? 1 : 0;
  }
  EXPECT_EQ(last, SharingResult::kFull);
  EXPECT_EQ(kept + 1, SharedObjects::kMaxPerSession) << "with the descriptor";
  for (uint64_t session = 4; session < 9; ++session) {
    for (size_t i = 0; i < SharedObjects::kMaxPerSession; ++i) {
      bytes[1] = uint8_t(i);
      bytes[2] = uint8_t(i >> 8);
      last = objects.Put("vm:two", session, SharedKind::kIpcMemory, bytes, {}, &token);
    }
  }
  EXPECT_EQ(last, SharingResult::kFull);
  EXPECT_LE(objects.size(), 2 + SharedObjects::kMaxPerScope) << "of all of its sessions";
}

}  // namespace
}  // namespace causeway::daemon
