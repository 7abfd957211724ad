// SPDX-License-Identifier: Apache-2.0
// Generated calls of /dev/causeway: what a hostile process of the guest may do with its files and mappings. A process of
// one thread keeps a model of what it owns, and every answer must be the model's; in one of several threads only memory
// is looked at. Either way a process sees zeros and what it wrote itself, and nothing of its neighbours, which write all
// the time. The kernel's own checks (slub_debug, the console's log) and fake_host.py see the rest.
#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "tests/vm/module_device.h"

namespace causeway::module_test {
namespace {

constexpr uint64_t kPage = 4096;
// Of a thread: it makes calls until so many answers were looked at. Where all slots are taken it has none to look at.
constexpr uint64_t kAnswers = 6'000, kMostCalls = 400'000;
constexpr size_t kMostFiles = 2, kMostMappings = 24;
// Where the tags of a granule begin: before it lie the words of a slot that fake_host.py takes for the guest's.
constexpr uint64_t kFirstTag = 0x80000;

thread_local sigjmp_buf fault_return;
thread_local volatile sig_atomic_t touching = 0, fault_signal = 0;

void OnTouchFault(int signal) {
  if (touching == 0) _exit(99);
  fault_signal = signal;
  siglongjmp(fault_return, 1);
}

// 0, or the signal that the access raised.
int Touch(volatile uint64_t* word, uint64_t* read, const uint64_t* written) {
  fault_signal = 0;
  if (sigsetjmp(fault_return, 1) == 0) {
    touching = 1;
    if (written != nullptr) *word = *written;
    *read = *word;
  }
  touching = 0;
  return fault_signal;
}

struct File {
  std::unique_ptr<Device> device;
  bool started = false;
  std::set<uint32_t> owned;  // slices in use
};

struct Mapping {
  uint8_t* address = nullptr;
  uint64_t bytes = 0, offset = 0;
  uint64_t session = 0;  // of the file: slot << 32 | session
  bool writable = false;
};

// The calls of one process. With several threads each has a Caller of its own on the same files.
class Caller {
 public:
  Caller(uint64_t seed, bool exact, std::vector<File>& files, std::mutex& mutex)
      : random_(seed), exact_(exact), files_(files), mutex_(mutex) {}

  void Run() {
    using Call = void (Caller::*)();
    constexpr Call kKinds[] = {&Caller::Open,     &Caller::Close,      &Caller::Info,   &Caller::Start,
                               &Caller::Alloc,    &Caller::Alloc,      &Caller::Free,   &Caller::Map,
                               &Caller::Map,      &Caller::Map,        &Caller::Unmap,  &Caller::Protect,
                               &Caller::Remap,    &Caller::Advise,     &Caller::Access, &Caller::Access,
                               &Caller::Access,   &Caller::Access,     &Caller::Access, &Caller::Unknown,
                               &Caller::OtherWay, &Caller::FromOutside};
    for (; reached_ < kAnswers && calls_ < kMostCalls && Failures() < 20; ++calls_)
      (this->*kKinds[Below(std::size(kKinds))])();
  }
  uint64_t calls() const { return calls_; }
  uint64_t reached() const { return reached_; }

 private:
  uint64_t Below(uint64_t bound) { return random_() % bound; }
  bool Chance(uint64_t one_in) { return Below(one_in) == 0; }
  // Numbers near the edges that a decoder may get wrong, and others.
  uint64_t Odd(uint64_t edge) {
    switch (Below(6)) {
      case 0:
        return edge;
      case 1:
        return edge + 1;
      case 2:
        return edge - 1;
      case 3:
        return ~uint64_t{0} >> Below(64);
      case 4:
        return Below(edge + 1);
      default:
        return random_();
    }
  }
  // A checked answer; the exact model alone can tell.
  void Expect(bool holds, const char* what, long value = 0) {
    ++reached_;
    if (exact_ && !holds) Check(false, std::string("calls: ") + what + " " + std::to_string(value));
  }
  // The file is this process's until the lock goes; null: there is none at that place.
  File* AnyFile() {
    File& file = files_[Below(files_.size())];
    return file.device != nullptr ? &file : nullptr;
  }

