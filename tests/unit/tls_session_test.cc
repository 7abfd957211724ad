// SPDX-License-Identifier: Apache-2.0
// Keys of remote guests, and TLS between two sessions of one process: what is refused, and that nothing of it is taken twice.
#include "ivshmem_ring/tls/tls_session.h"

#include <gtest/gtest.h>
#include <openssl/ssl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <random>

#include "tests/unit/openssl_guest.h"

namespace causeway {
namespace {

using test::OpenSslGuest;

Key MakeKey(char fill) {
  Key key;
  key.id = std::string(kKeyIdDigits, fill);
  key.vm = "guest1";
  key.created = 1'750'000'000;
  key.has_secret = true;
  key.secret.fill(uint8_t(fill));
  return key;
}

using Bytes = std::vector<std::byte>;
using Progress = TlsSession::Progress;

// A guest and a host that knows one key. What one has to send the other receives.
struct Pair {
  explicit Pair(const Key& own, const Key& known) {
    std::string error;
    client = TlsSession::Client(own, &error);
    EXPECT_EQ(error, "");
    server = TlsSession::Server(
        [this, known](const std::string& id, KeySecret* secret) {
          ++asked;
          *secret = known.secret;
          return id == known.id;
        },
        &error);
    EXPECT_EQ(error, "");
  }
  // After the handshake.
  void Establish() {
    guest = client->Established();
    host = server->Established();
    ASSERT_TRUE(guest != nullptr && host != nullptr);
  }
  // Moves what is to be sent, and keeps a copy of what the guest has sent.
  void Move(TlsSession& from, TlsSession& to) {
    Bytes wire;
    from.TakeOutput(wire);
    if (&from == client.get()) of_client.insert(of_client.end(), wire.begin(), wire.end());
    to.Received(wire);
    to.KeepReceived();
  }
  bool ShakeHands() {
    for (int round = 0; round < 4; ++round) {
      if (client_state == Progress::kNeedsMore) client_state = client->Handshake();
      Move(*client, *server);
      if (server_state == Progress::kNeedsMore) server_state = server->Handshake();
      Move(*server, *client);
    }
    if (client_state != Progress::kDone || server_state != Progress::kDone) return false;
    Establish();
    return true;
  }
  std::unique_ptr<TlsSession> client, server;
  std::unique_ptr<TlsRecords> guest, host;
  Progress client_state = Progress::kNeedsMore, server_state = Progress::kNeedsMore;
  Bytes of_client;
  int asked = 0;
};

Bytes RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(count);
  for (auto& byte : bytes) byte = std::byte(random());
  return bytes;
}

// `from` sends, `to` receives in pieces of `piece` bytes of the wire.
Bytes Carry(TlsRecords& from, TlsRecords& to, const Bytes& sent, size_t piece) {
  EXPECT_TRUE(from.Seal(sent));
  Bytes wire, got, room(10'000);
  from.TakeOutput(wire);
  for (size_t at = 0; at < wire.size(); at += piece) {
    to.Received(std::span(wire).subspan(at, std::min(piece, wire.size() - at)));
    while (true) {
      const ptrdiff_t opened = to.Open(room);
      EXPECT_GE(opened, 0);
      if (opened <= 0) break;
      got.insert(got.end(), room.begin(), room.begin() + opened);
    }
  }
  return got;
}

TEST(TlsSession, CarriesBytesBothWays) {
  Pair pair(MakeKey('a'), MakeKey('a'));
  ASSERT_TRUE(pair.ShakeHands());
  EXPECT_EQ(pair.server->key_id(), MakeKey('a').id);
  EXPECT_EQ(pair.asked, 1);
  for (const size_t bytes : {size_t{1}, size_t{5'000}, size_t{1'000'000}}) {
    const Bytes sent = RandomBytes(bytes, uint32_t(bytes));
    EXPECT_EQ(Carry(*pair.guest, *pair.host, sent, 65'536), sent);
    EXPECT_EQ(Carry(*pair.host, *pair.guest, sent, 1'000), sent);
  }
  EXPECT_EQ(Carry(*pair.guest, *pair.host, RandomBytes(300, 3), 1), RandomBytes(300, 3));
}

TEST(TlsSession, TheWireShowsNothingOfIt) {
  Pair pair(MakeKey('a'), MakeKey('a'));
  ASSERT_TRUE(pair.ShakeHands());
  const std::string text(400, 'x');
  pair.guest->Seal(std::as_bytes(std::span(text)));
  Bytes wire;
  pair.guest->TakeOutput(wire);
  const std::string shown(reinterpret_cast<const char*>(wire.data()), wire.size());
  EXPECT_GT(shown.size(), text.size());
  EXPECT_EQ(shown.find("xxxx"), std::string::npos);
}

TEST(TlsSession, AKeyThatTheHostDoesNotKnowIsRefused) {
  Pair pair(MakeKey('a'), MakeKey('b'));
  EXPECT_FALSE(pair.ShakeHands());
  EXPECT_EQ(pair.server_state, Progress::kFailed);
  EXPECT_EQ(pair.client_state, Progress::kFailed);
  EXPECT_EQ(pair.asked, 1);
}

// The host would learn of it, and the guest that the host does not have its secret.
TEST(TlsSession, AnotherSecretIsRefusedByBothSides) {
  Key other = MakeKey('a');
  other.secret.fill(7);
  Pair pair(other, MakeKey('a'));
  EXPECT_FALSE(pair.ShakeHands());
  EXPECT_EQ(pair.server_state, Progress::kFailed);
  EXPECT_EQ(pair.client_state, Progress::kFailed);
  EXPECT_FALSE(pair.server->failure().empty());
}

TEST(TlsSession, RecordedBytesOpenNoSecondSession) {
  Pair first(MakeKey('a'), MakeKey('a'));
  ASSERT_TRUE(first.ShakeHands());
  first.guest->Seal(RandomBytes(100, 1));
  Bytes record;
  first.guest->TakeOutput(record);
  first.of_client.insert(first.of_client.end(), record.begin(), record.end());
  Pair second(MakeKey('a'), MakeKey('a'));
  second.server->Received(first.of_client);
  Progress progress = Progress::kNeedsMore;
  for (int i = 0; i < 4 && progress == Progress::kNeedsMore; ++i) progress = second.server->Handshake();
  EXPECT_EQ(progress, Progress::kFailed);
}

TEST(TlsSession, ARecordThatIsSentTwiceEndsTheSession) {
  Pair pair(MakeKey('a'), MakeKey('a'));
  ASSERT_TRUE(pair.ShakeHands());
  pair.guest->Seal(RandomBytes(100, 1));
  Bytes wire, room(1'000);
  pair.guest->TakeOutput(wire);
  pair.host->Received(wire);
  EXPECT_EQ(pair.host->Open(room), 100);
  pair.host->Received(wire);
  EXPECT_LT(pair.host->Open(room), 0);
  EXPECT_FALSE(pair.host->Seal(room));
}

TEST(TlsSession, AnyBytesAreAFailureOrAWait) {
  Pair good(MakeKey('a'), MakeKey('a'));
  ASSERT_TRUE(good.ShakeHands());
  std::mt19937 random(11);
  for (int round = 0; round < 100; ++round) {
    Pair pair(MakeKey('a'), MakeKey('a'));
    Bytes bytes = round % 3 == 0 ? RandomBytes(400, uint32_t(round)) : good.of_client;
    if (round % 3 == 1) bytes.resize(random() % bytes.size());
    for (int i = 0; i < 3; ++i)
      if (!bytes.empty()) bytes[random() % bytes.size()] = std::byte(random());
    pair.server->Received(bytes);
    EXPECT_NE(pair.server->Handshake(), Progress::kDone) << round;
  }
}

TEST(TlsSession, TheEndIsAnEnd) {
  Pair pair(MakeKey('a'), MakeKey('a'));
  ASSERT_TRUE(pair.ShakeHands());
  pair.host->Close();
  Bytes wire, room(10);
  pair.host->TakeOutput(wire);
  pair.guest->Received(wire);
  EXPECT_LT(pair.guest->Open(room), 0);
}

void ExchangeBothWays(OpenSslGuest& guest, TlsRecords& host, size_t bytes) {
  const Bytes sent = RandomBytes(bytes, uint32_t(bytes));
  Bytes wire, got(bytes);
  ASSERT_TRUE(host.Seal(sent));
  host.TakeOutput(wire);
  guest.Input(wire);
  EXPECT_EQ(guest.Read(bytes), sent);
  ASSERT_EQ(SSL_write(guest.ssl(), sent.data(), int(bytes)), int(bytes));
  wire = guest.Output();
  host.Received(wire);
  EXPECT_EQ(host.Open(got), ptrdiff_t(bytes));
  EXPECT_EQ(got, sent);
}

TEST(TlsRecords, AreThoseOfOpenSsl) {
  OpenSslGuest guest(MakeKey('a'));
  const auto host = guest.Meet();
  ASSERT_NE(host, nullptr);
  for (const size_t bytes : {size_t{1}, size_t{16'384}, size_t{16'385}, size_t{100'000}})
    ExchangeBothWays(guest, *host, bytes);
  // New keys, by the guest's wish and then by the host's.
  ASSERT_EQ(SSL_key_update(guest.ssl(), SSL_KEY_UPDATE_REQUESTED), 1);
  for (int i = 0; i < 3; ++i) ExchangeBothWays(guest, *host, 1'000);
  TlsTraffic traffic;
  ASSERT_TRUE(host->HandOver(&traffic));
  const auto heir = TlsRecords::Make(traffic, 2);
  for (int i = 0; i < 9; ++i) ExchangeBothWays(guest, *heir, 1'000);
  EXPECT_NE(SSL_get_key_update_type(guest.ssl()), SSL_KEY_UPDATE_REQUESTED);
  Bytes wire;
  heir->Close();
  heir->TakeOutput(wire);
  guest.Input(wire);
  EXPECT_TRUE(guest.Read(1).empty());
  EXPECT_EQ(SSL_get_shutdown(guest.ssl()) & SSL_RECEIVED_SHUTDOWN, SSL_RECEIVED_SHUTDOWN);
}

// What could be recorded and sent again is never taken for the guest's: the host ends a connection on which early data come, and
// where they are offered alone it says that it takes none.
TEST(TlsSession, EarlyDataAreNotAccepted) {
  const Bytes early = RandomBytes(100, 1);
  OpenSslGuest sends(MakeKey('a'), 16'384);
  const Bytes hello = sends.HelloWith(early);
  ASSERT_GT(hello.size(), test::WithoutData(hello).size() + early.size()) << "no early data were sent";
  EXPECT_EQ(sends.Meet(hello), nullptr);

  OpenSslGuest offers(MakeKey('a'), 16'384);
  const auto host = offers.Meet(test::WithoutData(offers.HelloWith(early)));
  ASSERT_NE(host, nullptr);
  EXPECT_EQ(SSL_get_early_data_status(offers.ssl()), SSL_EARLY_DATA_REJECTED);
  for (const size_t bytes : {size_t{1}, size_t{20'000}}) ExchangeBothWays(offers, *host, bytes);
}

// Zeros behind a record's content are no part of it, wherever the reader's room ends.
TEST(TlsRecords, PaddingIsNoContent) {
  OpenSslGuest guest(MakeKey('a'));
  const auto host = guest.Meet();
  ASSERT_NE(host, nullptr);
  ASSERT_EQ(SSL_set_block_padding(guest.ssl(), 512), 1);
  const Bytes sent = RandomBytes(700, 1);
  for (const size_t room :
       {size_t{1}, size_t{699}, size_t{700}, size_t{701}, size_t{1'023}, size_t{1'024}, size_t{5'000}}) {
    ASSERT_EQ(SSL_write(guest.ssl(), sent.data(), int(sent.size())), int(sent.size()));
    const Bytes wire = guest.Output();
    EXPECT_GT(wire.size(), 1'024u);
    host->Received(wire);
    Bytes got, piece(room);
    for (ptrdiff_t opened; (opened = host->Open(piece)) > 0;)
      got.insert(got.end(), piece.begin(), piece.begin() + opened);
    EXPECT_EQ(got, sent) << room;
  }
  SSL_shutdown(guest.ssl());
  const Bytes end = guest.Output();
  Bytes room(10);
  host->Received(end);
  EXPECT_LT(host->Open(room), 0);
}

TEST(TlsRecords, AChangedBitAnywhereEndsTheConnection) {
  for (size_t at = 0; at < 60; ++at) {
    Pair pair(MakeKey('a'), MakeKey('a'));
    ASSERT_TRUE(pair.ShakeHands());
    Bytes wire, room(100);
    pair.guest->Seal(RandomBytes(38, 1));
    pair.guest->TakeOutput(wire);
    ASSERT_EQ(wire.size(), 60u);
    wire[at] ^= std::byte{1};
    if (at == 4) wire.resize(wire.size() + 1);  // a longer record, all of which comes
    pair.host->Received(wire);
    EXPECT_LE(pair.host->Open(room), at == 3 ? 0 : -1)
        << at;  // byte 3: a record of which the end has not come
  }
}

// However small the reader's room: what was decrypted before the tag was seen goes nowhere, at any later call.
TEST(TlsRecords, NothingIsReadOfAForgedRecord) {
  for (const size_t room : {size_t{1}, size_t{10}, size_t{50}, size_t{2'000}}) {
    Pair pair(MakeKey('a'), MakeKey('a'));
    ASSERT_TRUE(pair.ShakeHands());
    const Bytes sound = RandomBytes(10, 1);
    Bytes wire, forged, got, piece(room);
    pair.guest->Seal(sound);
    pair.guest->TakeOutput(wire);
    pair.guest->Seal(RandomBytes(1'000, 2));
    pair.guest->TakeOutput(forged);
    forged[500] ^= std::byte{1};
    wire.insert(wire.end(), forged.begin(), forged.end());
    pair.host->Received(wire);
    for (int call = 0; call < 100; ++call) {
      const ptrdiff_t opened = pair.host->Open(piece);
      if (opened > 0) got.insert(got.end(), piece.begin(), piece.begin() + opened);
    }
    EXPECT_EQ(got, sound) << room;
    EXPECT_LT(pair.host->Open(piece), 0);
    EXPECT_FALSE(pair.host->Seal(sound));
  }
}

// A thread that waits for bulk bytes waits until the socket has as many as Wanted says: more than will ever come would be a hang.
TEST(TlsRecords, NoMoreIsWantedThanComes) {
  constexpr size_t kMost = 128u << 10, kRecord = (16u << 10) + 22;
  for (const size_t part : {size_t{1} << 20, size_t{16} << 10, size_t{16'383}, size_t{5'000}, size_t{1}}) {
    Pair pair(MakeKey('a'), MakeKey('a'));
    ASSERT_TRUE(pair.ShakeHands());
    const Bytes sent = RandomBytes(part == 1 ? 300 : 1u << 20, 1);
    Bytes wire;
    for (size_t at = 0; at < sent.size(); at += part) {
      Bytes some;
      pair.guest->Seal(std::span(sent).subspan(at, std::min(part, sent.size() - at)));
      pair.guest->TakeOutput(some);
      wire.insert(wire.end(), some.begin(), some.end());
    }
    Bytes got(sent.size());
    size_t opened = 0, taken = 0;
    while (opened < got.size()) {
      const size_t wanted = pair.host->Wanted(got.size() - opened, kMost);
      ASSERT_GT(wanted, 0u);
      ASSERT_LE(wanted, std::min(kMost, wire.size() - taken)) << part;
      if (part >= kRecord - 22 && part % (kRecord - 22) == 0) {
        EXPECT_TRUE(wanted % kRecord == 0 || wanted == wire.size() - taken) << "ends inside a record";
      }
      pair.host->Received(std::span(wire).subspan(taken, wanted));
      taken += wanted;
      for (ptrdiff_t more; (more = pair.host->Open(std::span(got).subspan(opened))) > 0;)
        opened += size_t(more);
    }
    EXPECT_EQ(got, sent);
    EXPECT_EQ(taken, wire.size());
  }
}

TEST(TlsRecords, WhatIsNotOpenedYetIsNotHandedOver) {
  Pair pair(MakeKey('a'), MakeKey('a'));
  ASSERT_TRUE(pair.ShakeHands());
  TlsTraffic traffic;
  EXPECT_TRUE(pair.host->HandOver(&traffic));
  Bytes wire, room(10);
  pair.guest->Seal(RandomBytes(30, 1));
  pair.guest->TakeOutput(wire);
  pair.host->Received(wire);
  EXPECT_EQ(pair.host->Open(room), 10);
  EXPECT_FALSE(pair.host->HandOver(&traffic));
  room.resize(20);
  EXPECT_EQ(pair.host->Open(room), 20);
  EXPECT_TRUE(pair.host->HandOver(&traffic));
}

TEST(KeyFile, IsReadAsItWasWritten) {
  Key key = MakeKey('c');
  key.expires = 1'800'000'000;
  Key read;
  EXPECT_EQ(ParseKey(KeyText(key, false), &read), "");
  EXPECT_EQ(read.id, key.id);
  EXPECT_EQ(read.vm, "guest1");
  EXPECT_EQ(read.created, key.created);
  EXPECT_EQ(read.expires, key.expires);
  EXPECT_EQ(read.secret, key.secret);
  EXPECT_EQ(ParseKey(KeyText(key, true), &read), "");
  EXPECT_EQ(read.vm, "");
  EXPECT_EQ(read.expires, 0);
  key.has_secret = false;
  key.revoked = 1'760'000'000;
  EXPECT_EQ(ParseKey(KeyText(key, false), &read), "");
  EXPECT_EQ(read.revoked, key.revoked);
  EXPECT_FALSE(read.has_secret);
}

TEST(KeyFile, EachMistakeHasItsSentence) {
  const std::string id = "id " + std::string(32, 'a') + "\n", first = "causeway-key 1\n";
  const std::string secret = "secret " + std::string(64, 'b') + "\n";
  Key key;
  EXPECT_EQ(ParseKey("", &key), "it is empty");
  EXPECT_EQ(ParseKey("something\n" + id, &key), "its first line is not \"causeway-key 1\"");
  EXPECT_EQ(ParseKey(first + secret, &key), "its line \"id\" is missing");
  EXPECT_EQ(ParseKey(first + id, &key), "its line \"secret\" is missing");
  EXPECT_EQ(ParseKey(first + "id 12\n" + secret, &key), "its line \"id\" must have 32 hexadecimal digits");
  EXPECT_EQ(ParseKey(first + id + "secret 12\n", &key),
            "its line \"secret\" must have 64 hexadecimal digits");
  EXPECT_EQ(ParseKey(first + id + secret + "colour blue\n", &key),
            "it has a line \"colour\", which no key has");
  EXPECT_EQ(ParseKey(first + id + secret + "expires 2026-02-30T00:00:00Z\n", &key),
            "its line \"expires\" must be a time such as 2026-01-31T12:00:00Z");
  EXPECT_EQ(ParseKey(first + id + secret, &key), "");
}

TEST(KeyFile, OneThatEverybodyMayWriteIsRefused) {
  char path[] = "/tmp/causeway-key-XXXXXX";
  const int fd = mkstemp(path);
  const std::string text = KeyText(MakeKey('d'), true);
  ASSERT_EQ(write(fd, text.data(), text.size()), ssize_t(text.size()));
  Key key;
  EXPECT_EQ(ReadKeyFile(path, &key), "");
  fchmod(fd, 0666);
  EXPECT_NE(ReadKeyFile(path, &key).find("everybody may write it"), std::string::npos);
  close(fd);
  unlink(path);
  EXPECT_NE(ReadKeyFile(path, &key).find("cannot be read: No such file"), std::string::npos);
}

}  // namespace
}  // namespace causeway
