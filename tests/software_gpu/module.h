// SPDX-License-Identifier: Apache-2.0
// Modules (one program in one context), libraries (one image, a module in each context that uses it),
// functions.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/software_gpu/driver.h"
#include "tests/software_gpu/interpreter.h"
#include "tests/software_gpu/jit_log.h"
#include "tests/software_gpu/memory.h"

namespace causeway::software_gpu {

struct Module;
struct Library;

// A parsed image.
struct ParsedImage {
  std::string ptx;
  unsigned ptx_architecture = 0;  // of its .target
  std::unique_ptr<Program> program;
};

// What cuFuncSetAttribute changes.
struct FunctionSettings {
  std::atomic<int> max_dynamic_shared_bytes{0};
  std::atomic<int> shared_carveout{-1};
};

struct Function {
  CUfunction handle = nullptr;
  std::weak_ptr<Module> module;
  const Kernel* kernel = nullptr;  // lives as long as the module
  FunctionSettings settings;
};
using FunctionRef = std::shared_ptr<Function>;

struct Module {
  CUmodule handle = nullptr;
  std::weak_ptr<Context> context;
  unsigned ptx_architecture = 0;
  std::unique_ptr<Program> program;
  std::vector<AllocationRef> memory;   // of its variables
  std::vector<const Variable*> fresh;  // without their initial values yet
  std::vector<FunctionRef> functions;  // one for each of program->kernels(), in order
  std::weak_ptr<Library> library;      // set for a library's module
};
using ModuleRef = std::shared_ptr<Module>;

using ManagedVariables = std::map<std::string, AllocationRef>;

// A kernel of a library: the same handle in every context.
struct LibraryKernel {
  CUkernel handle = nullptr;
  std::weak_ptr<Library> library;
  size_t index = 0;  // in Library::kernels and in Module::functions
};
using LibraryKernelRef = std::shared_ptr<LibraryKernel>;

struct Library {
  CUlibrary handle = nullptr;
  unsigned ptx_architecture = 0;
  std::string ptx;
  std::vector<Kernel> kernels;  // metadata only
  std::vector<LibraryKernelRef> kernel_handles;

  std::mutex mutex;
  std::unique_ptr<Program> unused_program;  // parsed at load, for the first module
  std::map<uint64_t, ModuleRef> modules;    // by context id
  ManagedVariables managed;                 // one for all contexts
};
using LibraryRef = std::shared_ptr<Library>;

// Image to program. Failures are explained on stderr and in the log.
CUresult ParseImage(const void* image, bool accept_wrapper, JitLog& log, ParsedImage* parsed);

// Places the program's variables in the context's device memory and makes the module's functions.
// Managed variables are taken from `managed`, and put there when they are new; null: the module has its own.
CUresult MakeModule(const ContextRef& context, std::unique_ptr<Program> program, unsigned ptx_architecture,
                    ModuleRef* module, ManagedVariables* managed = nullptr);

// Ends the handles of the module and its functions; memory goes when the last launch is done.
void UnloadModule(const ModuleRef& module);
void UnloadModulesOf(Context& context);

ModuleRef FindModule(CUmodule handle);
LibraryRef FindLibrary(CUlibrary handle);
LibraryKernelRef FindLibraryKernel(CUkernel handle);

// The module of a library in a context; made at first use.
CUresult ModuleOfLibrary(const ContextRef& context, Library& library, ModuleRef* module);

// Accepts CUfunction and CUkernel handles; a CUkernel is resolved in the context. 400 when not alive.
CUresult ResolveFunction(const ContextRef& context, CUfunction handle, FunctionRef* function);

// A variable's address and size; 500 when the module has none of that name.
CUresult FindGlobal(const Module& module, const char* name, CUdeviceptr* address, size_t* bytes);

// The answers of cuFuncGetAttribute / cuKernelGetAttribute.
CUresult GetKernelAttribute(const Kernel& kernel, const FunctionSettings& settings, unsigned ptx_architecture,
                            CUfunction_attribute attribute, int* value);
CUresult SetKernelAttribute(const Kernel& kernel, FunctionSettings& settings, CUfunction_attribute attribute,
                            int value);
CUresult GetParameterInfo(const Kernel& kernel, size_t index, size_t* offset, size_t* bytes);

}  // namespace causeway::software_gpu
