// SPDX-License-Identifier: Apache-2.0
// A guest process for session_death_test.py: opens the library by path, does one thing, says what it got.
// Usage: session_client LIBRARY MODE [ARGUMENTS]
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

void* library = nullptr;

template <class Function>
Function* Find(Function*, const char* name) {
  void* address = dlsym(library, name);
  if (address == nullptr) {
    std::printf("%s is missing\n", name);
    std::exit(9);
  }
  return reinterpret_cast<Function*>(address);
}
#define TEXT_OF(name) #name
#define DRIVER(name) Find(static_cast<decltype(&name)>(nullptr), TEXT_OF(name))

constexpr char kPtx[] =
    ".version 6.3\n.target sm_75\n.address_size 64\n"
    ".visible .entry increment(.param .u64 cells)\n{\n"
    "  .reg .b32 %r<6>; .reg .b64 %rd<4>;\n"
    "  ld.param.u64 %rd1, [cells]; cvta.to.global.u64 %rd1, %rd1;\n"
    "  mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mov.u32 %r3, %tid.x;\n"
    "  mad.lo.s32 %r4, %r1, %r2, %r3; mul.wide.u32 %rd2, %r4, 4; add.s64 %rd3, %rd1, %rd2;\n"
    "  ld.global.u32 %r5, [%rd3]; add.u32 %r5, %r5, 1; st.global.u32 [%rd3], %r5;\n  ret;\n}\n";
constexpr size_t kCells = 512;

void Say(const char* what, int value) {
  std::printf("%s %d\n", what, value);
  std::fflush(stdout);
}

void Need(const char* what, CUresult result) {
  if (result == CUDA_SUCCESS) return;
  Say(what, result);
  std::exit(3);
}

struct Guest {
  CUcontext context = nullptr;
  CUdeviceptr memory = 0;
  CUfunction increment = nullptr;

  void Start() {
    Need("init", DRIVER(cuInit)(0));
    Need("retain", DRIVER(cuDevicePrimaryCtxRetain)(&context, 0));
    Need("current", DRIVER(cuCtxSetCurrent)(context));
    Need("alloc", DRIVER(cuMemAlloc)(&memory, kCells * 4));
    Need("clear", DRIVER(cuMemsetD8)(memory, 0, kCells * 4));
    CUmodule module = nullptr;
    Need("module", DRIVER(cuModuleLoadData)(&module, kPtx));
    Need("function", DRIVER(cuModuleGetFunction)(&increment, module, "increment"));
    Need("synchronize", DRIVER(cuCtxSynchronize)());
  }
  CUresult Launch() {
    void* parameters[] = {&memory};
    return DRIVER(cuLaunchKernel)(increment, kCells / 64, 1, 1, 64, 1, 1, 0, nullptr, parameters, nullptr);
  }
  // Two calls after a loss: the error, how long the first one took, and the error again.
  void SayLoss(CUresult first, std::chrono::steady_clock::time_point since) {
    const auto ms =
        std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - since);
    std::printf("lost %d %d %d\n", static_cast<int>(first), static_cast<int>(DRIVER(cuCtxSynchronize)()),
                static_cast<int>(ms.count()));
    std::fflush(stdout);
  }
};

void CopyForever(Guest& guest, bool pinned) {
  constexpr size_t kBytes = 48u << 20;
  void* host = std::malloc(kBytes);
  if (pinned) Need("pinned", DRIVER(cuMemHostAlloc)(&host, kBytes, 0));
  std::memset(host, 1, kBytes);
  CUdeviceptr device = 0;
  Need("device", DRIVER(cuMemAlloc)(&device, kBytes));
  Say("started", getpid());
  for (;;) {
    Need("to device", DRIVER(cuMemcpyHtoD)(device, host, kBytes));
    Need("to host", DRIVER(cuMemcpyDtoH)(host, device, kBytes));
  }
  (void)guest;
}

