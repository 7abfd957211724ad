// SPDX-License-Identifier: Apache-2.0
// Copies of ordinary memory through the driver API: GB/s and processor seconds per GiB, by size, direction
// and threads, and what a copy of four bytes takes beside a large one. Run it natively and in the guest:
//
//   LD_LIBRARY_PATH=FOLDER_OF_LIBCUDA tests/bench/pageable_copy [MOST_MIB [SECONDS_PER_ROW]]
//   host_backend/causeway run -- tests/bench/pageable_copy
//
// Processor time is this process's and that of all processes named causeway-worker on this machine.
#include <cuda.h>
#include <dirent.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

void Need(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s answers %d\n", what, result);
  std::exit(1);
}

double Seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

// Of the processes with that name: fields 14 and 15 of /proc/PID/stat.
double WorkersCpuSeconds() {
  double ticks = 0;
  DIR* folder = opendir("/proc");
  while (const dirent* entry = folder != nullptr ? readdir(folder) : nullptr) {
    std::ifstream file(std::string("/proc/") + entry->d_name + "/stat");
    std::string line;
    if (!std::getline(file, line) || line.find("(causeway-worker)") == std::string::npos) continue;
    unsigned long user = 0, system = 0;
    std::sscanf(line.c_str() + line.rfind(')') + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu",
                &user, &system);
    ticks += static_cast<double>(user + system);
  }
  if (folder != nullptr) closedir(folder);
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto of = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return of(usage.ru_utime) + of(usage.ru_stime) + WorkersCpuSeconds();
}

struct Place {
  std::vector<char> host;
  CUdeviceptr device = 0;
};

void Copy(Place& place, size_t bytes, bool to_device) {
  Need(to_device ? cuMemcpyHtoD(place.device, place.host.data(), bytes)
                 : cuMemcpyDtoH(place.host.data(), place.device, bytes),
       to_device ? "cuMemcpyHtoD" : "cuMemcpyDtoH");
}

