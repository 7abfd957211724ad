// SPDX-License-Identifier: Apache-2.0
#include "host_backend/command/libvirt/libvirt_library.h"

#include <dlfcn.h>

#include <string>

namespace causeway::command {

Result<const LibvirtLibrary*> LoadLibvirt() {
  static LibvirtLibrary library;
  void* handle = dlopen("libvirt.so.0", RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return Error{std::string("libvirt's library cannot be loaded: ") + dlerror() +
                 "; install the package libvirt0, or plug the region into a VM without libvirt by hand "
                 "(`causeway xml`)."};
  }
  std::string missing;
#define CAUSEWAY_LOOK_UP(name)                                                   \
  library.name = reinterpret_cast<decltype(library.name)>(dlsym(handle, #name)); \
  if (library.name == nullptr) missing = #name;
  CAUSEWAY_LIBVIRT_FUNCTIONS(CAUSEWAY_LOOK_UP)
#undef CAUSEWAY_LOOK_UP
  if (!missing.empty())
    return Error{"libvirt's library has no function " + missing + "; install a newer one (6.1 or later)."};
  // Otherwise it prints every error itself.
  library.virSetErrorFunc(nullptr, [](void*, virErrorPtr) {});
  return &library;
}

}  // namespace causeway::command
