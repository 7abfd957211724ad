// SPDX-License-Identifier: Apache-2.0
// A VM in doorbell mode: this test in the place of QEMU and of the guest's kernel module.
#include <linux/futex.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <thread>

#include "ivshmem_ring/transport/packet.h"
#include "tests/unit/daemon_fixture.h"
#include "tests/unit/lingering_socket.h"

namespace causeway::test {
namespace {

// What QEMU gets: the memory, and the eventfds of both sides.
struct Vm {
  explicit Vm(const std::string& path) : socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return;
    UniqueFd* const expected[] = {nullptr, nullptr, &memory, &work, &control, &guest};
    for (UniqueFd* descriptor : expected) {
      int64_t number = 0;
      int received = -1;
      if (ReceivePacket(socket.get(), &number, sizeof number, std::span(&received, 1)) != sizeof number)
        return;
      if (descriptor != nullptr) descriptor->reset(received);
    }
    complete = memory && work && control && guest;
  }
  static void Ring(const UniqueFd& event) {
    const uint64_t one = 1;
    ASSERT_EQ(write(event.get(), &one, sizeof one), ssize_t(sizeof one));
  }

  UniqueFd socket, memory, work, control, guest;
  bool complete = false;
};

class DoorbellVmTest : public DaemonFixture {
 protected:
  std::string doorbell() const { return folder() + "/doorbell"; }
  void StartDoorbellDaemon(const std::string& more = "") {
    std::filesystem::remove(folder() + "/log");  // StartDaemon waits for a line of it
    StartDaemon("ok", more + VmConfig(64, "doorbell_socket = \"" + doorbell() + "\"\n"));
  }
  // One daemon ends, and the next one is there; `between` runs while there is none.
  void NextDaemon(
      bool killed, const std::function<void()>& between = [] {}) {
    if (killed) {
      KillDaemon();
    } else {
      kill(daemon_pid(), SIGUSR1);
      ASSERT_TRUE(WaitFor([&] { return LogText().find("causewayd leaves ") != std::string::npos; }));
      ASSERT_EQ(StopDaemon(), 0);
    }
    between();
    StartDoorbellDaemon(kKept);
  }

  // The daemon, a VM that is connected to it, and a session of that VM's.
  void ServedVm(const std::string& more = "") {
    StartDoorbellDaemon(more);
    ServeVm();
  }
  void ServeVm() {
    vm_ = std::make_unique<Vm>(doorbell());
    ASSERT_TRUE(vm_->complete);
    guest_ = std::make_unique<GuestRegion>(region_file());
    Begin(*guest_, *vm_, 0x1234);
    Serve(*guest_, *vm_, 1, 1);
  }

  // A module that rings begins its life.
  static void Begin(GuestRegion& guest, const Vm& vm, uint64_t epoch) {
    __atomic_store_n(&guest.guest_page().features, kGuestRings, __ATOMIC_RELEASE);
    __atomic_store_n(&guest.guest_page().epoch, epoch, __ATOMIC_RELEASE);
    Vm::Ring(vm.control);
    ASSERT_TRUE(WaitFor(
        [&] { return __atomic_load_n(&guest.host_page().reset_acknowledged, __ATOMIC_ACQUIRE) == epoch; }));
  }
  static void Serve(GuestRegion& guest, const Vm& vm, uint32_t slot, uint32_t session) {
    guest.Open(slot, session);
    Vm::Ring(vm.control);
    ASSERT_TRUE(guest.WaitForHostWord(slot, session, SlotHostState::kServing)) << guest.refusal(slot);
  }

