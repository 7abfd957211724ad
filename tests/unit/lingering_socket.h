// SPDX-License-Identifier: Apache-2.0
// A descriptor as a hostile peer sends it: who has the last one of it and closes it waits.
#pragma once
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <span>
#include <vector>

#include "host_backend/common/unique_fd.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::test {

// A TCP socket whose last close waits for an hour: its peer does not read what it has sent.
class LingeringSocket {
 public:
  LingeringSocket() {
    UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof address;
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(listener.get(), raw, bytes), 0);
    EXPECT_EQ(listen(listener.get(), 1), 0);
    EXPECT_EQ(getsockname(listener.get(), raw, &bytes), 0);
    own_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(own_.get(), raw, bytes), 0);
    peer_.reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const linger waits{1, 3600};
    EXPECT_EQ(setsockopt(own_.get(), SOL_SOCKET, SO_LINGER, &waits, sizeof waits), 0);
    const std::vector<char> data(1u << 16);
    while (send(own_.get(), data.data(), data.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0) {
    }
  }
  UniqueFd& own() { return own_; }

  // Sends it over a UNIX socket, in a packet of one byte, and keeps no copy. False: errno says why not.
  bool SendAway(int to) {
    const int number = own_.get();
    const bool sent = SendPacket(to, "", 1, std::span(&number, 1));
    const int error = errno;
    if (!sent) ShutDown();
    own_.reset();
    errno = error;
    return sent;
  }

  ~LingeringSocket() {
    if (own_) ShutDown();
  }

 private:
  void ShutDown() {
    const linger none{};
    setsockopt(own_.get(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
  }

  UniqueFd own_, peer_;
};

}  // namespace causeway::test
