// SPDX-License-Identifier: Apache-2.0
// Libraries: an image loaded once, with a module in each context that uses it.
#include <algorithm>
#include <fstream>
#include <iterator>

#include "tests/software_gpu/handles.h"
#include "tests/software_gpu/module.h"
#include "tests/software_gpu/stream.h"

namespace causeway::software_gpu {
namespace {

Registry<CUlibrary, Library>& Libraries() {
  static auto* libraries = new Registry<CUlibrary, Library>;
  return *libraries;
}

Registry<CUkernel, LibraryKernel>& LibraryKernels() {
  static auto* kernels = new Registry<CUkernel, LibraryKernel>;
  return *kernels;
}

CUresult LoadLibrary(const void* image, JitLog log, CUlibrary* handle) {
  if (handle == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (log.Check() != CUDA_SUCCESS) return log.Check();
  ParsedImage parsed;
  CUresult result = ParseImage(image, true, log, &parsed);
  if (result != CUDA_SUCCESS) return result;
  auto library = std::make_shared<Library>();
  library->ptx_architecture = parsed.ptx_architecture;
  library->ptx = std::move(parsed.ptx);
  library->kernels = parsed.program->kernels();
  library->unused_program = std::move(parsed.program);
  for (size_t i = 0; i < library->kernels.size(); ++i) {
    auto kernel = std::make_shared<LibraryKernel>();
    kernel->library = library;
    kernel->index = i;
    kernel->handle = LibraryKernels().Add(kernel);
    library->kernel_handles.push_back(std::move(kernel));
  }
  library->handle = Libraries().Add(library);
  *handle = library->handle;
  return CUDA_SUCCESS;
}

bool AreLibraryOptions(const CUlibraryOption* options, void* const* values, unsigned count) {
  for (unsigned i = 0; i < count; ++i) {
    if (options == nullptr || values == nullptr || options[i] < 0 || options[i] >= CU_LIBRARY_NUM_OPTIONS)
      return false;
  }
  return true;
}

}  // namespace

LibraryRef FindLibrary(CUlibrary handle) {
  return Libraries().Find(handle);
}
LibraryKernelRef FindLibraryKernel(CUkernel handle) {
  return LibraryKernels().Find(handle);
}

CUresult ModuleOfLibrary(const ContextRef& context, Library& library, ModuleRef* module) {
  std::lock_guard lock(library.mutex);
  ModuleRef& slot = library.modules[context->id.load()];
  if (slot == nullptr) {
    std::unique_ptr<Program> program = std::move(library.unused_program);
    std::string error;
    if (program == nullptr) program = Program::Parse(library.ptx, &error);
    if (program == nullptr) return CUDA_ERROR_INVALID_PTX;
    CUresult result =
        MakeModule(context, std::move(program), library.ptx_architecture, &slot, &library.managed);
    if (result != CUDA_SUCCESS) return result;
    slot->library = library.kernel_handles.empty() ? FindLibrary(library.handle)
                                                   : library.kernel_handles.front()->library.lock();
  }
  *module = slot;
  return CUDA_SUCCESS;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option* jitOptions,
                           void** jitOptionsValues, unsigned int numJitOptions,
                           CUlibraryOption* libraryOptions, void** libraryOptionValues,
                           unsigned int numLibraryOptions) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (!AreLibraryOptions(libraryOptions, libraryOptionValues, numLibraryOptions))
      return CUDA_ERROR_INVALID_VALUE;
    return LoadLibrary(code, JitLog(jitOptions, jitOptionsValues, numJitOptions), library);
  });
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* fileName, CUjit_option* jitOptions,
                               void** jitOptionsValues, unsigned int numJitOptions, CUlibraryOption*, void**,
                               unsigned int) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (library == nullptr || fileName == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::ifstream file(fileName, std::ios::binary);
    if (!file) return CUDA_ERROR_FILE_NOT_FOUND;
    std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    return LoadLibrary(image.c_str(), JitLog(jitOptions, jitOptionsValues, numJitOptions), library);
  });
}

CUresult cuLibraryUnload(CUlibrary handle) {
  return OnDevice(__func__, [&]() -> CUresult {
    LibraryRef library = FindLibrary(handle);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    SynchronizeDevice();
    Libraries().Remove(handle);
    for (const LibraryKernelRef& kernel : library->kernel_handles) LibraryKernels().Remove(kernel->handle);
    std::lock_guard lock(library->mutex);
    for (const auto& entry : library->modules) UnloadModule(entry.second);
    library->modules.clear();
    for (const auto& variable : library->managed) ReleaseMemory(variable.second);
    library->managed.clear();
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernel(CUkernel* pKernel, CUlibrary handle, const char* name) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (pKernel == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    LibraryRef library = FindLibrary(handle);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    for (size_t i = 0; i < library->kernels.size(); ++i) {
      if (library->kernels[i].name != name) continue;
      *pKernel = library->kernel_handles[i]->handle;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
  });
}

CUresult cuLibraryGetKernelCount(unsigned int* count, CUlibrary lib) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    LibraryRef library = FindLibrary(lib);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *count = static_cast<unsigned>(library->kernels.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int numKernels, CUlibrary lib) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (kernels == nullptr && numKernels != 0) return CUDA_ERROR_INVALID_VALUE;
    LibraryRef library = FindLibrary(lib);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    size_t count = std::min<size_t>(numKernels, library->kernel_handles.size());
    for (size_t i = 0; i < count; ++i) kernels[i] = library->kernel_handles[i]->handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetModule(CUmodule* pMod, CUlibrary handle) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (pMod == nullptr) return CUDA_ERROR_INVALID_VALUE;
    LibraryRef library = FindLibrary(handle);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    ModuleRef module;
    CUresult result = ModuleOfLibrary(context, *library, &module);
    if (result == CUDA_SUCCESS) *pMod = module->handle;
    return result;
  });
}

CUresult cuLibraryGetManaged(CUdeviceptr* dptr, size_t* bytes, CUlibrary handle, const char* name) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    LibraryRef library = FindLibrary(handle);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    ContextRef context = CurrentContext();
    if (context == nullptr) context = PrimaryContext(0);  // they are there before any context is
    ModuleRef module;
    if (CUresult result = ModuleOfLibrary(context, *library, &module); result != CUDA_SUCCESS) return result;
    for (const Variable& variable : module->program->variables()) {
      if (variable.name == name && variable.managed) return FindGlobal(*module, name, dptr, bytes);
    }
    return CUDA_ERROR_NOT_FOUND;
  });
}

CUresult cuLibraryGetUnifiedFunction(void**, CUlibrary handle, const char*) {
  return OnDevice(__func__, [&]() -> CUresult {
    if (FindLibrary(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    return CUDA_ERROR_INVALID_VALUE;  // the device has no unified function pointers
  });
}

CUresult cuLibraryGetGlobal(CUdeviceptr* dptr, size_t* bytes, CUlibrary handle, const char* name) {
  return InContext(__func__, [&](const ContextRef& context) -> CUresult {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    LibraryRef library = FindLibrary(handle);
    if (library == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    ModuleRef module;
    CUresult result = ModuleOfLibrary(context, *library, &module);
    return result != CUDA_SUCCESS ? result : FindGlobal(*module, name, dptr, bytes);
  });
}

}  // extern "C"
