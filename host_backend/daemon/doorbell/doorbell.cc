// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/doorbell/doorbell.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "host_backend/daemon/loop/worker_fd.h"
#include "host_backend/daemon/process/unix_listener.h"
#include "host_backend/daemon/region/region_file.h"
#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

using std::chrono::milliseconds;
constexpr milliseconds kTooMany{50};        // after more connections than a VM could make
constexpr milliseconds kNothingLeft{1000};  // of descriptors or memory
constexpr milliseconds kStorm{2};           // after more rings than are answered

UniqueFd MakeEvent() {
  return UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
}

}  // namespace

bool TakeRings(int event) {
  uint64_t rings = 0;
  const iovec part{&rings, sizeof rings};
  return preadv2(event, &part, 1, -1, RWF_NOWAIT) == ssize_t(sizeof rings) || errno == EOPNOTSUPP;
}

Doorbell::Doorbell(EventLoop& loop, Vault& vault, const VmConfig& vm, Owner owner)
    : loop_(loop),
      vault_(vault),
      path_(vm.doorbell_socket),
      place_({{"vm", vm.name}, {"path", path_}, {"group", vm.region_group}, {"user", vm.region_user}}),
      owner_(std::move(owner)) {}

Result<std::unique_ptr<Doorbell>> Doorbell::Bind(EventLoop& loop, Vault& vault, LauncherLink* launcher,
                                                 const VmConfig& vm, Owner owner) {
  std::unique_ptr<Doorbell> doorbell(new Doorbell(loop, vault, vm, std::move(owner)));
  doorbell->Resume();
  if (!doorbell->listener_) {
    auto listener = BindListener({vm.doorbell_socket, "doorbell_socket", 0660, "", "", SOCK_STREAM});
    if (!listener.ok()) return Error{listener.error()};
    doorbell->listener_ = std::move(listener.value());
    if (std::string problem = doorbell->Give(launcher, vm); !problem.empty()) return Error{problem};
  }
  doorbell->KeepRecord();
  doorbell->Listen();
  return doorbell;
}

// What a daemon of before has left: its socket, if it is still the one at this path and of the same owner, and QEMU's connection.
// What was rung meanwhile is in the eventfds, and found by the first look.
void Doorbell::Resume() {
  for (Vault::Record* record : vault_.All(Vault::Kind::kDoorbell)) {
    if (record->state.at("vm") != place_.at("vm")) continue;
    Vault::Record kept = vault_.Adopt(*record);
    key_ = kept.key;
    const bool same = std::all_of(place_.items().begin(), place_.items().end(), [&](const auto& field) {
      return kept.state.at(field.key()) == field.value();
    });
    struct stat found {};
    if (same && lstat(path_.c_str(), &found) == 0 && S_ISSOCK(found.st_mode))
      listener_.reset(kept.Take("listener").release());
    given_ = {kept.state.at("device").get<uint64_t>(), kept.state.at("inode").get<uint64_t>()};
    work_ = kept.Take("work");
    control_ = kept.Take("control");
    guest_ = kept.Take("guest");
    UniqueFd client = kept.Take("client");
    if (!client || !work_ || !control_ || !guest_) return Disconnect();
    client_.reset(client.release());
    WatchClient();
    WatchRings();
    return;
  }
}

// Each time that something of it changes.
void Doorbell::KeepRecord() {
  if (key_ == 0) key_ = vault_.NewKey(Vault::Kind::kDoorbell);
  Json state = place_;
  state["device"] = given_.device;
  state["inode"] = given_.inode;
  vault_.Put(key_, state,
             {{"listener", listener_.get()},
              {"client", client_.get()},
              {"work", work_.get()},
              {"control", control_.get()},
              {"guest", guest_.get()}},
             0, closing_);
}

