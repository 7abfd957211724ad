// SPDX-License-Identifier: Apache-2.0
// What peers that have proved no key can take of a host: each bound of causeway-tls that docs/limits.md names, reached and held.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/un.h>

#include <chrono>
#include <thread>

#include "host_backend/tls/confinement.h"
#include "host_backend/tls/listener.h"
#include "tests/unit/remote_fixture.h"

namespace causeway::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

// The first message of a guest that has the key.
std::vector<std::byte> HelloOf(const Key& key) {
  std::string error;
  std::vector<std::byte> hello;
  const auto session = TlsSession::Client(key, &error);
  EXPECT_EQ(session->Handshake(), TlsSession::Progress::kNeedsMore);
  session->TakeOutput(hello);
  return hello;
}

// Nothing has come on the connection, and it has not ended.
bool IsSilent(const UniqueFd& fd) {
  char byte;
  return recv(fd.get(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
}

class RemoteBoundsTest : public RemoteTest {
 protected:
  // As many peers as may be in their handshakes, of which none says anything yet; the oldest first.
  std::vector<UniqueFd> FillHandshakes() const {
    std::vector<UniqueFd> peers;
    for (size_t i = 0; i < tls::kMaxHandshakes; ++i)
      peers.push_back(Dial("127.0.0." + std::to_string(2 + i / tls::kMaxOfNetwork)));
    EXPECT_TRUE(WaitFor([&] { return Processes() == tls::kMaxHandshakes; }));
    return peers;
  }
  // With so many descriptors, and nothing at the socket where it hands guests over.
  void StartWithoutDaemon(const rlimit& descriptors) {
    std::ofstream(folder() + "/config.toml")
        << Config("ok", "[tls]\nlisten = [\"127.0.0.1:0\"]\nkeys = \"" + keys() + "\"\n");
    StartTls(&descriptors);
  }
  // The line by which causeway-tls says what became of that peer.
  bool WaitForFate(const std::string& peer, const std::string& words) const {
    return WaitForLog(peer + words);
  }
  // Of the one process of a connection that is there.
  std::string FileOfProcess(const std::string& name) const {
    return Shell("cat /proc/$(pgrep -P " + std::to_string(tls_) + ")/" + name).output;
  }
};

// They take the place of nobody but each other, and go on for no longer because they say something: a guest is served meanwhile.
TEST_F(RemoteBoundsTest, SlowPeersMakeRoomForAGuestAndEnd) {
  const Key key = MakeKey("one");
  Start();
  const auto hello = HelloOf(key);
  std::vector<UniqueFd> slow = FillHandshakes();
  const std::string oldest = NameInLog(slow.front());
  Guest guest(Dial(), key);
  ASSERT_TRUE(guest.accepted());
  ASSERT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
  EXPECT_TRUE(WaitForFate(oldest, "ended: more than 64 peers are in their handshakes"));
  // One byte of a good message at a time, and never the last one.
  const auto ended = [](const UniqueFd& fd) { return !IsSilent(fd); };
  for (size_t at = 0; at + 1 < hello.size() && !std::all_of(slow.begin(), slow.end(), ended); ++at) {
    for (const UniqueFd& fd : slow) (void)!send(fd.get(), &hello[at], 1, MSG_NOSIGNAL);
    ASSERT_TRUE(guest.Echoes("undisturbed"));
    std::this_thread::sleep_for(milliseconds(50));
  }
  char byte;
  for (const UniqueFd& fd : slow) EXPECT_LE(recv(fd.get(), &byte, 1, 0), 0);
  EXPECT_TRUE(WaitForLog("ended: its handshake took longer than 5 s"));
  EXPECT_EQ(Count(TlsLog(), "ended: more than 64 peers"), 1u);
  EXPECT_TRUE(WaitFor([&] { return Processes() == 1; })) << "the guest's is the only one left";
  EXPECT_TRUE(guest.Echoes("still here"));
}

// A message of 128 KiB may be announced, but no more than 16 KiB of it are taken.
TEST_F(RemoteBoundsTest, AHandshakeHasSixteenKib) {
  MakeKey("one");
  Start();
  constexpr size_t kRecord = 1000;
  std::string wire;
  for (int i = 0; i < 100; ++i) {
    std::string record("\x16\x03\x01\x03\xe8", 5);
    record += i == 0 ? std::string("\x01\x01\xff\xff", 4) + std::string(kRecord - 4, 'x')
                     : std::string(kRecord, 'x');
    wire += record;
  }
  const UniqueFd more = Dial(), less = Dial();
  (void)!send(more.get(), wire.data(), 16'384, MSG_NOSIGNAL);
  EXPECT_TRUE(WaitForFate(NameInLog(more), "refused: it sent more than a handshake has"));
  (void)!send(less.get(), wire.data(), 16'383, MSG_NOSIGNAL);
  shutdown(less.get(), SHUT_WR);
  EXPECT_TRUE(WaitForFate(NameInLog(less), "refused: it ended the connection during the handshake"));
  EXPECT_TRUE(WaitFor([&] { return Processes() == 0; }));
}

TEST_F(RemoteBoundsTest, TheProcessOfAConnectionIsConfined) {
  MakeKey("one");
  Start();
  const UniqueFd silent = Dial();
  EXPECT_TRUE(WaitFor([&] { return FileOfProcess("status").find("Seccomp:\t2") != std::string::npos; }));
  const std::string limits = FileOfProcess("limits");
  const auto limit_of = [&](const std::string& name) {
    std::istringstream line(limits.substr(limits.find(name) + name.size()));
    std::string soft, hard;
    line >> soft >> hard;
    return soft + " " + hard;
  };
  EXPECT_EQ(limit_of("Max data size"), "67108864 67108864") << limits;
  EXPECT_EQ(limit_of("Max core file size"), "0 0") << limits;
  EXPECT_EQ(limit_of("Max file size"), "0 0") << limits;
  EXPECT_NE(FileOfProcess("status").find("NoNewPrivs:\t1"), std::string::npos);
}

// What a process that a peer has taken over could try.
int StatusOfConfined(int (*attempt)()) {
  const pid_t child = fork();
  if (child == 0) _exit(tls::ConfineConnection().empty() ? attempt() : 99);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return status;
}

TEST(Confinement, TakesLittleMemoryAndNoFile) {
  const auto take = [](size_t bytes) {
    return mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  };
  static auto taker = +take;
  const int memory = StatusOfConfined([] {
    if (taker(1u << 20) == MAP_FAILED) return 1;
    return taker(64u << 20) == MAP_FAILED && errno == ENOMEM ? 0 : 2;
  });
  EXPECT_TRUE(WIFEXITED(memory) && WEXITSTATUS(memory) == 0) << memory;
  for (int (*attempt)() : {+[] { return open("/dev/null", O_RDONLY); }, +[] { return int(fork()); },
                           +[] { return ::socket(AF_UNIX, SOCK_STREAM, 0); }}) {
    const int status = StatusOfConfined(attempt);
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS) << status;
  }
}

// Twenty lines in a second and no more, whatever they say; what was left out is counted.
TEST_F(RemoteBoundsTest, StrangersFillTheLogAtAPace) {
  constexpr size_t kStrangers = 400, kLinesPerSecond = 20;
  const Key key = MakeKey("one");
  Start();
  const size_t before = Count(TlsLog(), "\n");
  const auto begin = steady_clock::now();
  for (size_t i = 0; i < kStrangers; ++i) Dial("127.0.0.2");
  EXPECT_TRUE(WaitForLog(" further lines were left out, of which there were too many in a second"));
  EXPECT_TRUE(WaitFor([&] { return Processes() == 0; }));
  const size_t lines = Count(TlsLog(), "\n") - before;
  const auto seconds = std::chrono::ceil<std::chrono::seconds>(steady_clock::now() - begin).count();
  EXPECT_LE(lines, kLinesPerSecond * size_t(seconds + 1)) << "in " << seconds << " s";
  EXPECT_TRUE(Guest(Dial(), key).accepted());
}

// The test is the daemon here, so that a session costs no worker.
class HandOvers {
 public:
  explicit HandOvers(const std::string& path) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    EXPECT_EQ(bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listener_.get(), 16), 0);
    const timeval limit{60, 0};
    setsockopt(listener_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  }
  // Takes one, and keeps it open. False: none has come.
  bool Take() { return bool(taken_.emplace_back(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC))); }

 private:
  UniqueFd listener_{::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  std::vector<UniqueFd> taken_;
};

// Fewer than 1024 where causeway-tls may have fewer descriptors, so that a test reaches the bound by few handshakes.
TEST_F(RemoteBoundsTest, ConnectionsAreBounded) {
  static_assert(tls::kMaxConnections == 1024);
  constexpr size_t kDescriptors = 180, kMost = (kDescriptors - 64) / 2;
  const Key key = MakeKey("one");
  StartWithoutDaemon(rlimit{kDescriptors, kDescriptors});
  HandOvers daemon(socket() + ".tls");
  EXPECT_TRUE(WaitForLog("At most 58 connections can be open at once"));
  std::list<UniqueFd> guests;
  while (guests.size() < kMost) {
    Guest guest(Dial(), key);
    ASSERT_TRUE(guest.accepted()) << guests.size();
    ASSERT_TRUE(daemon.Take());
    guests.push_back(guest.TakeSocket());
  }
  const UniqueFd more = Dial();
  EXPECT_TRUE(WaitForFate(NameInLog(more), "refused: 58 connections are open"));
  EXPECT_EQ(Processes(), kMost);
  guests.pop_front();
  EXPECT_TRUE(WaitFor([&] { return Processes() < kMost; }));
  EXPECT_TRUE(Guest(Dial(), key).accepted());
}

// Started with as few descriptors as a shell allows, it takes what it needs for all of its connections.
TEST_F(RemoteBoundsTest, AShellsDescriptorsAreEnough) {
  constexpr rlim_t kOfShell = 1024, kNeeded = 2 * tls::kMaxConnections + tls::kMaxWaiting + 64;
  rlimit own{}, found{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &own), 0);
  if (own.rlim_max < kNeeded)
    GTEST_SKIP() << "a process may have only " << own.rlim_max << " descriptors here";
  MakeKey("one");
  StartWithoutDaemon(rlimit{kOfShell, own.rlim_max});
  ASSERT_EQ(prlimit(tls_, RLIMIT_NOFILE, nullptr, &found), 0);
  EXPECT_EQ(found.rlim_cur, kNeeded);
  EXPECT_EQ(TlsLog().find("connections can be open at once"), std::string::npos);
}

// What this process starts from here on has a network of its own, and it itself until this goes.
class OwnNetwork {
 public:
  OwnNetwork() : home_(open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC)) {
    is_there_ = home_.get() >= 0 && unshare(CLONE_NEWNET) == 0;
  }
  ~OwnNetwork() {
    if (is_there_ && setns(home_.get(), CLONE_NEWNET) != 0) abort();
  }
  OwnNetwork(const OwnNetwork&) = delete;
  OwnNetwork& operator=(const OwnNetwork&) = delete;
  bool is_there() const { return is_there_; }

 private:
  UniqueFd home_;
  bool is_there_ = false;
};

