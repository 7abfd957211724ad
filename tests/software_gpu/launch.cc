// SPDX-License-Identifier: Apache-2.0
// Launches: configuration checks as NVIDIA's driver answers them, parameter capture, execution.
#include <climits>
#include <cstdio>
#include <cstring>

#include "tests/software_gpu/config.h"
#include "tests/software_gpu/device_access.h"
#include "tests/software_gpu/event.h"
#include "tests/software_gpu/faults.h"
#include "tests/software_gpu/graph.h"
#include "tests/software_gpu/kernel_node.h"
#include "tests/software_gpu/module.h"
#include "tests/software_gpu/occupancy.h"
#include "tests/software_gpu/stream.h"
#include "tests/software_gpu/stream_handles.h"

namespace causeway::software_gpu {
namespace {

struct LaunchAttributes {
  bool cooperative = false;
  EventRef event;  // recorded behind the kernel
};

CUresult CheckConfiguration(const Function& function, const Launch& launch) {
  const Dim3& grid = launch.grid;
  const Dim3& block = launch.block;
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || block.x == 0 || block.y == 0 || block.z == 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (grid.x > INT_MAX || grid.y > 65535 || grid.z > 65535) return CUDA_ERROR_INVALID_VALUE;
  if (block.x > 1024 || block.y > 1024 || block.z > 64) return CUDA_ERROR_INVALID_VALUE;
  uint64_t threads = uint64_t{block.x} * block.y * block.z;
  if (threads > kMaxThreadsPerBlock || threads > function.kernel->max_threads_per_block) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (launch.dynamic_shared_bytes >
      static_cast<unsigned>(function.settings.max_dynamic_shared_bytes.load())) {
    return launch.cooperative ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE : CUDA_ERROR_INVALID_VALUE;
  }
  int resident = BlocksPerMultiprocessor(function, static_cast<int>(threads), launch.dynamic_shared_bytes);
  if (resident == 0) return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (launch.cooperative && blocks > static_cast<uint64_t>(resident) * kMultiprocessors) {
    return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
  }
  return CUDA_SUCCESS;
}

CUresult CopyParameters(const Kernel& kernel, void** pointers, void** extra,
                        std::vector<std::byte>* parameters) {
  parameters->reserve(1);  // never a null pointer, also for kernels without parameters
  parameters->assign(kernel.parameter_bytes, std::byte{0});
  if (pointers != nullptr && extra != nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (pointers != nullptr) {
    for (size_t i = 0; i < kernel.parameters.size(); ++i) {
      if (pointers[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
      std::memcpy(parameters->data() + kernel.parameters[i].offset, pointers[i], kernel.parameters[i].bytes);
    }
    return CUDA_SUCCESS;
  }
  if (extra == nullptr) return kernel.parameters.empty() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
  const void* buffer = nullptr;
  size_t bytes = 0;
  for (void** item = extra; *item != CU_LAUNCH_PARAM_END; item += 2) {
    if (*item == CU_LAUNCH_PARAM_BUFFER_POINTER) {
      buffer = item[1];
    } else if (*item == CU_LAUNCH_PARAM_BUFFER_SIZE && item[1] != nullptr) {
      bytes = *static_cast<size_t*>(item[1]);
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  if (bytes < kernel.parameter_bytes || (buffer == nullptr && bytes != 0)) return CUDA_ERROR_INVALID_VALUE;
  if (kernel.parameter_bytes != 0) std::memcpy(parameters->data(), buffer, kernel.parameter_bytes);
  return CUDA_SUCCESS;
}

CUresult ReadAttributes(const CUlaunchConfig& config, LaunchAttributes* attributes) {
  if (config.numAttrs != 0 && config.attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config.attrs[i];
    switch (attribute.id) {
      case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
        attributes->cooperative = attribute.value.cooperative != 0;
        break;
      case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
        if (attribute.value.clusterDim.x * attribute.value.clusterDim.y * attribute.value.clusterDim.z > 1) {
          std::fprintf(stderr, "software GPU: thread block clusters are not supported.\n");
          return CUDA_ERROR_NOT_SUPPORTED;
        }
        break;
      case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
        attributes->event = FindEvent(attribute.id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT
                                          ? attribute.value.programmaticEvent.event
                                          : attribute.value.launchCompletionEvent.event);
        if (attributes->event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        break;
      case CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        return CUDA_ERROR_NOT_SUPPORTED;
      default:
        // Hints: they change speed, not results.
        if (attribute.id < 0 || attribute.id > CU_LAUNCH_ATTRIBUTE_NVLINK_UTIL_CENTRIC_SCHEDULING) {
          return CUDA_ERROR_INVALID_VALUE;
        }
        break;
    }
  }
  return CUDA_SUCCESS;
}

void RunKernel(const ModuleRef& module, const Kernel& kernel, const Launch& launch) {
  std::unique_ptr<AddressSpace> memory = MakeAddressSpace();
  Fault fault;
  {
    const ScopedDeviceAccess access;
    fault = module->program->Run(kernel, launch, *memory, PrintFromDevice);
  }
  if (fault.cuda_error != 0) {
    RaiseFault(static_cast<CUresult>(fault.cuda_error), "kernel " + kernel.name + ": " + fault.message);
  }
}

CUresult LaunchKernel(const ContextRef& context, CUfunction hfunc, const Launch& launch, CUstream hStream,
                      void** pointers, void** extra, const EventRef& event) {
  StreamRef stream = FindStream(context, hStream);
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Operation operation;
  CUresult result = MakeKernelOperation(context, hfunc, launch, pointers, extra, &operation);
  if (result != CUDA_SUCCESS) return result;
  CountLaunch();
  result = Submit(stream, std::move(operation));
  if (result == CUDA_SUCCESS && event != nullptr && !RecordInCapture(stream, *event, &result))
    RecordEvent(stream, event);
  return result;
}

}  // namespace

CUresult MakeKernelOperation(const ContextRef& context, CUfunction hfunc, Launch launch, void** pointers,
                             void** extra, Operation* operation) {
  FunctionRef function;
  CUresult result = ResolveFunction(context, hfunc, &function);
  if (result != CUDA_SUCCESS) return result;
  ModuleRef module = function->module.lock();
  if (module == nullptr || module->context.lock() != context) return CUDA_ERROR_INVALID_HANDLE;
  result = CheckConfiguration(*function, launch);
  if (result != CUDA_SUCCESS) return result;
  auto node = std::make_shared<KernelNode>();
  result = CopyParameters(*function->kernel, pointers, extra, &node->parameters);
  if (result != CUDA_SUCCESS) return result;
  for (const Parameter& parameter : function->kernel->parameters) {
    node->pointers.push_back(node->parameters.data() + parameter.offset);
  }
  node->module = std::move(module);
  node->function = std::move(function);
  node->launch = launch;
  node->launch.most_turns = GetConfig().launch_turns;
  node->launch.parameters = node->parameters.data();
  operation->type = CU_GRAPH_NODE_TYPE_KERNEL;
  operation->run = [node] { RunKernel(node->module, *node->function->kernel, node->launch); };
  operation->parameters = std::move(node);
  return CUDA_SUCCESS;
}

}  // namespace causeway::software_gpu

using namespace causeway::software_gpu;

extern "C" {

CUresult cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                        unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                        unsigned int sharedMemBytes, CUstream hStream, void** kernelParams, void** extra) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    Launch launch{
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, nullptr, false};
    return LaunchKernel(context, f, launch, hStream, kernelParams, extra, nullptr);
  });
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY,
                                   unsigned int gridDimZ, unsigned int blockDimX, unsigned int blockDimY,
                                   unsigned int blockDimZ, unsigned int sharedMemBytes, CUstream hStream,
                                   void** kernelParams) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) {
    Launch launch{
        {gridDimX, gridDimY, gridDimZ}, {blockDimX, blockDimY, blockDimZ}, sharedMemBytes, nullptr, true};
    return LaunchKernel(context, f, launch, hStream, kernelParams, nullptr, nullptr);
  });
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** kernelParams, void** extra) {
  const CUstream stream = config != nullptr ? config->hStream : nullptr;
  return InContextOfStream(__func__, stream, [&](const ContextRef& context) -> CUresult {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    LaunchAttributes attributes;
    if (CUresult result = ReadAttributes(*config, &attributes); result != CUDA_SUCCESS) return result;
    Launch launch{{config->gridDimX, config->gridDimY, config->gridDimZ},
                  {config->blockDimX, config->blockDimY, config->blockDimZ},
                  config->sharedMemBytes,
                  nullptr,
                  attributes.cooperative};
    return LaunchKernel(context, f, launch, config->hStream, kernelParams, extra, attributes.event);
  });
}

CUresult cuLaunchHostFunc(CUstream hStream, CUhostFn fn, void* userData) {
  return InContextOfStream(__func__, hStream, [&](const ContextRef& context) -> CUresult {
    StreamRef stream = FindStream(context, hStream);
    if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Operation operation;
    operation.type = CU_GRAPH_NODE_TYPE_HOST;
    operation.run = [fn, userData] {
      ScopedHostFunction scope;
      fn(userData);
    };
    auto parameters = std::make_shared<CUDA_HOST_NODE_PARAMS>();
    parameters->fn = fn;
    parameters->userData = userData;
    operation.parameters = std::move(parameters);
    return Submit(stream, std::move(operation));
  });
}

}  // extern "C"
