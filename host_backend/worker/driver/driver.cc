// SPDX-License-Identifier: Apache-2.0
// Opens the driver library and resolves every row.
#include "host_backend/worker/driver/driver.h"

#include <dlfcn.h>

namespace causeway::host {

bool Driver::Resolve(const std::string& path, std::string* error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *error = "cannot open the driver library '" + path + "' (" + dlerror() +
             "): install NVIDIA's driver or set driver_library in the configuration";
    return false;
  }
#define RESOLVE(fn) fn = reinterpret_cast<decltype(&::fn)>(dlsym(library, #fn));
  CAUSEWAY_WORKER_FUNCTIONS(RESOLVE)
  CAUSEWAY_GRAPH_FUNCTIONS(RESOLVE)
#undef RESOLVE
#define CALL(fn, ...) row[static_cast<size_t>(Op::fn)] = reinterpret_cast<void (*)()>(dlsym(library, #fn));
#define POST CALL
#define GUEST CALL
#define CUSTOM CALL
#include "ivshmem_ring/calls.def"
  for (const void* needed :
       {reinterpret_cast<void*>(cuInit), reinterpret_cast<void*>(cuDeviceGetAttribute),
        reinterpret_cast<void*>(cuDevicePrimaryCtxRetain), reinterpret_cast<void*>(cuCtxSetCurrent),
        reinterpret_cast<void*>(cuMemAlloc_v2), reinterpret_cast<void*>(cuLaunchKernel)}) {
    if (needed == nullptr) {
      *error = "the driver library '" + path + "' lacks basic driver functions: it is no CUDA driver";
      return false;
    }
  }
  return true;
}

Driver& TheDriver() {
  static Driver driver;
  return driver;
}

}  // namespace causeway::host
