// SPDX-License-Identifier: Apache-2.0
// What keys and recorded bytes are worth to a running host: keys that expire under their sessions, and bytes that come again.
#include <gtest/gtest.h>

#include <ctime>

#include "host_backend/common/key_folder.h"
#include "tests/unit/openssl_guest.h"
#include "tests/unit/remote_fixture.h"

namespace causeway::test {
namespace {

class RemoteKeysTest : public RemoteTest {
 protected:
  // A session that was opened and used, all of whose guest's bytes somebody has recorded.
  std::vector<std::vector<std::byte>> RecordSession(const Key& key) {
    Guest guest(Dial(), key);
    EXPECT_TRUE(guest.accepted());
    EXPECT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
    EXPECT_TRUE(guest.Echoes("once"));
    return guest.sent();
  }
  // The peer gets nothing but its end, no session begins, and one line of the log says why.
  void IsRefused(const UniqueFd& fd, const std::string& why, uint64_t sessions) {
    const std::string peer = NameInLog(fd);
    char byte[4096];
    while (recv(fd.get(), byte, sizeof byte, 0) > 0) {  // the host's part of the handshake
    }
    EXPECT_TRUE(WaitForLog(peer + "refused: it named key one, but: " + why));
    EXPECT_TRUE(WaitFor([&] { return Processes() == 0; }));
    EXPECT_EQ(Count(TlsLog(), peer), 1u) << TlsLog();
    EXPECT_EQ(Counter("sessions"), sessions);
  }
};

TEST_F(RemoteKeysTest, AKeyThatExpiresEndsItsSessionsAndNoOthers) {
  const Key key = MakeKey("one"), other_key = MakeKey("other");
  Start();
  Guest guest(Dial(), key), other(Dial(), other_key);
  ASSERT_EQ(guest.Open(StreamOpenBlock()).accepted, 1u);
  ASSERT_EQ(other.Open(StreamOpenBlock()).accepted, 1u);
  // As if it had been made with that end, so that the sessions are there before it, however busy the machine is.
  const std::time_t end = std::time(nullptr) + 2;
  EXPECT_EQ(Shell("sed -i '/^secret/i expires " + TimeText(end) + "' " + keys() + "/one.key").status, 0);
  std::byte byte;
  EXPECT_FALSE(guest.Read(std::span(&byte, 1)));
  EXPECT_GE(std::time(nullptr), end) << "it was good until then";
  EXPECT_TRUE(WaitForLog("ended: key one expired at " + TimeText(end)));
  EXPECT_TRUE(other.Echoes("still here"));
  EXPECT_FALSE(Guest(Dial(), key).accepted());
  EXPECT_TRUE(WaitFor([&] { return LogText().find("its key is good no more") != std::string::npos; }));
  EXPECT_EQ(LogText().find("handed over a remote guest without saying whom"), std::string::npos);
}

// Also where the host's answers are waited for, as somebody does who knows the protocol and not the key.
TEST_F(RemoteKeysTest, BytesThatWereRecordedExecuteNothing) {
  const Key key = MakeKey("one");
  Start();
  const auto recorded = RecordSession(key);
  ASSERT_GE(recorded.size(), 4u) << "hello, finished, opening, words";
  EXPECT_TRUE(WaitForNoSession());
  EXPECT_TRUE(WaitFor([&] { return Processes() == 0; }));
  for (const bool waits : {false, true}) {
    SCOPED_TRACE(waits);
    const UniqueFd fd = Dial();
    char byte;
    for (const auto& part : recorded) {
      (void)!send(fd.get(), part.data(), part.size(), MSG_NOSIGNAL);
      if (waits && &part == &recorded.front()) {
        EXPECT_EQ(recv(fd.get(), &byte, 1, MSG_PEEK), 1);
      }
    }
    IsRefused(fd, "", 1);
  }
  RecordSession(key);  // the key is as good as before
}

// An opening message that comes as early data, which anybody could send again.
TEST_F(RemoteKeysTest, EarlyDataOpenNoSession) {
  const Key key = MakeKey("one");
  Start();
  OpenSslGuest guest(key, 16'384);
  const OpenBlock block = StreamOpenBlock();
  const auto bytes = std::as_bytes(std::span(&block, 1));
  const auto wire = guest.HelloWith({bytes.begin(), bytes.end()});
  ASSERT_GT(wire.size(), WithoutData(wire).size() + sizeof block);
  const UniqueFd fd = Dial();
  (void)!send(fd.get(), wire.data(), wire.size(), MSG_NOSIGNAL);
  IsRefused(fd, "", 0);
}

}  // namespace
}  // namespace causeway::test
