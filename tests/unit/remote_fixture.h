// SPDX-License-Identifier: Apache-2.0
// What tests of remote guests have in common: causewayd with a fake worker, causeway-tls in front of it, keys, and a guest's side of TLS.
#pragma once
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <fstream>
#include <sstream>

#include "host_backend/command/command.h"
#include "host_backend/tls/addresses.h"
#include "ivshmem_ring/tls/tls_session.h"
#include "tests/unit/daemon_fixture.h"

namespace causeway::test {

using command::StatusValue;

inline constexpr char kHost[] = "127.0.0.1";

struct Outcome {
  int status = 0;
  std::string output;
};

inline Outcome Shell(const std::string& command) {
  Outcome outcome;
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  char text[512];
  while (pipe != nullptr && fgets(text, sizeof text, pipe) != nullptr) outcome.output += text;
  outcome.status = pipe != nullptr ? WEXITSTATUS(pclose(pipe)) : -1;
  return outcome;
}

// An address in numbers, of IPv4 or IPv6, with a port.
struct Place {
  Place(const std::string& address, uint16_t port) : bytes(tls::SocketAddress(address, port, &storage)) {
    EXPECT_NE(bytes, 0u) << address;
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr_storage storage{};
  socklen_t bytes;
};

// The text by which causeway-tls names the near end of a connection over IPv4 in its log, with what follows it there.
inline std::string NameInLog(const UniqueFd& fd) {
  sockaddr_in address{};
  socklen_t bytes = sizeof address;
  getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &bytes);
  char text[INET_ADDRSTRLEN] = "?";
  inet_ntop(AF_INET, &address.sin_addr, text, sizeof text);
  return std::string(text) + ":" + std::to_string(ntohs(address.sin_port)) + ": ";
}

// How often `words` stand in `text`.
inline size_t Count(const std::string& text, const std::string& words) {
  size_t count = 0;
  for (size_t at = 0; (at = text.find(words, at)) != std::string::npos; at += words.size()) ++count;
  return count;
}

class RemoteTest : public DaemonFixture {
 protected:
  ~RemoteTest() override {
    StopTls();
    if (HasFailure()) std::fprintf(stderr, "log of causeway-tls:\n%s\n", TlsLog().c_str());
  }

  std::string keys() const { return folder() + "/keys"; }
  std::string KeyFile(const std::string& name) const { return folder() + "/" + name + ".guest"; }
  Outcome Keys(const std::string& what) const {
    return Shell(std::string(CAUSEWAY_PATH) + " keys " + what + " --keys " + keys());
  }
  Key MakeKey(const std::string& name, const std::string& more = "") const {
    const Outcome made = Keys("create " + name + " --vm guest2 --output " + KeyFile(name) + " " + more);
    EXPECT_EQ(made.status, 0) << made.output;
    Key key;
    EXPECT_EQ(ReadKeyFile(KeyFile(name), &key), "");
    return key;
  }