  void Open() {
    const std::lock_guard lock(mutex_);
    File& file = files_[Below(files_.size())];
    if (file.device != nullptr) return;
    auto device = std::make_unique<Device>(Chance(2) ? O_NONBLOCK : 0);
    const int error = device->open_errno();
    Expect(device->ok() || error == EBUSY || error == EAGAIN, "open", error);
    if (device->ok()) file = {std::move(device), false, {}};
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    File* file = AnyFile();
    if (file != nullptr && Chance(4)) *file = {};
  }
  void Info() {
    const std::lock_guard lock(mutex_);
    const File* file = AnyFile();
    if (file == nullptr) return;
    causeway_info info{};
    const bool bad = Chance(3);
    const int result = ioctl(file->device->fd(), CAUSEWAY_IOC_INFO, bad ? BadPointer() : &info);
    Expect(bad ? result == -1 && errno == EFAULT : result == 0 && info.slot == file->device->info().slot,
           "INFO", result);
  }
  void Start() {
    const std::lock_guard lock(mutex_);
    File* file = AnyFile();
    if (file == nullptr || !Chance(8)) return;
    const int result = ioctl(file->device->fd(), CAUSEWAY_IOC_START, random_());
    Expect(file->started ? result == -1 && errno == EALREADY : result == 0, "START", result);
    file->started = true;
  }
  void Alloc() {
    const std::lock_guard lock(mutex_);
    File* file = AnyFile();
    if (file == nullptr) return;
    const causeway_info& info = file->device->info();
    causeway_slices slices{static_cast<uint32_t>(random_()),
                           static_cast<uint32_t>(Chance(4) ? Odd(info.granule_count) : 1 + Below(3))};
    const uint32_t count = slices.count;
    if (Chance(6)) {
      // A page that can be read and not written: what was given is taken back.
      const int result =
          ioctl(file->device->fd(), CAUSEWAY_IOC_ALLOC_SLICES, Chance(2) ? ReadOnlySlices(2) : BadPointer());
      Expect(result == -1 && (errno == EFAULT || errno == ENOMEM), "ALLOC to a bad pointer", errno);
      return;
    }
    if (ioctl(file->device->fd(), CAUSEWAY_IOC_ALLOC_SLICES, &slices) != 0) {
      Expect(errno == (count == 0 ? EINVAL : ENOMEM), "ALLOC's error", errno);
      return;
    }
    const uint32_t first_slice = 1 + info.slot_count;
    Expect(slices.count == count && slices.first >= first_slice && count <= info.granule_count - slices.first,
           "ALLOC's range", slices.first);
    for (uint32_t i = 0; i < count && i < info.granule_count; ++i) {
      for (const File& each : files_)
        Expect(!each.owned.contains(slices.first + i), "a slice twice", slices.first + i);
      file->owned.insert(slices.first + i);
    }
  }
  void Free() {
    const std::lock_guard lock(mutex_);
    File* file = AnyFile();
    if (file == nullptr) return;
    causeway_slices slices{static_cast<uint32_t>(Odd(file->device->info().granule_count)),
                           static_cast<uint32_t>(Chance(2) ? 1 : Odd(4))};
    if (!Chance(3) && !file->owned.empty())
      slices = {*std::next(file->owned.begin(), long(Below(file->owned.size()))), 1};
    bool owned = slices.count <= file->owned.size();
    for (uint32_t i = 0; owned && i < slices.count; ++i) owned = file->owned.contains(slices.first + i);
    const int result = ioctl(file->device->fd(), CAUSEWAY_IOC_FREE_SLICES, &slices);
    if (slices.count == 0) return Expect(result == -1 && errno == EINVAL, "FREE of none", errno);
    Expect(owned ? result == 0 : result == -1 && errno == EPERM, "FREE", result);
    for (uint32_t i = 0; owned && i < slices.count; ++i) file->owned.erase(slices.first + i);
  }
  // Whether the file may map all of the range so.
  static bool MayMap(const File& file, uint64_t offset, uint64_t bytes, bool writable) {
    for (uint64_t at = offset / kGranuleBytes; at <= (offset + bytes - 1) / kGranuleBytes; ++at) {
      const bool own =
          at == file.device->slot_offset() / kGranuleBytes || file.owned.contains(static_cast<uint32_t>(at));
      if (at == 0 ? writable : !own) return false;
    }
    return true;
  }
  void Map() {
    const std::lock_guard lock(mutex_);
    File* file = AnyFile();
    if (file == nullptr || mappings_.size() >= kMostMappings) return;
    const causeway_info& info = file->device->info();
    uint64_t granule = Below(3) == 0 ? Odd(info.granule_count) % (2 * uint64_t{info.granule_count})
                                     : file->device->slot_offset() / kGranuleBytes;
    if (!file->owned.empty() && Chance(2))
      granule = *std::next(file->owned.begin(), long(Below(file->owned.size())));
    const uint64_t offset = granule * kGranuleBytes + (Chance(3) ? Below(512) * kPage : 0);
    const uint64_t bytes =
        Chance(8) ? (1 + Odd(info.region_bytes / kPage) % (1u << 22)) * kPage : (1 + Below(1024)) * kPage;
    const int protection = int(Below(8)), flags = Chance(10) ? MAP_PRIVATE : MAP_SHARED;
    void* address = mmap(nullptr, bytes, protection, flags | (Chance(4) ? MAP_POPULATE : 0),
                         file->device->fd(), off_t(offset));
    const bool writable = (protection & PROT_WRITE) != 0,
               fits = offset < info.region_bytes && bytes <= info.region_bytes - offset;
    const bool may = flags == MAP_SHARED && (protection & PROT_EXEC) == 0 && fits &&
                     MayMap(*file, offset, bytes, writable);
    Expect((address != MAP_FAILED) == may, may ? "mmap refused" : "mmap allowed", long(granule));
    if (address == MAP_FAILED)
      return Expect(errno == EINVAL || errno == EPERM || errno == ENOMEM, "mmap's error", errno);
    if ((protection & PROT_READ) == 0) {
      munmap(address, bytes);
      return;
    }
    mappings_.push_back({static_cast<uint8_t*>(address), bytes, offset, Session(*file), writable});
  }
  static uint64_t Session(const File& file) {
    return uint64_t{file.device->info().slot} << 32 | file.device->info().session;
  }
  Mapping* AnyMapping() { return mappings_.empty() ? nullptr : &mappings_[Below(mappings_.size())]; }
  void Unmap() {
    Mapping* mapping = AnyMapping();
    if (mapping == nullptr) return;
    const uint64_t pages = mapping->bytes / kPage, cut = Chance(2) ? pages : 1 + Below(pages);
    Expect(munmap(mapping->address + (pages - cut) * kPage, cut * kPage) == 0, "munmap");
    mapping->bytes -= cut * kPage;
    if (mapping->bytes == 0) Forget(mapping);
  }
  void Forget(Mapping* mapping) {
    *mapping = mappings_.back();
    mappings_.pop_back();
  }
  // What mprotect may make of a mapping: never code, and never a writable granule 0.
  void Protect() {
    Mapping* mapping = AnyMapping();
    if (mapping == nullptr) return;
    const int protection = PROT_READ | int(Below(8));
    const bool may =
        (protection & PROT_EXEC) == 0 && ((protection & PROT_WRITE) == 0 || mapping->offset >= kGranuleBytes);
    const int result = mprotect(mapping->address, mapping->bytes, protection);
    Expect(may ? result == 0 : result == -1 && errno == EACCES, "mprotect", protection);
    if (result == 0) mapping->writable = (protection & PROT_WRITE) != 0;
  }
  void Remap() {
    Mapping* mapping = AnyMapping();
    if (mapping == nullptr) return;
    const uint64_t bytes = (1 + Below(2 * mapping->bytes / kPage)) * kPage;
    void* moved = mremap(mapping->address, mapping->bytes, bytes, MREMAP_MAYMOVE);
    Expect((moved != MAP_FAILED) == (bytes <= mapping->bytes), "mremap", long(bytes / kPage));
    if (moved == MAP_FAILED) return;
    mapping->address = static_cast<uint8_t*>(moved);
    mapping->bytes = bytes;
  }
  void Advise() {
    const Mapping* mapping = AnyMapping();
    if (mapping == nullptr) return;
    const int advice = int(Below(30));
    const int result = madvise(mapping->address, mapping->bytes, advice);
    if (advice == MADV_DOFORK) Expect(result == -1, "a mapping that forks", result);
  }
  // A tag says who wrote a word.
  void Access() {
    const Mapping* mapping = AnyMapping();
    if (mapping == nullptr) return;
    const uint64_t at = Below(mapping->bytes / 8) * 8, in_granule = (mapping->offset + at) % kGranuleBytes;
    auto* word = reinterpret_cast<volatile uint64_t*>(mapping->address + at);
    const bool control = mapping->offset + at < kGranuleBytes;
    const uint64_t tag = mapping->session;
    uint64_t read = 0;
    const bool writes = !control && mapping->writable && in_granule >= kFirstTag && Chance(2);
    const int signal = Touch(word, &read, writes ? &tag : nullptr);
    Expect(signal == 0 || signal == SIGBUS, "the signal of an access", signal);
    if (signal != 0 || control || in_granule < kFirstTag) return;
    ++reached_;
    // In any process: what another one wrote is never seen.
    if (read != 0 && read != tag) Check(false, "calls: read what session " + std::to_string(read) + " wrote");
  }
  void Unknown() {
    const std::lock_guard lock(mutex_);
    const File* file = AnyFile();
    if (file == nullptr) return;
    unsigned long command = Chance(2) ? random_() : CAUSEWAY_IOC_INFO ^ 1ul << Below(32);
    for (const unsigned long known :
         {static_cast<unsigned long>(CAUSEWAY_IOC_START), static_cast<unsigned long>(CAUSEWAY_IOC_INFO),
          static_cast<unsigned long>(CAUSEWAY_IOC_ALLOC_SLICES),
          static_cast<unsigned long>(CAUSEWAY_IOC_FREE_SLICES)}) {
      if (static_cast<uint32_t>(command) == static_cast<uint32_t>(known)) return;
    }
    const int result = ioctl(file->device->fd(), command, BadPointer());
    Expect(result == -1 && errno != ENODEV, "an unknown ioctl", result);
  }
  // Calls of files that this one has nothing for.
  void OtherWay() {
    const std::lock_guard lock(mutex_);
    File* file = AnyFile();
    if (file == nullptr) return;
    const int fd = file->device->fd();
    char bytes[16] = {};
    pollfd polled{fd, POLLIN, 0};
    Expect(read(fd, bytes, sizeof bytes) == -1 && write(fd, bytes, sizeof bytes) == -1, "read and write");
    Expect(pread(fd, bytes, sizeof bytes, off_t(random_() >> 1)) == -1, "pread");
    Expect(ftruncate(fd, 0) == -1 && fsync(fd) == -1, "ftruncate and fsync");
    poll(&polled, 1, 0);
    lseek(fd, off_t(random_()), int(Below(3)));
    if (!Chance(16)) return;
    // The session ends with any descriptor of it that its process closes.
    causeway_info info{};
    Expect(close(dup(fd)) == 0 && ioctl(fd, CAUSEWAY_IOC_INFO, &info) == -1 && errno == ENODEV,
           "INFO after a close");
    Expect(ioctl(fd, CAUSEWAY_IOC_START) == -1 && errno == ENODEV, "START after a close");
    *file = {};
  }
  // The kernel's own ways into a mapping, and a forked child.
  void FromOutside() {
    const Mapping* mapping = AnyMapping();
    if (mapping == nullptr || !Chance(4)) return;
    char bytes[64];
    const iovec local{bytes, sizeof bytes}, remote{mapping->address, sizeof bytes};
    Expect(process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == -1, "process_vm_readv");
    const int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    Expect(memory >= 0 && pwrite(memory, bytes, 8, off_t(mapping->address)) == -1, "/proc/self/mem");
    if (memory >= 0) close(memory);
    if (!exact_) return;  // what another thread holds stays held in a child
    Join(InChild([&] {
      Check(SignalOfAccess(mapping->address, false) == SIGSEGV, "calls: a child has the mapping");
    }));
  }

