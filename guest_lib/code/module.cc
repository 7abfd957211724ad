// SPDX-License-Identifier: Apache-2.0
// Modules and libraries: the image goes to the host as a blob, in pieces.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>

#include "guest_lib/code/function.h"
#include "guest_lib/code/image.h"
#include "guest_lib/code/jit_options.h"
#include "guest_lib/managed/pager.h"
#include "guest_lib/managed/variables.h"
#include "guest_lib/process/file.h"
#include "guest_lib/session/blob.h"
#include "guest_lib/stream/completion.h"
#include "guest_lib/stream/remote.h"
#include "ivshmem_ring/messages/code_messages.h"

namespace causeway::guest {
namespace {

std::atomic<bool> host_keeps_images{true};

// One message that loads an image: the image itself, or its hash.
struct LoadMessage {
  Op op;
  const Object* object;
  const Image& image;
  JitOptions* options;

  CUresult Send(ChannelLease& lease, const ImageHash* hash, ImageAnswer* answer) const {
    const uint64_t option_bytes = options->wire().size(), image_at = ImageAligned(option_bytes);
    const auto copy = [&](uint64_t at, std::span<std::byte> to) {
      const uint64_t begin = std::max(at, image_at);
      if (at < image_at) {
        std::fill_n(to.begin(), std::min(image_at - at, to.size()), std::byte{0});
        CopyPart(at, to, options->wire().data(), 0, option_bytes);
      }
      if (begin < at + to.size()) image.Copy(begin - image_at, to.subspan(begin - at));
    };
    LoadBody body{WireOf(object), options->count(), 0, option_bytes, 0, {}};
    if (hash != nullptr) {
      body.known_bytes = image.wire_bytes();
      std::copy(hash->begin(), hash->end(), body.known_hash);
    }
    Blob blob(lease);
    const uint64_t blob_bytes =
        hash == nullptr ? image_at + image.wire_bytes() : std::max(image_at, kImageAlign);
    if (const CUresult result = blob.Fill(blob_bytes, copy)) return result;
    Writer w = lease.Begin();
    w.Put(body);
    Reader in;
    CUresult result = lease.AwaitSent(blob.Send(op, w), &in);
    const auto reply = in.left() >= sizeof(LoadReply) ? in.Get<LoadReply>() : LoadReply{};
    *answer = reply.answer;
    std::vector<std::byte> outputs;
    if (FetchBlob(lease, reply.output_bytes, &outputs) == CUDA_SUCCESS) options->Return(outputs);
    return result;
  }
};

// A large image is asked for first: another process of this machine may have sent it.
template <class T>
CUresult Load(Op op, T* handle, const Image& image, JitOptions* options) {
  if (!MayKernelsPrint() && image.MayPrint()) NotePrintingKernels();
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  Object* object = NewObject(kKindOf<T>, op == Op::cuLibraryLoadData ? nullptr : CurrentContextObject());
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  const LoadMessage message{op, object, image, options};
  CUresult result = CUDA_SUCCESS;
  ImageAnswer answer = ImageAnswer::kUnknown;
  if (image.wire_bytes() >= kLeastKeptImageBytes && host_keeps_images.load()) {
    const ImageHash hash = image.Hash();
    result = message.Send(lease, &hash, &answer);
    if (answer == ImageAnswer::kNotKept) host_keeps_images = false;
  }
  if (answer != ImageAnswer::kLoaded && lease.error() == CUDA_SUCCESS) {
    result = message.Send(lease, nullptr, &answer);
  }
  if (result != CUDA_SUCCESS) {
    FreeObject(object);
    return result;
  }
  *handle = reinterpret_cast<T>(object);
  return CUDA_SUCCESS;
}

// An image for the devices that there are, unless the caller names another target.
Image ImageForDevices(unsigned option_count, const CUjit_option* names) {
  std::vector<Capability> capabilities;
  const CUjit_option* end = names != nullptr ? names + option_count : names;
  if (std::find(names, end, CU_JIT_TARGET) == end) {
    for (const DeviceDescription& device : Session::Made().devices()) {
      capabilities.push_back({device.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR],
                              device.attribute[CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR]});
    }
  }
  return Image(std::move(capabilities));
}

CUresult LoadModule(CUmodule* module, const Image& image, unsigned count, const CUjit_option* names,
                    void** values) {
  JitOptions options;
  if (const CUresult result = options.Take(count, names, values)) return result;
  return Load(Op::cuModuleLoadDataEx, module, image, &options);
}

CUresult LoadModule(CUmodule* module, const void* bytes, unsigned count, const CUjit_option* names,
                    void** values) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (module == nullptr || bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Image image = ImageForDevices(count, names);
  if (const CUresult result = image.Find(bytes, false)) return result;
  return LoadModule(module, image, count, names, values);
}

struct LibraryOptions {
  CUlibraryOption* options;
  void** values;
  unsigned count;

