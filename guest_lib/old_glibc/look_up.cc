// SPDX-License-Identifier: Apache-2.0
#include "guest_lib/old_glibc/look_up.h"

#include <dlfcn.h>

namespace causeway::guest {

void* LookUpInLibc(const char* name) {
  return dlsym(RTLD_DEFAULT, name);
}

}  // namespace causeway::guest
