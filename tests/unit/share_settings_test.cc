// SPDX-License-Identifier: Apache-2.0
// What each scope is to have: of the configuration, as `causeway set` has changed it, and who is paused.
#include "host_backend/daemon/shares/share_settings.h"

#include <gtest/gtest.h>

#include <memory>

#include "host_backend/common/shares/account_page.h"
#include "ivshmem_ring/system/gpu_uuid.h"

namespace causeway::daemon {
namespace {

constexpr const char* kFirst = "GPU-00000000-0000-0000-0000-000000000001";
constexpr const char* kSecond = "GPU-00000000-0000-0000-0000-000000000002";

VmConfig Vm(const std::string& name, const ShareTerms& terms, const std::vector<std::string>& gpus = {}) {
  VmConfig vm;
  vm.name = name;
  vm.share.terms = terms;
  vm.share.gpus = gpus;
  return vm;
}

uint64_t Device(const std::string& uuid) {
  return DeviceHash(UuidOf(uuid).data());
}

class ShareSettingsTest : public testing::Test {
 protected:
  ShareSettingsTest() {
    config_.vms = {Vm("a", {200, 50, 20, ShareClass::kLatency})};
    config_.remotes = {Vm("far", {7, 100, 0, ShareClass::kNormal})};
    config_.local_share.terms = {50, 90, 0, ShareClass::kBackground};
    config_.user_terms["uid:5"] = {60, 80, 10, ShareClass::kNormal};
    config_.tcp.share.terms = {3, 100, 0, ShareClass::kNormal};
    settings_.OnChange([this] { ++changes_; });
  }
  Config config_;
  ShareSettings settings_{config_};
  int changes_ = 0;
};

TEST_F(ShareSettingsTest, EachScopeHasTheTermsOfItsKind) {
  EXPECT_EQ(settings_.TermsOf("vm:a"), config_.vms[0].share.terms);
  EXPECT_EQ(settings_.TermsOf("vm:far"), config_.remotes[0].share.terms);
  EXPECT_EQ(settings_.TermsOf("vm:nobody"), ShareTerms{});
  EXPECT_EQ(settings_.TermsOf("uid:6"), config_.local_share.terms);
  EXPECT_EQ(settings_.TermsOf("container:uid:5"), config_.local_share.terms);
  EXPECT_EQ(settings_.TermsOf("tcp:10.0.0.1"), config_.tcp.share.terms);
  EXPECT_EQ(settings_.TermsOf("uid:5"), config_.user_terms["uid:5"]);
  // A user's namespaces are scopes of their own, as many as the user likes.
  EXPECT_EQ(settings_.TermsOf("uid:5:42.43"), (ShareTerms{60, 80, 0, ShareClass::kNormal}));
  EXPECT_EQ(settings_.TermsOf("uid:55"), config_.local_share.terms);
}

TEST_F(ShareSettingsTest, WhatIsSetLastsUntilTheNextReload) {
  EXPECT_EQ(settings_.Set("vm:a", {.weight = 1}), "");
  EXPECT_EQ(settings_.Set("vm:a", {.cap_percent = 30}), "");
  EXPECT_EQ(settings_.TermsOf("vm:a"), (ShareTerms{1, 30, 20, ShareClass::kLatency}));
  EXPECT_TRUE(settings_.is_set("vm:a"));
  EXPECT_EQ(settings_.Set("uid:5", {.cap_percent = 10, .reserve_percent = 5}), "");
  EXPECT_EQ(settings_.TermsOf("uid:5:42.43"), (ShareTerms{60, 10, 0, ShareClass::kNormal}));
  EXPECT_EQ(settings_.Pause("vm:a", true), "");
  EXPECT_EQ(changes_, 4);
  config_.vms[0].share.terms.weight = 9;
  settings_.Reconfigured();
  EXPECT_EQ(changes_, 5);
  EXPECT_EQ(settings_.TermsOf("vm:a"), (ShareTerms{9, 50, 20, ShareClass::kLatency, true}))
      << "it stays paused";
  EXPECT_FALSE(settings_.is_set("vm:a"));
  EXPECT_EQ(settings_.Pause("vm:a", false), "");
  EXPECT_FALSE(settings_.TermsOf("vm:a").paused);
}

TEST_F(ShareSettingsTest, AUserThatIsPausedIsSoInAllItsNamespaces) {
  EXPECT_EQ(settings_.Pause("uid:6", true), "");
  EXPECT_TRUE(settings_.TermsOf("uid:6").paused);
  EXPECT_TRUE(settings_.TermsOf("uid:6:1.2").paused);
  EXPECT_FALSE(settings_.TermsOf("uid:66").paused);
  EXPECT_FALSE(settings_.TermsOf("container:uid:6").paused);
}

TEST_F(ShareSettingsTest, WhatCannotBeKeptIsRefusedAndChangesNothing) {
  EXPECT_EQ(settings_.Set("vm:a", {.cap_percent = 19}),
            "VM a would have a reserve of 20 % above its cap of 19 %; change both.");
  EXPECT_EQ(settings_.Set("vm:a", {.reserve_percent = 51}),
            "VM a would have a reserve of 51 % above its cap of 50 %; change both.");
  EXPECT_EQ(settings_.Set("vm:far", {.reserve_percent = 71}),
            "The reserve of VM far with what uid:5, VM a have makes 101 % of one GPU, of which 100 % is all; "
            "lower one of them.");
  EXPECT_EQ(changes_, 0);
  EXPECT_EQ(settings_.Named(), (std::vector<std::string>{"uid:5", "vm:a", "vm:far"}));
  EXPECT_EQ(settings_.Set("vm:a", {.cap_percent = 19, .reserve_percent = 0}), "");
  EXPECT_EQ(settings_.Set("vm:far", {.reserve_percent = 90}), "");
}

TEST_F(ShareSettingsTest, AddedVmsKeepTheirTermsWhileTheyAreServed) {
  settings_.Keep(Vm("added", {300, 40, 30, ShareClass::kNormal}));
  EXPECT_EQ(settings_.Set("vm:added", {.weight = 5, .cap_percent = 35}), "");
  settings_.Persisted(Vm("added", {300, 35, 30, ShareClass::kNormal}), {.cap_percent = 35});
  EXPECT_EQ(settings_.TermsOf("vm:added"), (ShareTerms{5, 35, 30, ShareClass::kNormal}));
  settings_.Reconfigured();
  EXPECT_EQ(settings_.TermsOf("vm:added"), (ShareTerms{300, 35, 30, ShareClass::kNormal}));
  Config next = config_;
  EXPECT_EQ(settings_.WhyNot(next), "");
  next.vms[0].share.terms.reserve_percent = 61;
  EXPECT_EQ(
      settings_.WhyNot(next),
      "The reserve of VM added, which `causeway attach` has added, with what uid:5, VM a have makes 101 % "
      "of one GPU, of which 100 % is all; lower one of them.");
  EXPECT_EQ(settings_.Pause("vm:added", true), "");
  settings_.Forget("added");
  EXPECT_EQ(settings_.TermsOf("vm:added"), ShareTerms{}) << "another VM of that name is not paused";
}

TEST_F(ShareSettingsTest, CopiesAreCappedAsLongAsOtherSettings) {
  EXPECT_EQ(settings_.Set("vm:a", {.pcie_mib_per_s = 500}), "");
  EXPECT_EQ(settings_.TermsOf("vm:a").pcie_mib_per_s, 500u);
  ShareSettings next(config_);
  next.Restore(settings_.State());
  EXPECT_EQ(next.TermsOf("vm:a").pcie_mib_per_s, 500u);
  settings_.Reconfigured();
  EXPECT_EQ(settings_.TermsOf("vm:a").pcie_mib_per_s, 0u);
  EXPECT_EQ((ShareChange{.pcie_mib_per_s = 7}).Keys(), "`pcie_mib_per_s = 7`");
}

TEST_F(ShareSettingsTest, ScopesAreNamedAsStatusNamesThem) {
  for (const auto& [name, scope] :
       std::vector<std::pair<std::string, std::string>>{{"a", "vm:a"},
                                                        {"vm:a", "vm:a"},
                                                        {"far", "vm:far"},
                                                        {"uid:0", "uid:0"},
                                                        {"uid:1000:42.43", "uid:1000:42.43"},
                                                        {"uid:1000:elsewhere", "uid:1000:elsewhere"},
                                                        {"container:uid:1000", "container:uid:1000"},
                                                        {"namespace:42", "namespace:42"},
                                                        {"container:namespace:42", "container:namespace:42"},
                                                        {"tcp:10.0.0.1", "tcp:10.0.0.1"},
                                                        {"tcp:127.0.0.1:uid5", "tcp:127.0.0.1:uid5"},
                                                        {"tcp:::1:unknown", "tcp:::1:unknown"}}) {
    const auto found = settings_.ScopeOf(name);
    EXPECT_EQ(found.ok() ? found.value() : found.error(), scope);
  }
  for (const char* name :
       {"", "b", "vm:b", "vm:", "uid:", "uid:x", "uid:4294967295", "uid:1:", "uid:1:x", "uid:-1",
        "container:1", "container:uid:", "tcp:", "tcp:host", "tcp:10.0.0.1:uid", "tcp:10.0.0.1:5"}) {
    const auto found = settings_.ScopeOf(name);
    EXPECT_EQ(found.ok() ? "known" : found.error(),
              "causewayd serves no VM " + std::string(name) +
                  "; see `causeway status`, which also names users (uid:NUMBER) and peers.");
  }
}

TEST_F(ShareSettingsTest, TheNextDaemonGoesOnWithWhatWasSet) {
  EXPECT_TRUE(settings_.State().is_null());
  EXPECT_EQ(settings_.Set("vm:a", {.weight = 3, .cap_percent = 60, .share_class = ShareClass::kBackground}),
            "");
  EXPECT_EQ(settings_.Set("uid:6", {.reserve_percent = 0}), "");
  EXPECT_EQ(settings_.Pause("uid:6", true), "");
  EXPECT_EQ(settings_.SetTurn(kFirst, 0.5), "");
  ShareSettings next(config_);
  int changes = 0;
  next.OnChange([&] { ++changes; });
  next.Restore(Json::parse(JsonText(settings_.State())));
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(next.TermsOf("vm:a"), (ShareTerms{3, 60, 20, ShareClass::kBackground}));
  EXPECT_TRUE(next.TermsOf("uid:6").paused);
  EXPECT_TRUE(next.is_set("uid:6"));
  EXPECT_EQ(next.TurnsOf(Device(kFirst)).turn_ns, 500'000u);
  EXPECT_EQ(next.State(), settings_.State());
  // Of a record that was damaged.
  ShareSettings other(config_);
  other.Restore({{"paused", Json::array()},
                 {"set", {{"vm:a", {{"weight", 0}, {"cap", 101}, {"reserve", 101}, {"class", 3}}}}},
                 {"turn_ms", {{kFirst, 51}}}});
  EXPECT_EQ(other.TermsOf("vm:a"), config_.vms[0].share.terms);
  EXPECT_TRUE(other.State().is_null());
}

// Somebody has changed the files between two daemons.
TEST_F(ShareSettingsTest, WhatTheNextDaemonCannotKeepIsDropped) {
  EXPECT_EQ(settings_.Set("vm:a", {.weight = 3, .reserve_percent = 0}), "");
  EXPECT_EQ(settings_.Set("vm:far", {.reserve_percent = 80}), "");
  EXPECT_EQ(settings_.Set("uid:6", {.weight = 9}), "");
  const Json state = settings_.State();
  const auto taken_over = [&](const Config& config) {
    auto next = std::make_unique<ShareSettings>(config);
    next->OnChange([this] { ++changes_; });
    next->Restore(state);
    changes_ = 0;
    next->DropWhatCannotBeKept();
    return next;
  };
  // As a whole it can be kept, though not in any order: with vm:a's configured 20 % it would be too much.
  EXPECT_EQ(taken_over(config_)->State(), state);
  EXPECT_EQ(changes_, 0);
  Config other = config_;
  other.vms[0].share.gpus = {kFirst};
  other.remotes[0].share.gpus = {kSecond};
  other.user_terms["uid:5"].reserve_percent = 30;
  const auto next = taken_over(other);
  EXPECT_EQ(changes_, 1);
  EXPECT_EQ(next->TermsOf("vm:far").reserve_percent, 0u) << "80 % and the 30 of uid:5 are too much";
  EXPECT_EQ(next->TermsOf("vm:a").weight, 3u);
  EXPECT_EQ(next->TermsOf("uid:6").weight, 9u);
  // What falls back to its configuration may make another too much.
  other = config_;
  other.vms[0].share.terms = {200, 50, 50, ShareClass::kNormal};
  other.user_terms["uid:5"].reserve_percent = 30;
  EXPECT_EQ(taken_over(other)->TermsOf("vm:far").reserve_percent, 0u);
}

TEST_F(ShareSettingsTest, TurnsAreOfEachGpu) {
  EXPECT_EQ(settings_.TurnsOf(Device(kFirst)).turn_ns, TurnTerms{}.turn_ns);
  EXPECT_EQ(settings_.TurnsOf(Device(kFirst)).full_turn_ns, TurnTerms{}.full_turn_ns);
  config_.turn_ms = 20;
  config_.gpu_turn_ms[kFirst] = 0.5;
  EXPECT_EQ(settings_.TurnsOf(Device(kFirst)).turn_ns, 500'000u);
  EXPECT_EQ(settings_.TurnsOf(Device(kFirst)).full_turn_ns, 2'000'000u);
  EXPECT_EQ(settings_.TurnsOf(Device(kSecond)).turn_ns, 20'000'000u);
  EXPECT_EQ(settings_.TurnsOf(Device(kSecond)).full_turn_ns, 50'000'000u) << "never longer";
  EXPECT_EQ(settings_.SetTurn(kFirst, 3), "");
  EXPECT_EQ(settings_.TurnsOf(Device(kFirst)).turn_ns, 3'000'000u);
  settings_.Reconfigured();
  EXPECT_EQ(settings_.TurnsOf(Device(kFirst)).turn_ns, 500'000u);
  EXPECT_EQ(settings_.Gpus(), std::vector<std::string>{kFirst});
}

}  // namespace
}  // namespace causeway::daemon
