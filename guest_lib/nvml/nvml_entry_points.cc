// SPDX-License-Identifier: Apache-2.0
// The exported management interface: every row that is not written by hand becomes a function here. How a
// name becomes a jump to a template: guest_lib/api/entry_points.cc.
#include "guest_lib/nvml/nvml.h"

namespace causeway::guest {
namespace {

template <nvml::Op op, class F>
struct NvmlRow;
template <nvml::Op op, class... P>
struct NvmlRow<op, nvml::Return (*)(P...)> {
  static nvml::Return Call(P... p) { return NvmlWait<op>(p...); }
};

// These ignore their arguments, whatever they are.
uint32_t Answer(nvml::Return result) {
  return static_cast<uint32_t>(NvmlSession::Get().initialised() ? result : nvml::Return::kUninitialized);
}
uint32_t Denied() {
  return Answer(nvml::Return::kNoPermission);
}
uint32_t Lacking() {
  return Answer(nvml::Return::kNotSupported);
}

}  // namespace

#define NVML_ENTRY(fn, type, ...)                                                      \
  extern "C" {                                                                         \
  [[gnu::visibility("hidden")]] extern type const causeway_entry_##fn;                 \
  [[gnu::used]] type const causeway_entry_##fn = __VA_ARGS__;                          \
  }                                                                                    \
  asm(".pushsection .text\n.globl " #fn "\n.type " #fn ", @function\n.balign 16\n" #fn \
      ":\n\tjmp *causeway_entry_" #fn "(%rip)\n.size " #fn ", . - " #fn "\n.popsection\n");

#define NVML_CALL(fn, ...)                               \
  NVML_ENTRY(fn, nvml::RowShape<nvml::Op::fn>::Function, \
             &NvmlRow<nvml::Op::fn, nvml::RowShape<nvml::Op::fn>::Function>::Call)
using Refusal = uint32_t (*)();
#define NVML_DENY(fn) NVML_ENTRY(fn, Refusal, &Denied)
#define NVML_LACK(fn) NVML_ENTRY(fn, Refusal, &Lacking)
#include "ivshmem_ring/nvml_calls.def"

}  // namespace causeway::guest
