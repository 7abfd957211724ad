// SPDX-License-Identifier: Apache-2.0
// The ivshmem server that a VM's QEMU connects to, with well-behaved and hostile clients in QEMU's place.
#include "host_backend/daemon/doorbell/doorbell.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <optional>
#include <vector>

#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

struct Message {
  int64_t number = 0;
  UniqueFd descriptor;
};

class Client {
 public:
  explicit Client(const std::string& path) : socket_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof address.sun_path - 1);
    connected_ = connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  bool connected() const { return connected_; }
  int fd() const { return socket_.get(); }
  void Close() { socket_.reset(); }
  // What is there: QEMU too takes the messages one by one. None: the server has closed the connection, or said nothing.
  std::optional<Message> Next() const {
    Message message;
    int descriptor = -1;
    if (ReceivePacket(socket_.get(), &message.number, sizeof message.number, std::span(&descriptor, 1),
                      MSG_DONTWAIT) != ssize_t(sizeof message.number))
      return std::nullopt;
    message.descriptor.reset(descriptor);
    return message;
  }
  bool Ended() const {
    char byte;
    return recv(socket_.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

 private:
  UniqueFd socket_;
  bool connected_ = false;
};

class DoorbellTest : public ::testing::Test {
 protected:
  DoorbellTest() {
    char folder[] = "/tmp/doorbell.XXXXXX";
    folder_ = mkdtemp(folder);
    vm_.name = "guest";
    vm_.doorbell_socket = folder_ + "/socket";
    memory_.reset(memfd_create("region", MFD_CLOEXEC));
    EXPECT_EQ(ftruncate(memory_.get(), 4096), 0);
    auto bound = Doorbell::Bind(loop_, vault_, nullptr, vm_,
                                {[this] { ++connected_; }, [this] { ++gone_; }, [this] { ++rung_; },
                                 [this](LogLevel, const std::string& text) { log_ += text + "\n"; }});
    EXPECT_TRUE(bound.ok()) << bound.error();
    doorbell_ = std::move(bound.value());
    doorbell_->Offer(memory_.get());
  }
  ~DoorbellTest() override {
    doorbell_.reset();
    rmdir(folder_.c_str());
  }

  // The event loop until `done`; false: it was not within a minute.
  bool Run(const std::function<bool()>& done) {
    bool late = false;
    EventLoop::TimerId end = loop_.After(std::chrono::minutes(1), "the end of a test", [&] { late = true; });
    // A timer wakes the loop, which asks `done` after every round.
    std::function<void()> again = [&] {
      again_ = loop_.After(std::chrono::milliseconds(1), "a look", again);
    };
    again();
    loop_.Run([&] { return late || done(); });
    loop_.Cancel(end);
    loop_.Cancel(again_);
    return !late;
  }
  // All that the server says to a new client, which is connected then.
  std::vector<Message> Greet(const Client& client) {
    const int before = connected_;
    EXPECT_TRUE(Run([&] { return connected_ > before; }));
    std::vector<Message> messages;
    while (auto message = client.Next()) messages.push_back(std::move(*message));
    return messages;
  }

  EventLoop loop_;
  Vault vault_;
  VmConfig vm_;
  std::string folder_, log_;
  UniqueFd memory_;
  std::unique_ptr<Doorbell> doorbell_;
  EventLoop::TimerId again_ = 0;
  int connected_ = 0, gone_ = 0, rung_ = 0;
};

void Ring(int event, uint64_t times = 1) {
  ASSERT_EQ(write(event, &times, sizeof times), ssize_t(sizeof times));
}
bool Readable(int event) {
  pollfd asked{event, POLLIN, 0};
  return poll(&asked, 1, 0) == 1;
}

TEST_F(DoorbellTest, AVmGetsTheMemoryAndAnEventfdForEachVector) {
  struct stat socket {};
  ASSERT_EQ(stat(vm_.doorbell_socket.c_str(), &socket), 0);
  EXPECT_EQ(socket.st_mode & 0777, 0660u) << "others than QEMU's user and group get no memory";
  const Client client(vm_.doorbell_socket);
  const auto messages = Greet(client);
  ASSERT_EQ(messages.size(), 6u);
  const int64_t numbers[] = {
      0, Doorbell::kGuestPeer, -1, Doorbell::kHostPeer, Doorbell::kHostPeer, Doorbell::kGuestPeer};
  for (size_t i = 0; i < messages.size(); ++i) {
    EXPECT_EQ(messages[i].number, numbers[i]) << i;
    EXPECT_EQ(bool(messages[i].descriptor), i >= 2) << i;
  }
  struct stat given {
  }, own{};
  ASSERT_EQ(fstat(messages[2].descriptor.get(), &given), 0);
  ASSERT_EQ(fstat(memory_.get(), &own), 0);
  EXPECT_EQ(given.st_ino, own.st_ino);

  Ring(messages[3].descriptor.get());
  EXPECT_TRUE(Readable(doorbell_->work()));
  Ring(messages[4].descriptor.get());
  EXPECT_TRUE(Run([&] { return rung_ == 1; }));
  Ring(doorbell_->guest());
  EXPECT_TRUE(Readable(messages[5].descriptor.get()));
}

TEST_F(DoorbellTest, ASecondClientIsClosedAndTheFirstIsServedOn) {
  const Client first(vm_.doorbell_socket);
  const auto messages = Greet(first);
  const Client second(vm_.doorbell_socket);
  ASSERT_TRUE(second.connected());
  EXPECT_TRUE(Run([&] { return second.Ended(); }));
  EXPECT_NE(log_.find("a second connection"), std::string::npos);
  EXPECT_EQ(connected_, 1);
  EXPECT_EQ(gone_, 0);
  Ring(messages[4].descriptor.get());
  EXPECT_TRUE(Run([&] { return rung_ == 1; }));
}

TEST_F(DoorbellTest, AClientThatSaysAnythingIsClosed) {
  const Client client(vm_.doorbell_socket);
  Greet(client);
  const char nonsense[100] = {};
  ASSERT_EQ(send(client.fd(), nonsense, sizeof nonsense, MSG_NOSIGNAL), ssize_t(sizeof nonsense));
  EXPECT_TRUE(Run([&] { return gone_ == 1; }));
  EXPECT_FALSE(doorbell_->connected());
  EXPECT_NE(log_.find("which QEMU never does"), std::string::npos);
}

TEST_F(DoorbellTest, AClientThatClosesWithoutReadingMakesRoomForTheNext) {
  for (int round = 1; round <= 4; ++round) {
    Client client(vm_.doorbell_socket);
    client.Close();
    EXPECT_TRUE(Run([&] { return gone_ == round || !log_.empty(); }));
    if (!log_.empty()) break;  // the hello met a closed socket
  }
  const int before = connected_;
  Client next(vm_.doorbell_socket);
  EXPECT_TRUE(Run([&] { return connected_ > before; }));
  // An earlier life's eventfds ring nothing any more.
  const auto message = next.Next();
  ASSERT_TRUE(message);
  EXPECT_EQ(message->number, Doorbell::kVersion);
}

TEST_F(DoorbellTest, RingsOfAClientThatIsGoneReachNobody) {
  std::vector<Message> old;
  {
    Client client(vm_.doorbell_socket);
    old = Greet(client);
  }
  EXPECT_TRUE(Run([&] { return gone_ == 1; }));
  const Client next(vm_.doorbell_socket);
  const auto messages = Greet(next);
  Ring(old[3].descriptor.get());
  Ring(old[4].descriptor.get());
  EXPECT_FALSE(Readable(doorbell_->work()));
  Ring(messages[4].descriptor.get());
  EXPECT_TRUE(Run([&] { return rung_ != 0; }));
  EXPECT_EQ(rung_, 1);
}

TEST_F(DoorbellTest, AFloodOfConnectionsDoesNotReachTheConnectedOne) {
  const Client first(vm_.doorbell_socket);
  const auto messages = Greet(first);
  std::vector<std::unique_ptr<Client>> flood;
  for (int i = 0; i < 100; ++i) flood.push_back(std::make_unique<Client>(vm_.doorbell_socket));
  Ring(messages[4].descriptor.get());
  EXPECT_TRUE(Run([&] { return rung_ == 1; })) << "an open backlog takes the loop from nobody";
  EXPECT_TRUE(doorbell_->connected());
  EXPECT_EQ(connected_, 1);
}

TEST_F(DoorbellTest, WithoutMemoryNobodyIsServed) {
  doorbell_->Offer(-1);
  const Client client(vm_.doorbell_socket);
  EXPECT_TRUE(Run([&] { return client.Ended(); }));
  EXPECT_EQ(connected_, 0);
  EXPECT_NE(log_.find("no region to give"), std::string::npos);
}

TEST_F(DoorbellTest, WhereDescriptorsHaveRunOutTheNextClientIsServedLater) {
  const Client client(vm_.doorbell_socket);
  ASSERT_TRUE(client.connected());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit none = before;
  none.rlim_cur = rlim_t(client.fd());  // every one above is refused
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_TRUE(Run([&] { return !log_.empty(); }));
  EXPECT_NE(log_.find("accepts no connection"), std::string::npos) << log_;
  EXPECT_EQ(connected_, 0);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(Run([&] { return connected_ == 1; }));
}

TEST_F(DoorbellTest, AStormOfRingsIsAnsweredNowAndThen) {
  const Client client(vm_.doorbell_socket);
  const auto messages = Greet(client);
  constexpr int kRounds = 2000;
  int rounds = 0;
  const auto begin = Clock::now();
  EXPECT_TRUE(Run([&] {
    Ring(messages[4].descriptor.get());
    return ++rounds >= kRounds;
  }));
  const auto passed = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin).count();
  EXPECT_LE(rung_, 256 + passed + 1);
  // What was left out is answered by the next one.
  const int before = rung_;
  EXPECT_TRUE(Run([&] { return rung_ > before; }));
}

}  // namespace
// The flag is the file's, and the VM's process has the file, too.
TEST(TakeRings, NeverWaitsThoughItsFileWould) {
  const UniqueFd event(eventfd(0, EFD_CLOEXEC));
  EXPECT_FALSE(TakeRings(event.get()));
  const uint64_t two = 2;
  ASSERT_EQ(write(event.get(), &two, sizeof two), ssize_t(sizeof two));
  EXPECT_TRUE(TakeRings(event.get()));
  EXPECT_FALSE(TakeRings(event.get()));
}

}  // namespace causeway::daemon
