// SPDX-License-Identifier: Apache-2.0
// Functions and kernels: look-up and attributes.
#include "guest_lib/function.h"

#include <cstring>

#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

Function* DetailOf(const void* handle) {
  const Object* object = FindObject(HandleKind::kFunction, handle);
  return object != nullptr ? static_cast<Function*>(object->detail) : nullptr;
}

// The context that ends what the operation makes: none for kernels, which live as long as their library and
// outlast a reset of the device.
Object* OwningContext(Op op) {
  const bool makes_kernels = op == Op::cuLibraryGetKernel || op == Op::cuLibraryEnumerateKernels;
  return makes_kernels ? nullptr : CurrentContextObject();
}

// Asks the owner (module, library or kernel) for a function by name.
template <class Owner>
CUresult Get(Op op, Owner owner, const char* name, CUfunction* function) {
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  PendingCall call(op);
  Writer& w = call.writer();
  Remote remote;
  const WireHandle owner_wire = remote.ToWire(owner, w);
  Object* fresh = w.ok() ? NewObject(HandleKind::kFunction, OwningContext(op)) : nullptr;
  if (fresh == nullptr) return w.ok() ? CUDA_ERROR_OUT_OF_MEMORY : w.error();
  // A kernel's function ends with the kernel's library.
  const Object* kernel = FindObject(HandleKind::kFunction, owner);
  fresh->parent = kernel != nullptr ? kernel->parent : owner_wire;
  w.Put(GetFunctionBody{owner_wire, WireOf(fresh)});
  if (name != nullptr) w.PutBytes(name, std::strlen(name) + 1);
  const CUresult result = w.ok() ? call.Finish() : w.error();
  if (result != CUDA_SUCCESS) {
    FreeObject(fresh);
    return result;
  }
  const Function* known = DetailOf(owner);  // a kernel's function keeps its name
  return TakeFunction(call.reader(), fresh,
                      name != nullptr    ? name
                      : known != nullptr ? known->name
                                         : "",
                      function);
}

CUresult GetAttribute(int* value, CUfunction_attribute attribute, const void* handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (value == nullptr || attribute < 0 || static_cast<uint32_t>(attribute) >= kFunctionAttributes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const Function* function = DetailOf(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const CUresult result = function->attribute_result[attribute];
  if (result == CUDA_SUCCESS) *value = function->attribute[attribute];
  return result;
}

CUresult GetName(const char** name, const void* handle) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Function* function = DetailOf(handle);
  if (name == nullptr || function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *name = function->name.c_str();
  return CUDA_SUCCESS;
}

CUresult GetParameter(const void* handle, size_t index, size_t* offset, size_t* bytes) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Function* function = DetailOf(handle);
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (offset == nullptr || index >= function->layout.size()) return CUDA_ERROR_INVALID_VALUE;
  *offset = function->layout[index].offset;
  if (bytes != nullptr) *bytes = function->layout[index].bytes;
  return CUDA_SUCCESS;
}

}  // namespace

CUresult TakeFunction(Reader& reply, Object* fresh, const std::string& name, CUfunction* function) {
  const auto wire = reply.Get<WireHandle>();
  const auto description = reply.Get<FunctionDescription>();
  auto* detail = new Function;
  detail->name = name;
  for (uint32_t i = 0; i < kFunctionAttributes; ++i) {
    detail->attribute[i] = description.attribute[i];
    detail->attribute_result[i] = static_cast<CUresult>(description.attribute_result[i]);
  }
  detail->parameter_bytes = description.parameter_bytes;
  for (uint32_t i = 0; i < description.parameter_count && reply.ok(); ++i) {
    detail->layout.push_back(reply.Get<ParameterLayout>());
  }
  const auto handle = Remote{}.Settle(reinterpret_cast<CUfunction>(fresh), wire);
  Object* object = Find(handle);
  if (!reply.ok() || object == nullptr) {
    delete detail;
    return CUDA_ERROR_UNKNOWN;
  }
  // A handle seen before keeps its detail: another thread may be launching by it.
  if (object->detail == nullptr) {
    object->detail = detail;
  } else {
    delete detail;
  }
  *function = handle;
  return CUDA_SUCCESS;
}

namespace {

// Reads the description of a function that has a handle already.
CUresult DescribeByHandle(Object* object, bool is_kernel) {
  PendingCall call(Op::kDescribeFunction);
  call.writer().Put(DescribeFunctionBody{WireOf(object), is_kernel ? 1u : 0u, 0});
  CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
  CUfunction same = nullptr;
  if (result == CUDA_SUCCESS) result = TakeFunction(call.reader(), object, "", &same);
  if (result != CUDA_SUCCESS) return result;
  const size_t bytes = call.reader().left();
  static_cast<Function*>(object->detail)
      ->name.assign(reinterpret_cast<const char*>(call.reader().Take(bytes)), bytes);
  return CUDA_SUCCESS;
}

}  // namespace

