// SPDX-License-Identifier: Apache-2.0
// What workers write into pages that the daemon reads: what they hold of memory, their turns, and their copies over the link. Two
// VMs' workers have been taken over and write anything anywhere into their own pages, beside one whose workers are as they should
// be, and in all three one honest worker counts its memory. Sums stay in bounds, the honest VM is charged for nothing that it did
// not do, and in the end it gets its turn, whatever the others say. In a time of its own.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <iterator>
#include <map>
#include <set>
#include <string>

#include "host_backend/common/shares/account_page.h"
#include "host_backend/daemon/shares/turns.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int __wrap_usleep(unsigned);
extern "C" int __wrap_usleep(unsigned) {
  return 0;
}
extern "C" int __wrap_sched_yield();
extern "C" int __wrap_sched_yield() {
  return 0;
}

namespace causeway::fuzz {
namespace {

using daemon::Turns;

uint64_t now_ns;
constexpr uint64_t kBegin = 3'600'000'000'000, kLongestStep = 40'000'000;
constexpr size_t kScopes = 3, kHonest = 2;
constexpr uint32_t kCells = 4, kHonestCell = 3;
constexpr uint64_t kLimit = 1 << 20;
constexpr const char* kNames[kScopes] = {"vm one", "vm two", "honest"};
// Of the honest VM's GPUs the last is none, and the others' first two alone are theirs.
constexpr char kGpus[4][17] = {"0123456789abcdef", "fedcba9876543210", "0000000000000000",
                               "not of this host"};

uint64_t HashOf(size_t gpu) {
  return DeviceHash(reinterpret_cast<const unsigned char*>(kGpus[gpu]));
}

AccountPage* MakePage() {
  void* page = mmap(nullptr, sizeof(AccountPage), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  Require(page != MAP_FAILED);
  return static_cast<AccountPage*>(page);
}

// Its first page and the two pages of each cell that is in use here, as when they were made.
void Clear(AccountPage& page) {
  std::memset(static_cast<void*>(&page), 0, kAccountPageBytes);
  for (uint32_t cell = 0; cell < kCells; ++cell) {
    std::memset(const_cast<void*>(static_cast<const void*>(&page.cell(cell))), 0, kAccountPageBytes);
    std::memset(static_cast<void*>(&page.turn_cell(cell)), 0, kAccountPageBytes);
  }
}

class World {
 public:
  explicit World(Input& input) : input_(input) {
    static AccountPage* const pages[kScopes] = {MakePage(), MakePage(), MakePage()};
    now_ns = kBegin;
    for (size_t scope = 0; scope < kScopes; ++scope) {
      pages_[scope] = pages[scope];
      Clear(*pages_[scope]);
      pages_[scope]->Begin(input.Byte() % 8 == 0 ? 0 : kLimit);
    }
    one_share_ = input.Byte() % 4 == 0;
    turns_.AskForTerms([this](const std::string& name) { return terms_[name]; });
    Open(kHonest, 0);
    turn_of_honest().device[0].store(HashOf(0));
  }

  void Step();
  void LookAndCheck();
  // The others stand still, with whatever they have said last.
  void RequireProgress();
  void CheckAccounts();

 private:
  struct Honest {
    uint32_t sent = 0;
    uint64_t copied[kLinkDirections] = {};
  };
  static AccountCell& CellOf(AccountPage& page, uint32_t cell) {
    return const_cast<AccountCell&>(page.cell(cell));
  }
  AccountCell& turn_of_honest() { return CellOf(*pages_[kHonest], 0); }
  TurnWords& words() { return pages_[kHonest]->turn_cell(0).turns[0]; }
  LinkWords& link() { return pages_[kHonest]->turn_cell(0).links[0]; }
  std::string ShareOf(size_t scope) const { return one_share_ && scope != kHonest ? "share" : kNames[scope]; }
  uint64_t SomeValue();

  void Open(size_t scope, uint32_t cell);
  void Close(size_t scope, uint32_t cell);
  void WriteCell(AccountPage& page);
  void WriteTurns(AccountPage& page);
  void SetTerms();
  void BeHonest();
  void CountMemory();
  void CheckGrants(size_t scope);
  void CheckStatus();

  Input& input_;
  AccountPage* pages_[kScopes];
  bool one_share_ = false, fair_ = true;
  std::map<std::string, ShareTerms> terms_;
  std::set<std::pair<size_t, uint32_t>> open_;
  Honest honest_;
  uint64_t looks_ = 0;
  Turns turns_{[] { return now_ns; }};
};

uint64_t World::SomeValue() {
  const uint8_t choice = input_.Byte();
  if (choice < 64) return choice % 4;
  if (choice < 128) return HashOf(choice % std::size(kGpus));
  if (choice < 160) return ~uint64_t{0} - choice % 4;
  return input_.Word() >> choice % 64;
}

void World::Open(size_t scope, uint32_t cell) {
  if (!open_.emplace(scope, cell).second) return;
  TurnGpus gpus;
  gpus.any = scope == 0;
  for (size_t gpu = 0; gpu < 2; ++gpu) gpus.hashes.push_back(HashOf(gpu));
  pages_[scope]->Open(cell);
  turns_.Open(kNames[scope], ShareOf(scope), pages_[scope], cell, gpus);
}

void World::Close(size_t scope, uint32_t cell) {
  if (open_.erase({scope, cell}) == 0) return;
  turns_.Close(kNames[scope], cell);
  pages_[scope]->Close(cell);
  Require(pages_[scope]->OfCell(cell, MemoryKind::kDevice) == 0 &&
          pages_[scope]->OfCell(cell, kGpus[0]) == 0);
}

void World::WriteCell(AccountPage& page) {
  AccountCell& cell = CellOf(page, input_.Byte() % kHonestCell);
  const uint8_t what = input_.Byte();
  const uint64_t value = SomeValue();
  switch (what % 5) {
    case 0:
      return cell.device[what % kAccountDevices].store(value);
    case 1:
      return cell.on_device[what % kAccountDevices].store(value);
    case 2:
      return cell.asked[what % kAccountDevices].store(value);
    case 3:
      return cell.by_kind[what % kMemoryKinds].store(value);
    default:
      return cell.refused.store(value);
  }
}

// Most of it where the daemon looks.
void World::WriteTurns(AccountPage& page) {
  TurnCell& cell = page.turn_cell(input_.Byte() % kHonestCell);
  const uint8_t what = input_.Byte(), place = input_.Byte() % 4;
  const uint64_t value = SomeValue();
  TurnWords& turns = cell.turns[place];
  LinkWords& links = cell.links[place];
  switch (what % 10) {
    case 0:
      return turns.submitted.store(value);
    case 1:
      return turns.waiting.store(uint32_t(value));
    case 2:
      return turns.unmarked.store(uint32_t(value));
    case 3:
      return turns.sent[what % kTurnMarks].store(uint32_t(value));
    case 4:
      return turns.done[what % kTurnMarks].store(uint32_t(value));
    case 5:
      return turns.slice_us.store(uint32_t(value));
    case 6:
      return links.copied[what / 10 % 2].store(value);
    case 7:
      return links.waiting[what / 10 % 2].store(uint32_t(value));
    case 8:
      return cell.waits[what % kWaitPlaces].store(uint32_t(value));
    default: {
      auto* const all = reinterpret_cast<std::atomic<uint64_t>*>(&cell);
      all[input_.Word() % (sizeof cell / sizeof *all)].store(value);
    }
  }
}

void World::SetTerms() {
  const uint8_t which = input_.Byte(), odd = input_.Byte();
  const std::string name = which % 4 == 3 ? "share" : kNames[which % 4];
  ShareTerms terms;
  static constexpr uint32_t kWeights[] = {50, 100, 200};
  terms.weight = kWeights[odd % 3];
  if (odd > 220) terms.weight = odd > 240 ? 1 : kMostWeight;
  // Debts by such weights take longer to pay than is looked on below.
  if (odd > 220) fair_ = false;
  terms.paused = odd % 8 == 1;
  if (odd % 8 == 2) terms.cap_percent = 1 + which % 100;
  if (odd % 8 == 3) terms.reserve_percent = which % 101;
  if (odd % 8 == 4) terms.pcie_mib_per_s = 1 + which * 100;
  terms.share_class = ShareClass(odd / 8 % 3);
  terms_[name] = terms;
  turns_.Set(name, terms);
}

// Submits, is done, waits, copies.
void World::BeHonest() {
  const uint8_t what = input_.Byte();
  switch (what % 4) {
    case 0:
      words().submitted.fetch_add(1);
      words().sent[0].store(++honest_.sent);
      break;
    case 1:
      words().done[0].store(honest_.sent);
      break;
    case 2:
      words().waiting.store(what / 4 % 2);
      link().waiting[what / 8 % 2].store(what / 16 % 2);
      break;
    default: {
      const uint64_t bytes = (what / 8 + 1) << 16;
      honest_.copied[what / 4 % 2] += bytes;
      link().copied[what / 4 % 2].fetch_add(bytes);
    }
  }
}

// By a worker beside those that lie, or that tell the truth.
void World::CountMemory() {
  AccountPage& page = *pages_[input_.Byte() % kScopes];
  page.Open(kHonestCell);
  const int place = page.PlaceOf(kHonestCell, kGpus[input_.Byte() % std::size(kGpus)]);
  const uint64_t bytes = input_.Byte() < 250 ? uint64_t{1} << input_.Byte() % 24 : input_.Word();
  const uint64_t before = page.OfCell(kHonestCell, place);
  Require(place != kNoDevice && before <= kLimit);
  // Nothing is limited where there is no limit.
  if (page.limit_bytes() == 0) return;
  const bool taken = page.Take(kHonestCell, MemoryKind::kDevice, place, bytes);
  Require(page.OfCell(kHonestCell, place) == before + (taken ? bytes : 0));
  if (!taken) return;
  Require(page.OnDevice(kHonestCell, place) <= page.limit_bytes());
  if (input_.Byte() % 2 == 0) page.Return(kHonestCell, MemoryKind::kDevice, place, bytes);
}

void World::CheckAccounts() {
  for (const AccountPage* page : pages_) {
    constexpr uint64_t kMost = kMostOfCell * kAccountDevices;
    Require(page->opened() <= kCells);
    const uint64_t most = kMost * page->opened();
    Require(page->OnAllDevices() <= most && page->Refused() <= most);
    for (uint32_t kind = 0; kind < kMemoryKinds; ++kind) {
      uint64_t sum = 0;
      for (uint32_t cell = 0; cell < page->opened(); ++cell) {
        const uint64_t bytes = page->OfCell(cell, MemoryKind(kind));
        Require(bytes <= kMostOfCell);
        sum += bytes;
      }
      Require(page->OfKind(MemoryKind(kind)) == sum);
    }
    for (const auto& gpu : kGpus) {
      const uint64_t held = page->OnDevice(gpu);
      Require(held <= kMostOfCell * page->opened());
      if (page->opened() > kHonestCell) Require(held >= page->OfCell(kHonestCell, gpu));
      for (uint32_t cell = 0; cell < page->opened(); ++cell) Require(page->OfCell(cell, gpu) <= held);
    }
  }
}

void World::CheckGrants(size_t scope) {
  const AccountPage& page = *pages_[scope];
  for (size_t gpu = 0; gpu < std::size(kGpus); ++gpu) {
    const GrantWords* grant = page.GrantOn(HashOf(gpu));
    if (grant == nullptr) continue;
    Require(scope == 0 || gpu < 2);
    const uint32_t slice_us = grant->slice_us.load(), queue_us = grant->queue_us.load();
    Require(grant->grant.load() <= uint32_t(Grant::kSoon) && slice_us <= 16'000 && queue_us <= 8'000);
    Require(grant->seen_ns.load() <= now_ns);
    const LinkGrantWords& link = page.LinkOf(*grant);
    for (uint32_t direction = 0; direction < kLinkDirections; ++direction) {
      Require(link.grant[direction].load() <= uint32_t(LinkGrant::kClosed));
      Require(link.window_kib[direction].load() <= 32u << 10 &&
              link.others_copy[direction].load() <= uint32_t(OtherCopies::kThisVm));
    }
  }
}

void World::CheckStatus() {
  const uint64_t elapsed = now_ns - kBegin;
  std::map<uint64_t, uint64_t> had, due;
  for (const daemon::ShareStatus& share : turns_.Status()) {
    const auto& figures = share.figures;
    Require(share.scope == "share" || std::count(std::begin(kNames), std::end(kNames), share.scope) == 1);
    Require(figures.had_ns <= elapsed && figures.waited_ns <= elapsed);
    Require(figures.throttled_ns <= figures.waited_ns && figures.turns <= looks_);
    Require(share.wait_p50_us <= share.wait_p99_us && share.wait_p99_us <= share.wait_longest_us &&
            share.wait_longest_us <= double(uint64_t{1} << kWaitPlaces));
    // Whoever has the turn pays at least its part by weight, besides what the others are charged.
    Require((had[share.device] += figures.had_ns) <= 2 * elapsed);
    Require((due[share.device] += figures.due_ns) <= elapsed);
    for (uint32_t direction = 0; direction < kLinkDirections; ++direction) {
      const uint64_t bytes = share.link[direction].bytes;
      Require(share.link[direction].throttled_ns <= elapsed);
      Require(bytes <= looks_ * (uint64_t{1} << 40) + elapsed * 64);
      if (share.scope == kNames[kHonest]) Require(bytes <= honest_.copied[direction]);
    }
  }
}

void World::LookAndCheck() {
  ++looks_;
  turns_.Look();
  for (size_t scope = 0; scope < kScopes; ++scope) CheckGrants(scope);
}

void World::Step() {
  const uint8_t what = input_.Byte();
  const size_t scope = what / 16 % 2;
  const uint32_t cell = what / 32 % kHonestCell;
  switch (what % 16) {
    case 0:
      return Open(scope, cell);
    case 1:
      return Close(scope, cell);
    case 2:
    case 3:
      return WriteCell(*pages_[scope]);
    case 4:
    case 5:
    case 6:
      return WriteTurns(*pages_[scope]);
    case 7:
      return SetTerms();
    case 8:
    case 9:
      return BeHonest();
    case 10:
      return CountMemory();
    case 11:
      return turns_.Wake();
    case 12:
      CheckStatus();
      return CheckAccounts();
    default:
      now_ns += input_.Word() % (what < 128 ? 200'000 : kLongestStep);
      return LookAndCheck();
  }
}

void World::RequireProgress() {
  constexpr uint64_t kStep = 15'000'000, kMost = 15'000'000'000;
  for (const char* name : {kNames[0], kNames[1], kNames[2], "share"}) turns_.Set(name, {});
  words().done[0].store(honest_.sent);
  words().waiting.store(1);
  for (auto& waiting : link().waiting) waiting.store(1);
  // Of which GPUs there are turns the daemon was told before it looks.
  bool may_run = false, may_copy[kLinkDirections] = {};
  for (uint64_t waited = 0; waited < kMost && !(may_run && may_copy[0] && may_copy[1]); waited += kStep) {
    now_ns += kStep;
    LookAndCheck();
    const GrantWords* grant = pages_[kHonest]->GrantOn(HashOf(0));
    Require(grant != nullptr);
    const auto now = Grant(grant->grant.load());
    may_run = may_run || now == Grant::kTurn || now == Grant::kOpen || now == Grant::kAsleep;
    for (uint32_t direction = 0; direction < kLinkDirections; ++direction) {
      const auto of_link = LinkGrant(pages_[kHonest]->LinkOf(*grant).grant[direction].load());
      may_copy[direction] = may_copy[direction] || of_link != LinkGrant::kClosed;
    }
  }
  Require(!fair_ || (may_run && may_copy[0] && may_copy[1]));
}

}  // namespace
}  // namespace causeway::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace causeway::fuzz;
  Input input(data, size);
  const bool waits = input.Byte() % 8 == 0;
  World world(input);
  for (int steps = 0; steps < 200 && !input.empty(); ++steps) world.Step();
  world.LookAndCheck();
  world.CheckAccounts();
  if (waits) world.RequireProgress();
  return 0;
}
