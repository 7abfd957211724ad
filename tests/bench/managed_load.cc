// SPDX-License-Identifier: Apache-2.0
// Managed memory that both processors use, for managed.py: an ordinary program on the driver API. It prints "ready" and then
// answers lines on its standard input until that ends:
//
//   measure MODE BYTES SECONDS   prepares a block of so many bytes and prints "prepared"; at the next line it works for so
//                                many seconds and prints ROUNDS_PER_SECOND ROUNDS PROCESSOR_SECONDS (its own); at the next
//                                it looks at every word of the block, frees it and prints "right"
//   modes                        prints the modes' names
//
// A kernel adds one to the first four words of every STEP bytes (16, so all words; interpreted kernels want 4096). In a round of
//
//   prefetch            a range of so many bytes, of a block of 64 MiB or more, is prefetched to the device, a kernel uses it, it is
//                       prefetched back, and the CPU reads and writes a word of each page; the next round takes the next range
//   turns               the CPU writes a word of each page, a kernel uses all, and the CPU reads that word
//   sparse              a kernel uses all, and the CPU reads and writes 16 random pages
//   kernel              a kernel uses all, which an earlier one has brought to the device
//   kernel_prefetched   the same where a prefetch has brought it
//   kernel_device       the same with memory of the device, for comparison
//   advise_device       turns, preferred on the device
//   advise_cpu          turns, preferred on the host
//   advise_read         turns, mostly read
//
// A wrong word ends it with status 1 and a sentence.
#include <cuda.h>
#include <time.h>

#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace {

constexpr size_t kPage = 4096, kWordsOfPage = kPage / sizeof(uint32_t);
constexpr size_t kLeastPrefetchedBlock = size_t{64} << 20;
constexpr int kSparsePages = 16, kFirstRounds = 3;

// The first four words of every `step` bytes become one more, `count` times from `at` on.
constexpr char kAdd[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry add(.param .u64 at, .param .u64 count, .param .u64 step)\n{\n"
    "  .reg .pred %done; .reg .b32 %grid, %group, %size, %own, %a, %b, %c, %d;\n"
    "  .reg .b64 %at, %count, %step, %next, %threads, %place;\n"
    "  ld.param.u64 %at, [at]; cvta.to.global.u64 %at, %at;\n"
    "  ld.param.u64 %count, [count]; ld.param.u64 %step, [step];\n"
    "  mov.u32 %group, %ctaid.x; mov.u32 %size, %ntid.x; mov.u32 %own, %tid.x; mov.u32 %grid, %nctaid.x;\n"
    "  mad.lo.u32 %own, %group, %size, %own; cvt.u64.u32 %next, %own;\n"
    "  mul.lo.u32 %grid, %grid, %size; cvt.u64.u32 %threads, %grid;\n"
    "AGAIN:\n  setp.ge.u64 %done, %next, %count;\n  @%done bra END;\n"
    "  mul.lo.u64 %place, %next, %step; add.u64 %place, %place, %at;\n"
    "  ld.global.v4.u32 {%a, %b, %c, %d}, [%place];\n"
    "  add.u32 %a, %a, 1; add.u32 %b, %b, 1; add.u32 %c, %c, 1; add.u32 %d, %d, 1;\n"
    "  st.global.v4.u32 [%place], {%a, %b, %c, %d};\n"
    "  add.u64 %next, %next, %threads;\n  bra AGAIN;\nEND:\n  ret;\n}\n";

void Check(CUresult result, const char* call) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "managed_load: error %d of %s\n", static_cast<int>(result), call);
  std::exit(1);
}
#define CHECKED(call) Check(call, #call)

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void Say(const char* word) {
  std::puts(word);
  std::fflush(stdout);
}

