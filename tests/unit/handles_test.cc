// SPDX-License-Identifier: Apache-2.0
// The worker's handle table: what is not alive is not found, and what ends with its owner goes with it.
#include "host_backend/handles.h"

#include <gtest/gtest.h>

namespace causeway::host {
namespace {

void* Pointer(uintptr_t value) {
  return reinterpret_cast<void*>(value);
}

constexpr WireHandle kModule = MakeWireHandle(HandleKind::kModule, 1, 7);
constexpr WireHandle kFunction = MakeWireHandle(HandleKind::kFunction, 1, 8);
constexpr WireHandle kContext = MakeWireHandle(HandleKind::kContext, 1, 9);

TEST(HandlesTest, FindsOnlyTheExactNumberAndKind) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  EXPECT_EQ(table.Find(HandleKind::kModule, kModule), Pointer(0x10));
  EXPECT_EQ(table.Find(HandleKind::kFunction, kModule), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kModule, MakeWireHandle(HandleKind::kModule, 2, 7)), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kModule, MakeWireHandle(HandleKind::kModule, 1, 6)), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kModule, ~WireHandle{0}), nullptr);
}

TEST(HandlesTest, RefusesNumbersOutOfRangeAndOfAnotherKind) {
  HandleTable table;
  EXPECT_FALSE(table.Bind(HandleKind::kModule, kFunction, Pointer(0x10)));
  EXPECT_FALSE(
      table.Bind(HandleKind::kModule, MakeWireHandle(HandleKind::kModule, 1, kMaxHandles), Pointer(0x10)));
  EXPECT_FALSE(table.Bind(HandleKind::kCount, MakeWireHandle(HandleKind::kCount, 1, 3), Pointer(0x10)));
  EXPECT_EQ(table.live(), 0u);
}

TEST(HandlesTest, ChildrenEndWithTheirOwner) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10), kContext));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), kModule));
  EXPECT_EQ(table.Parent(kFunction), kModule);
  table.Unbind(kModule);
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
  EXPECT_EQ(table.Reverse(HandleKind::kFunction, Pointer(0x20)), 0u);
  EXPECT_EQ(table.Find(HandleKind::kContext, kContext), Pointer(0x1));
  EXPECT_EQ(table.live(), 1u);
}

TEST(HandlesTest, AnEmptiedOwnerStays) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10), kContext));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), kModule));
  table.UnbindChildren(kContext);
  EXPECT_EQ(table.Find(HandleKind::kContext, kContext), Pointer(0x1));
  EXPECT_EQ(table.Find(HandleKind::kModule, kModule), nullptr);
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
}

TEST(HandlesTest, AnAdoptedObjectEndsWithItsNewOwner) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kContext, kContext, Pointer(0x1)));
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10), kContext));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), kContext));
  table.Adopt(kFunction, kModule);
  table.Adopt(kModule, kFunction);  // nobody owns his owner
  table.Adopt(kModule, kModule);
  EXPECT_EQ(table.Parent(kFunction), kModule);
  EXPECT_EQ(table.Parent(kModule), kContext);
  table.Unbind(kModule);
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
  EXPECT_EQ(table.live(), 1u);
  table.Adopt(kFunction, kContext);  // both must be alive
  EXPECT_EQ(table.Parent(kFunction), 0u);
}

TEST(HandlesTest, APointerThatIsUsedAgainGetsItsNewNumber) {
  HandleTable table;
  ASSERT_TRUE(table.Bind(HandleKind::kModule, kModule, Pointer(0x10)));
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, kFunction, Pointer(0x20), kModule));
  table.Unbind(kModule);
  const WireHandle second = MakeWireHandle(HandleKind::kFunction, 2, 8);
  ASSERT_TRUE(table.Bind(HandleKind::kFunction, second, Pointer(0x20)));
  EXPECT_EQ(table.Reverse(HandleKind::kFunction, Pointer(0x20)), second);
  EXPECT_EQ(table.Find(HandleKind::kFunction, kFunction), nullptr);
}

}  // namespace
}  // namespace causeway::host
