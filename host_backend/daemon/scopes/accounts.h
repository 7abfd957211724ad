// SPDX-License-Identifier: Apache-2.0
// The daemon's side of what VMs hold: one page for each scope that has a session
// (host_backend/common/shares/account_page.h), a cell on it for each worker.
#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "host_backend/common/result.h"
#include "host_backend/common/shares/account_page.h"
#include "host_backend/common/unique_fd.h"
#include "host_backend/daemon/shares/turns.h"
#include "host_backend/daemon/takeover/vault.h"

namespace causeway::daemon {

using MemoryBytes = std::array<uint64_t, kMemoryKinds>;  // by MemoryKind

struct AccountStatus {
  std::string scope;
  uint32_t sessions = 0;
  uint64_t limit_bytes = 0;  // of device memory on each GPU; 0: none
  MemoryBytes bytes{};
  uint64_t gpu_bytes = 0;  // of any kind, on all GPUs: what the limit is about
  uint64_t refused = 0;    // calls over the limit, of the sessions that live
};

// Whose session it is, whose part of the GPUs' time it uses (Scope::share), and of which GPUs.
struct AccountHolder {
  std::string scope, share;
  TurnGpus gpus{};
};

// Makes the file at least as long as a page, and never shorter again. False: errno says why.
bool HasWholePage(int memory);

class Accounts {
 public:
  // A worker's place; the descriptors stay this object's.
  struct Seat {
    std::string scope;
    uint32_t cell = 0;
    int descriptor = -1;
    int reading = -1;  // the same file, opened for reading only
    bool taken() const { return descriptor >= 0; }
  };

  // Where what must outlive this daemon is kept. Before all else.
  void Use(Vault* vault) { vault_ = vault; }
  // Who looks at the turns of those that have a place. Before all else; it outlives this.
  void Tell(Turns* turns) { turns_ = turns; }
  // The pages that a daemon of before had. Rejoin gives a worker of it its place again; not taken: it is another's, or
  // there is no such page. SettleResumed closes the places that nobody has taken.
  void Resume();
  Seat Rejoin(const AccountHolder& holder, uint32_t cell);
  void SettleResumed();

  // The first of a scope decides on its limit.
  Result<Seat> Join(const AccountHolder& holder, uint64_t limit_bytes);
  // The seat's worker has begun to end: its VM keeps no turn for what that leaves behind. Before Leave.
  void Ends(const Seat& seat);
  // To be called when the seat's worker has ended. With its scope's last worker the scope's page goes.
  void Leave(const Seat& seat);

  MemoryBytes Held(const Seat& seat) const;
  // How many bytes it holds on the GPU with that UUID. LimitOf: its scope's limit on each GPU; 0: none.
  uint64_t OnDevice(const Seat& seat, const std::array<uint8_t, 16>& uuid) const;
  uint64_t LimitOf(const Seat& seat) const;
  std::vector<AccountStatus> Status() const;

 private:
  struct Account {
    Account(UniqueFd memory, UniqueFd read, AccountPage* mapped)
        : descriptor(std::move(memory)), reading(std::move(read)), page(mapped) {}
    Account(Account&&) = delete;
    ~Account();
    UniqueFd descriptor;
    UniqueFd reading;
    AccountPage* page;
    std::vector<bool> taken;  // cells
    uint64_t limit_bytes = 0;
    uint32_t sessions = 0;
    uint64_t key = 0;  // of its record
  };
  void Erase(std::map<std::string, Account>::iterator account);
  Seat Take(const AccountHolder& holder, Account& account, uint32_t cell);
  Vault* vault_ = nullptr;
  Turns* turns_ = nullptr;
  std::map<std::string, Account> accounts_;
};

}  // namespace causeway::daemon
