// SPDX-License-Identifier: Apache-2.0
// Prints the file that a library's name leads to, in the way that programs find it.
// usage: which_library            the libcuda.so.1 that this program is linked with
//        which_library NAME       what dlopen(NAME) finds
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char** arguments) {
  void* function = (void*)&cuInit;
  if (count > 1) {
    void* library = dlopen(arguments[1], RTLD_NOW);
    if (library == NULL) {
      fprintf(stderr, "%s\n", dlerror());
      return 1;
    }
    function = dlsym(library, "cuInit");
    if (function == NULL) function = dlsym(library, "nvmlInit_v2");
  }
  Dl_info found;
  char path[4096];
  if (function == NULL || dladdr(function, &found) == 0 || realpath(found.dli_fname, path) == NULL) return 2;
  puts(path);
  return 0;
}
