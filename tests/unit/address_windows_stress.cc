// SPDX-License-Identifier: Apache-2.0
// No pointer has two meanings: processes that map memory everywhere take and free device, pinned and managed
// memory of all sizes, and look at every range that lives. Run under `causeway run`.
// Usage: address_windows_stress PROCESSES AT_ONCE OPERATIONS SEED [OCCUPY]
//   OCCUPY, before the library is loaded: pinned (the first places of pinned memory), everywhere (all of
//   them: cuInit must say no), device (parts of the windows of device memory), legacy (the process runs with
//   the old layout, its libraries inside a window).
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/personality.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>

namespace {

void* library = nullptr;

template <class Function>
Function* Find(Function*, const char* name) {
  void* address = dlsym(library, name);
  if (address == nullptr) std::printf("%s is missing\n", name), std::_Exit(9);
  return reinterpret_cast<Function*>(address);
}
#define TEXT_OF(name) #name
#define DRIVER(name) Find(static_cast<decltype(&name)>(nullptr), TEXT_OF(name))

[[noreturn]] void Fail(const std::string& what) {
  std::printf("FAIL in process %d: %s\n", getpid(), what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

constexpr uint64_t kPage = 4096;
constexpr size_t kMostLive = 120;

enum class Kind { kDevice, kPooled, kPhysical, kPinned, kManaged, kProgram };
constexpr const char* kNames[] = {"device", "pooled", "physical", "pinned", "managed", "program"};

bool OnDevice(Kind kind) {
  return kind <= Kind::kPhysical;
}

struct Range {
  uint64_t bytes;
  Kind kind;
  uint32_t mark;  // in its first and last byte
  CUmemGenericAllocationHandle physical = 0;
};

class Process {
 public:
  explicit Process(uint32_t seed) : random_(seed) {}

  // What was mapped before the library came.
  void Occupy(const std::string& how) {
    if (how == "pinned" || how == "everywhere") {
      const uint64_t last = how == "pinned" ? 0x4200'0000'0000 : 0x4f00'0000'0000;
      for (uint64_t at = 0x4000'0000'0000; at <= last; at += 0x100'0000'0000)
        Map(at + kPage * 3, kPage * 2, true);
    } else if (how == "device") {
      // Where the worker's driver begins, most likely, and single pages.
      Map(0x2aaa'b000'0000, uint64_t{700} << 30, true);
      for (int i = 0; i < 60; ++i) Map(0x3000'0000'0000 + uint64_t{random_()} * kPage, kPage, true);
      Map(0x3'0200'0000, 64 * kPage, true);
    }
  }

  int Run(uint32_t operations) {
    Need(DRIVER(cuDevicePrimaryCtxRetain)(&context_, 0), "cuDevicePrimaryCtxRetain");
    Need(DRIVER(cuCtxSetCurrent)(context_), "cuCtxSetCurrent");
    for (uint32_t i = 0; i < operations; ++i) {
      if (live_.size() < kMostLive && random_() % 5 < 3) {
        Make(static_cast<Kind>(random_() % 6));
      } else if (!live_.empty()) {
        auto at = live_.begin();
        std::advance(at, random_() % live_.size());
        Look(*at);
        End(at);
      }
      if (i % 64 == 0) LookAtMaps();
    }
    LookAtMaps();
    for (const auto& entry : live_) Look(entry);
    while (!live_.empty()) End(live_.begin());
    for (int kind = 0; kind < 6; ++kind) {
      if (made_[kind] < operations / 30)
        Fail(std::string("hardly any ") + kNames[kind] + " memory was to be had");
    }
    return 0;
  }

 private:
  using Entry = std::pair<const uint64_t, Range>;

  static bool Need(CUresult result, const char* what) {
    if (result == CUDA_ERROR_OUT_OF_MEMORY) return false;
    if (result != CUDA_SUCCESS) Fail(std::string(what) + " answers " + std::to_string(result));
    return true;
  }

  uint64_t Size(uint32_t most_bits) {
    const uint32_t bits = random_() % (most_bits + 1);
    return 1 + (random_() & ((uint64_t{1} << bits) - 1));
  }

  // A new range must be apart from all that live, whatever they are.
  void Add(uint64_t address, uint64_t bytes, Kind kind, CUmemGenericAllocationHandle physical = 0) {
    const Range range{bytes, kind, static_cast<uint32_t>(random_()), physical};
    ++made_[int(kind)];
    const auto next = live_.lower_bound(address);
    const auto meets = [&](const Entry& other) {
      Fail(std::string(kNames[int(kind)]) + " memory at " + Hex(address) + ", " + Hex(bytes) +
           " long, meets " + kNames[int(other.second.kind)] + " memory at " + Hex(other.first) + ", " +
           Hex(other.second.bytes));
    };
    if (next != live_.end() && next->first < address + bytes) meets(*next);
    if (next != live_.begin() && std::prev(next)->first + std::prev(next)->second.bytes > address)
      meets(*std::prev(next));
    Mark(*live_.emplace(address, range).first);
  }

  void Map(uint64_t hint, uint64_t bytes, bool exactly) {
    const int where = exactly ? MAP_FIXED_NOREPLACE : 0;
    void* got = mmap(reinterpret_cast<void*>(hint), bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | where, -1, 0);
    if (got != MAP_FAILED) Add(reinterpret_cast<uint64_t>(got), bytes, Kind::kProgram);
  }

  void Make(Kind kind) {
    CUdeviceptr address = 0;
    void* host = nullptr;
    switch (kind) {
      case Kind::kDevice: {
        const uint64_t bytes = Size(26);
        if (Need(DRIVER(cuMemAlloc)(&address, bytes), "cuMemAlloc")) Add(address, bytes, kind);
        return;
      }
      case Kind::kPooled: {
        const uint64_t bytes = Size(24);
        if (Need(DRIVER(cuMemAllocAsync)(&address, bytes, nullptr), "cuMemAllocAsync"))
          Add(address, bytes, kind);
        return;
      }
      case Kind::kPhysical:
        return MakePhysical();
      case Kind::kPinned: {
        const uint64_t bytes = Size(24);
        if (Need(DRIVER(cuMemHostAlloc)(&host, bytes, 0), "cuMemHostAlloc"))
          Add(reinterpret_cast<uint64_t>(host), bytes, kind);
        return;
      }
      case Kind::kManaged: {
        const uint64_t bytes = Size(24);
        if (Need(DRIVER(cuMemAllocManaged)(&address, bytes, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged"))
          Add(address, bytes, kind);
        return;
      }
      case Kind::kProgram: {
        // Wishes all over the address space, many of them inside the windows.
        const uint64_t wish =
            (uint64_t{random_()} << 15 | random_() % 8 << 12) & ((uint64_t{1} << 47) - kPage);
        return Map(wish, (Size(30) + kPage - 1) / kPage * kPage, false);
      }
    }
  }

  void MakePhysical() {
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    const uint64_t bytes = (uint64_t{2} << 20) * (1 + random_() % 8);
    CUmemAccessDesc access{{CU_MEM_LOCATION_TYPE_DEVICE, {0}}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle memory = 0;
    CUdeviceptr address = 0;
    if (!Need(DRIVER(cuMemCreate)(&memory, bytes, &properties, 0), "cuMemCreate")) return;
    // A wish, too.
    const uint64_t wish = uint64_t{random_()} << 21 & ((uint64_t{1} << 47) - 1);
    if (!Need(DRIVER(cuMemAddressReserve)(&address, bytes, 0, wish, 0), "cuMemAddressReserve")) {
      Need(DRIVER(cuMemRelease)(memory), "cuMemRelease");
      return;
    }
    Need(DRIVER(cuMemMap)(address, bytes, 0, memory, 0), "cuMemMap");
    Need(DRIVER(cuMemSetAccess)(address, bytes, &access, 1), "cuMemSetAccess");
    Add(address, bytes, Kind::kPhysical, memory);
  }

  void Mark(const Entry& entry) {
    const auto& [address, range] = entry;
    const auto mark = static_cast<unsigned char>(range.mark);
    for (const uint64_t at : {address, address + range.bytes - 1}) {
      if (OnDevice(range.kind)) {
        Need(DRIVER(cuMemsetD8)(at, mark, 1), "cuMemsetD8");
      } else {
        *reinterpret_cast<volatile unsigned char*>(at) = mark;
      }
    }
  }

  // What it is by its pointer, and what it holds.
  void Look(const Entry& entry) {
    const auto& [address, range] = entry;
    const std::string name = std::string(kNames[int(range.kind)]) + " memory at " + Hex(address);
    const uint64_t inside = address + (uint64_t{random_()} << 8) % range.bytes;
    unsigned type = 0, managed = 0;
    const CUresult known = DRIVER(cuPointerGetAttribute)(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, inside);
    if (range.kind == Kind::kProgram) {
      if (known != CUDA_ERROR_INVALID_VALUE) Fail(name + " is CUDA's");
    } else {
      if (known != CUDA_SUCCESS) Fail(name + " is unknown: " + std::to_string(known));
      Need(DRIVER(cuPointerGetAttribute)(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, inside), "IS_MANAGED");
      if ((managed != 0) != (range.kind == Kind::kManaged)) Fail(name + " and managed memory are confused");
      if (range.kind != Kind::kManaged && (type == CU_MEMORYTYPE_DEVICE) != OnDevice(range.kind))
        Fail(name + " is of type " + std::to_string(type));
    }
    for (const uint64_t at : {address, address + range.bytes - 1}) {
      unsigned char found = 0;
      if (range.kind == Kind::kProgram) {
        found = *reinterpret_cast<volatile unsigned char*>(at);
      } else {
        Need(DRIVER(cuMemcpyDtoH)(&found, at, 1), "cuMemcpyDtoH");
      }
      if (found != static_cast<unsigned char>(range.mark)) Fail(name + " has lost what was in it");
    }
  }

  void End(std::map<uint64_t, Range>::iterator at) {
    const auto [address, range] = *at;
    live_.erase(at);
    switch (range.kind) {
      case Kind::kDevice:
      case Kind::kManaged:
        Need(DRIVER(cuMemFree)(address), "cuMemFree");
        return;
      case Kind::kPooled:
        Need(DRIVER(cuMemFreeAsync)(address, nullptr), "cuMemFreeAsync");
        return;
      case Kind::kPhysical:
        Need(DRIVER(cuMemUnmap)(address, range.bytes), "cuMemUnmap");
        Need(DRIVER(cuMemRelease)(range.physical), "cuMemRelease");
        Need(DRIVER(cuMemAddressFree)(address, range.bytes), "cuMemAddressFree");
        return;
      case Kind::kPinned:
        Need(DRIVER(cuMemFreeHost)(reinterpret_cast<void*>(address)), "cuMemFreeHost");
        return;
      case Kind::kProgram:
        munmap(reinterpret_cast<void*>(address), range.bytes);
    }
  }

  // Nothing of the process's own, libraries and heap included, lies where device memory is: reservations
  // alone.
  void LookAtMaps() {
    FILE* maps = std::fopen("/proc/self/maps", "re");
    if (maps == nullptr) Fail("no /proc/self/maps");
    char line[4608];
    while (std::fgets(line, sizeof line, maps) != nullptr) {
      unsigned long long begin = 0, end = 0;
      char access[5] = "";
      if (std::sscanf(line, "%llx-%llx %4s", &begin, &end, access) != 3 ||
          std::strncmp(access, "---", 3) == 0)
        continue;
      auto at = live_.upper_bound(begin);
      if (at != live_.begin()) --at;
      for (; at != live_.end() && at->first < end; ++at) {
        if (OnDevice(at->second.kind) && at->first + at->second.bytes > begin)
          Fail("device memory at " + Hex(at->first) + " lies on the process's own: " + line);
      }
    }
    std::fclose(maps);
  }

  std::mt19937 random_;
  CUcontext context_ = nullptr;
  std::map<uint64_t, Range> live_;
  uint32_t made_[6] = {};
};

int Child(char** argv) {
  const std::string how = argv[4];
  Process process(static_cast<uint32_t>(std::atoi(argv[3])));
  library = nullptr;
  process.Occupy(how);
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) Fail(dlerror());
  const CUresult result = DRIVER(cuInit)(0);
  if (how == "everywhere") return result == CUDA_ERROR_NO_DEVICE ? 0 : (Fail("there is room after all"), 1);
  if (result != CUDA_SUCCESS) Fail("cuInit answers " + std::to_string(result));
  return process.Run(static_cast<uint32_t>(std::atoi(argv[2])));
}

pid_t Start(const char* program, const char* operations, const std::string& seed, const std::string& how) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  if (how == "legacy") personality(ADDR_COMPAT_LAYOUT);
  execl(program, program, "child", operations, seed.c_str(), how.c_str(), static_cast<char*>(nullptr));
  _exit(127);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "child") == 0) return Child(argv);
  if (argc < 5) return 8;
  const int processes = std::atoi(argv[1]), at_once = std::atoi(argv[2]), seed = std::atoi(argv[4]);
  const std::string how = argc > 5 ? argv[5] : "nothing";
  int started = 0, running = 0, failed = 0;
  while (started < processes || running > 0) {
    if (started < processes && running < at_once) {
      if (Start("/proc/self/exe", argv[3], std::to_string(seed * 1000 + started), how) > 0) ++running;
      ++started;
      continue;
    }
    int status = 0;
    if (wait(&status) > 0) --running;
    if (status != 0) ++failed;
  }
  std::printf("%d of %d processes failed\n", failed, processes);
  return failed == 0 ? 0 : 1;
}
