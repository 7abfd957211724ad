// SPDX-License-Identifier: Apache-2.0
#include "host_backend/granted/sleep_word.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <utility>

#include "ivshmem_ring/system/futex.h"

namespace causeway {
namespace {

constexpr size_t kBytes = sizeof(uint32_t);

}  // namespace

std::unique_ptr<SleepWord> SleepWord::Make() {
  UniqueFd fd(memfd_create("causeway-sleep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), kBytes) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    return nullptr;
  return Of(std::move(fd));
}

std::unique_ptr<SleepWord> SleepWord::Of(UniqueFd fd) {
  struct stat info {};
  const int seals = fd ? fcntl(fd.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || fstat(fd.get(), &info) != 0 ||
      info.st_size != off_t(kBytes))
    return nullptr;
  void* rings = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (rings == MAP_FAILED) return nullptr;
  return std::unique_ptr<SleepWord>(new SleepWord(std::move(fd), static_cast<uint32_t*>(rings)));
}

SleepWord::~SleepWord() {
  munmap(rings_, kBytes);
}

// A ring that comes after the first load has changed the word by then, and the kernel lets nobody sleep on it.
void SleepWord::Sleep(const HotWord& word, uint32_t seen, uint64_t us) const {
  const uint32_t rings = std::atomic_ref<uint32_t>(*rings_).load();
  if (static_cast<uint32_t>(LoadAcquire(word)) != seen) return;
  FutexWait(rings_, rings, static_cast<int64_t>(us) * 1000, FutexOf::kAllProcesses);
}

uint32_t SleepWord::Wake() const {
  std::atomic_ref<uint32_t>(*rings_).fetch_add(1);
  return FutexWakeAll(rings_, FutexOf::kAllProcesses);
}

}  // namespace causeway
