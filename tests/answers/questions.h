// SPDX-License-Identifier: Apache-2.0
// Questions about the driver, asked in each state of captures and contexts (main.cc). A question is a call with a name; its
// answer is the call's result, and what it says of the capture afterwards. Names are short, because recorded answers have them.
#pragma once
#include <cuda.h>
#include <dlfcn.h>

#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

// Declared nowhere: programs get these by macros or cuGetProcAddress.
extern "C" {
CUresult cuMemcpyDtoH_v2_ptds(void*, CUdeviceptr, size_t);
CUresult cuMemcpyHtoD_v2_ptds(CUdeviceptr, const void*, size_t);
CUresult cuMemcpyDtoD_v2_ptds(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpy_ptds(CUdeviceptr, CUdeviceptr, size_t);
CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D*);
CUresult cuMemcpy3D_v2_ptds(const CUDA_MEMCPY3D*);
CUresult cuMemsetD8_v2_ptds(CUdeviceptr, unsigned char, size_t);
CUresult cuMemsetD2D8_v2_ptds(CUdeviceptr, size_t, unsigned char, size_t, size_t);
CUresult cuMemcpyPeer_ptds(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, size_t);
}

namespace causeway::answers {

// A form of a function that cuda.h names otherwise.
template <class F>
F* Function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return reinterpret_cast<F*>(dlsym(library, name));
}

// What questions are about. Made anew by each process; a question leaves it as it was.
struct World {
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUdeviceptr memory = 0, managed = 0;        // of the device and managed, 1 MiB each
  const CUdeviceptr unknown = 0x1'2345'6000;  // an address that is nobody's
  CUstream blocking = nullptr, non_blocking = nullptr;
  CUstream other = nullptr;  // a blocking one that never captures
  CUevent event = nullptr, untimed_event = nullptr;
  CUmodule module = nullptr;
  CUfunction function = nullptr;
  CUgraph graph = nullptr;
  CUmemoryPool pool = nullptr;
  CUarray array = nullptr;
  void* pinned = nullptr;
  void *ordinary = nullptr, *aligned = nullptr;  // ordinary memory; `aligned` begins a page
  // The streams that each question about a stream is asked for, with their letters in names: the legacy stream by name (L) and by
  // null (0), the thread's own (T), the blocking (B), the non-blocking (N) and the other one (O).
  std::vector<std::pair<const char*, CUstream>> streams;
};

using Question = std::function<CUresult()>;
using Ask = std::function<void(const std::string& name, Question question)>;

// Further to a result, where a question has more to say: a number and a text.
inline long noted = 0;
inline std::string seen;
inline size_t CountUp(int block) {
  seen += " " + std::to_string(block);
  return static_cast<size_t>(1000 * (++noted % 50));
}

void AskCopies(const World& w, const Ask& ask);
void AskInStreams(const World& w, const Ask& ask);
void AskOfContext(const World& w, const Ask& ask);
void AskOptions(const World& w, const Ask& ask);

}  // namespace causeway::answers
