// SPDX-License-Identifier: Apache-2.0
// ivshmem_ring/transport/layout.h and kernel_module/causeway_uapi.h describe the same bytes, or this does not
// compile.
#include "ivshmem_ring/transport/layout.h"

#include <gtest/gtest.h>

#include "kernel_module/causeway_uapi.h"

namespace causeway {
namespace {

static_assert(CAUSEWAY_MAGIC == kRegionMagic);
static_assert(CAUSEWAY_ABI_MAJOR == kAbiMajor);
static_assert(CAUSEWAY_GRANULE_BYTES == kGranuleBytes);
static_assert(CAUSEWAY_HOST_PAGE_OFFSET == kHostPageOffset);
static_assert(CAUSEWAY_GUEST_PAGE_OFFSET == kGuestPageOffset);
static_assert(CAUSEWAY_OWNER_TABLE_OFFSET == kOwnerTableOffset);
static_assert(CAUSEWAY_MAX_SLOTS == kMaxSlots);
static_assert(CAUSEWAY_GUEST_FREE == static_cast<uint32_t>(SlotGuestState::kFree));
static_assert(CAUSEWAY_GUEST_OPEN == static_cast<uint32_t>(SlotGuestState::kOpen));
static_assert(CAUSEWAY_GUEST_DYING == static_cast<uint32_t>(SlotGuestState::kDying));
static_assert(CAUSEWAY_HOST_CLOSED == static_cast<uint32_t>(SlotHostState::kClosed));
static_assert(CAUSEWAY_HOST_CONTROL_OFFSET == kHostControlOffset);
static_assert(CAUSEWAY_HOST_CONTROL_BYTES >= sizeof(HostControl));
static_assert(CAUSEWAY_GUEST_RINGS == kGuestRings);
static_assert(CAUSEWAY_SLOT_WORD(0x123456u, 2u) == SlotWord(0x123456, 2));

// Both structs have the field, at the same place and of the same size.
template <class A, class B>
constexpr bool Same(size_t a_offset, size_t b_offset) {
  return a_offset == b_offset && sizeof(A) == sizeof(B);
}
#define EXPECT_SAME_FIELD(c_struct, cpp_struct, field)                        \
  static_assert(Same<decltype(c_struct::field), decltype(cpp_struct::field)>( \
      offsetof(struct c_struct, field), offsetof(cpp_struct, field)))

static_assert(sizeof(causeway_superblock) == sizeof(Superblock));
EXPECT_SAME_FIELD(causeway_superblock, Superblock, magic);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, abi_major);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, abi_minor);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, header_bytes);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, region_bytes);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, features);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, host_epoch);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, api_hash);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, slot_count);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, granule_bytes);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, granule_count);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, channel_count);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, window_address);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, uuid);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, crc32);
EXPECT_SAME_FIELD(causeway_superblock, Superblock, reserved);

static_assert(sizeof(causeway_host_page) == sizeof(HostPage));
EXPECT_SAME_FIELD(causeway_host_page, HostPage, beat);
EXPECT_SAME_FIELD(causeway_host_page, HostPage, state);
EXPECT_SAME_FIELD(causeway_host_page, HostPage, reset_acknowledged);
EXPECT_SAME_FIELD(causeway_host_page, HostPage, slot);

static_assert(sizeof(causeway_guest_page) == sizeof(GuestPage));
EXPECT_SAME_FIELD(causeway_guest_page, GuestPage, epoch);
EXPECT_SAME_FIELD(causeway_guest_page, GuestPage, features);
EXPECT_SAME_FIELD(causeway_guest_page, GuestPage, slot);
EXPECT_SAME_FIELD(causeway_guest_page, GuestPage, pid);
EXPECT_SAME_FIELD(causeway_guest_page, GuestPage, uid);

#undef EXPECT_SAME_FIELD

TEST(Layout, CountsFollowFromTheRegionsSize) {
  for (uint64_t bytes = kMinRegionBytes; bytes <= uint64_t{kMaxGranules} * kGranuleBytes; bytes *= 2) {
    const uint32_t slots = SlotCount(bytes);
    EXPECT_GE(slots, 1u);
    EXPECT_LE(slots, kMaxSlots);
    EXPECT_LE(GranuleCount(bytes), kMaxGranules);
    EXPECT_EQ(uint64_t{GranuleCount(bytes)} * kGranuleBytes, bytes);
    EXPECT_EQ(FirstSliceOffset(slots), SlotOffset(slots - 1) + kGranuleBytes);
    // Slots never take more than an eighth of a region and a granule.
    EXPECT_LE(FirstSliceOffset(slots), bytes / 8 + kGranuleBytes);
  }
  EXPECT_EQ(SlotCount(kMinRegionBytes), 4u);
}

TEST(Layout, SlotWordsKeepSessionAndState) {
  const uint32_t word = SlotWord(0xabcdef, static_cast<uint32_t>(SlotHostState::kFatal));
  EXPECT_EQ(SlotSession(word), 0xabcdefu);
  EXPECT_EQ(SlotState(word), static_cast<uint32_t>(SlotHostState::kFatal));
}

}  // namespace
}  // namespace causeway
