// SPDX-License-Identifier: Apache-2.0
// The filter of each profile that is compiled in can be built, as the worker builds it when it starts. (A
// rule for each pair of forms of two descriptors made libseccomp work without end: this test then met its
// limit.)
#include <gtest/gtest.h>
#include <linux/bpf_common.h>
#include <unistd.h>

#include "host_backend/sandbox/filter.h"

namespace causeway::sandbox {
namespace {

TEST(SandboxFilter, EveryProfileMakesAProgramThatTheKernelTakes) {
  ASSERT_GT(kProfileCount, 0u);
  for (unsigned i = 0; i < kProfileCount; ++i) {
    const auto profile = ParseProfile(kProfiles[i].name, kProfiles[i].text);
    ASSERT_TRUE(profile.ok()) << profile.error();
    for (const Mode mode : {Mode::kEnforce, Mode::kReport, Mode::kLearn}) {
      FilterOptions options;
      options.mode = mode;
      options.process = getpid();
      const auto program = BuildFilter(profile.value(), options);
      ASSERT_TRUE(program.ok()) << kProfiles[i].name << ": " << program.error();
      EXPECT_GT(program.value().size(), 10u) << kProfiles[i].name;
      EXPECT_LE(program.value().size(), size_t{BPF_MAXINSNS}) << kProfiles[i].name;
    }
  }
}

// Calls with two descriptors among the rest, in any company.
TEST(SandboxFilter, CallsWithTwoDescriptorsDoNotMakeItGrow) {
  std::string text;
  for (int request = 0; request < 64; ++request) text += "ioctl " + std::to_string(request) + "\n";
  text += "dup2\ndup3\nepoll_ctl\nrenameat\nrenameat2\nfcntl 6\n";
  const auto profile = ParseProfile("two", text);
  ASSERT_TRUE(profile.ok()) << profile.error();
  FilterOptions options;
  options.process = getpid();
  const auto program = BuildFilter(profile.value(), options);
  ASSERT_TRUE(program.ok()) << program.error();
  EXPECT_LE(program.value().size(), size_t{BPF_MAXINSNS});
}

}  // namespace
}  // namespace causeway::sandbox
