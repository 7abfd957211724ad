// SPDX-License-Identifier: Apache-2.0
// Time slices of channel groups, against a driver that the test plays: what is noted of what NVIDIA's library asks, what is asked
// of the driver, and that a driver which answers otherwise is left alone.
#include "host_backend/worker/slices/channel_groups.h"

#include <errno.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace causeway::host {
namespace {

constexpr unsigned long Request(unsigned number, size_t bytes) {
  return (3ul << 30) | (bytes << 16) | ('F' << 8) | number;
}

struct Group {
  uint32_t error = 0, ecc_error = 0, address_space = 7, engine = 1;
};
struct Control {
  uint32_t client, object, command, flags;
  void* parameters;
  uint32_t size, status;
};

// The driver: slices of groups by client and handle.
struct Rm {
  std::map<std::pair<uint32_t, uint32_t>, uint64_t> slice_us;
  int system = 0;
  uint32_t set_status = 0;
  int asked = 0, was_set = 0;
};
Rm rm;

int AskRm(int descriptor, unsigned long request, void* argument) {
  EXPECT_EQ(descriptor, 5);
  EXPECT_EQ(request, Request(0x2a, sizeof(Control)));
  ++rm.asked;
  if (rm.system != 0) {
    errno = rm.system;
    return -1;
  }
  auto& control = *static_cast<Control*>(argument);
  EXPECT_EQ(control.size, sizeof(uint64_t));
  const auto group = rm.slice_us.find({control.client, control.object});
  control.status = group == rm.slice_us.end() ? 0x57 : 0;
  if (control.status != 0) return 0;
  if (control.command == 0xa06c0104) {
    std::memcpy(control.parameters, &group->second, sizeof group->second);
  } else {
    EXPECT_EQ(control.command, 0xa06c0103u);
    ++rm.was_set;
    control.status = rm.set_status;
    if (control.status == 0) std::memcpy(&group->second, control.parameters, sizeof group->second);
  }
  return 0;
}

class ChannelGroupsTest : public testing::Test {
 protected:
  ChannelGroupsTest() : groups_(AskRm, [this](const std::string& sentence) { log_ += sentence + "\n"; }) {
    rm = {};
  }

  // As NVIDIA's library makes a group, and sets its slice.
  void Make(uint32_t client, uint32_t handle, bool long_form, uint32_t engine = 1, uint32_t status = 0,
            uint32_t object_class = 0xa06c) {
    Group group;
    group.engine = engine;
    alignas(8) char bytes[48] = {};
    const uint32_t words[4] = {client, 1, handle, object_class};
    const void* parameters = &group;
    std::memcpy(bytes, words, sizeof words);
    std::memcpy(bytes + 16, &parameters, sizeof parameters);
    std::memcpy(bytes + (long_form ? 40 : 28), &status, sizeof status);
    groups_.Note(5, Request(0x2b, long_form ? 48 : 32), bytes);
    rm.slice_us[{client, handle}] = 0;
  }
  void LibrarySets(uint32_t client, uint32_t handle, uint64_t slice_us) {
    rm.slice_us[{client, handle}] = slice_us;
    Control control{client, handle, 0xa06c0103, 0, &slice_us, sizeof slice_us, 0};
    groups_.Note(5, Request(0x2a, sizeof control), &control);
  }
  void Free(uint32_t client, uint32_t handle) {
    const uint32_t freed[4] = {client, 1, handle, 0};
    groups_.Note(5, Request(0x29, sizeof freed), freed);
    rm.slice_us.erase({client, handle});
  }

