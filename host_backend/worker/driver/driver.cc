// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/driver/driver.h"

#include <dlfcn.h>

namespace causeway::host {
namespace {

template <class Function>
void Find(void* library, const char* name, Function** entry) {
  if (void* const found = dlsym(library, name)) *entry = reinterpret_cast<Function*>(found);
}

constexpr Driver LackingAll() {
  Driver driver{};
#define CALL(fn, ...) driver.fn = &Lacking;
#define GUEST CALL
#define CUSTOM CALL
#define LOCAL CALL
#include "ivshmem_ring/calls.def"
  return driver;
}

constinit Driver the_driver = LackingAll();

}  // namespace

bool Driver::Resolve(const std::string& path, std::string* error) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    *error = "cannot open the driver library '" + path + "' (" + dlerror() +
             "): install NVIDIA's driver or set driver_library in the configuration";
    return false;
  }
#define CALL(fn, ...) Find(library, #fn, &fn);
#define GUEST CALL
#define CUSTOM CALL
#define LOCAL CALL
#include "ivshmem_ring/calls.def"
  if (HasAll(cuInit, cuDeviceGetAttribute, cuDevicePrimaryCtxRetain, cuCtxSetCurrent, cuMemAlloc_v2,
             cuLaunchKernel)) {
    return true;
  }
  *error = "the driver library '" + path + "' lacks basic driver functions: it is no CUDA driver";
  return false;
}

const Driver& TheDriver() {
  return the_driver;
}

Driver& DriverToFill() {
  return the_driver;
}

}  // namespace causeway::host