struct Gpu {
  explicit Gpu(uint64_t step_bytes) : step(step_bytes) {
    CUcontext context = nullptr;
    CUmodule module = nullptr;
    CHECKED(cuInit(0));
    CHECKED(cuDevicePrimaryCtxRetain(&context, 0));
    CHECKED(cuCtxSetCurrent(context));
    CHECKED(cuModuleLoadData(&module, kAdd));
    CHECKED(cuModuleGetFunction(&add, module, "add"));
    CHECKED(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    device.type = CU_MEM_LOCATION_TYPE_DEVICE;
    host.type = CU_MEM_LOCATION_TYPE_HOST;
  }

  void Add(CUdeviceptr at, uint64_t bytes) {
    uint64_t count = bytes / step;
    void* arguments[] = {&at, &count, &step};
    const auto groups = static_cast<unsigned>(count < 1024 * 256 ? (count + 255) / 256 : 1024);
    CHECKED(cuLaunchKernel(add, groups, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr));
  }

  void Wait() { CHECKED(cuStreamSynchronize(stream)); }

  CUfunction add = nullptr;
  CUstream stream = nullptr;
  CUmemLocation device{}, host{};
  uint64_t step;
};

// Memory whose ranges kernels use one at a time, and what its pages have to hold: word 1 what the CPU wrote last and one more for
// each kernel since, the other words how many kernels used the range, and those between the kernel's steps nothing.
class Block {
 public:
  Block(Gpu& gpu, size_t bytes, size_t range, bool managed)
      : gpu_(gpu), managed_(managed), pages_(bytes / kPage), range_(range / kPage) {
    size_t available = 0, all = 0;
    CHECKED(cuMemGetInfo(&available, &all));
    if (bytes > available / 2) {
      std::fprintf(stderr, "managed_load: %zu bytes are more than half of the %zu that the device has free\n",
                   bytes, available);
      std::exit(1);
    }
    if (managed)
      CHECKED(cuMemAllocManaged(&at_, bytes, CU_MEM_ATTACH_GLOBAL));
    else
      CHECKED(cuMemAlloc(&at_, bytes));
    written_.resize(pages_);
    kernels_.resize(pages_ / range_);
  }
  ~Block() { CHECKED(cuMemFree(at_)); }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // The CPU, or where it cannot, the device.
  void Clear() {
    if (managed_)
      std::memset(reinterpret_cast<void*>(at_), 0, pages_ * kPage);
    else
      CHECKED(cuMemsetD8Async(at_, 0, pages_ * kPage, gpu_.stream));
  }

  void Advise(CUmem_advise advice, CUmemLocation location) {
    CHECKED(cuMemAdvise(at_, pages_ * kPage, advice, location));
  }

  size_t ranges() const { return kernels_.size(); }
  size_t pages() const { return pages_; }

  void Prefetch(size_t range, CUmemLocation to) {
    CHECKED(cuMemPrefetchAsync(at_ + range * range_ * kPage, range_ * kPage, to, 0, gpu_.stream));
  }

  void Add(size_t range) {
    gpu_.Add(at_ + range * range_ * kPage, range_ * kPage);
    ++kernels_[range];
  }

  void Write(size_t page) {
    Words(page)[1] = ++last_written_;
    written_[page] = last_written_ - kernels_[page / range_];
  }

  void CheckPage(size_t page) const { CheckWord(page, 1, Words(page)[1], kernels_[page / range_]); }

  template <class Visit>
  void ForPages(size_t range, Visit visit) {
    for (size_t page = range * range_; page < (range + 1) * range_; ++page) visit(page);
  }

  void CheckAll() const {
    std::vector<uint32_t> copy(managed_ ? 0 : pages_ * kWordsOfPage);
    if (!managed_) CHECKED(cuMemcpyDtoH(copy.data(), at_, pages_ * kPage));
    for (size_t page = 0; page < pages_; ++page) {
      const volatile uint32_t* words = managed_ ? Words(page) : copy.data() + page * kWordsOfPage;
      const uint32_t kernels = kernels_[page / range_];
      for (size_t word = 0; word < kWordsOfPage; ++word) CheckWord(page, word, words[word], kernels);
    }
  }

 private:
  volatile uint32_t* Words(size_t page) const {
    return reinterpret_cast<volatile uint32_t*>(at_) + page * kWordsOfPage;
  }

  void CheckWord(size_t page, size_t word, uint32_t seen, uint32_t kernels) const {
    const bool used = (word * sizeof(uint32_t) & (gpu_.step - 1)) < 16;
    const uint32_t right = !used ? 0 : word == 1 ? kernels + written_[page] : kernels;
    if (seen == right) return;
    std::fprintf(stderr, "managed_load: word %zu of page %zu is %" PRIu32 " and should be %" PRIu32 "\n",
                 word, page, seen, right);
    std::exit(1);
  }

  Gpu& gpu_;
  bool managed_;
  size_t pages_, range_;
  CUdeviceptr at_ = 0;
  uint32_t last_written_ = 0;
  std::vector<uint32_t> written_;  // less the kernels before
  std::vector<uint32_t> kernels_;  // of each range
};

struct Work {
  Gpu& gpu;
  Block& block;
  size_t round = 0;
  std::minstd_rand chance{1};

  void Prefetch() {
    const size_t range = round++ % block.ranges();
    block.Prefetch(range, gpu.device);
    block.Add(range);
    block.Prefetch(range, gpu.host);
    gpu.Wait();
    block.ForPages(range, [this](size_t page) {
      block.CheckPage(page);
      block.Write(page);
    });
  }