  static constexpr const char* kKept = "keep_sessions_s = 60\n";
  std::unique_ptr<Vm> vm_;
  std::unique_ptr<GuestRegion> guest_;
};

// As ADescriptorThatAClientSendsKeepsNobody of daemon_local_test.cc.
TEST_F(DoorbellVmTest, ADescriptorThatAClientSendsKeepsNobody) {
  StartDoorbellDaemon();
  for (const bool leaves : {false, true}) {
    Vm vm(doorbell());
    ASSERT_TRUE(vm.complete);
    LingeringSocket lingering;
    if (!lingering.SendAway(vm.socket.get())) {
      EXPECT_EQ(errno, EPERM);
      EXPECT_EQ(send(vm.socket.get(), "x", 1, MSG_NOSIGNAL), 1);
    }
    if (leaves) continue;
    char byte;
    EXPECT_LE(recv(vm.socket.get(), &byte, 1, 0), 0);
  }
  ServeVm();
}

TEST_F(DoorbellVmTest, AGuestIsServedForItsRings) {
  ServedVm();
  Vm& vm = *vm_;
  GuestRegion& guest = *guest_;
  EXPECT_EQ(guest.host_page().doorbell, 1u);
  // A guest thread that waits for long asks for a beat.
  const uint64_t beat = guest.host_page().beat;
  Vm::Ring(vm.control);
  EXPECT_TRUE(WaitFor([&] { return __atomic_load_n(&guest.host_page().beat, __ATOMIC_ACQUIRE) != beat; }));
  guest.SetWord(1, 1, SlotGuestState::kDying);
  Vm::Ring(vm.control);
  ASSERT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kClosed));
  guest.SetWord(1, 1, SlotGuestState::kFree);
  Serve(guest, vm, 1, 2);
}

// Not a beat comes from a daemon whose VMs are idle and ring.
TEST_F(DoorbellVmTest, NobodyLooksAtAVmThatRingsAndIsIdle) {
  ServedVm();
  GuestRegion& guest = *guest_;
  // The daemon has other work for some time after its start; a second without a beat shows that none is due.
  EXPECT_TRUE(WaitFor([&] {
    const uint64_t beat = guest.host_page().beat;
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return guest.host_page().beat == beat;
  }));
  guest.guest_control(1).main_tail.value = 64;
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(guest.host_page().slot[1], SlotWord(1, uint32_t(SlotHostState::kServing)));
}

TEST_F(DoorbellVmTest, AWorkersThreadThatSleepsIsWokenByARing) {
  ServedVm();
  Vm& vm = *vm_;
  GuestRegion& guest = *guest_;
  HostControl& host = guest.host_control(1);
  GuestControl& control = guest.guest_control(1);
  ASSERT_TRUE(WaitFor([&] { return __atomic_load_n(&host.ready.value, __ATOMIC_ACQUIRE) == 1; }));
  host.main_head.value = 0;  // the fake worker's mark
  const auto sleep = [&](time_t seconds, long ns) {
    const timespec bound{seconds, ns};
    __atomic_store_n(&host.main_waiting.value, 1, __ATOMIC_RELEASE);
    const auto seen = static_cast<uint32_t>(control.main_tail.value);
    return syscall(SYS_futex, &control.main_tail.value, FUTEX_WAIT, seen, &bound, nullptr, 0) == 0;
  };
  control.main_tail.value = 128;
  EXPECT_FALSE(sleep(0, 100'000'000)) << "nobody looks at the rings of a VM that rings";
  std::thread ringer([&] {
    for (int i = 0; i < 6000 && host.main_waiting.value != 0; ++i) {
      Vm::Ring(vm.work);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  EXPECT_TRUE(sleep(60, 0));
  __atomic_store_n(&host.main_waiting.value, 0, __ATOMIC_RELEASE);
  ringer.join();
}

TEST_F(DoorbellVmTest, TheEndOfTheConnectionEndsTheSessions) {
  ServedVm();
  vm_.reset();
  EXPECT_TRUE(WaitForNoSession());
  const Vm next(doorbell());
  ASSERT_TRUE(next.complete);
  GuestRegion guest(region_file());
  EXPECT_TRUE(WaitFor([&] { return guest.guest_page().epoch == 0; })) << "the guest's part is cleared";
  Begin(guest, next, 0x77);
  Serve(guest, next, 1, 1);
}

// Its device is ivshmem-plain, whatever the daemon's configuration says.
TEST_F(DoorbellVmTest, AVmThatOpensTheRegionByPathIsServed) {
  StartDoorbellDaemon();
  {
    GuestRegion guest(region_file());
    __atomic_store_n(&guest.guest_page().epoch, 0x55, __ATOMIC_RELEASE);
    EXPECT_TRUE(WaitFor(
        [&] { return __atomic_load_n(&guest.host_page().reset_acknowledged, __ATOMIC_ACQUIRE) == 0x55; }));
    guest.Open(1, 1);
    ASSERT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kServing)) << guest.refusal(1);
    EXPECT_EQ(guest.host_page().doorbell, 0u);
    guest.SetWord(1, 1, SlotGuestState::kDying);
    ASSERT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kClosed));
  }
  // The next start of the VM may have a doorbell.
  vm_ = std::make_unique<Vm>(doorbell());
  ASSERT_TRUE(vm_->complete);
  guest_ = std::make_unique<GuestRegion>(region_file());
  Begin(*guest_, *vm_, 0x56);
  Serve(*guest_, *vm_, 1, 2);
  EXPECT_EQ(guest_->host_page().doorbell, 1u);
}

