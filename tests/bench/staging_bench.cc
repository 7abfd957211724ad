// SPDX-License-Identifier: Apache-2.0
// What staging costs on a host, by the driver alone: how fast the device reads and writes memory that
// processors have just touched, and what threads reach that copy pieces through pinned buffers of their own.
// From it the sizes and the copy loop of guest_lib/staging/staged_copy.cc were chosen. Run it natively:
//
//   LD_LIBRARY_PATH=FOLDER_OF_LIBCUDA tests/bench/staging_bench [MOST_MIB]
#include <cuda.h>
#include <time.h>
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "guest_lib/process/copy_past_caches.h"

namespace {

constexpr size_t kKib = 1024, kMib = kKib * kKib, kStaging = 16 * kMib;
constexpr int kBuffers = 3;  // of a thread

void Need(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s answers %d\n", what, result);
  std::exit(1);
}

double Now(clockid_t clock = CLOCK_MONOTONIC) {
  timespec time{};
  clock_gettime(clock, &time);
  return double(time.tv_sec) * 1e6 + double(time.tv_nsec) / 1e3;
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Bench {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUdeviceptr device = 0;
  std::byte* staging = nullptr;
  volatile uint64_t* words = nullptr;  // pinned; a line each
  std::vector<std::byte> program;
  std::mutex driver;
};

void Copy(bool past_caches, std::byte* to, const std::byte* from, size_t bytes) {
  past_caches ? causeway::guest::CopyPastCaches(to, from, bytes)
              : static_cast<void>(std::memcpy(to, from, bytes));
}

// The device's copy of a piece, and the word behind it.
void Start(Bench& b, bool to_device, CUdeviceptr device, std::byte* at, size_t bytes, int word,
           uint64_t mark) {
  const std::lock_guard lock(b.driver);
  Need(to_device ? cuMemcpyHtoDAsync(device, at, bytes, b.stream)
                 : cuMemcpyDtoHAsync(at, device, bytes, b.stream),
       "the copy");
  Need(cuStreamWriteValue64(b.stream, reinterpret_cast<CUdeviceptr>(&b.words[8 * word]), mark, 0),
       "cuStreamWriteValue64");
}

void Await(const Bench& b, int word, uint64_t mark) {
  while (b.words[8 * word] < mark) _mm_pause();
}

void RunThreads(const Bench& b, int count, auto work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&, i] {
      Need(cuCtxSetCurrent(b.context), "cuCtxSetCurrent");
      work(i);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// The device's copy of memory that so many threads have filled, or read, just before.
void DeviceAfterProcessors(Bench& b, size_t bytes, int threads, bool past_caches) {
  std::vector<double> us[2];
  for (int round = 0; round < 60; ++round) {
    const bool to_device = round % 2 == 0;
    const size_t part = bytes / threads;
    RunThreads(b, threads, [&](int i) {
      std::byte *own = b.program.data() + i * part, *staged = b.staging + i * part;
      to_device ? Copy(past_caches, staged, own, part) : Copy(past_caches, own, staged, part);
    });
    b.words[0] = 0;
    const double begin = Now();
    Start(b, to_device, b.device, b.staging, bytes, 0, 1);
    Await(b, 0, 1);
    us[round % 2].push_back(Now() - begin);
  }
  std::printf("%5zu KiB, %d threads, %-11s us from what they wrote %5.1f, into what they read %5.1f\n",
              bytes / kKib, threads, past_caches ? "past caches" : "memcpy", Median(us[0]), Median(us[1]));
}

// Each thread takes piece after piece through buffers of its own.
void Pipeline(Bench& b, bool to_device, size_t bytes, int threads, size_t piece, bool past_caches) {
  std::vector<double> us, cpu;
  for (int round = 0; round < 5; ++round) {
    std::atomic<size_t> next{0};
    for (int i = 0; i < threads * kBuffers; ++i) b.words[8 * i] = 0;
    std::atomic<int> ready{0};
    double begin = 0, cpu_begin = 0;
    RunThreads(b, threads, [&](int thread) {
      ready.fetch_add(1);
      while (ready.load() < threads) _mm_pause();
      if (thread == 0) begin = Now(), cpu_begin = Now(CLOCK_PROCESS_CPUTIME_ID);
      uint64_t sent = 0, done = 0;
      size_t at[kBuffers] = {};
      const auto word = [&](uint64_t index) { return thread * kBuffers + int(index % kBuffers); };
      const auto staged = [&](uint64_t index) { return b.staging + word(index) * piece; };
      const auto finish = [&] {
        Await(b, word(done), done / kBuffers + 1);
        if (!to_device) Copy(past_caches, b.program.data() + at[done % kBuffers], staged(done), piece);
        ++done;
      };
      for (size_t offset; (offset = next.fetch_add(piece)) < bytes; ++sent) {
        if (sent - done == kBuffers) finish();
        at[sent % kBuffers] = offset;
        if (to_device) Copy(past_caches, staged(sent), b.program.data() + offset, piece);
        Start(b, to_device, b.device + offset, staged(sent), piece, word(sent), sent / kBuffers + 1);
      }
      while (done < sent) finish();
    });
    us.push_back(Now() - begin);
    cpu.push_back(Now(CLOCK_PROCESS_CPUTIME_ID) - cpu_begin);
  }
  std::printf(
      "%s %3zu MiB, %d threads, pieces of %4zu KiB, %-11s %5.1f GB/s, %4.0f ms of processors per GiB\n",
      to_device ? "H2D" : "D2H", bytes / kMib, threads, piece / kKib, past_caches ? "past caches" : "memcpy",
      double(bytes) / Median(us) / 1e3, Median(cpu) / 1e3 * 1024 * kMib / double(bytes));
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const size_t most = (count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 256) * kMib;
  Bench b;
  CUdevice device = 0;
  void* pinned = nullptr;
  Need(cuInit(0), "cuInit");
  Need(cuDeviceGet(&device, 0), "cuDeviceGet");
  Need(cuDevicePrimaryCtxRetain(&b.context, device), "cuDevicePrimaryCtxRetain");
  Need(cuCtxSetCurrent(b.context), "cuCtxSetCurrent");
  Need(cuStreamCreate(&b.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Need(cuMemAlloc(&b.device, std::max(most, kStaging)), "cuMemAlloc");
  Need(cuMemHostAlloc(&pinned, kStaging + 64 * kKib, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
  b.staging = static_cast<std::byte*>(pinned);
  b.words = reinterpret_cast<volatile uint64_t*>(b.staging + kStaging);
  b.program.assign(std::max(most, kStaging), std::byte{1});
  for (const size_t bytes : {256 * kKib, kMib}) {
    for (const int threads : {1, 4}) {
      for (const bool past : {false, true}) DeviceAfterProcessors(b, bytes, threads, past);
    }
  }
  for (size_t bytes = std::min(most, 16 * kMib);; bytes = most) {
    for (const bool to_device : {true, false}) {
      for (const int threads : {1, 2, 3, 4}) {
        for (const size_t piece : {256 * kKib, 512 * kKib, kMib}) {
          for (const bool past : {false, true}) Pipeline(b, to_device, bytes, threads, piece, past);
        }
      }
    }
    if (bytes == most) break;
  }
  return 0;
}
