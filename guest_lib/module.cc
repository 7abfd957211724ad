// SPDX-License-Identifier: Apache-2.0
// Modules and libraries: the image goes to the host as a blob, in pieces.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "guest_lib/function.h"
#include "guest_lib/image.h"
#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

// The caller's options: plain numbers travel, logs come back, the rest has no meaning on another machine.
struct Options {
  std::vector<JitOption> plain;
  char* log[2] = {nullptr, nullptr};  // information, errors
  uint32_t log_bytes[2] = {0, 0};
  void** log_size[2] = {nullptr, nullptr};  // where the written size is returned
  float* wall_time = nullptr;

  CUresult Take(unsigned count, const CUjit_option* names, void** values) {
    if (count != 0 && (names == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned i = 0; i < count; ++i) {
      const auto number = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(values[i]));
      switch (names[i]) {
        case CU_JIT_INFO_LOG_BUFFER:
        case CU_JIT_ERROR_LOG_BUFFER:
          log[names[i] == CU_JIT_ERROR_LOG_BUFFER] = static_cast<char*>(values[i]);
          break;
        case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
        case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES: {
          const int which = names[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
          log_bytes[which] = std::min<uint32_t>(number, kMaxLogBytes);
          log_size[which] = &values[i];
          break;
        }
        case CU_JIT_WALL_TIME:
          wall_time = reinterpret_cast<float*>(&values[i]);
          break;
        case CU_JIT_THREADS_PER_BLOCK:  // an upper bound that the compiler may lower
        case CU_JIT_GLOBAL_SYMBOL_COUNT:
          break;
        case CU_JIT_GLOBAL_SYMBOL_NAMES:
        case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
        case CU_JIT_REFERENCED_KERNEL_NAMES:
        case CU_JIT_REFERENCED_KERNEL_COUNT:
        case CU_JIT_REFERENCED_VARIABLE_NAMES:
        case CU_JIT_REFERENCED_VARIABLE_COUNT:
          if (values[i] != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
          break;
        default:
          plain.push_back({static_cast<uint32_t>(names[i]), 0, reinterpret_cast<uintptr_t>(values[i])});
      }
    }
    for (int i = 0; i < 2; ++i) {
      if (log[i] == nullptr) log_bytes[i] = 0;
    }
    return plain.size() <= kMaxJitOptions ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  }
  void Return(Reader& reply) {
    for (int i = 0; i < 2; ++i) {
      const auto bytes = reply.Get<uint32_t>();
      const std::byte* text = reply.Take(bytes);
      if (text == nullptr || log[i] == nullptr || log_bytes[i] == 0) continue;
      const uint32_t kept = std::min(bytes, log_bytes[i] - 1);
      std::memcpy(log[i], text, kept);
      log[i][kept] = '\0';
      if (log_size[i] != nullptr) *log_size[i] = reinterpret_cast<void*>(static_cast<uintptr_t>(kept));
    }
    if (wall_time != nullptr) *wall_time = 0;
  }
};

CUresult SendBlob(ChannelLease& lease, const Image& image) {
  Writer begin = lease.Begin();
  begin.Put(BlobBody{image.wire_bytes()});
  CUresult result = lease.Send(Op::kBeginBlob, begin);
  Reader none;
  if (result == CUDA_SUCCESS) result = lease.Await(&none);
  const uint32_t index = lease.session().AcquireBulk();
  const Bulk bulk = lease.session().bulk(index);
  for (uint64_t at = 0; at < image.wire_bytes() && result == CUDA_SUCCESS;) {
    const auto piece = static_cast<uint32_t>(std::min<uint64_t>(kBulkBytes, image.wire_bytes() - at));
    image.Copy(at, {bulk.bytes, piece});
    result = lease.Send(Op::kAppendBlob, lease.Begin(), kBulkToHost, bulk.offset, piece);
    if (result == CUDA_SUCCESS) result = lease.Await(&none);
    at += piece;
  }
  lease.session().ReleaseBulk(index);
  return result;
}

template <class T>
CUresult Load(Op op, T* handle, const Image& image, Options* options) {
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  if (const CUresult result = SendBlob(lease, image)) return result;
  Object* object = NewObject(kKindOf<T>, op == Op::cuLibraryLoadData ? nullptr : CurrentContextObject());
  if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  Writer w = lease.Begin();
  w.Put(LoadBody{WireOf(object), static_cast<uint32_t>(options->plain.size()), options->log_bytes[0],
                 options->log_bytes[1], 0});
  w.PutBytes(options->plain.data(), options->plain.size() * sizeof(JitOption));
  CUresult result = lease.Send(op, w);
  Reader reply;
  if (result == CUDA_SUCCESS) {
    result = lease.Await(&reply);
    options->Return(reply);
  }
  if (result != CUDA_SUCCESS) {
    FreeObject(object);
    return result;
  }
  *handle = reinterpret_cast<T>(object);
  return CUDA_SUCCESS;
}

CUresult LoadModule(CUmodule* module, const void* bytes, unsigned count, const CUjit_option* names,
                    void** values) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (module == nullptr || bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  Image image;
  Options options;
  if (const CUresult result = image.Find(bytes, false)) return result;
  if (const CUresult result = options.Take(count, names, values)) return result;
  return Load(Op::cuModuleLoadDataEx, module, image, &options);
}

bool ReadFile(const char* path, std::vector<char>* bytes) {
  FILE* file = fopen(path, "rbe");
  if (file == nullptr) return false;
  char piece[1 << 16];
  for (size_t got; (got = fread(piece, 1, sizeof piece, file)) != 0;)
    bytes->insert(bytes->end(), piece, piece + got);
  fclose(file);
  bytes->resize(bytes->size() + 64);  // PTX text ends in a zero
  return true;
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
  std::vector<char> bytes;
  if (!ReadFile(path, &bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
  return LoadModule(module, bytes.data(), 0, nullptr, nullptr);
}

CUresult cuModuleUnload(CUmodule module) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(module);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const WireHandle wire = WireOf(object);
  const CUresult result = Wait<Op::cuModuleUnload>(module);
  if (result == CUDA_SUCCESS) ForgetFunctionsOf(wire);
  return result;
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const char* wanted = getenv("CUDA_MODULE_LOADING");
  *mode =
      wanted != nullptr && strcmp(wanted, "EAGER") == 0 ? CU_MODULE_EAGER_LOADING : CU_MODULE_LAZY_LOADING;
  return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction* functions, unsigned int count, CUmodule module) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (functions == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(module);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return EnumerateFunctions(Op::cuModuleEnumerateFunctions, functions, count, WireOf(object));
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* bytes, CUjit_option* names, void** values,
                           unsigned int count, CUlibraryOption*, void**, unsigned int) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (library == nullptr || bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Image image;
  Options options;
  if (const CUresult result = image.Find(bytes, true)) return result;
  if (const CUresult result = options.Take(count, names, values)) return result;
  return Load(Op::cuLibraryLoadData, library, image, &options);
}

CUresult cuLibraryLoadFromFile(CUlibrary* library, const char* path, CUjit_option* names, void** values,
                               unsigned int count, CUlibraryOption* library_names, void** library_values,
                               unsigned int library_count) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (library == nullptr || path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::vector<char> bytes;
  if (!ReadFile(path, &bytes)) return CUDA_ERROR_FILE_NOT_FOUND;
  return cuLibraryLoadData(library, bytes.data(), names, values, count, library_names, library_values,
                           library_count);
}

CUresult cuLibraryUnload(CUlibrary library) {
  if (const CUresult result = InitialisedOrError()) return result;
  Object* object = Find(library);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const WireHandle wire = WireOf(object);
  PendingCall call(Op::cuLibraryUnload);
  call.writer().Put(wire);
  const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  if (result != CUDA_SUCCESS) return result;
  FreeObject(object);
  ForgetFunctionsOf(wire);
  return CUDA_SUCCESS;
}

CUresult cuLibraryEnumerateKernels(CUkernel* kernels, unsigned int count, CUlibrary library) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (kernels == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const Object* object = Find(library);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return EnumerateFunctions(Op::cuLibraryEnumerateKernels, reinterpret_cast<CUfunction*>(kernels), count,
                            WireOf(object));
}

}  // extern "C"
