// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/workers/cache_looks.h"

#include <sys/epoll.h>

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "ivshmem_ring/transport/packet.h"

namespace causeway::daemon {
namespace {

constexpr std::chrono::seconds kAgain{5};
constexpr std::chrono::milliseconds kBetween{100};  // the launcher is asked for other things as well

}  // namespace

CacheLooks::CacheLooks(EventLoop& loop, std::function<Users()> users)
    : loop_(loop), users_(std::move(users)) {}

CacheLooks::~CacheLooks() {
  loop_.Cancel(timer_);
  for (auto& [user, folder] : folders_) Drop(folder);
}

void CacheLooks::Limit(uint64_t bytes) {
  if (std::exchange(bytes_, bytes) == bytes) return;
  for (auto& [user, folder] : folders_) folder.due = true;
  Arm();
}

void CacheLooks::Begin(uint32_t user, const std::string& scope) {
  if (bytes_ == 0 || folders_.contains(user)) return;
  folders_[user].scope = scope;
  Arm();
}

void CacheLooks::Serves(uint32_t user, const std::string& scope) {
  const auto found = folders_.find(user);
  if (found == folders_.end() || found->second.scope == scope) return;
  Drop(found->second);
  folders_.erase(found);
}

void CacheLooks::Drop(Folder& folder) {
  loop_.Unwatch(folder.watch);
  folder.watch = 0;
  folder.socket.reset();
}

void CacheLooks::Arm() {
  loop_.Cancel(timer_);
  const auto now = Clock::now();
  Clock::duration rest = kAgain;
  bool any = false;
  for (const auto& [user, folder] : folders_) {
    if (!folder.due) continue;
    any = true;
    rest = std::min(rest, folder.looked + kAgain - now);
  }
  if (any && bytes_ != 0)
    timer_ = loop_.After(std::max<Clock::duration>(rest, kBetween), "the look at caches",
                         [this] { LookAtNext(); });
}

void CacheLooks::SessionsEnded() {
  if (folders_.empty()) return;
  const Users users = users_();
  for (auto at = folders_.begin(); at != folders_.end();) {
    const auto found = users.find(at->first);
    const bool served = found != users.end() && found->second == at->second.scope;
    if (!served) Drop(at->second);
    at = served ? std::next(at) : folders_.erase(at);
  }
}

void CacheLooks::LookAtNext() {
  timer_ = 0;
  SessionsEnded();
  Folder* next = nullptr;
  uint32_t next_user = 0;
  for (auto& [user, folder] : folders_) {
    if (!folder.due || (next != nullptr && folder.looked >= next->looked)) continue;
    next = &folder;
    next_user = user;
  }
  if (next != nullptr && Clock::now() - next->looked >= kAgain) Look(next_user, *next);
  Arm();
}

void CacheLooks::Look(uint32_t user, Folder& folder) {
  Drop(folder);
  folder.looked = Clock::now();
  folder.socket = WorkerFd(launcher_->WatchCache(user, uint32_t(bytes_ >> 20)));
  // Where nobody answers, it is looked at again and again.
  folder.due = !folder.socket;
  if (folder.socket)
    folder.watch = loop_.Watch(folder.socket.get(), EPOLLIN, "a look at a cache",
                               [this, user](uint32_t) { OnAnswer(user); });
}

void CacheLooks::OnAnswer(uint32_t user) {
  Folder& folder = folders_.at(user);
  launcher::CacheWatch answer{};
  int received = -1;
  const ssize_t bytes = ReceivePacket(folder.socket.get(), &answer, sizeof answer, std::span(&received, 1));
  UniqueFd changes(received);
  Drop(folder);
  folder.due = bytes != sizeof answer || !changes;
  if (folder.due) return Arm();
  folder.socket = WorkerFd(std::move(changes));
  folder.watch = loop_.Watch(folder.socket.get(), EPOLLIN, "a change of a cache",
                             [this, user](uint32_t) { OnChange(user); });
}

void CacheLooks::OnChange(uint32_t user) {
  Folder& folder = folders_.at(user);
  Drop(folder);
  folder.due = true;
  Arm();
}

}  // namespace causeway::daemon