  void Turns() {
    block.ForPages(0, [this](size_t page) { block.Write(page); });
    Kernel();
    block.ForPages(0, [this](size_t page) { block.CheckPage(page); });
  }

  void Sparse() {
    Kernel();
    for (int i = 0; i < kSparsePages; ++i) {
      const size_t page = chance() % block.pages();
      block.CheckPage(page);
      block.Write(page);
    }
  }

  void Kernel() {
    block.Add(0);
    gpu.Wait();
  }
};

struct Mode {
  const char* name;
  void (Work::*round)();
  CUmem_advise advice;  // 0: none
  bool on_host;         // the advice
};

constexpr CUmem_advise kNone{};
constexpr Mode kModes[] = {
    {"prefetch", &Work::Prefetch, kNone, false},
    {"turns", &Work::Turns, kNone, false},
    {"sparse", &Work::Sparse, kNone, false},
    {"kernel", &Work::Kernel, kNone, false},
    {"kernel_prefetched", &Work::Kernel, kNone, false},
    {"kernel_device", &Work::Kernel, kNone, false},
    {"advise_device", &Work::Turns, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, false},
    {"advise_cpu", &Work::Turns, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, true},
    {"advise_read", &Work::Turns, CU_MEM_ADVISE_SET_READ_MOSTLY, false},
};

bool AwaitLine() {
  char line[8];
  return std::fgets(line, sizeof line, stdin) != nullptr;
}

// False: the input has ended.
bool Measure(Gpu& gpu, const Mode& mode, size_t bytes, double seconds) {
  const std::string_view name = mode.name;
  const size_t all = name == "prefetch" && bytes < kLeastPrefetchedBlock ? kLeastPrefetchedBlock : bytes;
  Block block(gpu, all, bytes, name != "kernel_device");
  Work work{gpu, block};
  if (mode.advice != kNone) block.Advise(mode.advice, mode.on_host ? gpu.host : gpu.device);
  block.Clear();
  if (name == "kernel_prefetched") block.Prefetch(0, gpu.device);
  for (size_t range = 0; range < block.ranges(); ++range) block.Add(range);
  gpu.Wait();
  for (int i = 0; i < kFirstRounds; ++i) (work.*mode.round)();
  Say("prepared");
  if (!AwaitLine()) return false;
  const double begin = Seconds(CLOCK_MONOTONIC), used = Seconds(CLOCK_PROCESS_CPUTIME_ID);
  double now = begin;
  long rounds = 0;
  for (const double end = begin + seconds; now < end; now = Seconds(CLOCK_MONOTONIC), ++rounds)
    (work.*mode.round)();
  std::printf("%.6g %ld %.6g\n", static_cast<double>(rounds) / (now - begin), rounds,
              Seconds(CLOCK_PROCESS_CPUTIME_ID) - used);
  std::fflush(stdout);
  if (!AwaitLine()) return false;  // its processor time was read
  block.CheckAll();
  Say("right");
  return true;
}

const Mode* FindMode(std::string_view name) {
  for (const Mode& mode : kModes) {
    if (mode.name == name) return &mode;
  }
  return nullptr;
}

// False: the line cannot be understood, or there is no other.
bool Answer(Gpu& gpu, const char* line) {
  if (std::strcmp(line, "modes\n") == 0) {
    for (const Mode& mode : kModes) std::printf("%s ", mode.name);
    Say("");
    return true;
  }
  char name[32];
  size_t bytes = 0;
  double seconds = 0;
  const bool read = std::sscanf(line, "measure %31s %zu %lf", name, &bytes, &seconds) == 3;
  const Mode* mode = read ? FindMode(name) : nullptr;
  if (mode != nullptr && bytes != 0 && bytes % kPage == 0 && (bytes & (bytes - 1)) == 0 && seconds > 0)
    return Measure(gpu, *mode, bytes, seconds);
  std::fprintf(stderr, "managed_load: what is %s", line);
  return false;
}

}  // namespace

int main(int count, char** words) {
  const uint64_t step = count == 2 ? std::strtoull(words[1], nullptr, 10) : 16;
  if (count > 2 || step < 16 || step > kPage || (step & (step - 1)) != 0) {
    std::fputs("usage: managed_load [STEP]   (16, 32, ... 4096)\n", stderr);
    return 2;
  }
  Gpu gpu(step);
  Say("ready");
  char line[128];
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    if (!Answer(gpu, line)) return 1;
  }
  return 0;
}
