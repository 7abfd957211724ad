// SPDX-License-Identifier: Apache-2.0
// A test in two processes. The other one is this program, started anew with one test of its own (named
// DISABLED_, so that nobody else runs it); both talk over a socket. It is started by exec, never by fork
// alone: the child of a process that has used CUDA may not use it.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "ivshmem_ring/transport/packet.h"
#include "tests/driver/driver_test.h"

extern char** environ;

namespace causeway::driver_test {

inline constexpr char kPeerVariable[] = "DRIVER_TEST_PEER";

class Peer {
 public:
  // In the test: starts the other process with that test. `variables` (NAME=VALUE) go before those of this
  // process.
  explicit Peer(const std::string& test, const std::vector<std::string>& variables = {}) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) != 0) return;
    socket_ = ends[0];
    fcntl(socket_, F_SETFD, FD_CLOEXEC);
    std::vector<std::string> texts = variables;
    texts.push_back(std::string(kPeerVariable) + "=" + std::to_string(ends[1]));
    for (char** at = environ; *at != nullptr; ++at) texts.emplace_back(*at);
    std::vector<char*> pointers;
    for (std::string& text : texts) pointers.push_back(text.data());
    pointers.push_back(nullptr);
    std::string filter = "--gtest_filter=" + test, also = "--gtest_also_run_disabled_tests", name = "peer";
    char* arguments[] = {name.data(), filter.data(), also.data(), nullptr};
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    log_ = "/tmp/driver_test_peer." + std::to_string(getpid()) + "." + std::to_string(ends[1]);
    posix_spawn_file_actions_addopen(&actions, 1, log_.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, 1, 2);
    if (posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, arguments, pointers.data()) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  // In the other process.
  Peer() {
    const char* number = std::getenv(kPeerVariable);
    if (number != nullptr) socket_ = std::atoi(number);
  }
  ~Peer() {
    if (socket_ >= 0) close(socket_);
    if (pid_ > 0) {
      EXPECT_EQ(Wait(), 0);
    }
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  bool there() const { return socket_ >= 0; }
  pid_t pid() const { return pid_; }

  template <class T>
  void Send(const T& value, int descriptor = -1) {
    EXPECT_TRUE(SendPacket(socket_, &value, sizeof value, std::span(&descriptor, descriptor >= 0 ? 1 : 0)));
  }
  // False when the other process is gone.
  template <class T>
  [[nodiscard]] bool Receive(T* value, int* descriptor = nullptr) {
    const timeval patience{60, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    int received = -1;
    if (ReceivePacket(socket_, value, sizeof *value, {&received, 1}) != static_cast<ssize_t>(sizeof *value))
      return false;
    if (descriptor != nullptr && received >= 0) *descriptor = received;
    return true;
  }

  // How the other process ended; what it said is shown if it failed.
  int Wait() {
    if (pid_ <= 0) return -1;
    int status = -1;
    waitpid(pid_, &status, 0);
    pid_ = -1;
    if (status != 0) {
      std::ifstream log(log_);
      for (std::string line; std::getline(log, line);) {
        if (line.rfind("[says]", 0) != 0) printf("  (peer) %s\n", line.c_str());
      }
    }
    unlink(log_.c_str());
    return status;
  }

 private:
  int socket_ = -1;
  pid_t pid_ = -1;
  std::string log_;
};

}  // namespace causeway::driver_test
