// SPDX-License-Identifier: Apache-2.0
// Functions of the program that the driver calls: cuLaunchHostFunc, cuStreamAddCallback, both per-thread
// forms, also as nodes of captured graphs.
#include <pthread.h>
#include <signal.h>

#include <mutex>
#include <vector>

#include "tests/driver/array_helpers.h"
#include "tests/driver/child_process.h"
#include "tests/driver/driver_test.h"

namespace causeway::driver_test {
namespace {

using namespace std::chrono_literals;

bool Eventually(const std::atomic<int>& value, int wanted) {
  const auto end = std::chrono::steady_clock::now() + 5s;
  while (value.load() != wanted && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);
  return value.load() == wanted;
}

void CUDA_CB Count(void* counter) {
  static_cast<std::atomic<int>*>(counter)->fetch_add(1);
}

class CallbackTest : public DriverTest {
 protected:
  void SetUp() override {
    DriverTest::SetUp();
    OK(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
    OK(cuMemAlloc(&data_, 4096));
    OK(cuMemsetD8(data_, 0, 4096));
    store_ = Kernel("store");  // loading waits for the device, also for functions
    OK(cuCtxSynchronize());
  }
  CUresult Store(CUstream stream, uint32_t value) {
    void* parameters[] = {&data_, &value};
    return cuLaunchKernel(store_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
  }
  CUfunction store_ = nullptr;
  CUstream stream_ = nullptr;
  CUdeviceptr data_ = 0;
};

struct Log {
  std::mutex mutex;
  std::vector<int> entries;
};
struct LogEntry {
  Log* log;
  int number;
};
void CUDA_CB Append(void* user) {
  auto* entry = static_cast<LogEntry*>(user);
  const std::lock_guard lock(entry->log->mutex);
  entry->log->entries.push_back(entry->number);
}

TEST_F(CallbackTest, HostFunctionsOfAStreamRunInOrder) {
  constexpr int kCount = 600;  // more than are announced at a time
  Log log;
  OK(cuLaunchHostFunc(
      stream_, [](void*) { std::this_thread::sleep_for(50ms); }, nullptr));
  std::vector<LogEntry> entries(kCount);
  for (int i = 0; i < kCount; ++i) {
    entries[i] = {&log, i};
    OK(cuLaunchHostFunc(stream_, Append, &entries[i]));
  }
  OK(cuStreamSynchronize(stream_));
  ASSERT_EQ(log.entries.size(), static_cast<size_t>(kCount));
  for (int i = 0; i < kCount; ++i) EXPECT_EQ(log.entries[i], i);
}

struct Seen {
  volatile uint32_t* word;
  uint32_t value = 0;
  bool returned = false;
  std::atomic<bool> go_on{false};  // the function ends then, or after five seconds
};

template <class Function>
CUresult PerThreadForm(const char* name, Function* function) {
  return cuGetProcAddress(name, reinterpret_cast<void**>(function), 13000,
                          CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, nullptr);
}

// What the stream did before is visible in pinned memory; what comes after it waits for the function.
TEST_F(CallbackTest, TheStreamWaitsForTheFunction) {
  NEEDS_SHARED_MEMORY();  // otherwise the copy is the one that waits
  uint32_t* pinned = nullptr;
  OK(cuMemAllocHost(reinterpret_cast<void**>(&pinned), 64));
  *pinned = 0;
  Seen seen{pinned};
  OK(Store(stream_, 7));
  OK(cuMemcpyDtoHAsync(pinned, data_, 4, stream_));
  OK(cuLaunchHostFunc(
      stream_,
      [](void* user) {
        auto* s = static_cast<Seen*>(user);
        s->value = *s->word;
        for (int i = 0; i < 1000 && !s->go_on; ++i) std::this_thread::sleep_for(5ms);
        *s->word = 9;
        s->returned = true;
      },
      &seen));
  OK(cuMemcpyHtoDAsync(data_, pinned, 4, stream_));
  EXPECT_EQ(cuStreamQuery(stream_), CUDA_ERROR_NOT_READY);
  seen.go_on = true;
  OK(cuStreamSynchronize(stream_));
  EXPECT_TRUE(seen.returned);
  EXPECT_EQ(seen.value, 7u);
  uint32_t result = 0;
  OK(cuMemcpyDtoH(&result, data_, 4));
  EXPECT_EQ(result, 9u);
  OK(cuMemFreeHost(pinned));
}

TEST_F(CallbackTest, LaunchReturnsWhileTheStreamIsBusy) {
  std::atomic<int> count{0};
  Spinner spinner(Kernel("spin"), stream_);
  EXPECT_FALSE(Waits(
      spinner, [&] { OK(cuLaunchHostFunc(stream_, Count, &count)); }, false));
  spinner.Release();
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(count.load(), 1);
}

// Behind a function that takes long, more work than any queue holds.
TEST_F(CallbackTest, MuchWorkBehindAFunction) {
  constexpr uint32_t kLaunches = 12'000;
  std::atomic<int> count{0};
  OK(cuLaunchHostFunc(
      stream_,
      [](void* user) {
        std::this_thread::sleep_for(200ms);
        Count(user);
      },
      &count));
  for (uint32_t i = 1; i <= kLaunches; ++i) OK(Store(stream_, i));
  OK(cuStreamSynchronize(stream_));
  uint32_t last = 0;
  OK(cuMemcpyDtoH(&last, data_, 4));
  EXPECT_EQ(last, kLaunches);
  EXPECT_EQ(count.load(), 1);
}

TEST_F(CallbackTest, EventsCoverTheFunction) {
  std::atomic<int> count{0};
  CUevent event = nullptr;
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  CUstream other = nullptr;
  OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  OK(cuLaunchHostFunc(
      stream_,
      [](void* user) {
        std::this_thread::sleep_for(30ms);
        Count(user);
      },
      &count));
  OK(cuEventRecord(event, stream_));
  OK(cuStreamWaitEvent(other, event, 0));
  OK(cuLaunchHostFunc(
      other,
      [](void* user) {
        auto* c = static_cast<std::atomic<int>*>(user);
        c->store(c->load() * 10);
      },
      &count));
  OK(cuStreamSynchronize(other));
  EXPECT_EQ(count.load(), 10);
  EXPECT_EQ(cuEventQuery(event), CUDA_SUCCESS);
  OK(cuEventDestroy(event));
  OK(cuStreamDestroy(other));
}

TEST_F(CallbackTest, StreamsThatAreDestroyedFinishTheirFunctions) {
  std::atomic<int> count{0};
  OK(cuLaunchHostFunc(stream_, Count, &count));
  OK(cuStreamDestroy(stream_));
  EXPECT_TRUE(Eventually(count, 1));
}

struct CallbackRecord {
  CUstream stream = nullptr;
  CUresult status = CUDA_ERROR_UNKNOWN;
  std::atomic<int> count{0};
};
void CUDA_CB Note(CUstream stream, CUresult status, void* user) {
  auto* record = static_cast<CallbackRecord*>(user);
  record->stream = stream;
  record->status = status;
  record->count.fetch_add(1);
}

TEST_F(CallbackTest, AddCallbackTellsStreamAndStatus) {
  CallbackRecord record;
  OK(cuStreamAddCallback(stream_, Note, &record, 0));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(record.count.load(), 1);
  EXPECT_EQ(record.stream, stream_);
  EXPECT_EQ(record.status, CUDA_SUCCESS);
}

TEST_F(CallbackTest, DefaultStreams) {
  std::atomic<int> count{0};
  OK(cuLaunchHostFunc(nullptr, Count, &count));
  OK(cuLaunchHostFunc(CU_STREAM_LEGACY, Count, &count));
  OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, Count, &count));
  OK(cuCtxSynchronize());
  EXPECT_EQ(count.load(), 3);
  CallbackRecord record;
  OK(cuStreamAddCallback(nullptr, Note, &record, 0));
  OK(cuStreamSynchronize(nullptr));
  EXPECT_EQ(record.count.load(), 1);
  Say("legacy_stream_in_callback", reinterpret_cast<uintptr_t>(record.stream));
}

TEST_F(CallbackTest, PerThreadForms) {
  decltype(&cuLaunchHostFunc) launch = nullptr;
  decltype(&cuStreamAddCallback) add = nullptr;
  OK(PerThreadForm("cuLaunchHostFunc", &launch));
  OK(PerThreadForm("cuStreamAddCallback", &add));
  std::atomic<int> count{0};
  CallbackRecord record;
  OK(launch(nullptr, Count, &count));
  OK(add(nullptr, Note, &record, 0));
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  EXPECT_EQ(count.load(), 1);
  EXPECT_EQ(record.count.load(), 1);
  Say("per_thread_stream_in_callback", reinterpret_cast<uintptr_t>(record.stream));
}

TEST_F(CallbackTest, Errors) {
  std::atomic<int> count{0};
  CallbackRecord record;
  EXPECT_EQ(cuLaunchHostFunc(stream_, nullptr, &count), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAddCallback(stream_, nullptr, &record, 0), CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuStreamAddCallback(stream_, Note, &record, 1), CUDA_ERROR_INVALID_VALUE);
  OK(cuCtxSetCurrent(nullptr));
  EXPECT_EQ(cuLaunchHostFunc(nullptr, Count, &count), CUDA_ERROR_INVALID_CONTEXT);
  EXPECT_EQ(cuStreamAddCallback(nullptr, Note, &record, 0), CUDA_ERROR_INVALID_CONTEXT);
  OK(cuCtxSetCurrent(context_));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(count.load(), 0);
  EXPECT_EQ(record.count.load(), 0);
}

struct Inside {
  CUdeviceptr memory = 0;
  CUresult alloc = CUDA_SUCCESS, synchronise = CUDA_SUCCESS, create = CUDA_SUCCESS, query = CUDA_SUCCESS,
           current = CUDA_SUCCESS, attribute = CUDA_SUCCESS, version = CUDA_SUCCESS;
  std::atomic<int> done{0};
  void Try() {
    CUstream stream = nullptr;
    CUcontext context = nullptr;
    int value = 0;
    alloc = cuMemAlloc(&memory, 256);
    synchronise = cuCtxSynchronize();
    create = cuStreamCreate(&stream, 0);
    query = cuStreamQuery(nullptr);
    current = cuCtxGetCurrent(&context);
    attribute = cuDeviceGetAttribute(&value, CU_DEVICE_ATTRIBUTE_WARP_SIZE, 0);
    version = cuDriverGetVersion(&value);
    done.store(1);
  }
};

TEST_F(CallbackTest, CallsInsideAreNotPermitted) {
  Inside host, stream;
  OK(cuLaunchHostFunc(
      stream_, [](void* user) { static_cast<Inside*>(user)->Try(); }, &host));
  OK(cuStreamAddCallback(
      stream_, [](CUstream, CUresult, void* user) { static_cast<Inside*>(user)->Try(); }, &stream, 0));
  OK(cuStreamSynchronize(stream_));
  for (const Inside* inside : {&host, &stream}) {
    EXPECT_EQ(inside->done.load(), 1);
    EXPECT_EQ(inside->alloc, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(inside->synchronise, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(inside->create, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(inside->query, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(inside->version, CUDA_SUCCESS);
    const std::string key = inside == &host ? "host_" : "stream_";
    Say(key + "current", inside->current);
    Say(key + "attribute", inside->attribute);
  }
  // The program goes on as before.
  OK(cuCtxSynchronize());
}

TEST_F(CallbackTest, SignalsReachTheThread) {
  std::atomic<int> blocked{-1};
  OK(cuLaunchHostFunc(
      stream_,
      [](void* user) {
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        static_cast<std::atomic<int>*>(user)->store(sigismember(&mask, SIGUSR1));
      },
      &blocked));
  OK(cuStreamSynchronize(stream_));
  Say("sigusr1_blocked", blocked.load());
}

// Inside a capture: a node, which runs with every launch and never before.
TEST_F(CallbackTest, CapturedFunctionsRunWithEachLaunch) {
  std::atomic<int> count{0};
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL));
  OK(cuLaunchHostFunc(stream_, Count, &count));
  OK(cuLaunchHostFunc(stream_, Count, &count));
  OK(cuStreamEndCapture(stream_, &graph));
  EXPECT_EQ(count.load(), 0);
  OK(cuGraphInstantiate(&executable, graph, 0));
  OK(cuGraphDestroy(graph));
  for (int i = 1; i <= 5; ++i) {
    OK(cuGraphLaunch(executable, stream_));
    OK(cuStreamSynchronize(stream_));
    EXPECT_EQ(count.load(), 2 * i);
  }
  OK(cuGraphExecDestroy(executable));
}

TEST_F(CallbackTest, AddCallbackEndsACapture) {
  CallbackRecord record;
  CUgraph graph = nullptr;
  OK(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_RELAXED));
  EXPECT_EQ(cuStreamAddCallback(stream_, Note, &record, 0), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(cuStreamEndCapture(stream_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  EXPECT_EQ(graph, nullptr);
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(record.count.load(), 0);
}

TEST_F(CallbackTest, AsyncNotifications) {
  CUasyncCallbackHandle handle = nullptr;
  const auto none = [](CUasyncNotificationInfo*, void*, CUasyncCallbackHandle) {};
  const CUresult result = cuDeviceRegisterAsyncNotification(0, none, nullptr, &handle);
  Say("register", static_cast<int>(result));
  if (result == CUDA_SUCCESS) {
    EXPECT_NE(handle, nullptr);
    OK(cuDeviceUnregisterAsyncNotification(0, handle));
  }
  if (OnNvidiaLibrary()) return;  // which dies of one of these
  EXPECT_EQ(cuDeviceRegisterAsyncNotification(4711, none, nullptr, &handle), CUDA_ERROR_INVALID_DEVICE);
  EXPECT_NE(cuDeviceRegisterAsyncNotification(0, nullptr, nullptr, &handle), CUDA_SUCCESS);
  EXPECT_NE(cuDeviceRegisterAsyncNotification(0, none, nullptr, nullptr), CUDA_SUCCESS);
}

size_t CUDA_CB Constant(int) {
  return 4096;
}
std::atomic<int> asked{0};
size_t CUDA_CB FourBytesEach(int threads) {
  asked.fetch_add(1);
  return static_cast<size_t>(threads) * 4;
}

// The program's function says how much shared memory a block of each size wants.
TEST_F(CallbackTest, OccupancyAsksTheProgram) {
  CUfunction function = Kernel("add");
  int grid[4] = {}, block[4] = {};
  OK(cuOccupancyMaxPotentialBlockSize(&grid[0], &block[0], function, nullptr, 4096, 0));
  OK(cuOccupancyMaxPotentialBlockSize(&grid[1], &block[1], function, Constant, 0, 0));
  EXPECT_EQ(grid[0], grid[1]);
  EXPECT_EQ(block[0], block[1]);
  for (const int limit : {0, 1, 33, 128, 1000, 5000}) {
    OK(cuOccupancyMaxPotentialBlockSize(&grid[2], &block[2], function, FourBytesEach, 0, limit));
    OK(cuOccupancyMaxPotentialBlockSizeWithFlags(&grid[3], &block[3], function, FourBytesEach, 0, limit,
                                                 CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE));
    EXPECT_EQ(grid[2], grid[3]);
    EXPECT_EQ(block[2], block[3]);
    Say("limit" + std::to_string(limit), std::to_string(grid[2]) + "x" + std::to_string(block[2]));
  }
  EXPECT_GT(asked.load(), 0);
  EXPECT_EQ(cuOccupancyMaxPotentialBlockSize(nullptr, &block[0], function, Constant, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
  EXPECT_EQ(cuOccupancyMaxPotentialBlockSize(&grid[0], nullptr, function, Constant, 0, 0),
            CUDA_ERROR_INVALID_VALUE);
}

TEST_F(CallbackTest, ManyStreamsAndThreads) {
  constexpr int kThreads = 8, kEach = 100;
  std::atomic<int> count{0};
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      CUstream stream = nullptr;
      if (cuCtxSetCurrent(context_) != CUDA_SUCCESS || cuStreamCreate(&stream, 0) != CUDA_SUCCESS) {
        failures.fetch_add(1);
        return;
      }
      for (int i = 0; i < kEach; ++i) {
        if (cuLaunchHostFunc(stream, Count, &count) != CUDA_SUCCESS) failures.fetch_add(1);
      }
      if (cuStreamSynchronize(stream) != CUDA_SUCCESS) failures.fetch_add(1);
      if (cuStreamDestroy(stream) != CUDA_SUCCESS) failures.fetch_add(1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures.load(), 0);
  EXPECT_EQ(count.load(), kThreads * kEach);
}

// What a callback does to its process, and to no other.
void EnterChild(CUstream* stream) {
  CUcontext context = nullptr;
  if (cuInit(0) != CUDA_SUCCESS || cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS ||
      cuCtxSetCurrent(context) != CUDA_SUCCESS || cuStreamCreate(stream, 0) != CUDA_SUCCESS) {
    _exit(98);
  }
}

TEST(Child, DISABLED_Exits) {
  CUstream stream = nullptr;
  EnterChild(&stream);
  (void)cuLaunchHostFunc(
      stream, [](void*) { exit(7); }, nullptr);
  (void)cuStreamSynchronize(stream);
  std::this_thread::sleep_for(10s);
  _exit(96);
}

TEST(Child, DISABLED_Crashes) {
  CUstream stream = nullptr;
  EnterChild(&stream);
  (void)cuLaunchHostFunc(
      stream, [](void*) { raise(SIGKILL); }, nullptr);
  (void)cuStreamSynchronize(stream);
  std::this_thread::sleep_for(10s);
  _exit(96);
}

TEST(Child, DISABLED_LeavesAFunctionRunning) {
  CUstream stream = nullptr;
  EnterChild(&stream);
  static std::atomic<int> entered{0};
  (void)cuLaunchHostFunc(
      stream,
      [](void* user) {
        Count(user);
        std::this_thread::sleep_for(std::chrono::hours(1));
      },
      &entered);
  (void)cuLaunchHostFunc(stream, Count, &entered);
  _exit(Eventually(entered, 1) ? 5 : 96);
}

TEST(Child, DISABLED_ExitsAfterUse) {
  CUstream stream = nullptr;
  EnterChild(&stream);
  std::atomic<int> count{0};
  (void)cuLaunchHostFunc(stream, Count, &count);
  (void)cuStreamSynchronize(stream);
  exit(count.load() == 1 ? 6 : 96);
}

// A forked child has no driver, and no callback thread.
TEST(Child, DISABLED_Forks) {
  CUstream stream = nullptr;
  EnterChild(&stream);
  std::atomic<int> count{0};
  (void)cuLaunchHostFunc(stream, Count, &count);
  (void)cuStreamSynchronize(stream);
  const bool recognises = OnSoftwareGpu();  // NVIDIA's driver need not see that it is another process
  const pid_t child = fork();
  if (child == 0) _exit(recognises ? cuLaunchHostFunc(stream, Count, &count) : CUDA_ERROR_NOT_INITIALIZED);
  int status = 0;
  waitpid(child, &status, 0);
  (void)cuLaunchHostFunc(stream, Count, &count);
  (void)cuStreamSynchronize(stream);
  exit(count.load() == 2 && WEXITSTATUS(status) == CUDA_ERROR_NOT_INITIALIZED ? 4 : 96);
}

TEST_F(CallbackTest, WhatCallbacksDoToTheirProcess) {
  EXPECT_EQ(RunChild("Child.DISABLED_Exits"), 7);
  EXPECT_EQ(RunChild("Child.DISABLED_Crashes"), 128 + SIGKILL);
  EXPECT_EQ(RunChild("Child.DISABLED_LeavesAFunctionRunning"), 5);
  EXPECT_EQ(RunChild("Child.DISABLED_ExitsAfterUse"), 6);
  EXPECT_EQ(RunChild("Child.DISABLED_Forks"), 4);
  std::atomic<int> count{0};
  OK(cuLaunchHostFunc(stream_, Count, &count));
  OK(cuStreamSynchronize(stream_));
  EXPECT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace causeway::driver_test
