// SPDX-License-Identifier: Apache-2.0
// Work without measure, through the driver API alone: what a guest may ask for, as much of it as it can get.
// It meets NVIDIA's driver natively and Causeway's in a guest in the same way, so one load can be laid beside
// the same victim on both. What is refused is tried again; only a lost session or device ends it. usage:
// flood KIND SECONDS SEED [MIB]      (MIB: of device memory that it holds at most; default: all it gets)
//   launches   bursts of launches on eight streams by two threads
//   memory     blocks of any size until no more are given, filled and read
//   compile    modules of PTX that nobody has compiled before
//   copies     copies of 4 to 64 MiB, pageable and pinned, both ways
//   objects    streams, events, graphs and contexts that are made, used and ended
//   images     module images of up to 16 MiB that are none
//   sessions   processes of this program, a dozen at a time: half of them end in order, half are killed
//   once       one session: a context, a kernel, the end        hold    the same, but stays until it is
//   killed
// Prints how many calls were made and how many were refused. Exits 0, or 3 when the session was lost.
// FLOOD_COUNT names a file of eight bytes in which the calls of all floods that are given it add up (sessions: processes
// begun). FLOOD_RATE: so many calls a second at most, counted from the start of the process.
#include <cuda.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLost = 3;
constexpr size_t kMib = 1u << 20;

// One kernel: cells[i] += value, i below 256. The name and a constant make each module another one.
std::string Ptx(const std::string& name, unsigned value, unsigned functions) {
  std::string text = ".version 6.3\n.target sm_75\n.address_size 64\n";
  for (unsigned i = 0; i < functions; ++i) {
    text += ".visible .entry " + name + (i == 0 ? "" : std::to_string(i)) +
            "(.param .u64 cells)\n{\n  .reg .b32 %r<4>; .reg .b64 %rd<4>;\n"
            "  ld.param.u64 %rd1, [cells]; cvta.to.global.u64 %rd1, %rd1;\n"
            "  mov.u32 %r1, %tid.x; mul.wide.u32 %rd2, %r1, 4; add.s64 %rd3, %rd1, %rd2;\n"
            "  ld.global.u32 %r2, [%rd3]; add.u32 %r2, %r2, " +
            std::to_string(value + i) + "; st.global.u32 [%rd3], %r2;\n  ret;\n}\n";
  }
  return text;
}

// How much was done, here and in the file that all floods of a kind share, and how much may be done by now.
class Pace {
 public:
  void Note() {
    ++own_;
    if (shared_ != nullptr) ++*shared_;
  }
  uint64_t done() const { return own_; }
  // When the next may be done.
  Clock::time_point due() const {
    if (rate_ <= 0) return begun_;
    return begun_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(own_ / rate_));
  }

 private:
  static std::atomic<uint64_t>* Shared() {
    const char* file = getenv("FLOOD_COUNT");
    const int fd = file != nullptr ? open(file, O_RDWR | O_CLOEXEC) : -1;
    void* word = fd < 0 ? MAP_FAILED : mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd >= 0) close(fd);
    return word == MAP_FAILED ? nullptr : static_cast<std::atomic<uint64_t>*>(word);
  }

  const Clock::time_point begun_ = Clock::now();
  const double rate_ = getenv("FLOOD_RATE") != nullptr ? std::atof(getenv("FLOOD_RATE")) : 0;
  std::atomic<uint64_t>* const shared_ = Shared();
  std::atomic<uint64_t> own_{0};
};

class Flood {
 public:
  Flood(double seconds, uint64_t seed, size_t mib)
      : seconds_(seconds), random_(seed), most_bytes_(mib * kMib) {
    StartClock();
  }

  // A context of the device, a kernel and its cells; false: no session, or no memory for it.
  bool Begin() {
    CUdevice device = 0;
    if (!Try(cuInit(0)) || !Try(cuDeviceGet(&device, 0)) ||
        !Try(cuDevicePrimaryCtxRetain(&context_, device)) || !Try(cuCtxSetCurrent(context_)))
      return false;
    CUmodule module = nullptr;
    const bool begun = Try(cuModuleLoadData(&module, Ptx("add", 1, 1).c_str())) &&
                       Try(cuModuleGetFunction(&add_, module, "add")) && Try(cuMemAlloc(&cells_, 4096));
    StartClock();  // natively the start takes ten seconds beside others, in which there is no flood
    return begun;
  }

  bool Over() const { return lost_ || Clock::now() >= end_; }
  bool lost() const { return lost_; }

