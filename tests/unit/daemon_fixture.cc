// SPDX-License-Identifier: Apache-2.0
// Starting daemons and playing guests.
#include "tests/unit/daemon_fixture.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "host_backend/command/command.h"
#include "ivshmem_ring/release/build_stamp.h"

namespace causeway::test {
namespace {

using std::chrono::milliseconds;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

pid_t Spawn(const std::string& config, const std::string& log) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int fd = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  dup2(fd, STDERR_FILENO);
  execl(CAUSEWAYD_PATH, CAUSEWAYD_PATH, "--config", config.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

}  // namespace

bool WaitFor(const std::function<bool()>& done) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(milliseconds(2));
  }
  return true;
}

OpenBlock StreamOpenBlock() {
  OpenBlock block{};
  block.magic = kRegionMagic;
  block.abi_major = kAbiMajor;
  block.pid = 77;
  block.api_hash = kBuildStamp.api_hash;
  return block;
}

TemporaryFolder::TemporaryFolder() {
  char pattern[] = "/tmp/causeway-test-XXXXXX";
  path_ = mkdtemp(pattern) != nullptr ? pattern : "";
}

TemporaryFolder::~TemporaryFolder() {
  std::filesystem::remove_all(path_);
}

DaemonFixture::~DaemonFixture() {
  if (pid_ > 0) {
    EXPECT_EQ(StopDaemon(), 0);
  }
  if (HasFailure()) std::fprintf(stderr, "log of the daemon:\n%s\n", LogText().c_str());
}

std::string DaemonFixture::Config(const std::string& worker_mode, const std::string& more) const {
  return "socket = \"" + socket() + "\"\nworker = \"" FAKE_WORKER_PATH "\"\ndriver_library = \"" +
         worker_mode + "\"\nlocal_region_mib = 64\nlog_level = \"debug\"\n" + more;
}

std::string DaemonFixture::VmConfig(uint64_t region_mib, const std::string& more) const {
  return "[[vm]]\nname = \"guest\"\nregion_file = \"" + region_file() +
         "\"\nregion_mib = " + std::to_string(region_mib) + "\n" + more;
}

void DaemonFixture::StartDaemon(const std::string& worker_mode, const std::string& more) {
  const std::string config = folder() + "/config.toml";
  std::ofstream(config) << Config(worker_mode, more);
  const size_t said = LogText().size();  // by those before it
  pid_ = Spawn(config, folder() + "/log");
  ASSERT_GT(pid_, 0);
  // All of its servers are up when it says so, which is later than the first answer on the socket.
  ASSERT_TRUE(WaitFor([&] { return LogText().find("accepts sessions at", said) != std::string::npos; }))
      << LogText();
}

pid_t DaemonFixture::SpawnOther(const std::string& config_text) {
  const std::string config = folder() + "/other.toml";
  std::ofstream(config) << config_text;
  std::filesystem::remove(OtherLog());
  return Spawn(config, OtherLog());
}

std::string DaemonFixture::FailingDaemon(const std::string& config_text) {
  const pid_t pid = SpawnOther(config_text);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << "status " << status;
  return ReadFile(OtherLog());
}

std::string DaemonFixture::WhatItSays(const std::string& config_text) {
  const pid_t pid = SpawnOther(config_text);
  EXPECT_TRUE(WaitFor([&] { return ReadFile(OtherLog()).find("accepts sessions at") != std::string::npos; }))
      << ReadFile(OtherLog());
  kill(pid, SIGTERM);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
  return ReadFile(OtherLog());
}