// The other kinds of region memory: of a pool on the host, whose last block nobody asks for again, and
// coherent managed memory.
CUresult TakeAndReturnOthers() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  CUmemoryPool pool = nullptr;
  CUdeviceptr pooled = 0, managed = 0;
  CUresult result = DRIVER(cuMemPoolCreate)(&pool, &properties);
  if (result == CUDA_SUCCESS)
    result = DRIVER(cuMemAllocFromPoolAsync)(&pooled, 18u << 20, pool, CU_STREAM_PER_THREAD);
  if (result == CUDA_SUCCESS) result = DRIVER(cuMemAllocManaged)(&managed, 17u << 20, CU_MEM_ATTACH_HOST);
  if (result == CUDA_SUCCESS) result = DRIVER(cuMemsetD8Async)(pooled, 1, 1000, CU_STREAM_PER_THREAD);
  if (result == CUDA_SUCCESS) result = DRIVER(cuMemFreeAsync)(pooled, CU_STREAM_PER_THREAD);
  if (result == CUDA_SUCCESS) result = DRIVER(cuMemFree)(managed);
  if (result == CUDA_SUCCESS) result = DRIVER(cuMemPoolDestroy)(pool);
  return result;
}

// Memory of the program that is registered and unregistered until a call fails or `rounds` are over. Whatever
// happens, it keeps its bytes.
CUresult RegisterRepeatedly(CUcontext context, unsigned seed, unsigned rounds) {
  const size_t words = (1u << 20) + seed * 7919;
  std::vector<unsigned> memory(words);
  for (size_t i = 0; i < words; ++i) memory[i] = static_cast<unsigned>(i) + seed;
  CUresult result = DRIVER(cuCtxSetCurrent)(context);
  for (unsigned round = 0; round < rounds && result == CUDA_SUCCESS; ++round) {
    void *small = nullptr, *large = nullptr;
    result = DRIVER(cuMemHostRegister)(memory.data() + seed, (words - 2 * seed) * 4, 0);
    if (result == CUDA_SUCCESS) result = DRIVER(cuMemHostAlloc)(&small, 1000 + round * 4000 % 900'000, 0);
    if (result == CUDA_SUCCESS) result = TakeAndReturnOthers();
    if (result == CUDA_SUCCESS) result = DRIVER(cuMemHostAlloc)(&large, 17u << 20, 0);
    if (result == CUDA_SUCCESS) result = DRIVER(cuMemHostUnregister)(memory.data() + seed);
    if (result == CUDA_SUCCESS) result = DRIVER(cuMemFreeHost)(large);
    if (result == CUDA_SUCCESS) result = DRIVER(cuMemFreeHost)(small);
  }
  for (size_t i = 0; i < words; ++i) {
    if (memory[i] != static_cast<unsigned>(i) + seed) Say("lost word", static_cast<int>(i)), std::_Exit(6);
  }
  return result;
}

CUresult RegisterInThreads(const Guest& guest, unsigned rounds) {
  CUresult results[3] = {};
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 3; ++i)
    threads.emplace_back([&, i] { results[i] = RegisterRepeatedly(guest.context, i * 333, rounds); });
  for (std::thread& thread : threads) thread.join();
  for (const CUresult result : results) {
    if (result != results[0]) return CUDA_ERROR_UNKNOWN;
  }
  return results[0];
}

// A pool on the host with memory that was freed while its stream was busy, and that nobody has looked at
// since.
CUmemoryPool PoolWithFreedMemory(size_t bytes) {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
  CUmemoryPool pool = nullptr;
  CUdeviceptr pooled = 0;
  void* word = nullptr;
  Need("pool", DRIVER(cuMemPoolCreate)(&pool, &properties));
  Need("word", DRIVER(cuMemHostAlloc)(&word, 64, 0));
  std::memset(word, 0, 64);
  Need("allocate", DRIVER(cuMemAllocFromPoolAsync)(&pooled, bytes, pool, nullptr));
  Need("wait", DRIVER(cuStreamWaitValue32)(nullptr, reinterpret_cast<CUdeviceptr>(word), 1, 0));
  Need("free", DRIVER(cuMemFreeAsync)(pooled, nullptr));
  *static_cast<volatile unsigned*>(word) = 1;
  Need("synchronize", DRIVER(cuStreamSynchronize)(nullptr));
  return pool;
}