void ForgetFunctionsOf(WireHandle owner) {
  FreeChildrenOf(owner, [](Object* object) {
    delete static_cast<Function*>(object->detail);
    object->detail = nullptr;
  });
}

void RefreshAttributes(CUfunction handle) {
  Function* function = DetailOf(handle);
  for (const CUfunction_attribute attribute :
       {CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK}) {
    int value = 0;
    if (Wait<Op::cuFuncGetAttribute>(&value, attribute, handle) == CUDA_SUCCESS)
      function->attribute[attribute] = value;
  }
}

CUresult EnumerateFunctions(Op op, CUfunction* functions, unsigned count, WireHandle owner) {
  constexpr unsigned kMost = (kMaxChannelRecordBytes - 512) / sizeof(WireHandle);
  if (count > kMost) return CUDA_ERROR_NOT_SUPPORTED;
  {
    std::vector<Object*> fresh(count);
    PendingCall call(op);
    call.writer().Put(owner);
    for (Object*& object : fresh) {
      object = NewObject(HandleKind::kFunction, OwningContext(op));
      if (object == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
      object->parent = owner;
      call.writer().Put(WireOf(object));
    }
    const CUresult result = call.writer().ok() ? call.Finish() : call.writer().error();
    for (unsigned i = 0; i < count; ++i) {
      if (result == CUDA_SUCCESS) {
        functions[i] =
            Remote{}.Settle(reinterpret_cast<CUfunction>(fresh[i]), call.reader().Get<WireHandle>());
      } else {
        FreeObject(fresh[i]);
      }
    }
    if (result != CUDA_SUCCESS) return result;
  }
  for (unsigned i = 0; i < count; ++i) {
    Object* object = Find(functions[i]);
    if (object == nullptr) return CUDA_ERROR_UNKNOWN;
    if (object->detail != nullptr) continue;
    if (const CUresult result = DescribeByHandle(object, op == Op::cuLibraryEnumerateKernels)) return result;
  }
  return CUDA_SUCCESS;
}

CUresult CheckResidency(CUfunction handle, const unsigned grid[3], const unsigned block[3],
                        unsigned shared_bytes) {
  if (Session::Get() == nullptr || DetailOf(handle) == nullptr || CurrentContextObject() == nullptr)
    return CUDA_SUCCESS;
  const uint64_t threads = uint64_t{block[0]} * block[1] * block[2];
  if (threads == 0 || threads > 1024) return CUDA_SUCCESS;  // refused by the launch itself
  int blocks = 0, processors = 0;
  if (cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, handle, static_cast<int>(threads), shared_bytes) !=
          CUDA_SUCCESS ||
      cuDeviceGetAttribute(&processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
                           ContextOf(CurrentContextObject()).device) != CUDA_SUCCESS) {
    return CUDA_SUCCESS;
  }
  const uint64_t wanted = uint64_t{grid[0]} * grid[1] * grid[2];
  return wanted > static_cast<uint64_t>(blocks) * static_cast<uint64_t>(processors)
             ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
             : CUDA_SUCCESS;
}

}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Find(module) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Get(Op::cuModuleGetFunction, module, name, function);
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (Find(library) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Get(Op::cuLibraryGetKernel, library, name, reinterpret_cast<CUfunction*>(kernel));
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (Find(kernel) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  return Get(Op::cuKernelGetFunction, kernel, nullptr, function);
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction function) {
  return GetAttribute(value, attribute, function);
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel, CUdevice device) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (!IsDevice(device)) return CUDA_ERROR_INVALID_DEVICE;
  return GetAttribute(value, attribute, kernel);
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
  const CUresult result = Wait<Op::cuFuncSetAttribute>(function, attribute, value);
  if (result == CUDA_SUCCESS) DetailOf(function)->attribute[attribute] = value;
  return result;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel, CUdevice device) {
  const CUresult result = Wait<Op::cuKernelSetAttribute>(attribute, value, kernel, device);
  if (result == CUDA_SUCCESS) DetailOf(kernel)->attribute[attribute] = value;
  return result;
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return GetName(name, function);
}
CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return GetName(name, kernel);
}
CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* bytes) {
  return GetParameter(function, index, offset, bytes);
}
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* bytes) {
  return GetParameter(kernel, index, offset, bytes);
}

}  // extern "C"