  std::string log_;
  ChannelGroups groups_;
};

TEST_F(ChannelGroupsTest, AllComputeGroupsAreSetAndComeBack) {
  Make(1, 10, false);
  Make(1, 11, true);
  Make(1, 12, true, 9);             // of a copy engine
  Make(1, 13, true, 1, 0x1f);       // refused
  Make(1, 14, true, 1, 0, 0xc86f);  // a channel
  for (uint32_t handle : {10, 11}) LibrarySets(1, handle, 2048);
  EXPECT_EQ(groups_.count(), 2u);
  EXPECT_TRUE(groups_.Set(512));
  EXPECT_EQ((rm.slice_us[{1, 10}]), 512u);
  EXPECT_EQ((rm.slice_us[{1, 11}]), 512u);
  EXPECT_EQ((rm.slice_us[{1, 12}]), 0u);
  Free(1, 10);
  EXPECT_EQ(groups_.count(), 1u);
  EXPECT_TRUE(groups_.Set(0));
  EXPECT_EQ((rm.slice_us[{1, 11}]), 2048u);
  EXPECT_EQ(log_, "");
  Free(1, 1);  // its client, with all that is in it
  EXPECT_EQ(groups_.count(), 0u);
  EXPECT_FALSE(groups_.Set(512));
}

// Its device was freed, which the test's driver told nobody: the other groups go on.
TEST_F(ChannelGroupsTest, AGroupThatIsGoneIsForgotten) {
  for (uint32_t handle : {10, 11}) {
    Make(1, handle, true);
    LibrarySets(1, handle, 2048);
  }
  EXPECT_TRUE(groups_.Set(512));
  rm.slice_us.erase({1, 10});
  EXPECT_TRUE(groups_.Set(600));
  EXPECT_EQ(groups_.count(), 1u);
  EXPECT_EQ((rm.slice_us[{1, 11}]), 600u);
  EXPECT_EQ(log_, "");
}

TEST_F(ChannelGroupsTest, ADriverThatSaysSomethingElseIsLeftAlone) {
  Make(1, 10, true);
  LibrarySets(1, 10, 2048);
  rm.slice_us[{1, 10}] = 7;
  EXPECT_FALSE(groups_.Set(512));
  EXPECT_FALSE(groups_.Set(600));
  EXPECT_EQ(rm.was_set, 0);
  EXPECT_EQ(log_,
            "the time slices of this process's kernels stay the driver's, because this driver says 7 us "
            "where its library "
            "has set 2048: kernels that run on for long compete with those of other VMs by equal slices\n");
}

TEST_F(ChannelGroupsTest, ALibraryThatSetsNoSlicesIsLeftAlone) {
  Make(1, 10, true);
  EXPECT_FALSE(groups_.Set(512));
  EXPECT_EQ(rm.was_set, 0);
  EXPECT_NE(log_.find("its library has set 0"), std::string::npos);
}

TEST_F(ChannelGroupsTest, ARefusalIsToldOnce) {
  Make(1, 10, true);
  LibrarySets(1, 10, 2048);
  rm.set_status = 0x1b;
  EXPECT_FALSE(groups_.Set(512));
  EXPECT_FALSE(groups_.Set(513));
  EXPECT_NE(log_.find("(errno 0, status 0x1b)"), std::string::npos) << log_;
  EXPECT_EQ(std::count(log_.begin(), log_.end(), '\n'), 1);
}

TEST_F(ChannelGroupsTest, AKernelThatRefusesIsToldOnce) {
  Make(1, 10, true);
  LibrarySets(1, 10, 2048);
  rm.system = EPERM;
  EXPECT_FALSE(groups_.Set(512));
  EXPECT_NE(log_.find("does not tell them (errno 1, status 0x0)"), std::string::npos) << log_;
}

// What other devices are asked, and what has another size, says nothing here.
TEST_F(ChannelGroupsTest, OtherRequestsAreNotNoted) {
  char bytes[64] = {};
  for (unsigned number = 0; number < 256; ++number) {
    for (const size_t size : {size_t{0}, size_t{16}, size_t{32}, size_t{40}, size_t{48}, size_t{64}})
      groups_.Note(5, Request(number, size), bytes);
    groups_.Note(5, number, bytes);
    groups_.Note(5, Request(number, 32), nullptr);
  }
  EXPECT_EQ(groups_.count(), 0u);
  EXPECT_EQ(rm.asked, 0);
}

}  // namespace
}  // namespace causeway::host