// Takes all of the region. What is there works on, in all ways; what needs more is refused until some is
// freed.
int FillRegion(Guest& guest) {
  constexpr size_t kBytes = 8u << 20;
  const CUmemoryPool pool = PoolWithFreedMemory(2 * kBytes);
  std::vector<char*> blocks;
  CUresult result = CUDA_SUCCESS;
  for (void* block = nullptr; (result = DRIVER(cuMemHostAlloc)(&block, kBytes, 0)) == CUDA_SUCCESS;) {
    blocks.push_back(static_cast<char*>(block));
    std::memset(block, static_cast<int>(blocks.size()), kBytes);
  }
  Say("full", result);
  CUdeviceptr pooled = 0;
  Say("pooled", DRIVER(cuMemAllocFromPoolAsync)(&pooled, 2 * kBytes, pool, nullptr));
  std::vector<char> ordinary(kBytes + 4096, 'o');
  CUdeviceptr device = 0;
  Say("register", DRIVER(cuMemHostRegister)(ordinary.data(), kBytes, 0));
  Say("ordinary", ordinary[0] == 'o' && ordinary[kBytes - 1] == 'o');
  Need("device", DRIVER(cuMemAlloc)(&device, kBytes));
  Need("to device", DRIVER(cuMemcpyHtoD)(device, ordinary.data(), kBytes));
  Need("from pinned", DRIVER(cuMemcpyHtoDAsync)(device, blocks[1], 1000, nullptr));
  std::vector<char> back(kBytes);
  Need("to host", DRIVER(cuMemcpyDtoH)(back.data(), device, kBytes));
  Say("copied", back[999] == 2 && back[1000] == 'o' && back[kBytes - 1] == 'o');
  Need("launch", guest.Launch());
  CUmodule module = nullptr;
  Need("module", DRIVER(cuModuleLoadData)(&module, kPtx));
  Need("synchronize", DRIVER(cuCtxSynchronize)());
  Need("free", DRIVER(cuMemFreeHost)(blocks.back()));
  blocks.pop_back();
  Say("again", DRIVER(cuMemHostRegister)(ordinary.data(), kBytes / 2, 0));
  bool kept = true;
  for (size_t i = 0; i < blocks.size(); ++i)
    kept =
        kept && blocks[i][0] == static_cast<char>(i + 1) && blocks[i][kBytes - 1] == static_cast<char>(i + 1);
  Say("kept", kept);
  return 0;
}

// As many rounds as its standard input has lines; says when nothing is held any more.
int RegisterInRounds(const Guest& guest) {
  char line[16];
  Say("started", getpid());
  while (std::fgets(line, sizeof line, stdin) != nullptr) {
    Need("rounds", RegisterInThreads(guest, 10));
    Say("idle", getpid());
  }
  return 0;
}

// Computes until its standard input ends; every round is compared.
int Compute(Guest& guest, const std::atomic<bool>& end) {
  unsigned round = 0;
  while (!end) {
    Need("launch", guest.Launch());
    std::vector<unsigned> cells(kCells);
    Need("result", DRIVER(cuMemcpyDtoH)(cells.data(), guest.memory, kCells * 4));
    ++round;
    for (const unsigned cell : cells) {
      if (cell != round) return Say("wrong", static_cast<int>(cell)), 1;
    }
    if (round == 1) Say("started", getpid());
  }
  Say("rounds", static_cast<int>(round));
  return 0;
}

