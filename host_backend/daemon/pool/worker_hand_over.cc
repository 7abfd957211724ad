// SPDX-License-Identifier: Apache-2.0
// What makes a spare worker one of a scope: its cgroup, its account, its user and that one's folder.
#include <utility>

#include "host_backend/daemon/pool/worker_pool.h"

namespace causeway::daemon {

// Its next worker looks, as its user and before it is its guest's; not at each start of a session.
uint64_t WorkerPool::CacheBytesToHold(const std::string& scope) {
  constexpr std::chrono::seconds kPause{60};
  const auto now = Clock::now();
  std::erase_if(cache_held_, [&](const auto& held) { return now - held.second >= kPause; });
  return cache_held_.emplace(scope, now).second ? cache_bytes_ : 0;
}

CacheLooks::Users WorkerPool::UsersWithSessions() const {
  CacheLooks::Users users;
  for (const Entry& entry : workers_) {
    if (entry.client != nullptr && entry.user != 0) users[entry.user] = entry.user_scope;
  }
  return users;
}

// "" or why there is no user.
std::string WorkerPool::JoinUser(Entry& entry, const std::string& scope) {
  auto user = users_.Join(scope);
  if (!user.ok()) return user.error();
  entry.user_scope = scope;
  entry.user = user.value();
  entry.process->SetScope(scope, entry.user);
  if (entry.user == 0) return {};
  cache_looks_.Serves(entry.user, scope);
  entry.process->HoldCache(CacheBytesToHold(scope));
  return {};
}

// A spare for that scope alone: what takes long in becoming one of it is done before a session waits. Where
// there is no user for it, its session is told.
void WorkerPool::Keep(Entry& entry, const std::string& scope) {
  entry.kept_for = scope;
  if (!scope.empty() && JoinUser(entry, scope).empty() && entry.user != 0) entry.process->Belong();
}

void WorkerPool::HandOver(Entry& entry) {
  const SessionPeer peer = entry.client->Peer();
  if (peer.host == nullptr) return HandOverNow(entry, "");
  cgroups_.Assign(entry.process->pid(), peer.scope, *peer.host,
                  [this, number = entry.number, scope = peer.scope](const Cgroups::Joined& joined) {
                    OnJoined(number, scope, joined);
                  });
}

// Its session may have gone meanwhile, or the worker itself.
void WorkerPool::OnJoined(uint64_t number, const std::string& scope, const Cgroups::Joined& joined) {
  Entry* entry = Find(number);
  const bool in = joined.problem.empty();
  if (entry == nullptr || entry->exited) {
    if (in) cgroups_.Leave(scope);
    return;
  }
  entry->in_cgroup = in;
  entry->oom_kills = joined.oom_kills;
  if (entry->client != nullptr && entry->process->state() == WorkerProcess::State::kReady)
    HandOverNow(*entry, joined.problem);
}

AccountHolder WorkerPool::HolderOf(const SessionPeer& peer) const {
  static const std::vector<std::string> kAll;
  return {peer.scope, peer.share,
          TurnGpusOf(peer.gpus != nullptr ? *peer.gpus : kAll, devices_, HostHasParts())};
}

// A session that cannot be counted, or has no user of its own where others have one, is none.
void WorkerPool::HandOverNow(Entry& entry, const std::string& problem) {
  const LoopPart part("handing over a worker");
  const SessionPeer peer = entry.client->Peer();
  const auto refuse = [&](const std::string& sentence) {
    WorkerClient* client = std::exchange(entry.client, nullptr);
    entry.process->End();
    client->OnNoWorker(sentence);
  };
  auto seat = problem.empty() ? accounts_.Join(HolderOf(peer), peer.device_memory_mib << 20) : Error{problem};
  if (!seat.ok()) return refuse(seat.error());
  entry.seat = seat.value();
  const std::string no_user = entry.user_scope.empty() ? JoinUser(entry, peer.scope) : "";
  if (!no_user.empty()) return refuse(no_user);
  if (entry.user != 0) cache_looks_.Begin(entry.user, entry.user_scope);
  entry.process->SetLog(peer.log);
  entry.process->SetPace(peer.pace);
  entry.process->SetClosing(peer.closing);
  entry.process->SetAccount(entry.seat.descriptor, entry.seat.reading, entry.seat.cell);
  KeepRecord(entry);  // before its worker is told
  entry.client->OnWorker(*entry.process);
  WantMemoryWatch();
}

}  // namespace causeway::daemon
