// SPDX-License-Identifier: Apache-2.0
// Asks the CUDA driver every question in one state, and prints for each: state|question|result|capture|what else the question noted.
//
// usage: answers STATE FROM     FROM: the number of the first question, behind one that ended the process
// STATE is four letters: which stream captures (0 none, B blocking, N non-blocking, T the thread's own); the mode (g, t, r); whether
// the capture goes on (a) or is broken (x); whether the thread has a context (c) or not (p). Standard error names each question before it is asked.
#include <cstdio>
#include <cstring>

#include "tests/answers/questions.h"

namespace causeway::answers {
namespace {

void Must(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::printf("%s: %d\n", what, result);
  std::exit(3);
}

World MakeWorld() {
  World w;
  Must(cuInit(0), "cuInit");
  Must(cuDeviceGet(&w.device, 0), "cuDeviceGet");
  Must(cuDevicePrimaryCtxRetain(&w.context, w.device), "cuDevicePrimaryCtxRetain");
  Must(cuCtxSetCurrent(w.context), "cuCtxSetCurrent");
  Must(cuMemAlloc(&w.memory, 1 << 20), "cuMemAlloc");
  Must(cuMemAllocManaged(&w.managed, 1 << 20, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged");
  Must(cuStreamCreate(&w.blocking, CU_STREAM_DEFAULT), "cuStreamCreate");
  Must(cuStreamCreate(&w.non_blocking, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  Must(cuStreamCreate(&w.other, CU_STREAM_DEFAULT), "cuStreamCreate");
  Must(cuEventCreate(&w.event, CU_EVENT_DEFAULT), "cuEventCreate");
  Must(cuEventCreate(&w.untimed_event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  Must(cuGraphCreate(&w.graph, 0), "cuGraphCreate");
  constexpr char kCode[] =
      ".version 7.0\n.target sm_70\n.address_size 64\n.visible .entry k(.param .u64 p)\n{ ret; }\n";
  Must(cuModuleLoadData(&w.module, kCode), "cuModuleLoadData");
  Must(cuModuleGetFunction(&w.function, w.module, "k"), "cuModuleGetFunction");
  Must(cuDeviceGetDefaultMemPool(&w.pool, w.device), "cuDeviceGetDefaultMemPool");
  const CUDA_ARRAY_DESCRIPTOR floats{64, 8, CU_AD_FORMAT_FLOAT, 1};
  Must(cuArrayCreate(&w.array, &floats), "cuArrayCreate");
  Must(cuMemAllocHost(&w.pinned, 4096), "cuMemAllocHost");
  w.ordinary = std::malloc(1 << 16);
  w.aligned = std::aligned_alloc(4096, 8192);
  std::memset(w.aligned, 1, 8192);
  w.streams = {{"L", CU_STREAM_LEGACY}, {"0", nullptr},        {"T", CU_STREAM_PER_THREAD},
               {"B", w.blocking},       {"N", w.non_blocking}, {"O", w.other}};
  Must(cuEventRecord(w.event, w.other), "cuEventRecord");
  Must(cuCtxSynchronize(), "cuCtxSynchronize");
  return w;
}

class State {
 public:
  State(const World& world, const std::string& name) : world_(world), name_(name) {
    stream_ = name[0] == 'B' ? world.blocking : name[0] == 'N' ? world.non_blocking : CU_STREAM_PER_THREAD;
    mode_ = name[1] == 'g'   ? CU_STREAM_CAPTURE_MODE_GLOBAL
            : name[1] == 't' ? CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
                             : CU_STREAM_CAPTURE_MODE_RELAXED;
  }
  void Enter() const {
    if (captures()) Must(cuStreamBeginCapture(stream_, mode_), "cuStreamBeginCapture");
    if (captures() && name_[2] == 'x') cuStreamSynchronize(stream_);
    CUcontext popped = nullptr;
    if (name_[3] == 'p') Must(cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
  }
  // What the capture has become, as text. Everything is as before Enter afterwards.
  std::string Leave() const {
    Must(cuCtxSetCurrent(world_.context), "cuCtxSetCurrent");
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;  // a question may have changed it
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult asked = captures() ? cuStreamIsCapturing(stream_, &status) : CUDA_SUCCESS;
    const std::string become = std::to_string(asked) + " " + std::to_string(status);
    for (const CUstream each : {world_.blocking, world_.non_blocking, world_.other, CU_STREAM_PER_THREAD}) {
      CUgraph made = nullptr;
      cuStreamIsCapturing(each, &status);
      if (status == CU_STREAM_CAPTURE_STATUS_NONE) continue;
      cuStreamEndCapture(each, &made);
      if (made != nullptr) cuGraphDestroy(made);
    }
    Must(cuThreadExchangeStreamCaptureMode(&mode), "cuThreadExchangeStreamCaptureMode");
    Must(cuCtxSynchronize(), "cuCtxSynchronize");
    cuEventRecord(world_.event, world_.other);
    cuEventRecord(world_.untimed_event, world_.other);
    Must(cuCtxSynchronize(), "cuCtxSynchronize");
    return become;
  }

 private:
  bool captures() const { return name_[0] != '0'; }
  const World& world_;
  const std::string name_;
  CUstream stream_;
  CUstreamCaptureMode mode_;
};

int Run(const std::string& name, size_t from) {
  const World world = MakeWorld();
  std::vector<std::pair<std::string, Question>> questions;
  const Ask ask = [&](const std::string& text, Question question) {
    questions.emplace_back(text, std::move(question));
  };
  for (const auto part : {AskCopies, AskInStreams, AskOfContext, AskOptions}) part(world, ask);
  const State state(world, name);
  for (size_t i = from; i < questions.size(); ++i) {
    std::fprintf(stderr, "at %zu %s\n", i, questions[i].first.c_str());
    noted = 0;
    seen.clear();
    state.Enter();
    const CUresult result = questions[i].second();
    const std::string become = state.Leave();
    std::printf("%s|%s|%d|%s|%ld%s\n", name.c_str(), questions[i].first.c_str(), result, become.c_str(),
                noted, seen.c_str());
    std::fflush(stdout);
  }
  std::puts("end");
  return 0;
}

}  // namespace
}  // namespace causeway::answers

int main(int count, char** words) {
  if (count != 3 || std::strlen(words[1]) != 4) {
    std::fprintf(stderr, "usage: answers STATE FROM\n");
    return 2;
  }
  return causeway::answers::Run(words[1], static_cast<size_t>(std::atol(words[2])));
}