Doorbell::FileId Doorbell::IdOf(int file) {
  struct stat info {};
  if (fstat(file, &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

void Doorbell::Offer(int memory) {
  memory_ = memory;
  if (!client_ || memory_ < 0 || IdOf(memory_) == given_) return;
  owner_.log(LogLevel::kWarning, ": its QEMU has a region of before; its doorbell is disconnected");
  Disconnect();
  KeepRecord();
}

Doorbell::~Doorbell() {
  loop_.Cancel(listener_timer_);
  loop_.Cancel(ring_timer_);
  loop_.Unwatch(listener_watch_);
  loop_.Unwatch(client_watch_);
  loop_.Unwatch(ring_watch_);
  vault_.Drop(key_);
  if (listener_) unlink(path_.c_str());
}

// The daemon has no right to do so by then; the launcher has.
std::string Doorbell::Give(LauncherLink* launcher, const VmConfig& vm) const {
  if (launcher == nullptr || (vm.region_group.empty() && vm.region_user == 0)) return {};
  const UniqueFd place(open(path_.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  const std::string intro = "The socket " + path_ + " of VM " + vm.name + " cannot be given to ";
  int problem = place ? 0 : errno;
  if (problem == 0 && !vm.region_group.empty()) {
    const auto group = GroupId(vm.region_group, "region_group");
    if (!group.ok()) return group.error();
    problem = launcher->GiveToGroup(place.get(), group.value());
  }
  if (problem == 0 && vm.region_user != 0) problem = launcher->GiveToUser(place.get(), vm.region_user);
  if (problem == 0) return {};
  return intro +
         (vm.region_user != 0 ? "user " + std::to_string(vm.region_user) : "group " + vm.region_group) +
         ": " + ErrnoText(problem) + "; run causewayd by its systemd unit or as root.";
}

void Doorbell::Listen() {
  listener_watch_ = loop_.Watch(listener_.get(), EPOLLIN, "a VM's connection to its doorbell",
                                [this](uint32_t) { OnAccept(); });
}

void Doorbell::PauseListening(milliseconds pause) {
  loop_.Unwatch(listener_watch_);
  listener_timer_ = loop_.After(pause, "a doorbell's pause", [this] { Listen(); });
}

void Doorbell::OnAccept() {
  if (!accepts_.Take(Clock::now())) return PauseListening(kTooMany);
  WorkerFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK), closing_);
  if (client) return Welcome(std::move(client));
  if (!IsOutOfDescriptors(errno)) return;
  owner_.log(LogLevel::kError, ": its doorbell accepts no connection: " + ErrnoText());
  PauseListening(kNothingLeft);
}

void Doorbell::Welcome(WorkerFd client) {
  // The VM's earlier connection may have ended already, and the loop has not looked at it yet: QEMU was started anew at once.
  if (client_) OnClient();
  if (client_) {
    return owner_.log(LogLevel::kWarning,
                      ": a second connection to its doorbell was closed; one device has one connection");
  }
  if (memory_ < 0) return owner_.log(LogLevel::kWarning, ": its doorbell has no region to give");
  work_ = MakeEvent();
  control_ = MakeEvent();
  guest_ = MakeEvent();
  std::string problem = work_ && control_ && guest_ ? SendAll(client.get()) : ErrnoText();
  if (!problem.empty()) {
    owner_.log(LogLevel::kError, ": its doorbell could not be handed to QEMU: " + problem);
    return Disconnect();
  }
  client_ = std::move(client);
  given_ = IdOf(memory_);
  KeepRecord();
  WatchClient();
  WatchRings();
  owner_.connected();
}

void Doorbell::WatchClient() {
  client_watch_ = loop_.Watch(client_.get(), EPOLLIN | EPOLLRDHUP, "the end of a VM's doorbell",
                              [this](uint32_t) { OnClient(); });
}

// All that the protocol ever says. It fits into an empty socket's buffer, so it is sent or the client is no QEMU.
std::string Doorbell::SendAll(int client) const {
  const std::pair<int64_t, int> messages[] = {{kVersion, -1},
                                              {kGuestPeer, -1},
                                              {kMemory, memory_},
                                              {kHostPeer, work_.get()},
                                              {kHostPeer, control_.get()},
                                              {kGuestPeer, guest_.get()}};
  for (const auto& [number, descriptor] : messages) {
    const auto bytes = int64_t(htole64(uint64_t(number)));
    const std::span<const int> with(&descriptor, descriptor >= 0 ? 1 : 0);
    if (!SendPacket(client, &bytes, sizeof bytes, with, MSG_DONTWAIT)) return ErrnoText();
  }
  return {};
}

void Doorbell::OnClient() {
  char byte;
  std::vector<WorkerFd> descriptors;  // has no use for any, and does not close them itself
  const ssize_t got = ReceiveFromStranger(client_.get(), &byte, 1, &descriptors, nullptr, closing_);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got > 0)
    owner_.log(LogLevel::kWarning, ": its doorbell's client sent something, which QEMU never does");
  Disconnect();
  owner_.gone();
  KeepRecord();  // last: a daemon that goes on from here sees the end of the connection, too
}

void Doorbell::WatchRings() {
  ring_watch_ = loop_.Watch(control_.get(), EPOLLIN, "a VM's ring", [this](uint32_t) { OnRing(); });
}

// A guest that rings all the time is answered now and then: what it rang for is found by the next answer.
void Doorbell::OnRing() {
  if (!rings_.Take(Clock::now())) {
    loop_.Unwatch(ring_watch_);
    ring_timer_ = loop_.After(kStorm, "a doorbell's pause", [this] { WatchRings(); });
    return;
  }
  if (TakeRings(control_.get())) owner_.rung();
}

void Doorbell::Disconnect() {
  loop_.Unwatch(client_watch_);
  loop_.Unwatch(ring_watch_);
  loop_.Cancel(ring_timer_);
  client_.reset();
  work_.reset();
  control_.reset();
  guest_.reset();
}

}  // namespace causeway::daemon
