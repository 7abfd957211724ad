// SPDX-License-Identifier: Apache-2.0
// The exported driver interface: every row that is not written by hand becomes a function here.
//
// An exported name is a jump through a typed pointer, so that a template can be the function behind it: the
// compiler checks its type against cuda.h's declaration, and no macro counts parameters.
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

template <Op op, class F>
struct Row;
template <Op op, class... P>
struct Row<op, CUresult (*)(P...)> {
  static CUresult Wait(P... p) {
    NameOnDeviceAmong(p...);
    Remote remote;
    return AnswerOfRow<op>(RowShape<op>::Wait(remote, op, p...), p...);
  }
};

template <class F>
struct Refused;
template <class... P>
struct Refused<CUresult (*)(P...)> {
  static CUresult Answer(P...) { return CUDA_ERROR_NOT_SUPPORTED; }
};

// The per-thread form of a function: the null stream means the thread's own.
template <auto function, class F>
struct PerThread;
template <auto function, class... P>
struct PerThread<function, CUresult (*)(P...)> {
  template <class T>
  static T Map(T value) {
    if constexpr (std::is_same_v<T, CUstream>) {
      if (value == nullptr) return CU_STREAM_PER_THREAD;
    }
    return value;
  }
  static CUresult Forward(P... p) { return function(Map(p)...); }
};

// A launch names its stream inside the configuration.
CUresult LaunchPerThread(const CUlaunchConfig* config, CUfunction function, void** parameters, void** extra) {
  if (config == nullptr || config->hStream != nullptr)
    return cuLaunchKernelEx(config, function, parameters, extra);
  CUlaunchConfig mapped = *config;
  mapped.hStream = CU_STREAM_PER_THREAD;
  return cuLaunchKernelEx(&mapped, function, parameters, extra);
}
template <>
struct PerThread<&cuLaunchKernelEx, CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**)> {
  static CUresult Forward(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
    return LaunchPerThread(config, function, parameters, extra);
  }
};

// An instantiation names the stream of its upload inside the parameters.
template <>
struct PerThread<&cuGraphInstantiateWithParams,
                 CUresult (*)(CUgraphExec*, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS*)> {
  static CUresult Forward(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    if (parameters == nullptr || parameters->hUploadStream != nullptr)
      return cuGraphInstantiateWithParams(exec, graph, parameters);
    parameters->hUploadStream = CU_STREAM_PER_THREAD;
    const CUresult result = cuGraphInstantiateWithParams(exec, graph, parameters);
    parameters->hUploadStream = nullptr;
    return result;
  }
};

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

// name: jmp *causeway_entry_name(%rip)
#define ENTRY(fn, ...)                                                                 \
  extern "C" {                                                                         \
  [[gnu::visibility("hidden")]] extern const decltype(&::fn) causeway_entry_##fn;      \
  [[gnu::used]] const decltype(&::fn) causeway_entry_##fn = __VA_ARGS__;               \
  }                                                                                    \
  asm(".pushsection .text\n.globl " #fn "\n.type " #fn ", @function\n.balign 16\n" #fn \
      ":\n\tjmp *causeway_entry_" #fn "(%rip)\n.size " #fn ", . - " #fn "\n.popsection\n");

#define CALL(fn, ...) ENTRY(fn, &Row<Op::fn, decltype(&::fn)>::Wait)
#define GUEST(fn, ...)
#define CUSTOM(fn, ...)
#define LOCAL(fn)
#define ALIAS(fn, target) ENTRY(fn, &::target)
#define PER_THREAD(fn, target) ENTRY(fn, &PerThread<&::target, decltype(&::target)>::Forward)
#define REFUSE(fn, why) ENTRY(fn, &Refused<decltype(&::fn)>::Answer)
#include "ivshmem_ring/calls.def"
