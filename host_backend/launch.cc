// SPDX-License-Identifier: Apache-2.0
// Kernel launches. Parameters arrive in kernel layout and go to the driver as one buffer.
#include <cstring>

#include "host_backend/session.h"

namespace causeway::host {
namespace {

// Attribute values that name events carry a wire handle in the event's place.
bool ResolveAttribute(Session& session, CUlaunchAttribute* attribute, Reader& r) {
  auto resolve = [&](CUevent* event) {
    WireHandle wire;
    std::memcpy(&wire, event, sizeof wire);
    *event = static_cast<CUevent>(session.ToDriver(HandleKind::kEvent, wire, r));
  };
  if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
    resolve(&attribute->value.programmaticEvent.event);
  if (attribute->id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT) {
    resolve(&attribute->value.launchCompletionEvent.event);
  }
  if (attribute->id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE) r.Fail(CUDA_ERROR_NOT_SUPPORTED);
  return r.ok();
}

CUresult ServeLaunch(Session& session, Request& request) {
  Reader& in = request.in;
  const auto body = in.Get<LaunchBody>();
  auto function = static_cast<CUfunction>(session.ToDriver(HandleKind::kFunction, body.function, in));
  auto stream = static_cast<CUstream>(session.ToDriver(HandleKind::kStream, body.stream, in));
  if (!in.ok()) return in.error();
  if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (body.attribute_count > kMaxLaunchAttributes || body.parameter_bytes > kMaxLaunchParameterBytes) {
    session.violations.fetch_add(1);
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUlaunchAttribute attributes[kMaxLaunchAttributes];
  for (uint32_t i = 0; i < body.attribute_count; ++i) {
    attributes[i] = in.Get<CUlaunchAttribute>();
    if (!ResolveAttribute(session, &attributes[i], in)) return in.error();
  }
  const std::byte* parameters = in.Take(body.parameter_bytes);
  if (parameters == nullptr) return in.error();
  size_t parameter_bytes = body.parameter_bytes;
  void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, const_cast<std::byte*>(parameters),
                   CU_LAUNCH_PARAM_BUFFER_SIZE, &parameter_bytes, CU_LAUNCH_PARAM_END};
  void** packed = parameter_bytes != 0 ? extra : nullptr;
  if (body.attribute_count == 0 && body.cooperative == 0) {
    return TheDriver().cuLaunchKernel(function, body.grid[0], body.grid[1], body.grid[2], body.block[0],
                                      body.block[1], body.block[2], body.shared_bytes, stream, nullptr,
                                      packed);
  }
  if (body.cooperative !=
      0) {  // the driver's cooperative call takes no packed buffer: the attribute says the same
    if (body.attribute_count == kMaxLaunchAttributes) return CUDA_ERROR_INVALID_VALUE;
    attributes[body.attribute_count] = {};
    attributes[body.attribute_count].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    attributes[body.attribute_count].value.cooperative = 1;
  }
  CUlaunchConfig config{};
  config.gridDimX = body.grid[0];
  config.gridDimY = body.grid[1];
  config.gridDimZ = body.grid[2];
  config.blockDimX = body.block[0];
  config.blockDimY = body.block[1];
  config.blockDimZ = body.block[2];
  config.sharedMemBytes = body.shared_bytes;
  config.hStream = stream;
  config.attrs = attributes;
  config.numAttrs = body.attribute_count + (body.cooperative != 0 ? 1 : 0);
  return TheDriver().cuLaunchKernelEx(&config, function, nullptr, packed);
}

}  // namespace

CUresult Serve_cuLaunchKernel(Session& session, Request& request) {
  return ServeLaunch(session, request);
}
CUresult Serve_cuLaunchKernelEx(Session& session, Request& request) {
  return ServeLaunch(session, request);
}
CUresult Serve_cuLaunchCooperativeKernel(Session& session, Request& request) {
  return ServeLaunch(session, request);
}

}  // namespace causeway::host