  bool Try(CUresult result) {
    pace_.Note();
    if (pace_.due() > Clock::now()) std::this_thread::sleep_until(std::min(pace_.due(), end_));
    if (result == CUDA_SUCCESS) return true;
    ++refused_;
    // What no later call of this process gets over.
    if (result == CUDA_ERROR_EXTERNAL_DEVICE || result == CUDA_ERROR_DEINITIALIZED ||
        (result >= CUDA_ERROR_ILLEGAL_ADDRESS && result <= CUDA_ERROR_LAUNCH_FAILED))
      lost_ = true;
    return false;
  }

  CUresult Launch(CUstream stream) {
    void* parameters[] = {&cells_};
    return cuLaunchKernel(add_, 1, 1, 1, 32, 1, 1, 0, stream, parameters, nullptr);
  }

  uint64_t Random(uint64_t least, uint64_t most) {
    return std::uniform_int_distribution<uint64_t>(least, most)(random_);
  }

  void Launches();
  void Memory();
  void Compile();
  void Copies();
  void Objects();
  void Images();
  void Once();
  void Hold();

  void Report(const std::string& kind) const {
    std::printf("%s: %llu calls, %llu refused%s\n", kind.c_str(),
                static_cast<unsigned long long>(pace_.done()),
                static_cast<unsigned long long>(refused_.load()), lost_ ? ", session lost" : "");
  }

 private:
  void StartClock() { end_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds_); }

  const std::chrono::duration<double> seconds_;
  Clock::time_point end_;
  std::mt19937_64 random_;
  size_t most_bytes_;
  CUcontext context_ = nullptr;
  CUfunction add_ = nullptr;
  CUdeviceptr cells_ = 0;
  Pace pace_;
  std::atomic<uint64_t> refused_{0};
  std::atomic<bool> lost_{false};
};

void Flood::Launches() {
  const auto burst = [this] {
    CUstream streams[4] = {};
    Try(cuCtxSetCurrent(context_));
    for (CUstream& stream : streams) Try(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    while (!Over()) {
      for (int i = 0; i < 1000 && !lost_; ++i) Try(Launch(streams[i % 4]));
      Try(cuCtxSynchronize());
    }
  };
  std::thread second(burst);
  burst();
  second.join();
}

void Flood::Memory() {
  std::vector<std::pair<CUdeviceptr, size_t>> blocks;
  size_t held = 0;
  std::vector<char> read(kMib);
  while (!Over()) {
    CUdeviceptr block = 0;
    const size_t bytes = std::min<size_t>(size_t(1) << Random(9, 28), most_bytes_ - held);
    const bool full = bytes == 0 || !Try(cuMemAlloc(&block, bytes));
    if (!full) {
      Try(cuMemsetD8Async(block, 0x5a, bytes, nullptr));
      Try(cuMemcpyDtoH(read.data(), block, std::min(bytes, read.size())));
      blocks.emplace_back(block, bytes);
      held += bytes;
      continue;
    }
    for (size_t free = blocks.size() / 2 + 1; free > 0 && !blocks.empty() && !lost_; --free) {
      std::swap(blocks[Random(0, blocks.size() - 1)], blocks.back());
      Try(cuMemFree(blocks.back().first));
      held -= blocks.back().second;
      blocks.pop_back();
    }
  }
}

void Flood::Compile() {
  std::vector<CUmodule> kept;
  while (!Over()) {
    const auto number = unsigned(Random(0, 1u << 30));
    CUmodule module = nullptr;
    if (Try(cuModuleLoadData(&module,
                             Ptx("f" + std::to_string(number), number, unsigned(Random(1, 64))).c_str())))
      kept.push_back(module);
    if (kept.size() < 16) continue;
    for (CUmodule each : kept) Try(cuModuleUnload(each));
    kept.clear();
  }
}

void Flood::Copies() {
  constexpr size_t kMost = 64 * kMib;
  std::vector<char> pageable(kMost, 1);
  void* pinned = nullptr;
  CUdeviceptr device = 0;
  while (!Over() && !Try(cuMemAlloc(&device, kMost))) usleep(10'000);
  if (!Try(cuMemHostAlloc(&pinned, kMost, 0))) pinned = pageable.data();
  while (!Over()) {
    const size_t bytes = Random(1, 16) * 4 * kMib;
    void* host = Random(0, 1) == 0 ? pinned : pageable.data();
    Try(cuMemcpyHtoD(device, host, bytes));
    Try(cuMemcpyDtoH(host, device, bytes));
  }
}

void Flood::Objects() {
  while (!Over()) {
    CUstream stream = nullptr;
    CUevent event = nullptr;
    CUgraph graph = nullptr;
    CUgraphExec exec = nullptr;
    if (!Try(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING))) continue;
    Try(cuEventCreate(&event, CU_EVENT_DEFAULT));
    if (Try(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL))) {
      for (uint64_t i = Random(1, 40); i > 0; --i) Try(Launch(stream));
      Try(cuStreamEndCapture(stream, &graph));
    }
    if (graph != nullptr && Try(cuGraphInstantiateWithFlags(&exec, graph, 0)))
      Try(cuGraphLaunch(exec, stream));
    if (event != nullptr) {
      Try(cuEventRecord(event, stream));
      Try(cuStreamWaitEvent(stream, event, 0));
    }
    Try(cuStreamSynchronize(stream));
    if (exec != nullptr) Try(cuGraphExecDestroy(exec));
    if (graph != nullptr) Try(cuGraphDestroy(graph));
    if (event != nullptr) Try(cuEventDestroy(event));
    Try(cuStreamDestroy(stream));
  }
}

