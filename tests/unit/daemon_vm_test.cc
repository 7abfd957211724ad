// SPDX-License-Identifier: Apache-2.0
// A VM's region, with this test in the place of the guest's kernel module.
#include <linux/futex.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "host_backend/command/command.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {
namespace {

using command::StatusValue;

class VmTest : public DaemonFixture {
 protected:
  static void SetEpoch(GuestRegion& guest, uint64_t epoch) {
    __atomic_store_n(&guest.guest_page().epoch, epoch, __ATOMIC_RELEASE);
  }
  static bool WaitForAcknowledged(GuestRegion& guest, uint64_t epoch) {
    return WaitFor(
        [&] { return __atomic_load_n(&guest.host_page().reset_acknowledged, __ATOMIC_ACQUIRE) == epoch; });
  }
  static void Serve(GuestRegion& guest, uint32_t slot, uint32_t session) {
    guest.Open(slot, session);
    ASSERT_TRUE(guest.WaitForHostWord(slot, session, SlotHostState::kServing)) << guest.refusal(slot);
    ASSERT_TRUE(WaitFor([&] { return guest.host_control(slot).ready.value == 1; }));
  }
  static void Release(GuestRegion& guest, uint32_t slot, uint32_t session) {
    guest.SetWord(slot, session, SlotGuestState::kDying);
    ASSERT_TRUE(guest.WaitForHostWord(slot, session, SlotHostState::kClosed));
  }
};

TEST_F(VmTest, LifeOfASlot) {
  StartDaemon("ok", VmConfig());
  GuestRegion guest(region_file());
  SetEpoch(guest, 0x1234);
  ASSERT_TRUE(WaitForAcknowledged(guest, 0x1234));
  const uint64_t beat = guest.host_page().beat;
  EXPECT_TRUE(WaitFor([&] { return guest.host_page().beat >= beat + 2; }));

  Serve(guest, 2, 7);
  const std::string session = WaitForSession("serving");
  EXPECT_EQ(StatusValue(session, "", "vm"), "guest");
  EXPECT_EQ(StatusValue(session, "", "slot"), "2");
  EXPECT_EQ(StatusValue(session, "", "session"), "7");

  // Slices 10 and 20 are this slot's, 11 is another's: only the first two lose their content.
  for (const uint32_t granule : {10u, 11u, 20u}) guest.granule(granule)[5] = 'x';
  guest.owners()[10] = guest.owners()[20] = 3;
  guest.owners()[11] = 1;
  EXPECT_EQ(StatusValue(Status(), "regions", "slices_free"), "24");
  Release(guest, 2, 7);
  EXPECT_EQ(guest.granule(10)[5], 0);
  EXPECT_EQ(guest.granule(20)[5], 0);
  EXPECT_EQ(guest.granule(11)[5], 'x');
  EXPECT_EQ(guest.guest_control(2).open.magic, 0u) << "the slot itself is zeroed";
  EXPECT_TRUE(WaitForNoSession());

  guest.SetWord(2, 7, SlotGuestState::kFree);
  Serve(guest, 2, 8);
  Release(guest, 2, 8);
  EXPECT_EQ(Counter("violations"), 0u);
}

// This test in the place of a worker's thread that sleeps for its link. False: nobody woke it.
bool SleepFor(HotWord& tail, HotWord& waiting, time_t seconds, long ns) {
  const timespec bound{seconds, ns};
  __atomic_store_n(&waiting.value, 1, __ATOMIC_RELEASE);
  const auto seen = static_cast<uint32_t>(tail.value);
  const long result = syscall(SYS_futex, &tail.value, FUTEX_WAIT, seen, &bound, nullptr, 0);
  __atomic_store_n(&waiting.value, 0, __ATOMIC_RELEASE);
  return result == 0;
}

TEST_F(VmTest, ASleepingWorkerIsWokenForWhatItsGuestSends) {
  constexpr uint32_t kChannel = 5;
  StartDaemon("ok", VmConfig());
  GuestRegion guest(region_file());
  Serve(guest, 1, 1);
  HostControl& host = guest.host_control(1);
  GuestControl& control = guest.guest_control(1);
  auto& request = control.channel[kChannel].request_tail;
  auto& waiting = host.channel[kChannel].waiting;
  host.main_head.value = 0;  // the fake worker's mark
  EXPECT_FALSE(SleepFor(control.main_tail, host.main_waiting, 0, 50'000'000)) << "nothing was sent";
  control.main_tail.value = 128;
  EXPECT_TRUE(SleepFor(control.main_tail, host.main_waiting, 20, 0));
  host.main_head.value = 128;
  EXPECT_FALSE(SleepFor(control.main_tail, host.main_waiting, 0, 50'000'000)) << "it was taken";
  request.value = 64;
  EXPECT_FALSE(SleepFor(request, waiting, 0, 50'000'000)) << "no thread serves the channel";
  __atomic_store_n(&host.open_channels.value, uint64_t{1} << kChannel, __ATOMIC_RELEASE);
  EXPECT_TRUE(SleepFor(request, waiting, 20, 0));
  Release(guest, 1, 1);
}

TEST_F(VmTest, RefusalAndWorkerDeath) {
  StartDaemon("ok", VmConfig());
  GuestRegion guest(region_file());
  OpenBlock block = guest.GoodOpenBlock();
  block.api_hash = 1;
  guest.Open(0, 1, block);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kRefused));
  EXPECT_NE(guest.refusal(0).find("(rows 0000000000000001), for which this host, of release "),
            std::string::npos)
      << guest.refusal(0);
  Release(guest, 0, 1);

  Serve(guest, 0, 2);
  kill(std::atoi(StatusValue(WaitForSession("serving"), "", "worker_pid").c_str()), SIGKILL);
  ASSERT_TRUE(guest.WaitForHostWord(0, 2, SlotHostState::kFatal));
  EXPECT_NE(guest.refusal(0).find("was killed by signal 9"), std::string::npos);
  Release(guest, 0, 2);
}

