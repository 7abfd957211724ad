// SPDX-License-Identifier: Apache-2.0
// What the pool leaves to the next daemon of its workers, and what it takes over from the daemon of before.
#include <algorithm>

#include "host_backend/daemon/pool/worker_pool.h"
#include "ivshmem_ring/tls/hexadecimal.h"

namespace causeway::daemon {
namespace {

Json JsonOf(const std::map<DeviceUuid, uint64_t>& bytes) {
  Json json = Json::object();
  for (const auto& [uuid, count] : bytes) json[HexadecimalText(uuid)] = count;
  return json;
}

std::map<DeviceUuid, uint64_t> BytesOf(const Json& json) {
  std::map<DeviceUuid, uint64_t> bytes;
  for (const auto& item : json.items()) {
    DeviceUuid uuid{};
    if (ReadHexadecimal(item.key(), uuid)) bytes[uuid] = item.value().get<uint64_t>();
  }
  return bytes;
}

}  // namespace

void WorkerPool::UseVault(Vault* vault) {
  vault_ = vault;
  accounts_.Use(vault);
  shared_.Use(vault);
  images_.Use(vault);
}

// Of a spare when it is ready; of one that serves before it is assigned, and when it has said what it is asked by.
void WorkerPool::KeepRecord(Entry& entry) {
  if (vault_ == nullptr) return;
  if (entry.key == 0) entry.key = vault_->NewKey(Vault::Kind::kWorker);
  Json state = entry.process->Kept();
  if (entry.seat.taken()) state["assigned"] = true;
  state["number"] = entry.number;
  state["own"] = entry.own;
  state["scope"] = entry.scope;
  state["kept_for"] = entry.kept_for;
  state["user_scope"] = entry.user_scope;
  state["entry_user"] = entry.user;
  state["cell"] = entry.seat.taken() ? Json(entry.seat.cell) : Json();
  state["in_cgroup"] = entry.in_cgroup;
  state["oom_kills"] = entry.oom_kills;
  state["start_bytes"] = JsonOf(entry.start_bytes);
  state["driver"] = {driver_, driver_version_, device_count_, spares_load_lazily_, sandbox_};
  for (const NamedDevice& device : devices_) state["devices"].push_back(HexadecimalText(device));
  vault_->Put(entry.key, state, entry.process->Descriptors(), entry.process->pid(), entry.process->closing());
}

void WorkerPool::OnConfined(WorkerProcess& worker) {
  if (Entry* entry = Find(worker)) KeepRecord(*entry);
}

void WorkerPool::OnEnding(WorkerProcess& worker) {
  Entry* entry = Find(worker);
  if (entry == nullptr) return;
  accounts_.Ends(entry->seat);
  if (vault_ != nullptr) vault_->Drop(entry->key);
}

void WorkerPool::TakeOver() {
  accounts_.Resume();
  for (Vault::Record* record : vault_->All(Vault::Kind::kWorker)) {
    next_number_ = std::max(next_number_, record->state.at("number").get<uint64_t>() + 1);
    program_.folders->KnowLink(record->state.at("link").get<uint64_t>());
    const Json driver = record->state.at("driver");
    driver_ = driver.at(0).get<std::string>();
    driver_version_ = driver.at(1).get<uint32_t>();
    device_count_ = driver.at(2).get<uint32_t>();
    spares_load_lazily_ = driver.at(3).get<bool>();
    sandbox_ = driver.at(4).get<std::string>();
    devices_.clear();  // a daemon of before may have known none
    for (const Json& device : record->state.value("devices", Json::array())) {
      if (!ReadHexadecimal(device.get<std::string>(), devices_.emplace_back())) devices_.pop_back();
    }
    if (!record->state.at("assigned").get<bool>()) ResumeEntry(*record, nullptr);
  }
  // Spares are of this daemon's rows.
  for (Entry& entry : workers_) {
    if (entry.process->api_hash() != kBuildStamp.api_hash) entry.process->End();
  }
}

// False: it cannot go on, and whoever ends the records that are left ends it.
bool WorkerPool::ResumeEntry(Vault::Record& record, WorkerClient* client) {
  const Json state = record.state;
  const auto user_scope = state.at("user_scope").get<std::string>();
  const auto user = state.at("entry_user").get<uint32_t>();
  Accounts::Seat seat;
  const auto scope = state.at("scope").get<std::string>();
  if (client != nullptr) {
    if (client->Peer().scope != scope || !state.at("cell").is_number()) return false;
    seat = accounts_.Rejoin(HolderOf(client->Peer()), state.at("cell").get<uint32_t>());
    if (!seat.taken()) return false;
  }
  if (!user_scope.empty() && user != 0 && !users_.Rejoin(user_scope, user)) {
    accounts_.Leave(seat);
    return false;
  }
  auto process = WorkerProcess::Resume(loop_, program_, record, *this);
  if (process == nullptr) {
    accounts_.Leave(seat);
    if (!user_scope.empty()) users_.Leave(user_scope);
    return false;
  }
  const bool cuda = process->kind() == launcher::WorkerKind::kCuda;
  workers_.push_back({std::move(process), client, state.at("own").get<bool>(),
                      cuda ? SessionKind::kCuda : SessionKind::kManagement,
                      state.at("number").get<uint64_t>(), scope, seat});
  Entry& entry = workers_.back();
  entry.kept_for = state.at("kept_for").get<std::string>();
  entry.user_scope = user_scope;
  entry.user = user;
  entry.in_cgroup = state.at("in_cgroup").get<bool>();
  entry.oom_kills = state.at("oom_kills").get<uint64_t>();
  entry.start_bytes = BytesOf(state.at("start_bytes"));
  entry.process->SetNumber(entry.number);
  if (client != nullptr) {
    const SessionPeer peer = client->Peer();
    entry.process->SetLog(peer.log);
    entry.process->SetPace(peer.pace);
    entry.process->SetClosing(peer.closing);
    entry.process->SetAccount(seat.descriptor, seat.reading, seat.cell);
    if (entry.in_cgroup && peer.host != nullptr) cgroups_.Rejoin(entry.process->pid(), scope, *peer.host);
  }
  entry.key = vault_->Adopt(record).key;
  return true;
}

bool WorkerPool::Resume(WorkerClient& client, uint64_t number) {
  for (Vault::Record* record : vault_->All(Vault::Kind::kWorker)) {
    if (record->state.at("number").get<uint64_t>() == number) return ResumeEntry(*record, &client);
  }
  return false;
}

uint64_t WorkerPool::NumberOf(const WorkerClient& client) {
  const Entry* entry = Find(client);
  return entry != nullptr ? entry->process->number() : 0;
}

pid_t WorkerPool::PidOf(const WorkerClient& client) {
  for (const Entry& entry : workers_) {
    if (entry.client == &client) return entry.process->pid();
  }
  return 0;
}

void WorkerPool::ResumeShared() {
  const uint64_t largest = shared_.Resume([&](const std::string& scope, uint64_t session) {
    return std::any_of(workers_.begin(), workers_.end(), [&](const Entry& entry) {
      return entry.client != nullptr && entry.scope == scope && (session == 0 || entry.number == session);
    });
  });
  next_number_ = std::max(next_number_, largest + 1);
  images_.Resume();
}

void WorkerPool::FinishTakingOver() {
  accounts_.SettleResumed();
  for (const auto& [user, scope] : UsersWithSessions()) cache_looks_.Begin(user, scope);
  WantMemoryWatch();
}

bool WorkerPool::settled() const {
  return checkpoints_.idle() && std::all_of(workers_.begin(), workers_.end(),
                                            [](const Entry& entry) { return entry.process->settled(); });
}

}  // namespace causeway::daemon