  // Both that there are need nothing here: the host keeps an image of its own for the library's life, and the
  // table of host functions and data is for devices that call and read them.
  CUresult Check() const {
    if (count != 0 && options == nullptr)
      return CUDA_ERROR_INVALID_VALUE;  // cuBLAS gives options without values
    for (unsigned i = 0; i < count; ++i) {
      if (options[i] < 0 || options[i] >= CU_LIBRARY_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  }
};

CUresult LoadLibrary(CUlibrary* library, const Image& image, unsigned count, const CUjit_option* names,
                     void** values, const LibraryOptions& library_options) {
  if (const CUresult result = library_options.Check()) return result;
  JitOptions options;
  if (const CUresult result = options.Take(count, names, values)) return result;
  return Load(Op::cuLibraryLoadData, library, image, &options);
}

// A variable's address and size; a managed one is accessible to the program from then on.
template <Op op, class Owner>
CUresult GetVariable(CUdeviceptr* address, size_t* bytes, Owner owner, const char* name) {
  CUdeviceptr found = 0;
  size_t found_bytes = 0;
  const auto place = address != nullptr ? &found : nullptr;
  const auto size = bytes != nullptr || address != nullptr ? &found_bytes : nullptr;
  CUresult result = Wait<op>(place, size, owner, name);
  if (result == CUDA_SUCCESS && place != nullptr)
    result = AdmitManaged(found, found_bytes, WireOf(Find(owner)));
  if (result != CUDA_SUCCESS) return result;
  if (address != nullptr) *address = found;
  if (bytes != nullptr) *bytes = found_bytes;
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return LoadModule(module, image, 0, nullptr, nullptr);
}
CUresult cuModuleLoadFatBinary(CUmodule* module, const void* image) {
  return LoadModule(module, image, 0, nullptr, nullptr);
}
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int count, CUjit_option* names,
                            void** values) {
  return LoadModule(module, image, count, names, values);
}

CUresult cuModuleLoad(CUmodule* module, const char* path) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (module == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  std::vector<std::byte> bytes;
  if (!ReadFile(path, &bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
  Image image = ImageForDevices(0, nullptr);
  if (const CUresult result = image.TakeFile(&bytes)) return result;
  return LoadModule(module, image, 0, nullptr, nullptr);
}

CUresult cuModuleUnload(CUmodule module) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(module);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (const CUresult refused = CheckUnsafeCall()) return refused;
  const WireHandle wire = WireOf(object);
  const CUresult result = Wait<Op::cuModuleUnload>(module);
  if (result != CUDA_SUCCESS) return result;
  ForgetMigratingOf(wire);
  ForgetFunctionsOf(wire);
  return CUDA_SUCCESS;
}

// What the program's own environment asks for, else what the host's driver does.
CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* wanted = getenv("CUDA_MODULE_LOADING");
  if (wanted != nullptr && (strcmp(wanted, "EAGER") == 0 || strcmp(wanted, "LAZY") == 0)) {
    *mode = wanted[0] == 'E' ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
  }
  const OpenReply& host = Session::Made().host();
  if (host.loading_result == CUDA_SUCCESS) *mode = static_cast<CUmoduleLoadingMode>(host.loading_mode);
  return static_cast<CUresult>(host.loading_result);
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule module) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (functions == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(module);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  unsigned most = 0;
  if (const CUresult result = Wait<Op::cuModuleGetFunctionCount>(&most, module)) return result;
  return EnumerateFunctions(Op::cuModuleEnumerateFunctions, functions, std::min(count, most), WireOf(object));
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* bytes, CUjit_option* names, void** values,
                           unsigned int count, CUlibraryOption* library_names, void** library_values,
                           unsigned int library_count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (library == nullptr || bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Image image = ImageForDevices(count, names);
  if (const CUresult result = image.Find(bytes, true, true)) return result;
  return LoadLibrary(library, image, count, names, values, {library_names, library_values, library_count});
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* names, void** values,
                               unsigned int count, CUlibraryOption* library_names, void** library_values,
                               unsigned int library_count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (library == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (names != nullptr && !std::all_of(names, names + count, IsJitOption)) return CUDA_ERROR_INVALID_VALUE;
  std::vector<std::byte> bytes;
  if (!ReadFile(path, &bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
  Image image = ImageForDevices(count, names);
  if (const CUresult result = image.TakeFile(&bytes)) return result;
  return LoadLibrary(library, image, count, names, values, {library_names, library_values, library_count});
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr* address, size_t* bytes, CUmodule module, const char* name) {
  return GetVariable<Op::cuModuleGetGlobal_v2>(address, bytes, module, name);
}
CUresult cuLibraryGetGlobal(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return GetVariable<Op::cuLibraryGetGlobal>(address, bytes, library, name);
}
CUresult cuLibraryGetManaged(CUdeviceptr* address, size_t* bytes, CUlibrary library, const char* name) {
  return GetVariable<Op::cuLibraryGetManaged>(address, bytes, library, name);
}

// No device that Causeway serves has CU_DEVICE_ATTRIBUTE_UNIFIED_FUNCTION_POINTERS: NVIDIA's driver then
// answers this for any name.
CUresult cuLibraryGetUnifiedFunction(void** function, CUlibrary library, const char* name) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (Find(library) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  static_cast<void>(function), static_cast<void>(name);
  return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLibraryUnload(CUlibrary library) {
  if (const CUresult result = InitialisedOrError()) return result;
  Object* object = Find(library);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const WireHandle wire = WireOf(object);
  ForgetMigratingOf(wire);
  if (const CUresult result = AskHost(Op::cuLibraryUnload, wire)) return result;
  FreeObject(object);
  ForgetFunctionsOf(wire);
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary library) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (kernels == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(library);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (count == 0) return CUDA_SUCCESS;
  unsigned most = 0;
  if (const CUresult result = Wait<Op::cuLibraryGetKernelCount>(&most, library)) return result;
  return EnumerateFunctions(Op::cuLibraryEnumerateKernels, reinterpret_cast<CUfunction*>(kernels),
                            std::min(count, most), WireOf(object));
}

}  // extern "C"
