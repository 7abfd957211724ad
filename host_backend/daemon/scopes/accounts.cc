// SPDX-License-Identifier: Apache-2.0
#include "host_backend/daemon/scopes/accounts.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace causeway::daemon {

// The daemon of before may have had a shorter one, and a newer one may have had a longer one, of which its workers live: what they
// have mapped must not end. Nor may a worker that was taken over shorten it, under the daemon and the others of its VM.
bool HasWholePage(int memory) {
  struct stat info {};
  if (fstat(memory, &info) != 0) return false;
  if (info.st_size < static_cast<off_t>(sizeof(AccountPage)) && ftruncate(memory, sizeof(AccountPage)) != 0)
    return false;
  // A page of a daemon of before may take no seals.
  fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK);
  return true;
}

Accounts::Account::~Account() {
  munmap(page, sizeof(AccountPage));
}

Result<Accounts::Seat> Accounts::Join(const AccountHolder& holder, uint64_t limit_bytes) {
  const std::string& scope = holder.scope;
  auto found = accounts_.find(scope);
  if (found == accounts_.end()) {
    UniqueFd memory(memfd_create("causeway-account", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    std::string error = "the page of what " + scope + " holds cannot be made: " + ErrnoText();
    AccountPage* page = nullptr;
    if (memory && HasWholePage(memory.get())) page = MapAccountPage(memory.get(), &error);
    if (page == nullptr) return Error{"The session cannot be counted: " + error + "."};
    const std::string path = "/proc/self/fd/" + std::to_string(memory.get());
    UniqueFd reading(open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!reading) {
      munmap(page, sizeof(AccountPage));
      return Error{"The session cannot be counted: " + error + "."};
    }
    page->Begin(limit_bytes);
    found = accounts_.try_emplace(scope, std::move(memory), std::move(reading), page).first;
    Account& fresh = found->second;
    fresh.limit_bytes = limit_bytes;
    if (vault_ != nullptr) {
      fresh.key = vault_->NewKey(Vault::Kind::kAccount);
      vault_->Put(fresh.key, {{"scope", scope}, {"limit", limit_bytes}},
                  {{"page", fresh.descriptor.get()}, {"reading", fresh.reading.get()}});
    }
  }
  Account& account = found->second;
  const auto free = std::find(account.taken.begin(), account.taken.end(), false);
  const auto cell = uint32_t(free - account.taken.begin());
  if (cell >= kAccountCells) return Error{"The session cannot be counted: " + scope + " has too many."};
  if (free == account.taken.end()) account.taken.push_back(false);
  account.page->Open(cell);
  return Take(holder, account, cell);
}

Accounts::Seat Accounts::Take(const AccountHolder& holder, Account& account, uint32_t cell) {
  account.taken[cell] = true;
  ++account.sessions;
  if (turns_ != nullptr) turns_->Open(holder.scope, holder.share, account.page, cell, holder.gpus);
  return Seat{holder.scope, cell, account.descriptor.get(), account.reading.get()};
}

void Accounts::Ends(const Seat& seat) {
  if (seat.taken() && turns_ != nullptr) turns_->Ends(seat.scope, seat.cell);
}

void Accounts::Leave(const Seat& seat) {
  const auto found = accounts_.find(seat.scope);
  if (!seat.taken() || found == accounts_.end()) return;
  Account& account = found->second;
  if (turns_ != nullptr) turns_->Close(seat.scope, seat.cell);
  account.page->Close(seat.cell);
  account.taken[seat.cell] = false;
  if (--account.sessions == 0) Erase(found);
}

void Accounts::Erase(std::map<std::string, Account>::iterator account) {
  if (vault_ != nullptr) vault_->Drop(account->second.key);
  accounts_.erase(account);
}

void Accounts::Resume() {
  for (Vault::Record* each : vault_->All(Vault::Kind::kAccount)) {
    const auto scope = each->state.at("scope").get<std::string>();
    UniqueFd memory = each->Take("page"), reading = each->Take("reading");
    std::string error;
    const bool whole = memory && reading && HasWholePage(memory.get());
    AccountPage* page = whole && !accounts_.contains(scope) ? MapAccountPage(memory.get(), &error) : nullptr;
    if (page == nullptr) continue;
    Account& account =
        accounts_.try_emplace(scope, std::move(memory), std::move(reading), page).first->second;
    account.limit_bytes = each->state.at("limit").get<uint64_t>();
    account.key = vault_->Adopt(*each).key;
  }
}

Accounts::Seat Accounts::Rejoin(const AccountHolder& holder, uint32_t cell) {
  const auto found = accounts_.find(holder.scope);
  if (found == accounts_.end() || cell >= kAccountCells) return {};
  Account& account = found->second;
  if (account.taken.size() <= cell) account.taken.resize(cell + 1);
  if (account.taken[cell]) return {};
  return Take(holder, account, cell);
}

void Accounts::SettleResumed() {
  for (auto at = accounts_.begin(); at != accounts_.end();) {
    const auto account = at++;
    auto& taken = account->second.taken;
    for (uint32_t cell = 0; cell < account->second.page->opened(); ++cell) {
      if (cell >= taken.size() || !taken[cell]) account->second.page->Close(cell);
    }
    if (account->second.sessions == 0) Erase(account);
  }
}

MemoryBytes Accounts::Held(const Seat& seat) const {
  MemoryBytes bytes{};
  const auto found = accounts_.find(seat.scope);
  if (!seat.taken() || found == accounts_.end()) return bytes;
  for (uint32_t kind = 0; kind < kMemoryKinds; ++kind)
    bytes[kind] = found->second.page->OfCell(seat.cell, MemoryKind(kind));
  return bytes;
}

uint64_t Accounts::OnDevice(const Seat& seat, const std::array<uint8_t, 16>& uuid) const {
  const auto found = accounts_.find(seat.scope);
  if (!seat.taken() || found == accounts_.end()) return 0;
  char bytes[16];
  std::copy(uuid.begin(), uuid.end(), bytes);
  return found->second.page->OfCell(seat.cell, bytes);
}

uint64_t Accounts::LimitOf(const Seat& seat) const {
  const auto found = accounts_.find(seat.scope);
  return seat.taken() && found != accounts_.end() ? found->second.limit_bytes : 0;
}

std::vector<AccountStatus> Accounts::Status() const {
  std::vector<AccountStatus> all;
  for (const auto& [scope, account] : accounts_) {
    AccountStatus status{scope, account.sessions, account.limit_bytes, {}, 0, 0};
    for (uint32_t kind = 0; kind < kMemoryKinds; ++kind)
      status.bytes[kind] = account.page->OfKind(MemoryKind(kind));
    status.gpu_bytes = account.page->OnAllDevices();
    status.refused = account.page->Refused();
    all.push_back(std::move(status));
  }
  return all;
}

}  // namespace causeway::daemon