int Lose(Guest& guest, const std::string& how) {
  using Clock = std::chrono::steady_clock;
  char line[16];
  if (how == "idle") {
    Say("started", getpid());
    if (std::fgets(line, sizeof line, stdin) == nullptr) return 4;
    const auto since = Clock::now();
    guest.SayLoss(DRIVER(cuCtxSynchronize)(), since);
  } else if (how == "waiting") {
    Need("launch", guest.Launch());
    Say("started", getpid());
    guest.SayLoss(DRIVER(cuCtxSynchronize)(), Clock::now());
  } else if (how == "copy") {  // two threads, each with helpers (CAUSEWAY_COPY_THREADS)
    constexpr size_t kBytes = 48u << 20;
    CUdeviceptr device = 0;
    Need("device", DRIVER(cuMemAlloc)(&device, kBytes));
    const auto copy = [&](bool to_device) {
      std::vector<char> host(kBytes, 1);
      CUresult result = DRIVER(cuCtxSetCurrent)(guest.context);
      while (result == CUDA_SUCCESS) {
        result = to_device ? DRIVER(cuMemcpyHtoD)(device, host.data(), kBytes)
                           : DRIVER(cuMemcpyDtoH)(host.data(), device, kBytes);
      }
      return result;
    };
    Say("started", getpid());
    CUresult other = CUDA_SUCCESS;
    std::thread reader([&] { other = copy(false); });
    const CUresult result = copy(true);
    const auto since = Clock::now();
    reader.join();
    if (other != result) return 5;
    guest.SayLoss(result, since);
  } else if (how == "register") {
    Say("started", getpid());
    const CUresult result = RegisterInThreads(guest, ~0u);
    guest.SayLoss(result, Clock::now());
  } else if (how == "images") {  // each one new, so that each is sent and kept
    std::string text = kPtx + std::string(3u << 20, '\n');
    Say("started", getpid());
    CUresult result = CUDA_SUCCESS;
    auto before = Clock::now();
    for (unsigned round = 0; result == CUDA_SUCCESS; ++round) {
      CUmodule module = nullptr;
      before = Clock::now();
      text.replace(text.size() - 16, 16, "\n//" + std::to_string(getpid() * 10'000ul + round));
      text.resize(sizeof kPtx - 1 + (3u << 20), '\n');
      result = DRIVER(cuModuleLoadData)(&module, text.c_str());
      if (result == CUDA_SUCCESS) result = DRIVER(cuModuleUnload)(module);
    }
    guest.SayLoss(result, before);
  } else if (how == "managed") {  // pages come all the time, for the program and for system calls
    constexpr size_t kBytes = 16u << 20;
    CUdeviceptr memory = 0;
    Need("managed", DRIVER(cuMemAllocManaged)(&memory, kBytes, CU_MEM_ATTACH_GLOBAL));
    auto* const bytes = reinterpret_cast<volatile char*>(memory);
    const int file = memfd_create("session_client", MFD_CLOEXEC);
    Say("started", getpid());
    CUresult result = CUDA_SUCCESS;
    auto before = Clock::now();
    while (result == CUDA_SUCCESS) {
      before = Clock::now();
      result = DRIVER(cuMemsetD8Async)(memory, 1, kBytes, nullptr);
      if (result == CUDA_SUCCESS) result = DRIVER(cuCtxSynchronize)();
      for (size_t i = 0; i < kBytes / 2; i += 4096) bytes[i] = bytes[i];
      if (pwrite(file, const_cast<char*>(bytes) + kBytes / 2, kBytes / 2, 0) < 0) bytes[kBytes / 2] = 1;
    }
    guest.SayLoss(result, before);
  } else {
    Say("started", getpid());
    CUresult result = CUDA_SUCCESS;
    auto before = Clock::now();
    while (result == CUDA_SUCCESS) {
      before = Clock::now();
      result = DRIVER(cuMemsetD8Async)(guest.memory, 1, 64, nullptr);
    }
    guest.SayLoss(result, before);
  }
  return 0;
}

// Functions that a stream waits for.
// Launches a graph of one host node and a captured function.
void LaunchGraphs(CUhostFn function, int launches) {
  CUgraph graph = nullptr, child = nullptr;
  CUgraphNode node = nullptr;
  CUgraphExec exec = nullptr;
  CUstream stream = nullptr;
  const CUDA_HOST_NODE_PARAMS params{function, nullptr};
  Need("stream", DRIVER(cuStreamCreate)(&stream, CU_STREAM_NON_BLOCKING));
  Need("capture", DRIVER(cuStreamBeginCapture)(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  Need("captured", DRIVER(cuLaunchHostFunc)(stream, function, nullptr));
  Need("end", DRIVER(cuStreamEndCapture)(stream, &child));
  Need("graph", DRIVER(cuGraphCreate)(&graph, 0));
  Need("child", DRIVER(cuGraphAddChildGraphNode)(&node, graph, nullptr, 0, child));
  Need("node", DRIVER(cuGraphAddHostNode)(&node, graph, &node, 1, &params));
  Need("exec", DRIVER(cuGraphInstantiateWithFlags)(&exec, graph, 0));
  for (int i = 0; i < launches; ++i) Need("launch", DRIVER(cuGraphLaunch)(exec, stream));
}

int Callbacks(Guest& guest, const std::string& how) {
  static std::atomic<int> count{0}, status{-1};
  const auto launch = DRIVER(cuLaunchHostFunc);
  const auto sleep = [](void*) {
    Say("started", getpid());
    for (;;) pause();
  };
  if (how == "graph") {
    LaunchGraphs(sleep, 3);
    guest.SayLoss(DRIVER(cuCtxSynchronize)(), std::chrono::steady_clock::now());
  } else if (how.starts_with("graph:")) {
    const int launches = std::atoi(how.c_str() + 6);
    LaunchGraphs([](void*) { count.fetch_add(1); }, launches);
    Need("synchronize", DRIVER(cuCtxSynchronize)());
    Say("count", count.load());
  } else if (how == "forever") {  // and more work behind it than the driver queues
    Need("function", launch(nullptr, sleep, nullptr));
    for (int i = 0; i < 400; ++i)
      Need("another", launch(
                          nullptr, [](void*) {}, nullptr));
    for (int i = 0; i < 3000; ++i) Need("launch", guest.Launch());
    guest.SayLoss(DRIVER(cuCtxSynchronize)(), std::chrono::steady_clock::now());
  } else if (how == "lost") {  // before a stream callback is due
    void* word = nullptr;
    Need("pinned", DRIVER(cuMemHostAlloc)(&word, 64, 0));
    std::memset(word, 0, 64);
    Need("wait", DRIVER(cuStreamWaitValue32)(nullptr, reinterpret_cast<CUdeviceptr>(word), 1, 0));
    const auto note = [](CUstream, CUresult result, void*) { status.store(result); };
    Need("callback", DRIVER(cuStreamAddCallback)(nullptr, note, nullptr, 0));
    Say("started", getpid());
    const auto since = std::chrono::steady_clock::now();
    while (status.load() == -1 && std::chrono::steady_clock::now() - since < std::chrono::seconds(20))
      usleep(1000);
    Say("status", status.load());
    guest.SayLoss(DRIVER(cuCtxSynchronize)(), std::chrono::steady_clock::now());
  } else {
    for (int i = 0; i < std::atoi(how.c_str()); ++i)
      Need("function", launch(
                           nullptr, [](void*) { count.fetch_add(1); }, nullptr));
    Need("synchronize", DRIVER(cuCtxSynchronize)());
    Say("count", count.load());
  }
  return 0;
}

// Ways to go without a word.
int Leave(Guest& guest, const std::string& how, char** argv) {
  if (how == "fork") {
    const pid_t child = fork();
    if (child == 0) {
      int count = 0;
      _exit(DRIVER(cuDeviceGetCount)(&count) == CUDA_ERROR_NOT_INITIALIZED ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    Say("child", status);
    Say("parent", DRIVER(cuCtxSynchronize)());
  } else if (how == "exec") {
    execl(argv[0], argv[0], argv[1], "init", static_cast<char*>(nullptr));
    return 5;
  } else if (how == "dlclose") {
    Say("closed", dlclose(library));
  } else if (how == "threads") {
    for (int i = 0; i < 4; ++i) {
      std::thread([&guest] {
        DRIVER(cuCtxSetCurrent)(guest.context);
        for (;;) DRIVER(cuCtxSynchronize)();
      }).detach();
    }
    usleep(20'000);
    std::exit(0);  // static destructors run under them
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 8;
  library = dlopen(argv[1], RTLD_NOW);
  if (library == nullptr) {
    std::printf("%s\n", dlerror());
    return 9;
  }
  const std::string mode = argv[2], argument = argc > 3 ? argv[3] : "";
  Guest guest;
  if (mode == "init") return Say("init", DRIVER(cuInit)(0)), 0;
  guest.Start();
  if (mode == "register") return RegisterInRounds(guest);
  if (mode == "full") return FillRegion(guest);
  if (mode == "copy") CopyForever(guest, argument == "pinned");
  if (mode == "compute") {
    std::atomic<bool> end{false};
    std::thread reader([&end] {
      while (std::getchar() != EOF) {
      }
      end = true;
    });
    const int result = Compute(guest, end);
    if (result != 0) _exit(result);
    reader.join();
    return 0;
  }
  if (mode == "lose") return Lose(guest, argument);
  if (mode == "callbacks") return Callbacks(guest, argument);
  if (mode == "leave") return Leave(guest, argument, argv);
  if (mode == "launch") {  // until the first error
    CUresult result = CUDA_SUCCESS;
    for (int i = 0; i < 50 && result == CUDA_SUCCESS; ++i) {
      result = guest.Launch();
      if (result == CUDA_SUCCESS) result = DRIVER(cuCtxSynchronize)();
    }
    guest.SayLoss(result, std::chrono::steady_clock::now());
    return 0;
  }
  if (mode == "pinned") {
    for (int i = 3; i < argc; ++i) {
      void* host = nullptr;
      Say("pinned", DRIVER(cuMemHostAlloc)(&host, std::strtoull(argv[i], nullptr, 10) << 20, 0));
    }
    Say("synchronize", DRIVER(cuCtxSynchronize)());
    return 0;
  }
  return 7;
}