TEST_F(VmTest, AGuestOfAnotherReleaseGetsTheWorkerOfItsRows) {
  const std::string workers = folder() + "/workers", older = workers + "/0000000000000007";
  std::filesystem::create_directories(older);
  std::filesystem::copy_file(FAKE_WORKER_PATH, older + "/causeway-worker");
  std::ofstream(older + "/release") << "0.0.9\n";
  StartDaemon("ok", "workers = \"" + workers + "\"\n" + VmConfig());
  GuestRegion guest(region_file());
  EXPECT_EQ(guest.superblock().features, kHostChoosesWorker);
  OpenBlock block = guest.GoodOpenBlock();
  block.api_hash = 7;
  std::strcpy(block.release, "0.0.9");
  for (const SessionKind kind : {SessionKind::kCuda, SessionKind::kManagement}) {
    block.kind = kind;
    const uint32_t session = 1 + uint32_t(kind);
    guest.Open(0, session, block);
    ASSERT_TRUE(guest.WaitForHostWord(0, session, SlotHostState::kServing)) << guest.refusal(0);
    const std::string text = WaitForSession("serving");
    EXPECT_EQ(StatusValue(text, "", "release"), "0.0.9");
    const std::string program = "/proc/" + StatusValue(text, "", "worker_pid") + "/exe";
    EXPECT_EQ(std::filesystem::read_symlink(program).string(), older + "/causeway-worker");
    Release(guest, 0, session);
  }
  Serve(guest, 0, 3);  // of this release, by a spare
  Release(guest, 0, 3);
  // Whatever it says of its release, and whether it says so at all.
  std::filesystem::remove(older + "/causeway-worker");
  std::memset(block.release, '%', sizeof block.release);
  guest.Open(0, 4, block);
  ASSERT_TRUE(guest.WaitForHostWord(0, 4, SlotHostState::kRefused));
  EXPECT_EQ(
      guest.refusal(0).find("The guest's Causeway library is of release unknown (rows 0000000000000007), for "
                            "which this host, of release "),
      0u)
      << guest.refusal(0);
}

TEST_F(VmTest, AWorkerOfOtherRowsThanItsPlaceSaysServesNobody) {
  StartDaemon("foreign", VmConfig());
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kRefused));
  EXPECT_NE(guest.refusal(0).find("where one for rows"), std::string::npos) << guest.refusal(0);
}

TEST_F(VmTest, AWorkerThatSpeaksAnotherVersionServesNobody) {
  StartDaemon("later", VmConfig());
  GuestRegion guest(region_file());
  guest.Open(0, 1);
  ASSERT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kRefused));
  EXPECT_NE(guest.refusal(0).find("speaks version 99 to its daemon, and this one, "), std::string::npos)
      << guest.refusal(0);
}

TEST_F(VmTest, SessionsPerVmAreLimited) {
  StartDaemon("ok", VmConfig(64, "max_sessions = 1\n"));
  GuestRegion guest(region_file());
  Serve(guest, 0, 1);
  guest.Open(1, 1);
  ASSERT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kRefused));
  EXPECT_NE(guest.refusal(1).find("VM guest has 1 sessions"), std::string::npos) << guest.refusal(1);
}