void Flood::Images() {
  std::string image;
  while (!Over()) {
    image.assign(Random(1, 16) * kMib, char(Random('a', 'z')));
    image.insert(0, "//" + std::to_string(Random(0, ~uint64_t{0})) + "\n.version 6.3\n.target sm_75\n");
    CUmodule module = nullptr;
    if (Try(cuModuleLoadData(&module, image.c_str()))) Try(cuModuleUnload(module));
  }
}

void Flood::Once() {
  Try(Launch(nullptr));
  Try(cuCtxSynchronize());
}

void Flood::Hold() {
  Once();
  while (!Over()) {
    Try(cuCtxSynchronize());
    usleep(10'000);
  }
}

pid_t Spawn(const char* program, const char* kind) {
  const pid_t pid = fork();
  if (pid == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr ||
        std::freopen("/dev/null", "w", stderr) == nullptr)
      _exit(127);
    unsetenv("FLOOD_COUNT");
    unsetenv("FLOOD_RATE");
    execl(program, program, kind, "30", "1", static_cast<char*>(nullptr));
    _exit(127);
  }
  return pid;
}

// This process has no session of its own.
int Sessions(const char* program, const Flood& flood, std::mt19937_64 random) {
  std::map<pid_t, Clock::time_point> there;  // and when each is killed
  Pace pace;
  while (!flood.Over()) {
    while (there.size() < 12 && pace.due() <= Clock::now()) {
      const bool holds = random() % 2 == 0;
      const pid_t pid = Spawn(program, holds ? "hold" : "once");
      if (pid < 0) break;
      there[pid] = Clock::now() + std::chrono::milliseconds(holds ? random() % 400 : 20'000);
      pace.Note();
    }
    for (auto it = there.begin(); it != there.end();) {
      if (Clock::now() >= it->second) kill(it->first, SIGKILL);
      it = waitpid(it->first, nullptr, WNOHANG) == it->first ? there.erase(it) : std::next(it);
    }
    usleep(2000);
  }
  for (const auto& [pid, when] : there) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
  std::printf("sessions: %llu begun\n", static_cast<unsigned long long>(pace.done()));
  return 0;
}

int Usage() {
  std::fprintf(
      stderr,
      "usage: flood launches|memory|compile|copies|objects|images|sessions|once|hold SECONDS SEED [MIB]\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return Usage();
  const std::string kind = argv[1];
  const uint64_t seed = std::strtoull(argv[3], nullptr, 10);
  Flood flood(std::atof(argv[2]), seed, argc > 4 ? std::strtoull(argv[4], nullptr, 10) : size_t(1) << 30);
  if (kind == "sessions") return Sessions("/proc/self/exe", flood, std::mt19937_64(seed));
  const std::map<std::string, void (Flood::*)()> kinds = {
      {"launches", &Flood::Launches}, {"memory", &Flood::Memory},   {"compile", &Flood::Compile},
      {"copies", &Flood::Copies},     {"objects", &Flood::Objects}, {"images", &Flood::Images},
      {"once", &Flood::Once},         {"hold", &Flood::Hold}};
  const auto found = kinds.find(kind);
  if (found == kinds.end()) return Usage();
  if (flood.Begin()) (flood.*found->second)();
  flood.Report(kind);
  return flood.lost() ? kLost : 0;
}