  // Nothing is there, or the first page above what a process may have.
  static void* BadPointer() { return reinterpret_cast<void*>(uint64_t{0x7fff'ffff'f000}); }
  static void* ReadOnlySlices(uint32_t count) {
    static auto* const page = static_cast<causeway_slices*>(
        mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(page, kPage, PROT_READ | PROT_WRITE);
    *page = {0, count};
    mprotect(page, kPage, PROT_READ);
    return page;
  }

  std::mt19937_64 random_;
  const bool exact_;
  std::vector<File>& files_;
  std::mutex& mutex_;  // of the files
  std::vector<Mapping> mappings_;
  uint64_t calls_ = 0, reached_ = 0;
};

void CallAll(uint64_t seed, int threads) {
  signal(SIGSEGV, OnTouchFault);
  signal(SIGBUS, OnTouchFault);
  std::vector<File> files(kMostFiles);
  std::mutex mutex;
  std::vector<std::unique_ptr<Caller>> callers;
  for (int i = 0; i < threads; ++i)
    callers.push_back(std::make_unique<Caller>(seed + uint64_t(i), threads == 1, files, mutex));
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back([&, i] { callers[size_t(i)]->Run(); });
  callers[0]->Run();
  for (std::thread& other : others) other.join();
  uint64_t calls = 0, reached = 0;
  for (const auto& caller : callers) {
    calls += caller->calls();
    reached += caller->reached();
  }
  Check(reached >= kAnswers, "calls: there were answers to look at");
  std::printf("%d threads, seed %lu: %lu calls, %lu answers looked at\n", threads,
              static_cast<unsigned long>(seed), static_cast<unsigned long>(calls),
              static_cast<unsigned long>(reached));
}

}  // namespace

void TestCalls() {
  const char* given = getenv("CAUSEWAY_SEED");
  const uint64_t seed = given != nullptr ? strtoull(given, nullptr, 0) : std::random_device{}();
  std::vector<int> children;
  for (const int threads : {1, 1, 3}) {
    const uint64_t own = seed + 100 * children.size();
    children.push_back(InChild([own, threads] { CallAll(own, threads); }));
  }
  for (const int child : children) Join(child);
}

}  // namespace causeway::module_test