TEST_F(VmTest, NewGuestEpochEndsEverySession) {
  StartDaemon("stubborn", VmConfig());
  GuestRegion guest(region_file());
  SetEpoch(guest, 1);
  ASSERT_TRUE(WaitForAcknowledged(guest, 1));
  Serve(guest, 0, 1);
  Serve(guest, 1, 1);
  guest.granule(30)[0] = 'x';  // nobody's, but of the guest of before
  guest.SetWord(0, 1, SlotGuestState::kFree);
  guest.SetWord(1, 1, SlotGuestState::kFree);
  SetEpoch(guest, 2);
  ASSERT_TRUE(WaitForAcknowledged(guest, 2));
  EXPECT_EQ(LogText().find("did not end when asked"), std::string::npos) << "killed at once, not asked";
  EXPECT_EQ(guest.host_page().slot[0], SlotWord(1, uint32_t(SlotHostState::kClosed)));
  EXPECT_EQ(guest.granule(30)[0], 0);
  EXPECT_TRUE(WaitForNoSession());
  Serve(guest, 0, 2);
  SetEpoch(guest, 0);  // no module: nothing happens
  usleep(50'000);
  EXPECT_EQ(guest.host_page().slot[0], SlotWord(2, uint32_t(SlotHostState::kServing)));
}

TEST_F(VmTest, DaemonRestart) {
  StartDaemon("ok", VmConfig());
  GuestRegion guest(region_file());
  SetEpoch(guest, 5);
  ASSERT_TRUE(WaitForAcknowledged(guest, 5));
  Serve(guest, 0, 3);
  Serve(guest, 1, 4);
  KillDaemon();
  guest.granule(12)[0] = 'x';
  guest.owners()[12] = 2;
  guest.SetWord(1, 4, SlotGuestState::kDying);  // released while no daemon runs
  guest.Open(2, 6);                             // opened while no daemon runs
  std::filesystem::remove(folder() + "/log");
  StartDaemon("ok", VmConfig());
  EXPECT_TRUE(WaitForAcknowledged(guest, 5));
  EXPECT_TRUE(guest.WaitForHostWord(0, 3, SlotHostState::kFatal));
  EXPECT_NE(guest.refusal(0).find("The host daemon was restarted"), std::string::npos);
  EXPECT_TRUE(guest.WaitForHostWord(1, 4, SlotHostState::kClosed));
  EXPECT_EQ(guest.granule(12)[0], 0) << "closed without its memory having been zeroed";
  EXPECT_TRUE(guest.WaitForHostWord(2, 6, SlotHostState::kServing));
  Release(guest, 0, 3);
  Serve(guest, 0, 9);
}

TEST_F(VmTest, WordsThatMeanNothing) {
  StartDaemon("ok", VmConfig());
  GuestRegion guest(region_file());
  Serve(guest, 0, 5);
  Serve(guest, 1, 5);
  guest.SetWord(0, 5, SlotGuestState(77));
  ASSERT_TRUE(guest.WaitForHostWord(0, 5, SlotHostState::kClosed));
  guest.SetWord(0, 5, SlotGuestState::kFree);
  guest.SetWord(0, 4, SlotGuestState::kOpen);  // an older session's number
  EXPECT_TRUE(WaitFor([&] { return Counter("violations") >= 2; }));
  EXPECT_EQ(guest.host_page().slot[0], SlotWord(5, uint32_t(SlotHostState::kClosed)));
  Serve(guest, 0, 6);
  guest.Open(0, 8);  // without having released 6
  // Closing 6 has zeroed the slot, and with it what 8 said of itself.
  ASSERT_TRUE(guest.WaitForHostWord(0, 8, SlotHostState::kRefused));
  EXPECT_NE(guest.refusal(0).find("has the wrong magic 0x0"), std::string::npos) << guest.refusal(0);
  Release(guest, 0, 8);
  EXPECT_EQ(guest.host_page().slot[1], SlotWord(5, uint32_t(SlotHostState::kServing)))
      << "the other session goes on";
  EXPECT_GE(Counter("violations"), 3u);
}

TEST_F(VmTest, ReplacedFile) {
  StartDaemon("ok", VmConfig());
  {
    GuestRegion guest(region_file());
    Serve(guest, 0, 1);
    std::filesystem::remove(region_file());
    std::ofstream(region_file()) << "";
    chmod(region_file().c_str(), 0660);
    EXPECT_TRUE(guest.WaitForHostWord(0, 1, SlotHostState::kClosed));
  }
  ASSERT_TRUE(WaitFor([&] { return std::filesystem::file_size(region_file()) == 64u << 20; }));
  GuestRegion guest(region_file());
  ASSERT_TRUE(WaitFor([&] {
    return guest.superblock().magic == kRegionMagic && guest.host_page().state == HostState::kRunning;
  }));
  Serve(guest, 0, 1);
}

TEST_F(VmTest, TruncatedFileEndsOnlyItsVm) {
  StartDaemon("ok", VmConfig());
  {
    GuestRegion guest(region_file());
    Serve(guest, 0, 1);
  }
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  client.region().Open(0, 1);
  ASSERT_TRUE(client.SendReady());
  ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing));
  std::filesystem::resize_file(region_file(), 4096);
  EXPECT_TRUE(
      WaitFor([&] { return LogText().find("was truncated; its sessions end") != std::string::npos; }));
  EXPECT_TRUE(WaitFor([&] {
    return StatusValue(Status(), "regions", "problem").find("large but region_mib says 64") !=
           std::string::npos;
  })) << Status();
  EXPECT_EQ(client.region().host_page().slot[0], SlotWord(1, uint32_t(SlotHostState::kServing)));
  // Repaired, it is served again.
  std::filesystem::resize_file(region_file(), 0);
  EXPECT_TRUE(WaitFor([&] { return StatusValue(Status(), "regions", "problem").empty(); })) << Status();
  GuestRegion guest(region_file());
  // Its memory is zeroed first.
  EXPECT_TRUE(WaitFor([&] { return guest.host_page().state == HostState::kRunning; }));
  Serve(guest, 0, 1);
}

