// SPDX-License-Identifier: Apache-2.0
// Kernel launches: what the driver would refuse at once is refused here, the rest is posted with its
// parameters packed in the kernel's own layout.
#include <cstdlib>
#include <cstring>

#include "guest_lib/function.h"
#include "guest_lib/remote.h"

namespace causeway::guest {
namespace {

struct Shape3 {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int shared_bytes;
};

CUresult CheckConfiguration(const Function& function, const Shape3& shape) {
  const DeviceDescription& device =
      Session::Get()->devices()[static_cast<size_t>(ContextOf(CurrentContextObject()).device)];
  constexpr CUdevice_attribute kBlock[] = {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X,
                                           CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y,
                                           CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z};
  constexpr CUdevice_attribute kGrid[] = {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X,
                                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y,
                                          CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z};
  uint64_t threads = 1;
  for (int i = 0; i < 3; ++i) {
    if (shape.block[i] == 0 || shape.block[i] > static_cast<unsigned>(device.attribute[kBlock[i]])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (shape.grid[i] == 0 || shape.grid[i] > static_cast<unsigned>(device.attribute[kGrid[i]])) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    threads *= shape.block[i];
  }
  if (threads > static_cast<unsigned>(device.attribute[CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK])) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int most = function.attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
  if (most > 0 && threads > static_cast<unsigned>(most)) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  const int shared = function.attribute[CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES];
  if (shape.shared_bytes > static_cast<unsigned>(shared > 0 ? shared : 0)) return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

// Where the parameters are: an array of pointers by the kernel's layout, or one packed buffer.
struct Parameters {
  void** pointers = nullptr;
  const void* buffer = nullptr;
  size_t buffer_bytes = 0;

  CUresult Take(void** kernel_params, void** extra) {
    if (kernel_params != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
    pointers = kernel_params;
    for (int i = 0; extra != nullptr && extra[i] != CU_LAUNCH_PARAM_END; i += 2) {
      if (extra[i] == CU_LAUNCH_PARAM_BUFFER_POINTER) {
        buffer = extra[i + 1];
      } else if (extra[i] == CU_LAUNCH_PARAM_BUFFER_SIZE) {
        buffer_bytes = *static_cast<const size_t*>(extra[i + 1]);
      } else {
        return CUDA_ERROR_INVALID_VALUE;
      }
    }
    return CUDA_SUCCESS;
  }
  CUresult SizeFor(const Function& function, uint32_t* bytes) const {
    if (buffer != nullptr) {
      if (buffer_bytes > kMaxLaunchParameterBytes) return CUDA_ERROR_INVALID_VALUE;
      *bytes = static_cast<uint32_t>(buffer_bytes);
      return CUDA_SUCCESS;
    }
    if (!function.layout.empty() && pointers == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *bytes = function.parameter_bytes;
    return CUDA_SUCCESS;
  }
  void Pack(const Function& function, std::byte* to, uint32_t bytes) const {
    if (buffer != nullptr) {
      std::memcpy(to, buffer, bytes);
      return;
    }
    std::memset(to, 0, bytes);  // gaps between parameters
    for (size_t i = 0; i < function.layout.size(); ++i) {
      std::memcpy(to + function.layout[i].offset, pointers[i], function.layout[i].bytes);
    }
  }
};

// Attributes that name events carry the event's wire handle instead.
CUresult PackAttribute(CUlaunchAttribute* attribute) {
  auto pack = [](CUevent* event) {
    Writer check{{}};
    const WireHandle wire = Remote{}.ToWire(*event, check);
    std::memcpy(event, &wire, sizeof wire);
    return check.error();
  };
  switch (attribute->id) {
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      return pack(&attribute->value.programmaticEvent.event);
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      return pack(&attribute->value.launchCompletionEvent.event);
    case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
      return CUDA_ERROR_NOT_SUPPORTED;
    default:
      return CUDA_SUCCESS;
  }
}

bool IsLaunchBlocking() {
  static const bool blocking = [] {
    const char* value = getenv("CUDA_LAUNCH_BLOCKING");
    return value != nullptr && atoi(value) != 0;
  }();
  return blocking;
}

CUresult Launch(CUfunction handle, const Shape3& shape, CUstream stream, void** kernel_params, void** extra,
                const CUlaunchAttribute* attributes, unsigned attribute_count, bool cooperative) {
  if (const CUresult result = InitialisedOrError()) return result;
  const Object* object = Find(handle);
  if (object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (CurrentContextObject() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const Function& function = *static_cast<const Function*>(object->detail);
  if (CheckConfiguration(function, shape) != CUDA_SUCCESS) {
    RefreshAttributes(handle);
    if (const CUresult result = CheckConfiguration(function, shape)) return result;
  }
  if (attribute_count > kMaxLaunchAttributes) return CUDA_ERROR_INVALID_VALUE;
  Parameters parameters;
  uint32_t parameter_bytes = 0;
  if (const CUresult result = parameters.Take(kernel_params, extra)) return result;
  if (const CUresult result = parameters.SizeFor(function, &parameter_bytes)) return result;

  Writer check{{}};
  const LaunchBody body{WireOf(object),
                        Remote{}.ToWire(stream, check),
                        {shape.grid[0], shape.grid[1], shape.grid[2]},
                        {shape.block[0], shape.block[1], shape.block[2]},
                        shape.shared_bytes,
                        parameter_bytes,
                        attribute_count,
                        cooperative ? 1u : 0u};
  if (!check.ok()) return check.error();
  CUlaunchAttribute packed[kMaxLaunchAttributes];
  for (unsigned i = 0; i < attribute_count; ++i) {
    packed[i] = attributes[i];
    if (const CUresult result = PackAttribute(&packed[i])) return result;
  }
  PendingPost post(Op::cuLaunchKernel,
                   sizeof body + attribute_count * sizeof(CUlaunchAttribute) + parameter_bytes);
  Writer& w = post.writer();
  w.Put(body);
  w.PutBytes(packed, attribute_count * sizeof(CUlaunchAttribute));
  if (std::byte* space = w.Reserve(parameter_bytes)) parameters.Pack(function, space, parameter_bytes);
  const CUresult result = w.ok() ? post.Finish() : w.error();
  return result == CUDA_SUCCESS && IsLaunchBlocking() ? cuStreamSynchronize(stream) : result;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway::guest;

extern "C" {

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void** parameters, void** extra) {
  return Launch(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}, stream,
                parameters, extra, nullptr, 0, false);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void** parameters) {
  const Shape3 shape{{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
  if (const CUresult result = CheckResidency(function, shape.grid, shape.block, shared_bytes)) return result;
  return Launch(function, shape, stream, parameters, nullptr, nullptr, 0, true);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  if (config == nullptr || (config->attrs == nullptr && config->numAttrs != 0))
    return CUDA_ERROR_INVALID_VALUE;
  const Shape3 shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                     {config->blockDimX, config->blockDimY, config->blockDimZ},
                     config->sharedMemBytes};
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    if (config->attrs[i].id != CU_LAUNCH_ATTRIBUTE_COOPERATIVE || config->attrs[i].value.cooperative == 0)
      continue;
    if (const CUresult result = CheckResidency(function, shape.grid, shape.block, shape.shared_bytes))
      return result;
  }
  return Launch(function, shape, config->hStream, parameters, extra, config->attrs, config->numAttrs, false);
}

}  // extern "C"