// All threads copy for that long, each its own memory.
void Row(CUcontext context, size_t bytes, bool to_device, int thread_count, double seconds) {
  std::vector<Place> places(thread_count);
  for (Place& place : places) {
    place.host.assign(bytes, 1);
    Need(cuMemAlloc(&place.device, bytes), "cuMemAlloc");
    Copy(place, bytes, to_device);
  }
  std::vector<std::thread> threads;
  std::atomic<uint64_t> copies{0};
  std::vector<uint64_t> of_thread(thread_count);
  const double cpu = CpuSeconds();
  const auto begin = Clock::now();
  for (int i = 0; i < thread_count; ++i) {
    threads.emplace_back([&, i] {
      Need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
      do {
        Copy(places[i], bytes, to_device);
        ++of_thread[i];
      } while (Seconds(begin) < seconds);
      copies += of_thread[i];
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double took = Seconds(begin), total = static_cast<double>(copies) * static_cast<double>(bytes);
  const auto [least, most] = std::minmax_element(of_thread.begin(), of_thread.end());
  std::printf("%s %11zu B %d thread%s %9.3f GB/s %10.2f us/copy %9.4f cpu s/GiB", to_device ? "H2D" : "D2H",
              bytes, thread_count, thread_count > 1 ? "s" : " ", total / took * 1e-9,
              took * 1e6 * thread_count / static_cast<double>(copies),
              (CpuSeconds() - cpu) / total * static_cast<double>(1 << 30));
  if (thread_count > 1)
    std::printf("  shares %.2f", static_cast<double>(*least) / static_cast<double>(*most));
  std::printf("\n");
  std::fflush(stdout);
  for (Place& place : places) Need(cuMemFree(place.device), "cuMemFree");
}

// Time of the caller where nothing is left to wait for: a few copies after each synchronisation.
void Burst(size_t bytes, double seconds) {
  constexpr int kCopies = 6;  // as many of the largest as may be on their way
  Place place;
  place.host.assign(bytes, 1);
  Need(cuMemAlloc(&place.device, bytes), "cuMemAlloc");
  double took = 0;
  uint64_t copies = 0;
  for (const auto begin = Clock::now(); Seconds(begin) < seconds; copies += kCopies) {
    Need(cuCtxSynchronize(), "cuCtxSynchronize");
    const auto since = Clock::now();
    for (int i = 0; i < kCopies; ++i) Copy(place, bytes, true);
    took += Seconds(since);
  }
  std::printf("H2D %11zu B after a synchronisation %8.2f us/copy\n", bytes,
              took * 1e6 / static_cast<double>(copies));
  Need(cuMemFree(place.device), "cuMemFree");
}

// To pages that nobody has touched yet, as programs that allocate their results do.
void FreshRow(size_t bytes, double seconds) {
  CUdeviceptr device = 0;
  Need(cuMemAlloc(&device, bytes), "cuMemAlloc");
  double took = 0, total = 0;
  do {
    void* fresh = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (fresh == MAP_FAILED) std::exit(1);
    const auto begin = Clock::now();
    Need(cuMemcpyDtoH(fresh, device, bytes), "cuMemcpyDtoH");
    took += Seconds(begin);
    total += static_cast<double>(bytes);
    munmap(fresh, bytes);
  } while (took < seconds);
  std::printf("D2H %11zu B fresh pages %6.3f GB/s\n", bytes, total / took * 1e-9);
  Need(cuMemFree(device), "cuMemFree");
}

// Four bytes on a stream of their own while another thread copies much.
void Beside(CUcontext context, size_t bytes, bool to_device, double seconds) {
  Place large, small;
  large.host.assign(bytes, 1);
  small.host.assign(4, 1);
  Need(cuMemAlloc(&large.device, bytes), "cuMemAlloc");
  Need(cuMemAlloc(&small.device, 4), "cuMemAlloc");
  CUstream stream = nullptr;
  Need(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  std::atomic<bool> end{false};
  std::thread other([&] {
    Need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    while (!end) Copy(large, bytes, to_device);
  });
  std::vector<double> times;
  const auto begin = Clock::now();
  while (Seconds(begin) < seconds) {
    const auto since = Clock::now();
    Need(cuMemcpyDtoHAsync(small.host.data(), small.device, 4, stream), "cuMemcpyDtoHAsync");
    times.push_back(Seconds(since) * 1e6);
  }
  end = true;
  other.join();
  std::sort(times.begin(), times.end());
  std::printf("4 B D2H beside %s of %zu B: median %.1f us, 99 %% %.1f us, most %.1f us\n",
              to_device ? "H2D" : "D2H", bytes, times[times.size() / 2], times[times.size() * 99 / 100],
              times.back());
  Need(cuMemFree(large.device), "cuMemFree");
  Need(cuMemFree(small.device), "cuMemFree");
}

}  // namespace

int main(int argc, char** argv) {
  const size_t most = (argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1024) << 20;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 0.3;
  CUcontext context = nullptr;
  Need(cuInit(0), "cuInit");
  Need(cuDevicePrimaryCtxRetain(&context, 0), "cuDevicePrimaryCtxRetain");
  Need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
  for (const size_t bytes : {size_t{4}, size_t{4} << 10, size_t{64} << 10}) Burst(bytes, seconds);
  for (const bool to_device : {true, false}) {
    for (size_t bytes = 4; bytes <= most; bytes *= 4) Row(context, bytes, to_device, 1, seconds);
    for (const size_t bytes : {size_t{64} << 10, size_t{1} << 20, std::min(most, size_t{64} << 20)}) {
      for (int threads = 2; threads <= 4; ++threads) Row(context, bytes, to_device, threads, seconds);
    }
    Beside(context, most, to_device, seconds);
  }
  FreshRow(std::min(most, size_t{256} << 20), seconds);
  return 0;
}