// Everything that a guest can write, at random, while the daemon looks. CAUSEWAY_FUZZ_ITERATIONS sets the
// length.
TEST_F(VmTest, RandomGarbage) {
  StartDaemon("ok", VmConfig());
  const char* wish = std::getenv("CAUSEWAY_FUZZ_ITERATIONS");
  const int iterations = wish != nullptr ? std::atoi(wish) : 20'000;
  GuestRegion guest(region_file());
  const uint32_t slots = guest.superblock().slot_count;
  LocalClient client(socket());
  ASSERT_EQ(client.RequestSession().accepted, 1u);
  client.region().Open(0, 1);
  ASSERT_TRUE(client.SendReady());
  ASSERT_TRUE(client.region().WaitForHostWord(0, 1, SlotHostState::kServing));

  std::mt19937_64 random(20240607);
  for (int i = 0; i < iterations; ++i) {
    const uint32_t slot = uint32_t(random() % slots);
    switch (random() % 8) {
      case 0:
        guest.guest_page().slot[random() % kMaxSlots] = uint32_t(random());
        break;
      case 1:
        guest.SetWord(slot, uint32_t(random() % 64), SlotGuestState(random() % 4));
        break;
      case 2:
        guest.owners()[random() % kMaxGranules] = uint16_t(random());
        break;
      case 3:
        guest.owners()[random() % guest.superblock().granule_count] = uint16_t(random() % (slots + 2));
        break;
      case 4: {
        OpenBlock block = guest.GoodOpenBlock();
        reinterpret_cast<char*>(&block)[random() % 64] ^= char(random());
        block.environment_bytes = uint32_t(random() % 3 == 0 ? random() : random() % 200);
        for (char& c : block.environment) c = char(random());
        guest.Open(slot, uint32_t(random()), block);
        break;
      }
      case 5:
        guest.Open(slot, guest.host_page().slot[slot] / 256 + 1);
        break;
      case 6:
        if (random() % 200 == 0) guest.guest_page().epoch = random();
        break;
      default:
        guest.base()[kGuestPageOffset + random() % sizeof(GuestPage)] = char(random());
    }
    // The host's own pages too: a guest's kernel can write them.
    if (random() % 50 == 0) guest.base()[random() % kGranuleBytes] = char(random());
    if (random() % 16 == 0) usleep(200);
  }
  EXPECT_EQ(client.region().host_page().slot[0], SlotWord(1, uint32_t(SlotHostState::kServing)))
      << "another session was harmed";
  std::printf("violations counted: %llu\n", static_cast<unsigned long long>(Counter("violations")));
  EXPECT_GT(Counter("violations"), 0u);

  // A guest that comes back to its senses is served.
  std::memset(&guest.guest_page(), 0, sizeof(GuestPage));
  SetEpoch(guest, 0xabcdef);
  ASSERT_TRUE(WaitForAcknowledged(guest, 0xabcdef));
  Serve(guest, 0, 1);
}

}  // namespace
}  // namespace causeway::test
