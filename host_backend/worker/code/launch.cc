// SPDX-License-Identifier: Apache-2.0
// Kernel launches. Parameters arrive in kernel layout and go to the driver as one buffer.
#include <algorithm>
#include <cstring>

#include "host_backend/worker/code/function.h"
#include "host_backend/worker/session/blob.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/code_messages.h"
#include "ivshmem_ring/protocol/admit.h"

namespace causeway::host {
namespace {

// Attribute values that name events carry a wire handle in the event's place. What later drivers may know is
// refused: it could hold an address (ivshmem_ring/protocol/admit.h).
bool ResolveAttribute(Session& session, CUlaunchAttribute* attribute, Reader& r) {
  auto resolve = [&](CUevent* event) {
    WireHandle wire;
    std::memcpy(&wire, event, sizeof wire);
    *event = session.objects().ToDriver<CUevent>(wire, r);
  };
  const CUresult refusal = AdmitLaunchAttribute(attribute->id, attribute->value);
  if (refusal != CUDA_SUCCESS) r.Fail(refusal);
  if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
    resolve(&attribute->value.programmaticEvent.event);
  if (attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
    resolve(&attribute->value.launchCompletionEvent.event);
  return r.ok();
}

// A launch as it arrived.
struct Launch {
  LaunchBody body;
  CUfunction function = nullptr;
  CUstream stream = nullptr;
  CUlaunchAttribute attributes[kMaxLaunchAttributes + 1];
  const std::byte* parameters = nullptr;
};

// Everything but the parameters.
[[gnu::hot]] CUresult TakeBody(Session& session, Reader& in, Launch* launch) {
  launch->body = in.Get<LaunchBody>();
  launch->function = session.objects().ToDriver<CUfunction>(launch->body.function, in);
  launch->stream = session.objects().ToDriver<CUstream>(launch->body.stream, in);
  if (!in.ok()) return in.error();
  if (launch->function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (launch->body.attribute_count > kMaxLaunchAttributes ||
      launch->body.parameter_bytes > kMaxLaunchParameterBytes) {
    return session.Breach("a launch is larger than any can be");
  }
  for (uint32_t i = 0; i < launch->body.attribute_count; ++i) {
    launch->attributes[i] = in.Get<CUlaunchAttribute>();
    if (!ResolveAttribute(session, &launch->attributes[i], in)) return in.error();
  }
  return in.error();
}

// A pointer to each parameter. False where the driver does not tell where they lie, or one lies beyond.
bool PointToParameters(const Launch& launch, std::vector<void*>* pointers) {
  const size_t given = launch.body.parameter_bytes;
  std::vector<ParameterLayout> layout;
  if (!ParametersOf(launch.function, nullptr, &layout)) return given == 0;
  for (const ParameterLayout& at : layout) {
    if (at.offset > given || at.bytes > given - at.offset) return false;
    pointers->push_back(const_cast<std::byte*>(launch.parameters) + at.offset);
  }
  return true;
}

bool IsCooperative(const Launch& launch) {
  if (launch.body.form == kCooperativeLaunch) return true;
  const auto* end = launch.attributes + launch.body.attribute_count;
  return std::any_of(launch.attributes, end, [](const CUlaunchAttribute& attribute) {
    return attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE && attribute.value.cooperative != 0;
  });
}

[[gnu::hot]] CUresult RunLaunch(Launch* launch) {
  const LaunchBody& body = launch->body;
  size_t parameter_bytes = body.parameter_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(launch->parameters),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes, CU_LAUNCH_PARAM_END};
  void** packed = parameter_bytes != 0 ? extra : nullptr;
  if (body.attribute_count == 0 && body.form != kCooperativeLaunch) {
    return TheDriver().cuLaunchKernel(launch->function, body.grid[0], body.grid[1], body.grid[2],
                                      body.block[0], body.block[1], body.block[2], body.shared_bytes,
                                      launch->stream, nullptr, packed);
  }
  // While a stream captures, the driver takes no packed buffer for a cooperative launch.
  std::vector<void*> pointers;
  const bool pointed = IsCooperative(*launch) && PointToParameters(*launch, &pointers);
  if (pointed && body.attribute_count == 0 && Has(TheDriver().cuLaunchCooperativeKernel)) {
    return TheDriver().cuLaunchCooperativeKernel(launch->function, body.grid[0], body.grid[1], body.grid[2],
                                                 body.block[0], body.block[1], body.block[2],
                                                 body.shared_bytes, launch->stream, pointers.data());
  }
  uint32_t count = body.attribute_count;
  if (body.form == kCooperativeLaunch) {
    launch->attributes[count] = {};
    launch->attributes[count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    launch->attributes[count++].value.cooperative = 1;
  }
  CUlaunchConfig config{};
  config.gridDimX = body.grid[0];
  config.gridDimY = body.grid[1];
  config.gridDimZ = body.grid[2];
  config.blockDimX = body.block[0];
  config.blockDimY = body.block[1];
  config.blockDimZ = body.block[2];
  config.sharedMemBytes = body.shared_bytes;
  config.hStream = launch->stream;
  config.attrs = launch->attributes;
  config.numAttrs = count;
  return pointed ? TheDriver().cuLaunchKernelEx(&config, launch->function, pointers.data(), nullptr)
                 : TheDriver().cuLaunchKernelEx(&config, launch->function, nullptr, packed);
}

}  // namespace

[[gnu::hot]] CUresult Serve_cuLaunchKernel(Session& session, Request& request) {
  Launch launch;
  if (const CUresult result = TakeBody(session, request.in, &launch)) return result;
  launch.parameters = request.in.Take(launch.body.parameter_bytes);
  if (launch.parameters == nullptr) return request.in.error();
  if (const CUresult result = session.objects().Prepare()) return result;
  return RunLaunch(&launch);
}

CUresult Serve_cuLaunchKernelEx(Session& session, Request& request) {
  Launch launch;
  if (const CUresult result = TakeBody(session, request.in, &launch)) return result;
  std::vector<std::byte> copied;
  if (!request.bulk.empty()) {
    if (request.bulk.size() != launch.body.parameter_bytes) return CUDA_ERROR_INVALID_VALUE;
    copied.assign(request.bulk.begin(), request.bulk.end());
    launch.parameters = copied.data();
  } else {
    launch.parameters = request.in.Take(launch.body.parameter_bytes);
    if (launch.parameters == nullptr) return request.in.error();
  }
  if (const CUresult result = session.objects().Prepare()) return result;
  const CUresult result = RunLaunch(&launch);
  for (uint32_t i = 0; result == CUDA_SUCCESS && i < launch.body.attribute_count; ++i) {
    const CUlaunchAttribute& attribute = launch.attributes[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE)
      request.out.Put(reinterpret_cast<uint64_t>(attribute.value.deviceUpdatableKernelNode.devNode));
  }
  return result != CUDA_SUCCESS ? result : request.out.error();
}

CUresult Serve_cuLaunchCooperativeKernelMultiDevice(Session& session, Request& request) {
  if (request.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes = 0;
  const auto blob = session.part<Blobs>().Take(request, &bytes);
  Reader in({blob->data(), bytes});
  const auto count = in.Get<uint32_t>();
  const auto flags = in.Get<uint32_t>();
  if (!in.ok() || count > kMaxDeviceLaunches || !OnlyFlags(flags, kMultiDeviceFlags))
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUDA_LAUNCH_PARAMS> list(count);
  std::vector<std::vector<void*>> pointers(count);
  for (uint32_t i = 0; i < count; ++i) {
    Launch launch;
    if (const CUresult result = TakeBody(session, in, &launch)) return result;
    launch.parameters = in.Take(launch.body.parameter_bytes);
    if (launch.parameters == nullptr) return in.error();
    if (!PointToParameters(launch, &pointers[i])) return CUDA_ERROR_INVALID_VALUE;
    const LaunchBody& body = launch.body;
    list[i] = {launch.function, body.grid[0],  body.grid[1],      body.grid[2],  body.block[0],
               body.block[1],   body.block[2], body.shared_bytes, launch.stream, pointers[i].data()};
  }
  if (const CUresult result = session.objects().Prepare()) return result;
  return TheDriver().cuLaunchCooperativeKernelMultiDevice(list.data(), count, flags);
}

}  // namespace causeway::host