int DaemonFixture::StopDaemon() {
  kill(pid_, SIGTERM);
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void DaemonFixture::KillDaemon() {
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::string DaemonFixture::Status() const {
  auto status = command::QueryStatus(socket());
  // Connections that are being closed count for their user, and on a busy machine there may be many of this test's own.
  for (int tries = 0;
       !status.ok() && tries < 100 && status.error().find("try again later") != std::string::npos; ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    status = command::QueryStatus(socket());
  }
  EXPECT_TRUE(status.ok()) << status.error();
  return status.ok() ? status.value() : "";
}

std::string DaemonFixture::WaitForSession(const std::string& state) const {
  std::string found;
  EXPECT_TRUE(WaitFor([&] {
    for (const auto& session : command::JsonObjects(Status(), "sessions")) {
      if (command::StatusValue(session, "", "state") == state) found = session;
    }
    return !found.empty();
  })) << "no session is "
      << state << " in " << Status();
  return found;
}

bool DaemonFixture::WaitForNoSession() const {
  return WaitFor([&] { return command::JsonObjects(Status(), "sessions").empty(); });
}

uint64_t DaemonFixture::Counter(const std::string& name) const {
  return std::strtoull(command::StatusValue(Status(), "counters", name).c_str(), nullptr, 10);
}

std::string DaemonFixture::LogText() const {
  return ReadFile(folder() + "/log");
}

GuestRegion::GuestRegion(const std::string& file) : fd_(open(file.c_str(), O_RDWR | O_CLOEXEC)) {
  struct stat found {};
  fstat(fd_.get(), &found);
  bytes_ = uint64_t(found.st_size);
  base_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
}

GuestRegion::GuestRegion(UniqueFd fd, uint64_t bytes) : fd_(std::move(fd)), bytes_(bytes) {
  base_ = static_cast<char*>(mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_.get(), 0));
}

GuestRegion::~GuestRegion() {
  munmap(base_, bytes_);
}

Superblock GuestRegion::superblock() const {
  Superblock block;
  std::memcpy(&block, base_, sizeof(block));
  return block;
}

GuestControl& GuestRegion::guest_control(uint32_t slot) {
  return *reinterpret_cast<GuestControl*>(base_ + SlotOffset(slot) + kGuestControlOffset);
}

HostControl& GuestRegion::host_control(uint32_t slot) {
  return *reinterpret_cast<HostControl*>(base_ + SlotOffset(slot) + kHostControlOffset);
}

OpenBlock GuestRegion::GoodOpenBlock() const {
  OpenBlock block{};
  block.magic = kRegionMagic;
  block.abi_major = kAbiMajor;
  block.abi_minor = kAbiMinor;
  block.pid = uint32_t(getpid());
  block.api_hash = kBuildStamp.api_hash;
  block.window_address = kDefaultWindowAddress;
  return block;
}

void GuestRegion::Open(uint32_t slot, uint32_t session, const OpenBlock& block) {
  guest_control(slot).open = block;
  guest_page().pid[slot] = block.pid;
  SetWord(slot, session, SlotGuestState::kOpen);
}

void GuestRegion::SetWord(uint32_t slot, uint32_t session, SlotGuestState state) {
  std::atomic_ref<uint32_t>(guest_page().slot[slot])
      .store(SlotWord(session, uint32_t(state)), std::memory_order_release);
}

bool GuestRegion::WaitForHostWord(uint32_t slot, uint32_t session, SlotHostState state) {
  const uint32_t wanted = SlotWord(session, uint32_t(state));
  return WaitFor([&] {
    return std::atomic_ref<uint32_t>(host_page().slot[slot]).load(std::memory_order_acquire) == wanted;
  });
}

std::string GuestRegion::refusal(uint32_t slot) {
  return host_control(slot).refusal;
}

LocalClient::LocalClient(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  socket_.reset(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) socket_.reset();
}

bool LocalClient::Send(const void* data, size_t bytes) {
  return send(socket_.get(), data, bytes, MSG_NOSIGNAL) == ssize_t(bytes);
}

LocalReply LocalClient::RequestSession(uint16_t abi_major) {
  const LocalRequest request{kLocalMagic, abi_major, kAbiMinor, LocalRequestKind::kOpenSession};
  LocalReply reply{};
  EXPECT_TRUE(Send(&request, sizeof(request)));
  iovec part{&reply, sizeof(reply)};
  alignas(cmsghdr) char buffer[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = buffer;
  message.msg_controllen = sizeof(buffer);
  EXPECT_EQ(recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC), ssize_t(sizeof(reply)));
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message)) {
    int fd = -1;
    std::memcpy(&fd, CMSG_DATA(header), sizeof(fd));
    region_ = std::make_unique<GuestRegion>(UniqueFd(fd), reply.region_bytes);
  }
  return reply;
}

bool LocalClient::SendReady() {
  return Send(&kLocalReady, 1);
}

bool LocalClient::WaitForEnd() {
  pollfd end{socket_.get(), POLLRDHUP, 0};  // not for input: a refusal may arrive before the end does
  return poll(&end, 1, 10'000) == 1 && (end.revents & (POLLRDHUP | POLLHUP)) != 0;
}

}  // namespace causeway::test
