// SPDX-License-Identifier: Apache-2.0
// Makes one call after another, each several times so that all is warm, and records what the last time entered on both sides
// (hooks.c). Usage: call_path_program FILE; prints the name of a call and its numbers of entries, FILE.NAME has them.
#include <cuda.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/driver/kernels.h"

namespace {

constexpr uint32_t kEntries = 1u << 20;
constexpr int kWarmCalls = 20;

struct Entry {
  uint64_t address;
  uint32_t thread, begins;
};
struct Side {
  std::atomic<uint32_t> on, count;
  Entry entries[kEntries];
};

void Ok(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "%s answered %d.\n", what, result);
  std::exit(1);
}
#define OK(call) Ok(call, #call)

// Until all has been executed and every thread waits again.
void Settle() {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
}

void Write(const std::string& name, const Side& side) {
  std::FILE* file = std::fopen(name.c_str(), "wb");
  if (file == nullptr || side.count > kEntries ||
      std::fwrite(side.entries, sizeof(Entry), side.count, file) != side.count || std::fclose(file) != 0) {
    std::fprintf(stderr, "%s cannot be written, or there were too many entries (%u).\n", name.c_str(),
                 side.count.load());
    std::exit(1);
  }
}

// What both sides enter from now until Stop, into FILE.NAME.guest and FILE.NAME.worker.
class Recorder {
 public:
  explicit Recorder(const char* file) : file_(file) {
    const int fd = open(file, O_RDWR);
    void* all = mmap(nullptr, 2 * sizeof(Side), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (fd < 0 || all == MAP_FAILED) {
      std::perror(file);
      std::exit(1);
    }
    sides_ = static_cast<Side*>(all);
  }
  void Record(const char* name, const std::function<void()>& call) {
    for (int side : {0, 1}) sides_[side].count = 0;
    for (int side : {0, 1}) sides_[side].on = 1;
    call();
    sides_[0].on = 0;
    Settle();
    sides_[1].on = 0;
    std::printf("%s %u %u\n", name, sides_[0].count.load(), sides_[1].count.load());
    Write(file_ + "." + name + ".guest", sides_[0]);
    Write(file_ + "." + name + ".worker", sides_[1]);
  }

 private:
  const std::string file_;
  Side* sides_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: %s FILE\n", arguments[0]);
    return 2;
  }
  Recorder recorder(arguments[1]);
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr;
  CUdeviceptr data = 0;
  OK(cuInit(0));
  OK(cuDevicePrimaryCtxRetain(&context, 0));
  OK(cuCtxSetCurrent(context));
  OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  OK(cuModuleLoadData(&module, causeway::driver_test::kKernels));
  OK(cuModuleGetFunction(&add, module, "add"));
  OK(cuMemAlloc(&data, 4 << 20));
  std::vector<unsigned char> memory(4 << 20, 1);
  uint32_t n = 1, value = 1;
  void* parameters[] = {&data, &n, &value};
  struct Call {
    const char* name;
    std::function<void()> make;
  };
  const auto copy = [&](size_t bytes) { OK(cuMemcpyHtoDAsync(data, memory.data(), bytes, stream)); };
  const Call calls[] = {
      {"copy_256", [&] { copy(256); }},
      {"copy_64K", [&] { copy(64 << 10); }},
      {"copy_4M", [&] { copy(4 << 20); }},
      {"launch", [&] { OK(cuLaunchKernel(add, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr)); }},
  };
  // What runs while nothing is asked of anybody: it is no part of any call.
  Settle();
  recorder.Record("nothing", [] { Settle(); });
  for (const Call& call : calls) {
    for (int i = 0; i < kWarmCalls; ++i) call.make();
    OK(cuStreamSynchronize(stream));
    Settle();
    recorder.Record(call.name, call.make);
    OK(cuStreamSynchronize(stream));
  }
  return 0;
}