  // Daemon and causeway-tls; the folder of keys is there already.
  void Start(const std::string& listen = "127.0.0.1:0") {
    StartDaemonWith("", listen);
    StartTls();
  }
  void StartDaemonWith(const std::string& more, const std::string& listen = "127.0.0.1:0",
                       const std::string& worker = "ok") {
    StartDaemon(worker, more + "[tls]\nlisten = [\"" + listen + "\"]\nkeys = \"" + keys() +
                            "\"\n[[remote]]\nname = \"guest2\"\nmax_sessions = 8\n");
  }
  // It may have so many descriptors; null: as many as this process.
  void StartTls(const rlimit* descriptors = nullptr) {
    tls_ = fork();
    if (tls_ == 0) {
      if (descriptors != nullptr && setrlimit(RLIMIT_NOFILE, descriptors) != 0) _exit(127);
      const int log = open((folder() + "/tls.log").c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
      dup2(log, STDERR_FILENO);
      execl(CAUSEWAY_TLS_PATH, CAUSEWAY_TLS_PATH, "--config", (folder() + "/config.toml").c_str(),
            static_cast<char*>(nullptr));
      _exit(127);
    }
    ASSERT_TRUE(WaitFor([&] { return TlsLog().find("TLS sessions are accepted at") != std::string::npos; }));
    const std::string log = TlsLog();
    const std::string line = log.substr(log.rfind("accepted at "));
    port_ = uint16_t(std::stoul(line.substr(line.rfind(':', line.find('\n')) + 1)));
  }
  void StopTls() {
    if (tls_ <= 0) return;
    kill(tls_, SIGTERM);
    int status = 0;
    waitpid(tls_, &status, 0);
    EXPECT_EQ(status, 0);
    tls_ = -1;
  }
  std::string TlsLog() const {
    std::stringstream text;
    text << std::ifstream(folder() + "/tls.log").rdbuf();
    return text.str();
  }
  bool WaitForLog(const std::string& words) const {
    return WaitFor([&] { return TlsLog().find(words) != std::string::npos; });
  }
  size_t Processes() const {
    return size_t(std::stoul("0" + Shell("pgrep -c -P " + std::to_string(tls_)).output));
  }

  // From an address of the host's own, so that a test has several peers.
  UniqueFd Dial(const std::string& from = kHost, const std::string& to = kHost) const {
    const Place near(from, 0), far(to, port_);
    UniqueFd fd(::socket(near.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(bind(fd.get(), near.get(), near.bytes), 0);
    EXPECT_EQ(connect(fd.get(), far.get(), far.bytes), 0);
    const timeval limit{60, 0};
    setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    return fd;
  }

  pid_t tls_ = -1;
  uint16_t port_ = 0;
};

// A guest's side of one connection.
class Guest {
 public:
  Guest(UniqueFd fd, const Key& key) : fd_(std::move(fd)) {
    std::string error;
    session_ = TlsSession::Client(key, &error);
    std::byte bytes[4096];
    while ((progress_ = session_->Handshake()) == TlsSession::Progress::kNeedsMore) {
      Flush();
      const ssize_t got = recv(fd_.get(), bytes, sizeof bytes, 0);
      if (got <= 0) return;
      session_->Received(std::span(bytes).first(size_t(got)));
    }
    Flush();
    if (progress_ == TlsSession::Progress::kDone) records_ = session_->Established();
  }
  bool accepted() const { return records_ != nullptr; }
  // Nothing where the guest was refused.
  void Send(std::span<const std::byte> bytes) {
    if (records_ == nullptr) return;
    records_->Seal(bytes);
    Flush();
  }
  // False: the connection ended before, or the guest was refused.
  bool Read(std::span<std::byte> out) {
    if (records_ == nullptr) return false;
    std::byte wire[65'536];
    while (!out.empty()) {
      const ptrdiff_t opened = records_->Open(out);
      if (opened < 0) return false;
      out = out.subspan(size_t(opened));
      if (opened > 0) continue;
      const ssize_t got = recv(fd_.get(), wire, sizeof wire, 0);
      if (got <= 0) return false;
      records_->Received(std::span(wire).first(size_t(got)));
      records_->KeepReceived();
    }
    return true;
  }
  LocalReply Open(const OpenBlock& block) {
    LocalReply reply{};
    Send(std::as_bytes(std::span(&block, 1)));
    EXPECT_TRUE(Read(std::as_writable_bytes(std::span(&reply, 1))));
    return reply;
  }
  // What was sent on the wire so far, by the pieces in which it was sent.
  const std::vector<std::vector<std::byte>>& sent() const { return sent_; }
  // Leaves the connection as it is.
  UniqueFd TakeSocket() { return std::move(fd_); }
  // As if its network were cut: what was under way is lost, and nobody says goodbye.
  void Reset() {
    const linger at_once{1, 0};
    setsockopt(fd_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    fd_.reset();
  }
  // What is sent comes back from the fake worker.
  bool Echoes(const std::string& text) {
    std::string back(text.size(), '\0');
    Send(std::as_bytes(std::span(text)));
    return Read(std::as_writable_bytes(std::span(back))) && back == text;
  }

 private:
  void Flush() {
    std::vector<std::byte> wire;
    if (records_ != nullptr)
      records_->TakeOutput(wire);
    else
      session_->TakeOutput(wire);
    if (wire.empty()) return;
    (void)!send(fd_.get(), wire.data(), wire.size(), MSG_NOSIGNAL);
    sent_.push_back(std::move(wire));
  }
  UniqueFd fd_;
  std::vector<std::vector<std::byte>> sent_;
  std::unique_ptr<TlsSession> session_;
  std::unique_ptr<TlsRecords> records_;  // after the handshake
  TlsSession::Progress progress_{};
};

}  // namespace causeway::test
