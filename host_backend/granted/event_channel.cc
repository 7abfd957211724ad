// SPDX-License-Identifier: Apache-2.0
#include "host_backend/granted/event_channel.h"

#include <fcntl.h>
#include <linux/types.h>
#include <sys/ioctl.h>
#include <unistd.h>

using domid_t = unsigned short;  // Linux's header uses it and does not say what it is
#include <xen/evtchn.h>

#include <string>

namespace causeway {

Result<EventChannel> EventChannel::Open(uint16_t domain) {
  constexpr const char* kDevice = "/dev/xen/evtchn";
  EventChannel channel;
  channel.fd.reset(open(kDevice, O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!channel.fd)
    return Error{std::string(kDevice) + " cannot be opened: " + ErrnoText() +
                 "; load the module xen-evtchn in domain 0, and let causewayd's user open the device."};
  ioctl_evtchn_bind_unbound_port bind{domain};
  const int port = ioctl(channel.fd.get(), IOCTL_EVTCHN_BIND_UNBOUND_PORT, &bind);
  if (port <= 0) return Error{"Xen gives no event channel: " + ErrnoText() + "."};
  ioctl_evtchn_restrict_domid restrict {domain};
  if (ioctl(channel.fd.get(), IOCTL_EVTCHN_RESTRICT_DOMID, & restrict) != 0)
    return Error{"An event channel cannot be restricted to its domain: " + ErrnoText() + "."};
  channel.port = uint32_t(port);
  return channel;
}

bool TakeEvents(int channel) {
  uint32_t ports[8];
  const ssize_t bytes = read(channel, ports, sizeof ports);
  if (bytes <= 0) return false;
  // The kernel masks a port that it has told of until it is written back.
  return write(channel, ports, size_t(bytes)) == bytes;
}

void RingChannel(int channel, uint32_t port) {
  ioctl_evtchn_notify notify{port};
  ioctl(channel, IOCTL_EVTCHN_NOTIFY, &notify);
}

}  // namespace causeway
