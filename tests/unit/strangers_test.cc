// SPDX-License-Identifier: Apache-2.0
#include "host_backend/tls/strangers.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cstdio>

#include "host_backend/tls/addresses.h"

namespace causeway::tls {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::seconds;

// An address of IPv6, as accept gives it.
sockaddr_storage IpV6(const std::string& text, uint16_t port) {
  sockaddr_storage storage{};
  auto& address = reinterpret_cast<sockaddr_in6&>(storage);
  address.sin6_family = AF_INET6;
  address.sin6_port = htons(port);
  EXPECT_EQ(inet_pton(AF_INET6, text.c_str(), &address.sin6_addr), 1) << text;
  return storage;
}

class StrangersTest : public ::testing::Test {
 protected:
  // How many of so many connections of a network are admitted now.
  int Admitted(const std::string& network, int connections) {
    int admitted = 0;
    for (int i = 0; i < connections; ++i) admitted += strangers_.Admit(network, now_) ? 1 : 0;
    return admitted;
  }

  Strangers::Time now_ = Strangers::Time(hours(1000));
  Strangers strangers_{now_};
};

TEST_F(StrangersTest, OneNetworkHasABudgetThatFillsAgain) {
  EXPECT_EQ(Admitted("192.0.2.1", 1000), 64);
  EXPECT_EQ(Admitted("192.0.2.2", 10), 10);  // others are not concerned
  now_ += milliseconds(499);
  EXPECT_EQ(Admitted("192.0.2.1", 10), 0);
  now_ += milliseconds(2);
  EXPECT_EQ(Admitted("192.0.2.1", 10), 1);
  now_ += hours(1);
  EXPECT_EQ(Admitted("192.0.2.1", 1000), 64);
}

TEST_F(StrangersTest, WhoProvesAKeyMayConnectWithoutEnd) {
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_TRUE(strangers_.Admit("192.0.2.1", now_)) << i;
    strangers_.Prove("192.0.2.1", now_);
  }
}

TEST_F(StrangersTest, BeyondTheBudgetOfAllOnlyGuestsComeIn) {
  ASSERT_TRUE(strangers_.Admit("guest", now_));
  strangers_.Prove("guest", now_);
  int admitted = 0;
  for (int i = 0; i < 5000; ++i) admitted += Admitted("stranger " + std::to_string(i), 1);
  EXPECT_EQ(admitted, 512);
  EXPECT_EQ(Admitted("guest", 10), 10);
  EXPECT_EQ(Admitted("another", 1), 0);
  now_ += seconds(1);
  EXPECT_EQ(Admitted("guest", 10), 10);
  EXPECT_EQ(Admitted("another", 100), 32 - 10);
  now_ += hours(25);  // nobody is a guest any more
  for (int i = 0; i < 5000; ++i) Admitted("stranger " + std::to_string(i), 1);
  EXPECT_EQ(Admitted("guest", 10), 0);
}

// A stranger may share a guest's address, which has to be able to come back.
TEST_F(StrangersTest, AGuestsNetworkHasALargerBudget) {
  EXPECT_EQ(Admitted("192.0.2.1", 1000), 64);
  now_ += seconds(1);
  ASSERT_TRUE(strangers_.Admit("192.0.2.1", now_));
  strangers_.Prove("192.0.2.1", now_);
  EXPECT_EQ(Admitted("192.0.2.1", 1000), 256);
  now_ += seconds(1);
  EXPECT_EQ(Admitted("192.0.2.1", 1000), 16);
  now_ += hours(25);
  EXPECT_EQ(Admitted("192.0.2.1", 1000), 64);
}

// Somebody who has one address of a network of IPv6 can come from as many of them as he likes.
TEST_F(StrangersTest, ANetworkOfIpV6HasOneBudget) {
  const auto admitted_of = [&](const std::string& network, int connections) {
    int admitted = 0;
    for (int i = 1; i <= connections; ++i) {
      char rest[40];
      std::snprintf(rest, sizeof rest, "%x:%x:0:%x", i % 7, i, i);
      admitted += Admitted(NetworkOf(IpV6(network + rest, uint16_t(i))), 1);
    }
    return admitted;
  };
  EXPECT_EQ(admitted_of("2001:db8:0:1:", 1000), 64);
  EXPECT_EQ(admitted_of("2001:db8:0:2:", 10), 10) << "the next network is another one";
  strangers_.Prove(NetworkOf(IpV6("2001:db8:0:1::5", 1)), now_);
  EXPECT_EQ(admitted_of("2001:db8:0:1:", 1000), 256) << "a guest makes all of its network one of guests";
  EXPECT_EQ(NetworkOf(IpV6("2001:db8:0:1:2:3:4:5", 7)), "[2001:db8:0:1::]/64");
  EXPECT_EQ(AddressText(IpV6("2001:db8:0:1:2:3:4:5", 7), true), "[2001:db8:0:1:2:3:4:5]:7");
}

// Three times as many networks as are remembered.
TEST_F(StrangersTest, ManyNetworksAreForgottenAndGuestsAreNot) {
  ASSERT_TRUE(strangers_.Admit("guest", now_));
  strangers_.Prove("guest", now_);
  for (int round = 0; round < 24; ++round) {
    int admitted = 0;
    for (int i = 0; i < 1000; ++i)
      admitted += Admitted("stranger " + std::to_string(round) + "." + std::to_string(i), 1);
    EXPECT_EQ(admitted, 512);
    EXPECT_EQ(Admitted("guest", 2), 2);
    now_ += seconds(40);  // all budgets are full again
  }
}

}  // namespace
}  // namespace causeway::tls
