// SPDX-License-Identifier: Apache-2.0
// Stands between a conformance program and libcuda.so.1 (LD_PRELOAD) and notes which test got which answer of
// which exported name: coverage.py makes docs/coverage.md of it. Every name of the rows is a function here
// that calls the library's and appends "TEST<tab>NAME<tab>RESULT" to the file in CALL_COUNTER, once for each
// test, name, and success or failure. Processes that a test starts do the same, under the names of their own
// tests.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "ivshmem_ring/protocol/driver_api.h"

namespace {

enum Row : size_t {
#define CALL(fn, ...) kRow_##fn,
#define GUEST CALL
#define CUSTOM CALL
#define LOCAL CALL
#define ALIAS CALL
#define PER_THREAD CALL
#define REFUSE CALL
#include "ivshmem_ring/calls.def"
  kRows
};

const char* const kNames[kRows] = {
#define CALL(fn, ...) #fn,
#define GUEST CALL
#define CUSTOM CALL
#define LOCAL CALL
#define ALIAS CALL
#define PER_THREAD CALL
#define REFUSE CALL
#include "ivshmem_ring/calls.def"
};

constexpr size_t kMostTestName = 256;
char test[kMostTestName] = "";
// The number of the test that runs, and of the last one that noted a success and a failure of each row. A
// test begins while no other thread makes calls.
std::atomic<uint32_t> test_number{1};
std::atomic<uint32_t> noted[kRows][2];
std::atomic<void*> functions[kRows];

// The library's own function.
void* Real(size_t row) {
  void* function = functions[row].load(std::memory_order_relaxed);
  if (function != nullptr) return function;
  function = dlsym(RTLD_NEXT, kNames[row]);
  if (function == nullptr) {
    std::fprintf(stderr, "The library that is counted has no %s.\n", kNames[row]);
    std::abort();
  }
  functions[row].store(function, std::memory_order_relaxed);
  return function;
}

void Note(size_t row, CUresult result) {
  const uint32_t now = test_number.load(std::memory_order_relaxed);
  if (noted[row][result == CUDA_SUCCESS].exchange(now, std::memory_order_relaxed) == now) return;
  const char* path = std::getenv("CALL_COUNTER");
  if (path == nullptr) return;
  const int before = errno;
  // Not kept open: a test may close all files, or look at them.
  const int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  char line[kMostTestName + 128];
  const int bytes = std::snprintf(line, sizeof line, "%s\t%s\t%d\n", test, kNames[row], result);
  if (file < 0 || write(file, line, static_cast<size_t>(bytes)) != bytes) {
    std::fprintf(stderr, "%s cannot be written.\n", path);
    std::abort();
  }
  close(file);
  errno = before;
}

// The counting function that stands for one of the library's, if there is one.
void* Counting(void* real);

template <size_t row, class F>
struct Counted;
template <size_t row, class... P>
struct Counted<row, CUresult (*)(P...)> {
  static CUresult Call(P... p) {
    const CUresult result = reinterpret_cast<CUresult (*)(P...)>(Real(row))(p...);
    Note(row, result);
    // Who asks for the address of a function gets the one that counts.
    if constexpr (row == kRow_cuGetProcAddress || row == kRow_cuGetProcAddress_v2) {
      const auto found = [](auto, void** function, auto...) { return function; }(p...);
      if (result == CUDA_SUCCESS && found != nullptr) *found = Counting(*found);
    }
    return result;
  }
};

}  // namespace

// name: jmp *call_counter_name(%rip)
#define CALL(fn, ...)                                                                                    \
  extern "C" {                                                                                           \
  [[gnu::visibility("hidden")]] extern const decltype(&::fn) call_counter_##fn;                          \
  [[gnu::used]] const decltype(&::fn) call_counter_##fn = &Counted<kRow_##fn, decltype(&::fn)>::Call;    \
  }                                                                                                      \
  asm(".pushsection .text\n.globl " #fn "\n.type " #fn ", @function\n" #fn ":\n\tjmp *call_counter_" #fn \
      "(%rip)\n.size " #fn ", . - " #fn "\n.popsection\n");
#define GUEST CALL
#define CUSTOM CALL
#define LOCAL CALL
#define ALIAS CALL
#define PER_THREAD CALL
#define REFUSE CALL
#include "ivshmem_ring/calls.def"

namespace {

void* Counting(void* real) {
  static const auto counting = [] {
    std::map<void*, void*> all;
    for (size_t row = 0; row < kRows; ++row) all.emplace(Real(row), dlsym(RTLD_DEFAULT, kNames[row]));
    return all;
  }();
  const auto found = counting.find(real);
  return found != counting.end() ? found->second : real;
}

}  // namespace

// driver_test.cc says so when a test begins; `name` is "Suite.Name".
extern "C" void CallCounterBegins(const char* name) {
  std::snprintf(test, sizeof test, "%s", name);
  test_number.fetch_add(1, std::memory_order_relaxed);
}
