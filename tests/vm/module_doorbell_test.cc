// SPDX-License-Identifier: Apache-2.0
// Doorbells: rings to the host, sleeps that the host's interrupts end, poll() and read(), and storms of both. fake_host.py
// answers a request word of a slot by an answer word and by so many interrupts as the request's high half says.
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <thread>
#include <vector>

#include "tests/vm/module_device.h"

namespace causeway::module_test {
namespace {

constexpr uint64_t kAnswerOffset = 0x80;   // in HostControl
constexpr uint64_t kRingsOffset = 0x3008;  // in granule 0
constexpr uint64_t kSecond = 1'000'000'000;
// A tick is a millisecond at least, so that these are more than the module lets through.
constexpr double kTicksPerSecond = 1000, kRingsPerTick = 128, kInterruptsPerTick = 512;

struct Slot {
  explicit Slot(const Device& device)
      : device_(device), base_(device.MapSlot()), control_(device.Map(0, 4 * 4096, false)) {}

  volatile uint32_t& request() const { return *reinterpret_cast<volatile uint32_t*>(base_); }
  uint32_t answer() const {
    return __atomic_load_n(reinterpret_cast<uint32_t*>(base_ + kHostControlOffset + kAnswerOffset),
                           __ATOMIC_ACQUIRE);
  }
  uint64_t rings() const {
    return __atomic_load_n(reinterpret_cast<uint64_t*>(control_ + kRingsOffset), __ATOMIC_ACQUIRE);
  }
  int Ring(unsigned long vector = CAUSEWAY_RING_WORK) const {
    return ioctl(device_.fd(), CAUSEWAY_IOC_RING, vector);
  }
  int Wait(uint32_t seen, uint64_t timeout_ns, uint32_t offset = kAnswerOffset) const {
    causeway_wait wait{offset, seen, timeout_ns};
    return ioctl(device_.fd(), CAUSEWAY_IOC_WAIT, &wait);
  }
  // Asks for an answer with that many interrupts.
  uint32_t Ask(uint32_t interrupts) const {
    static std::atomic<uint16_t> number{0};
    const uint32_t wanted = interrupts << 16 | uint16_t(++number);
    request() = wanted;
    return wanted;
  }
  bool Answered(uint32_t wanted) const {
    for (int i = 0; i < 60'000 && answer() != wanted; ++i) SleepMs(1);
    return answer() == wanted;
  }

 private:
  const Device& device_;
  uint8_t* base_;
  uint8_t* control_;
};

uint64_t Interrupts() {
  return std::strtoull(ReadFile("/sys/class/causeway/causeway/interrupts").c_str(), nullptr, 10);
}

void TestRoundTrips(const Slot& slot) {
  for (int round = 0; round < 200; ++round) {
    const uint32_t before = slot.answer(), wanted = slot.Ask(1);
    Check(slot.Ring() == 0, "ring");
    Check(slot.Wait(before, 60 * kSecond) == 0, "an interrupt ends the sleep");
    Check(slot.answer() == wanted, "nothing but the word's change ends the sleep");
  }
  const uint32_t now = slot.answer();
  Check(slot.Wait(now ^ 1, 60 * kSecond) == 0, "a word that has changed already needs no sleep");
  CheckFails(slot.Wait(now, kSecond / 100), ETIMEDOUT, "nobody changes the word");
  // A lost interrupt: the word changes, nobody tells.
  const uint32_t wanted = slot.Ask(0);
  Check(slot.Ring() == 0, "ring");
  const int result = slot.Wait(now, kSecond / 5);
  Check((result == 0 || errno == ETIMEDOUT) && slot.Answered(wanted), "a lost interrupt costs one sleep");
}

void TestWrongCalls(const Device& device, const Slot& slot) {
  CheckFails(slot.Ring(2), EINVAL, "a third vector");
  CheckFails(slot.Ring(~0ul), EINVAL, "the last vector");
  CheckFails(slot.Ring(1ul << 32), EINVAL, "a vector of more than 32 bits");
  for (const uint32_t offset : {1u, 2u, 0x7ffeu, 0x7ffdu, 0x8000u, ~3u, ~0u})
    CheckFails(slot.Wait(0, 0, offset), EINVAL, "a wait at offset " + std::to_string(offset));
  CheckFails(slot.Wait(0, 0, 0x7ffc), ETIMEDOUT, "a wait at the last word");
  CheckFails(ioctl(device.fd(), CAUSEWAY_IOC_WAIT, 8), EFAULT, "a wait from a bad address");
  uint32_t half = 0;
  CheckFails(read(device.fd(), &half, sizeof half), EINVAL, "half a count");
}

void TestPoll(const Slot& slot, const Device& device) {
  uint64_t count = 0;
  Check(fcntl(device.fd(), F_SETFL, O_NONBLOCK) == 0, "O_NONBLOCK");
  while (read(device.fd(), &count, sizeof count) > 0) {
  }
  Check(errno == EAGAIN, "read() without an interrupt");
  pollfd asked{device.fd(), POLLIN, 0};
  Check(poll(&asked, 1, 0) == 0, "poll() without an interrupt");
  for (int round = 0; round < 50; ++round) {
    const uint32_t wanted = slot.Ask(1);
    Check(slot.Ring() == 0, "ring");
    Check(poll(&asked, 1, 60'000) == 1 && asked.revents == POLLIN, "poll() tells of an interrupt");
    Check(read(device.fd(), &count, sizeof count) == 8 && count >= 1, "read() counts it");
    Check(slot.answer() == wanted, "the answer came before its interrupt");
  }
  Check(poll(&asked, 1, 0) == 0, "poll() after read()");
}

// Each of many threads has its own word's change told, while others sleep on.
void TestOtherThreadsSleepOn(const Slot& slot) {
  std::atomic<int> left{8}, woken{0};
  std::vector<std::thread> others;
  for (int i = 0; i < 8; ++i) {
    others.emplace_back([&] {
      if (slot.Wait(0, 2 * kSecond, 0x7000) == 0) ++woken;
      --left;
    });
  }
  for (int i = 0; i < 20; ++i) {
    const uint32_t before = slot.answer();
    slot.Ask(1);
    slot.Ring();
    Check(slot.Wait(before, 60 * kSecond) == 0, "woken among others");
  }
  for (auto& other : others) other.join();
  Check(left == 0 && woken == 0, "a thread whose word did not change sleeps on");
}

// `alone`: no other process rings and is interrupted meanwhile.
void TestStorms(const Slot& slot, bool alone) {
  const uint64_t before = slot.rings();
  double begin = NowSeconds();
  constexpr int kRings = 50'000;
  for (int i = 0; i < kRings; ++i) slot.Ring();
  const uint32_t wanted = slot.Ask(1);
  slot.Ring();
  Check(slot.Answered(wanted), "the last ring of a storm arrives");
  double ticks = (NowSeconds() - begin) * kTicksPerSecond + 2;
  const auto rung = double(slot.rings() - before);
  Check(rung >= 1 && (!alone || (rung <= kRingsPerTick * ticks && rung <= kRings + 1)),
        "rings are bounded in rate");

  const uint64_t interrupts = Interrupts();
  begin = NowSeconds();
  const uint32_t asked = slot.Ask(0xffff);
  slot.Ring();
  Check(slot.Answered(asked), "answered by many interrupts");
  SleepMs(500);
  ticks = (NowSeconds() - begin) * kTicksPerSecond + 2;
  const auto came = double(Interrupts() - interrupts);
  Check(came >= 1 && came <= kInterruptsPerTick * ticks && came <= 0xffff + ticks,
        "interrupts are bounded in rate");
  TestRoundTrips(slot);
}

// SIGUSR1 without SA_RESTART.
void TestSignal(const Slot& slot) {
  struct sigaction action {};
  action.sa_handler = [](int) {};
  sigaction(SIGUSR1, &action, nullptr);
  std::atomic<bool> ended{false};
  std::thread sleeper([&] {
    CheckFails(slot.Wait(slot.answer(), 60 * kSecond), EINTR, "a signal ends a sleep");
    ended = true;
  });
  while (!ended) {
    pthread_kill(sleeper.native_handle(), SIGUSR1);
    SleepMs(5);
  }
  sleeper.join();
}

}  // namespace

void TestDoorbell() {
  Device device;
  const Slot slot(device);
  Check(ReadFile("/sys/class/causeway/causeway/doorbell") == "yes", "the device has a doorbell");
  Check(device.Start() == 0, "START");
  TestRoundTrips(slot);
  TestWrongCalls(device, slot);
  TestOtherThreadsSleepOn(slot);
  TestSignal(slot);
  TestPoll(slot, device);
  TestStorms(slot, true);
}

// The same device's interrupts are for other processes too, and so is its lock, which wakes its waiters late.
void TestDoorbellBeside() {
  Device device;
  const Slot slot(device);
  Check(device.Start() == 0, "START");
  for (int i = 0; i < 5; ++i) TestRoundTrips(slot);
  TestStorms(slot, false);
}

void TestNoDoorbell() {
  Device device;
  const Slot slot(device);
  Check(ReadFile("/sys/class/causeway/causeway/doorbell") == "no", "the device has no doorbell");
  CheckFails(slot.Ring(), EOPNOTSUPP, "a ring in plain mode");
  CheckFails(slot.Wait(0, kSecond), EOPNOTSUPP, "a sleep in plain mode");
  uint64_t count = 0;
  CheckFails(read(device.fd(), &count, sizeof count), EOPNOTSUPP, "read() in plain mode");
  pollfd asked{device.fd(), POLLIN, 0};
  Check(poll(&asked, 1, 0) == 0, "poll() in plain mode");
}

// Not even root maps the registers while the module has them, and nobody else opens them.
void TestRegisters() {
  for (const char* name : {"resource0", "resource1"}) {
    const std::string path = std::string("/sys/class/causeway/causeway/device/") + name;
    const int fd = open(path.c_str(), O_RDWR);
    if (getuid() != 0) {
      Check(fd < 0 && errno == EACCES, path + " is root's");
      continue;
    }
    Check(fd >= 0, "root opens " + path);
    void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    Check(mapped == MAP_FAILED, path + " cannot be mapped beside the module");
    close(fd);
  }
}

// The device is unbound while threads sleep in it.
void TestUnbindAsleep() {
  Device device;
  const Slot slot(device);
  Check(device.Start() == 0, "START");
  std::vector<std::thread> sleepers;
  for (int i = 0; i < 4; ++i) {
    sleepers.emplace_back([&] {
      while (slot.Wait(0, 60 * kSecond, 0x7000) == 0) {
      }
      Check(errno == ENODEV, "a sleep ends with the device");
    });
  }
  SleepMs(300);
  const std::string address = BoundDevice();
  Check(WriteFile(std::string(kDriver) + "unbind", address), "unbind with threads that sleep");
  for (auto& sleeper : sleepers) sleeper.join();
  pollfd asked{device.fd(), POLLIN, 0};
  Check(poll(&asked, 1, 0) == 1 && (asked.revents & POLLHUP) != 0, "poll() after the end");
  CheckFails(slot.Ring(), ENODEV, "a ring after the end");
  Check(WriteFile(std::string(kDriver) + "bind", address), "bind again");
}

}  // namespace causeway::module_test
