// SPDX-License-Identifier: Apache-2.0
// causeway-bench-probe LIBRARY [--startup | --calls] [--quick]: measures one CUDA driver library, NVIDIA's or
// Causeway's. Says "ready VERSION DEVICE" once a first kernel's result has been read back, and then answers
// lines on its standard input until that ends:
//   worker PID      that process works for this one: its processor time counts
//   measure ID      -> "VALUE ERROR", of a figure (tools/bench/figures.h) or a part of one;
//                      beside_managed:ID: of that figure while the process has managed memory
// --startup ends at "ready"; --calls prints all figures of single calls as JSON, for a VM.
#include "tools/bench/probe/probe.h"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <iostream>
#include <sstream>

#include "host_backend/common/json.h"
#include "tools/bench/figures.h"

namespace causeway::bench {
namespace {

// Each thread takes every so-many-th word, so that neighbours take neighbours.
#define CAUSEWAY_BENCH_WALK(name, parameters, load, step, finish)                                        \
  ".visible .entry " name "(.param .u64 address, .param .u64 words" parameters                           \
  ")\n{\n"                                                                                               \
  "  .reg .pred %p1; .reg .b32 %r<12>; .reg .b64 %rd<10>;\n"                                             \
  "  ld.param.u64 %rd1, [address]; cvta.to.global.u64 %rd1, %rd1; ld.param.u64 %rd2, [words];\n" load    \
  "  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;\n" \
  "  cvt.u64.u32 %rd3, %r5; mov.u32 %r6, %nctaid.x; mul.lo.s32 %r7, %r6, %r3; cvt.u64.u32 %rd4, %r7;\n"  \
  "LOOP:\n  setp.ge.u64 %p1, %rd3, %rd2;\n  @%p1 bra DONE;\n"                                            \
  "  shl.b64 %rd5, %rd3, 2; add.s64 %rd6, %rd1, %rd5;\n" step                                            \
  "  add.s64 %rd3, %rd3, %rd4;\n  bra LOOP;\nDONE:\n" finish "  ret;\n}\n"

constexpr char kPtx[] =
    ".version 7.0\n.target sm_75\n.address_size 64\n"
    ".visible .entry write_word(.param .u64 address, .param .u32 value)\n{\n"
    "  .reg .b64 %rd<3>; .reg .b32 %r<2>;\n"
    "  ld.param.u64 %rd1, [address]; ld.param.u32 %r1, [value]; cvta.to.global.u64 %rd2, %rd1;\n"
    "  st.global.u32 [%rd2], %r1;\n  ret;\n}\n"  //
    CAUSEWAY_BENCH_WALK("fill", ", .param .u32 value", "  ld.param.u32 %r1, [value];\n",
                        "  st.global.u32 [%rd6], %r1;\n", "")
        CAUSEWAY_BENCH_WALK("sum", ", .param .u64 where",
                            "  ld.param.u64 %rd7, [where]; cvta.to.global.u64 %rd7, %rd7; mov.u32 %r8, 0;\n",
                            "  ld.global.u32 %r9, [%rd6]; add.s32 %r8, %r8, %r9;\n",
                            "  st.global.u32 [%rd7], %r8;\n")  // the last thread's: nobody asks which
    CAUSEWAY_BENCH_WALK("add_one", "", "",
                        "  ld.global.u32 %r9, [%rd6]; add.s32 %r9, %r9, 1; st.global.u32 [%rd6], %r9;\n", "");

bool LoadApi(const char* path, Api& api) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    std::fprintf(stderr, "causeway-bench-probe: %s\n", dlerror());
    return false;
  }
  const auto find = [&](const char* name) {
    void* function = dlsym(library, name);
    if (function == nullptr) std::fprintf(stderr, "causeway-bench-probe: the library has no %s\n", name);
    return function;
  };
  bool good = true;
#define TEXT_OF(name) #name
#define FUNCTION(name)                                                  \
  api.name = reinterpret_cast<decltype(api.name)>(find(TEXT_OF(name))); \
  good = good && api.name != nullptr;
#include "tools/bench/functions.def"
#undef FUNCTION
  return good;
}

bool Good(CUresult result, const char* what) {
  if (result != CUDA_SUCCESS)
    std::fprintf(stderr, "causeway-bench-probe: %s failed with error %d\n", what, int(result));
  return result == CUDA_SUCCESS;
}