// QEMU does not connect a second time.
TEST_F(DoorbellVmTest, AfterARestartTheVmIsPolledAndServed) {
  ServedVm();
  GuestRegion& guest = *guest_;
  EXPECT_EQ(StopDaemon(), 0);
  StartDoorbellDaemon();
  EXPECT_TRUE(WaitFor(
      [&] { return LogText().find("never connects again: its rings are polled") != std::string::npos; }));
  EXPECT_TRUE(WaitFor([&] { return __atomic_load_n(&guest.host_page().doorbell, __ATOMIC_ACQUIRE) == 0; }));
  const uint64_t beat = guest.host_page().beat;
  EXPECT_TRUE(WaitFor([&] { return __atomic_load_n(&guest.host_page().beat, __ATOMIC_ACQUIRE) > beat + 1; }));
  guest.SetWord(1, 1, SlotGuestState::kDying);
  ASSERT_TRUE(guest.WaitForHostWord(1, 1, SlotHostState::kClosed));
  guest.Open(1, 2);
  ASSERT_TRUE(guest.WaitForHostWord(1, 2, SlotHostState::kServing)) << guest.refusal(1);
  HostControl& host = guest.host_control(1);
  ASSERT_TRUE(WaitFor([&] { return __atomic_load_n(&host.ready.value, __ATOMIC_ACQUIRE) == 1; }));
}

