// SPDX-License-Identifier: Apache-2.0
// Lists of remote hosts, what hosts answer, and which one is chosen.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "ivshmem_ring/hosts/host_choice.h"
#include "ivshmem_ring/hosts/host_list.h"

namespace causeway {
namespace {

constexpr uint64_t kGib = 1u << 30;
using State = HostAnswer::State;

TEST(HostList, EachFormOfAnAddressIsRead) {
  const struct {
    const char *text, *host, *port, *whole;
  } kGood[] = {
      {"tls://a", "a", "7471", "tls://a:7471"},
      {"tcp://a", "a", "7470", "tcp://a:7470"},
      {"tls://gpu1.example:80", "gpu1.example", "80", "tls://gpu1.example:80"},
      {"tls://[2001:db8::1]", "2001:db8::1", "7471", "tls://[2001:db8::1]:7471"},
      {"tls://[::1]:65535", "::1", "65535", "tls://[::1]:65535"},
  };
  for (const auto& good : kGood) {
    HostAddress address;
    EXPECT_EQ(ParseHost(good.text, &address), "") << good.text;
    EXPECT_EQ(address.host, good.host);
    EXPECT_EQ(address.port, good.port);
    EXPECT_EQ(address.text, good.whole);
    EXPECT_EQ(address.encrypted, good.text[1] == 'l');
  }
  for (const char* bad : {"", "a", "a:1", "tls://", "tls://:1", "tls://a:", "tls://a:x", "tls://a:65536",
                          "tls://::1", "tls://[::1", "tls://[]:1", "tls://[::1]1", "tls://a b", "tls://a/b",
                          "tls://a:1:2", "http://a", "tls://[a]", "tls://[[\n]", "tls://a\x1b"}) {
    HostAddress address;
    EXPECT_NE(ParseHost(bad, &address), "") << bad;
  }
}

TEST(HostList, ListsAndFilesNameEachHostOnce) {
  std::vector<HostAddress> hosts;
  EXPECT_EQ(ParseHostList("tls://a, tls://b:1 ,tcp://c", &hosts), "");
  ASSERT_EQ(hosts.size(), 3u);
  EXPECT_EQ(hosts[1].text, "tls://b:1");
  for (const char* bad : {"", ",", "tls://a,", "tls://a,,tls://b", "tls://a,tls://a:7471", "tls://a tls://b"})
    EXPECT_NE(ParseHostList(bad, &hosts), "") << bad;
  std::string many = "tls://h";
  for (size_t i = 1; i <= kMaxHosts; ++i) many += ",tls://h" + std::to_string(i);
  EXPECT_NE(ParseHostList(many, &hosts).find("more than"), std::string::npos);
  EXPECT_EQ(ParseHostsFile("# first\n\n tls://a # the large one\r\n\ttls://b", &hosts), "");
  ASSERT_EQ(hosts.size(), 2u);
  EXPECT_EQ(hosts[0].text, "tls://a:7471");
  EXPECT_EQ(ParseHostsFile("# none\n", &hosts), "it names no host");
  EXPECT_EQ(ParseHostsFile("tls://a\nb\n", &hosts),
            "line 2: 'b' is neither tls://host:port nor tcp://host:port");
  EXPECT_NE(ReadHostsFile("/nonexistent", &hosts), "");
}

TEST(HostList, AHostMayHaveAKeyOfItsOwn) {
  const std::string key = ::testing::TempDir() + "host-choice-key-" + std::to_string(getpid());
  setenv("CAUSEWAY_KEY", key.c_str(), 1);
  HostAddress one, other;
  ASSERT_EQ(ParseHost("tls://a:1", &one), "");
  ASSERT_EQ(ParseHost("tls://b", &other), "");
  EXPECT_EQ(KeyFileFor(one), key);
  std::ofstream(key + ".b") << "key";
  EXPECT_EQ(KeyFileFor(one), key);
  EXPECT_EQ(KeyFileFor(other), key + ".b");
  unlink((key + ".b").c_str());
  unsetenv("CAUSEWAY_KEY");
}

PoolGpu Gpu(uint64_t memory, uint64_t free, uint32_t load) {
  PoolGpu gpu{memory, free, load, 0, {1, 2, 3}, {}};
  std::strcpy(gpu.name, "A GPU\n");
  return gpu;
}

TEST(PoolAnswerBytes, WhatIsWrittenIsRead) {
  HostFigures figures;
  ASSERT_TRUE(ReadPoolAnswer(PoolAnswerBytes(3, {Gpu(10, 11, 101), Gpu(20, 5, kLoadUnknown)}), &figures));
  EXPECT_EQ(figures.sessions, 3u);
  ASSERT_EQ(figures.gpus.size(), 2u);
  EXPECT_EQ(figures.gpus[0].free_bytes, 10u) << "no more than there is";
  EXPECT_EQ(figures.gpus[0].load_percent, 100);
  EXPECT_EQ(figures.gpus[0].name, "A GPU?");
  EXPECT_EQ(figures.gpus[0].uuid, "GPU-01020300-0000-0000-0000-000000000000");
  EXPECT_EQ(figures.gpus[1].load_percent, -1);
  EXPECT_TRUE(ReadPoolAnswer(PoolAnswerBytes(0, std::vector<PoolGpu>(100)), &figures));
  EXPECT_EQ(figures.gpus.size(), kMaxPoolGpus);
}

TEST(PoolAnswerBytes, ALaterReleasesAnswerIsReadAndAnyOtherRefused) {
  auto bytes = PoolAnswerBytes(1, {Gpu(2, 1, 0)});
  HostFigures figures;
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(ReadPoolAnswer(std::span(bytes).first(size), &figures)) << size;
  PoolAnswer answer;
  std::memcpy(&answer, bytes.data(), sizeof answer);
  const auto with = [&](uint32_t count, uint32_t gpu_bytes, size_t size) {
    answer.gpu_count = count;
    answer.gpu_bytes = gpu_bytes;
    auto changed = bytes;
    std::memcpy(changed.data(), &answer, sizeof answer);
    changed.resize(size);
    return ReadPoolAnswer(changed, &figures);
  };
  const size_t gpu = sizeof(PoolGpu), all = sizeof answer;
  EXPECT_TRUE(with(1, gpu + 8, all + gpu + 8));
  EXPECT_EQ(figures.gpus[0].memory_bytes, 2u);
  EXPECT_TRUE(with(0, gpu, all));
  EXPECT_FALSE(with(1, gpu - 8, all + gpu - 8));
  EXPECT_FALSE(with(1, 0, all));
  EXPECT_FALSE(with(2, gpu, all + gpu));
  EXPECT_FALSE(with(kMaxPoolGpus + 1, gpu, all + (kMaxPoolGpus + 1) * gpu));
  EXPECT_FALSE(with(1, 0xffffffff, all + gpu));
}

HostAnswer Up(std::initializer_list<HostGpu> gpus, uint32_t sessions = 0) {
  return {State::kUp, "", {sessions, gpus}};
}
HostGpu Free(double gib, int load = 0, const char* uuid = "GPU-00") {
  return {80 * kGib, static_cast<uint64_t>(gib * kGib), load, uuid, ""};
}
std::vector<size_t> Order(std::vector<HostAnswer> answers, const char* devices = "") {
  return OrderHosts(answers, devices);
}
using Places = std::vector<size_t>;

TEST(OrderHosts, ByFreeMemoryAndLoad) {
  EXPECT_EQ(Order({Up({Free(10)}), Up({Free(40)}), Up({Free(20)})}), (Places{1, 2, 0}));
  EXPECT_EQ(Order({Up({Free(40, 90)}), Up({Free(20, 0)})}), (Places{1, 0}));
  EXPECT_EQ(Order({Up({Free(40, 100)}), Up({Free(20, 100)})}), (Places{0, 1})) << "all busy: memory decides";
  EXPECT_EQ(Order({Up({Free(40, -1)}), Up({Free(20, 0)})}), (Places{0, 1}));
  // The best GPU of a host counts, not their sum.
  EXPECT_EQ(Order({Up({Free(30), Free(30), Free(30)}), Up({Free(50)})}), (Places{1, 0}));
}

TEST(OrderHosts, OfHostsThatAreAlikeTheFirstGoesFirst) {
  EXPECT_EQ(Order({Up({Free(37)}), Up({Free(40)}), Up({Free(40)})}), (Places{0, 1, 2}));
  EXPECT_EQ(Order({Up({Free(35)}), Up({Free(40)})}), (Places{1, 0}));
  EXPECT_EQ(Order({Up({Free(0)}), Up({Free(0)})}), (Places{0, 1}));
}

TEST(OrderHosts, OwnSessionsCountForEachGpu) {
  EXPECT_EQ(Order({Up({Free(40)}, 1), Up({Free(40)})}), (Places{1, 0}));
  EXPECT_EQ(Order({Up({Free(40)}, 1), Up({Free(15)})}), (Places{0, 1}));
  EXPECT_EQ(Order({Up({Free(40), Free(40), Free(40), Free(40)}, 1), Up({Free(30)})}), (Places{0, 1}));
}

TEST(OrderHosts, OthersComeLastOrNotAtAll) {
  const HostAnswer unknown{State::kUnknown, "old", {}}, full{State::kFull, "full", {}},
      down{State::kDown, "no", {}};
  EXPECT_EQ(Order({unknown, full, Up({Free(1)}), down, unknown}), (Places{2, 0, 4}));
  EXPECT_EQ(Order({full, down}), Places{});
  EXPECT_EQ(Order({}), Places{});
}

TEST(OrderHosts, OnlyTheGpusThatTheProgramNamesCount) {
  const HostAnswer both = Up({Free(40, 0, "GPU-aa11"), Free(5, 0, "GPU-bb22")});
  const HostAnswer other = Up({Free(20, 0, "GPU-bb33")});
  EXPECT_EQ(Order({both, other}, "GPU-bb"), (Places{1, 0}));
  EXPECT_EQ(Order({both, other}, "GPU-bb22,GPU-bb33"), (Places{1, 0}));
  EXPECT_EQ(Order({both, other}, "GPU-aa"), Places{0});
  EXPECT_EQ(Order({both, other}, "1"), (Places{0, 1})) << "numbers count on each host";
  std::vector<HostAnswer> answers = {other};
  EXPECT_TRUE(OrderHosts(answers, "GPU-aa").empty());
  EXPECT_EQ(answers[0].state, State::kFull);
  EXPECT_NE(answers[0].reason, "");
}

}  // namespace
}  // namespace causeway