// Up to the first kernel's result on the host.
bool Prepare(Bench& bench) {
  const Api& api = bench.api;
  CUmodule module = nullptr;
  uint32_t read = 0;
  if (!Good(api.cuInit(0), "cuInit") || !Good(api.cuDeviceGet(&bench.device, 0), "cuDeviceGet") ||
      !Good(api.cuDevicePrimaryCtxRetain(&bench.context, bench.device), "cuDevicePrimaryCtxRetain") ||
      !Good(api.cuCtxSetCurrent(bench.context), "cuCtxSetCurrent") ||
      !Good(api.cuModuleLoadData(&module, kPtx), "cuModuleLoadData") ||
      !Good(api.cuModuleGetFunction(&bench.write_word, module, "write_word"), "cuModuleGetFunction") ||
      !Good(api.cuModuleGetFunction(&bench.fill, module, "fill"), "cuModuleGetFunction") ||
      !Good(api.cuModuleGetFunction(&bench.sum, module, "sum"), "cuModuleGetFunction") ||
      !Good(api.cuModuleGetFunction(&bench.add_one, module, "add_one"), "cuModuleGetFunction") ||
      !Good(api.cuStreamCreate(&bench.stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate") ||
      !Good(api.cuMemAlloc_v2(&bench.word, sizeof(uint32_t)), "cuMemAlloc") ||
      !Good(Launch(bench, bench.stream), "cuLaunchKernel") ||
      !Good(api.cuStreamSynchronize(bench.stream), "cuStreamSynchronize") ||
      !Good(api.cuMemcpyDtoH_v2(&read, bench.word, sizeof(read)), "cuMemcpyDtoH")) {
    return false;
  }
  if (read != 0x5eed) std::fprintf(stderr, "causeway-bench-probe: the kernel wrote 0x%x\n", read);
  return read == 0x5eed;
}

// Managed memory that both processors have used lately.
class ManagedMemory {
 public:
  explicit ManagedMemory(const Bench& bench) : bench_(bench) {}
  ~ManagedMemory() {
    if (memory_ != 0) bench_.api.cuMemFree_v2(memory_);
  }
  ManagedMemory(const ManagedMemory&) = delete;
  ManagedMemory& operator=(const ManagedMemory&) = delete;
  CUresult Make() {
    constexpr size_t kBytes = 1u << 20;
    CUresult result = bench_.api.cuMemAllocManaged(&memory_, kBytes, CU_MEM_ATTACH_GLOBAL);
    if (result != CUDA_SUCCESS) return result;
    auto* words = reinterpret_cast<volatile uint32_t*>(memory_);
    words[0] = 1;
    uint64_t count = kBytes / sizeof(uint32_t);
    void* parameters[] = {&memory_, &count};
    result = RunWide(bench_, bench_.add_one, parameters);
    return result == CUDA_SUCCESS && words[0] != 2 ? CUDA_ERROR_ILLEGAL_STATE : result;
  }

 private:
  const Bench& bench_;
  CUdeviceptr memory_ = 0;
};

CUresult Run(Bench& bench, const std::map<std::string, Measure>& figures, const std::string& id,
             double* value) {
  Words words;
  std::stringstream stream(id);
  for (std::string word; std::getline(stream, word, ':');) words.push_back(word);
  ManagedMemory managed(bench);
  if (!words.empty() && words[0] == "beside_managed") {
    words.erase(words.begin());
    if (const CUresult result = managed.Make()) return result;
  }
  const auto found = figures.find(words.empty() ? "" : words[0]);
  return found != figures.end() ? found->second(bench, words, value) : CUDA_ERROR_NOT_FOUND;
}

void Answer(Bench& bench, const std::map<std::string, Measure>& figures) {
  char name[256] = "";
  int version = 0;
  bench.api.cuDeviceGetName(name, sizeof(name), bench.device);
  bench.api.cuDriverGetVersion(&version);
  std::printf("ready %d %s\n", version, name);
  std::fflush(stdout);
  for (std::string line; std::getline(std::cin, line);) {
    const size_t space = line.find(' ');
    const std::string argument = space != std::string::npos ? line.substr(space + 1) : "";
    if (line.starts_with("worker ")) bench.worker = std::strtoll(argument.c_str(), nullptr, 10);
    if (!line.starts_with("measure ")) continue;
    double value = 0;
    const CUresult result = Run(bench, figures, argument, &value);
    std::printf("%.9g %d\n", value, int(result));
    std::fflush(stdout);
  }
}

void PrintCalls(Bench& bench, const std::map<std::string, Measure>& figures) {
  Json all = Json::array();
  for (const Figure& figure : Figures(false, bench.quick)) {
    if (figure.runner != Runner::kProbe ||
        (figure.section != Section::kCalls && figure.section != Section::kManaged &&
         figure.section != Section::kOther))
      continue;
    double value = 0;
    const CUresult result = Run(bench, figures, figure.id, &value);
    all.push_back({{"id", figure.id},
                   {"name", figure.name},
                   {"unit", figure.unit},
                   {"value", Rounded(value)},
                   {"error", int(result)}});
  }
  std::printf("%s\n", JsonText({{"figures", std::move(all)}}).c_str());
}

int Main(int argc, char** argv) {
  Bench bench;
  bool startup = false, calls = false, good = argc >= 2;
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    startup |= option == "--startup";
    calls |= option == "--calls";
    bench.quick |= option == "--quick";
    good &= option == "--startup" || option == "--calls" || option == "--quick";
  }
  if (!good) {
    std::fprintf(stderr, "usage: causeway-bench-probe LIBRARY [--startup | --calls] [--quick]\n");
    return 2;
  }
  if (!LoadApi(argv[1], bench.api) || !Prepare(bench)) return 1;
  if (startup) {
    std::printf("ready\n");
    return 0;
  }
  std::map<std::string, Measure> figures;
  AddCallFigures(&figures);
  AddCopyFigures(&figures);
  AddMemoryFigures(&figures);
  AddOtherFigures(&figures);
  AddCrowdFigures(&figures);
  if (calls) {
    PrintCalls(bench, figures);
  } else {
    Answer(bench, figures);
  }
  return 0;
}

}  // namespace
}  // namespace causeway::bench

int main(int argc, char** argv) {
  return causeway::bench::Main(argc, argv);
}