// The launcher keeps QEMU's connection.
TEST_F(DoorbellVmTest, TheNextDaemonGoesOnWithTheConnection) {
  ServedVm(kKept);
  Vm& vm = *vm_;
  GuestRegion& guest = *guest_;
  uint32_t session = 0;
  for (const bool killed : {false, true, false, true}) {
    SCOPED_TRACE(killed ? "killed" : "left");
    NextDaemon(killed, [&] {
      char byte;
      EXPECT_EQ(recv(vm.socket.get(), &byte, 1, MSG_DONTWAIT), -1) << "QEMU's connection has ended";
      guest.Open(2, ++session);  // what is rung meanwhile is found
      Vm::Ring(vm.control);
    });
    ASSERT_TRUE(guest.WaitForHostWord(2, session, SlotHostState::kServing)) << guest.refusal(2);
    EXPECT_EQ(guest.host_page().slot[1], SlotWord(1, uint32_t(SlotHostState::kServing)));
    EXPECT_EQ(guest.host_page().doorbell, 1u);
    EXPECT_EQ(LogText().find("its rings are polled"), std::string::npos) << LogText();
    EXPECT_NE(Status().find("\"polled\":false"), std::string::npos) << Status();
    const uint64_t beat = guest.host_page().beat;
    Vm::Ring(vm.control);
    EXPECT_TRUE(WaitFor([&] { return __atomic_load_n(&guest.host_page().beat, __ATOMIC_ACQUIRE) != beat; }));
    guest.SetWord(2, session, SlotGuestState::kDying);
    Vm::Ring(vm.control);
    ASSERT_TRUE(guest.WaitForHostWord(2, session, SlotHostState::kClosed));
  }
  // A ring for work reaches the thread that slept in the worker all the time.
  HostControl& host = guest.host_control(1);
  ASSERT_TRUE(WaitFor([&] { return __atomic_load_n(&host.ready.value, __ATOMIC_ACQUIRE) == 1; }));
  host.main_head.value = 0;  // the fake worker's mark
  __atomic_store_n(&host.main_waiting.value, 1, __ATOMIC_RELEASE);
  std::thread ringer([&] {
    for (int i = 0; i < 6000 && host.main_waiting.value != 0; ++i) {
      Vm::Ring(vm.work);
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  });
  auto& tail = guest.guest_control(1).main_tail.value;
  tail = 128;
  const timespec bound{60, 0};
  EXPECT_EQ(syscall(SYS_futex, &tail, FUTEX_WAIT, uint32_t(tail), &bound, nullptr, 0), 0);
  __atomic_store_n(&host.main_waiting.value, 0, __ATOMIC_RELEASE);
  ringer.join();
  // The connection's end is the VM's, for this daemon too, and the next VM finds the socket.
  vm_.reset();
  EXPECT_TRUE(WaitForNoSession());
  const Vm next(doorbell());
  ASSERT_TRUE(next.complete);
  EXPECT_TRUE(WaitFor([&] { return guest.guest_page().epoch == 0; })) << "the guest's part is cleared";
  Begin(guest, next, 0x77);
  Serve(guest, next, 1, 1);
}

TEST_F(DoorbellVmTest, AVmThatEndsWhileNoDaemonRunsHasEnded) {
  ServedVm(kKept);
  std::unique_ptr<Vm> next;
  std::thread connecting;
  NextDaemon(true, [&] {
    vm_.reset();
    // The VM's next start waits for the next daemon, which has more to do first.
    connecting = std::thread([&] { next = std::make_unique<Vm>(doorbell()); });
  });
  connecting.join();
  EXPECT_TRUE(WaitForNoSession());
  GuestRegion guest(region_file());
  EXPECT_TRUE(WaitFor([&] { return __atomic_load_n(&guest.guest_page().epoch, __ATOMIC_ACQUIRE) == 0; }));
  ASSERT_TRUE(next->complete);
  Begin(guest, *next, 0x77);
  Serve(guest, *next, 1, 1);
}

// A VM without a session has nothing but its connection to be known by.
TEST_F(DoorbellVmTest, AnIdleVmsConnectionIsKept) {
  StartDoorbellDaemon(kKept);
  vm_ = std::make_unique<Vm>(doorbell());
  ASSERT_TRUE(vm_->complete);
  guest_ = std::make_unique<GuestRegion>(region_file());
  Begin(*guest_, *vm_, 0x1234);
  NextDaemon(false);
  NextDaemon(true);
  EXPECT_EQ(guest_->host_page().doorbell, 1u);
  EXPECT_EQ(LogText().find("its rings are polled"), std::string::npos) << LogText();
  Serve(*guest_, *vm_, 1, 1);
}

// The file of a VM's region is removed while no daemon runs: the next daemon ends the connection, because QEMU has the old memory.
TEST_F(DoorbellVmTest, AConnectionToMemoryOfBeforeEnds) {
  ServedVm(kKept);
  NextDaemon(true, [&] { std::filesystem::remove(region_file()); });
  EXPECT_TRUE(WaitFor([&] { return LogText().find("has a region of before") != std::string::npos; }))
      << LogText();
  char byte;
  EXPECT_TRUE(WaitFor([&] { return recv(vm_->socket.get(), &byte, 1, MSG_DONTWAIT) == 0; }));
  EXPECT_TRUE(WaitForNoSession());
  const Vm next(doorbell());
  EXPECT_TRUE(next.complete);
}

}  // namespace
}  // namespace causeway::test
