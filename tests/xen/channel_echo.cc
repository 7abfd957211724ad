// SPDX-License-Identifier: Apache-2.0
// channel_echo DOMAIN: domain 0's half of a bare round trip through event channels, as tests/vm/doorbell_echo.cc is of one through
// an ivshmem-doorbell device. Prints the three ports that a guest's module binds, "work control interrupt", and answers each ring
// of the first by one of the third until it is ended. Exit status: 1 there is no channel.
#include <poll.h>
#include <sys/prctl.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "host_backend/granted/event_channel.h"

int main(int count, char** arguments) {
  if (count != 2) return 2;
  causeway::EventChannel channels[3];
  for (causeway::EventChannel& channel : channels) {
    auto opened = causeway::EventChannel::Open(uint16_t(std::atoi(arguments[1])));
    if (!opened.ok()) {
      std::fprintf(stderr, "channel_echo: %s\n", opened.error().c_str());
      return 1;
    }
    channel = std::move(opened.value());
  }
  const auto& [work, control, interrupt] = channels;
  std::printf("%u %u %u\n", work.port, control.port, interrupt.port);
  std::fflush(stdout);
  prctl(PR_SET_TIMERSLACK, 1000);  // ns, as of the daemon's thread
  pollfd asked{work.fd.get(), POLLIN, 0};
  while (poll(&asked, 1, -1) > 0) {
    if (causeway::TakeEvents(work.fd.get())) causeway::RingChannel(interrupt.fd.get(), interrupt.port);
  }
  return 1;
}