// Whoever has one address of a network of IPv6 has all of them, and no more handshakes for that.
TEST_F(RemoteBoundsTest, AllAddressesOfANetworkOfIpV6HaveItsHandshakesTogether) {
  constexpr size_t kPeers = 40;
  static_assert(kPeers > tls::kMaxOfNetwork && kPeers < tls::kMaxHandshakes);
  const OwnNetwork network;
  if (!network.is_there()) GTEST_SKIP() << "no network namespace can be made here";
  std::string commands = "ip link set lo up";
  for (size_t i = 1; i <= kPeers; ++i)
    commands += " && ip -6 addr add 2001:db8:7::" + std::to_string(i) + "/128 dev lo nodad";
  if (Shell(commands).status != 0) GTEST_SKIP() << "the loopback interface gets no addresses of IPv6 here";
  const Key key = MakeKey("one");
  Start("[::]:0");
  std::vector<UniqueFd> silent;
  for (size_t i = 1; i <= kPeers; ++i) silent.push_back(Dial("2001:db8:7::" + std::to_string(i), "::1"));
  EXPECT_TRUE(WaitForLog("refused: 16 connections of [2001:db8:7::]/64 are in their handshakes"));
  EXPECT_LE(Processes(), tls::kMaxOfNetwork);
  EXPECT_TRUE(Guest(Dial("::1", "::1"), key).accepted());
}

}  // namespace
}  // namespace causeway::test
