// SPDX-License-Identifier: Apache-2.0
// Device resources and what green contexts are made of. The driver's CUdevResource never leaves the worker:
// it holds words that the driver trusts when they come back.
#include <algorithm>
#include <cstring>

#include "host_backend/worker/device/device_resources.h"
#include "host_backend/worker/memory/sharing.h"
#include "ivshmem_ring/protocol/known_values.h"

namespace causeway::host {
namespace {

static_assert(sizeof(DevResourceReply::sm) == sizeof(CUdevResource) - offsetof(CUdevResource, sm));

bool PutResource(Session& session, Request& request, const CUdevResource& resource) {
  DevResourceReply reply{};
  if (!session.part<DeviceResources>().Keep(resource, &reply.number)) return false;
  reply.type = resource.type;
  // The numbers that a program can read stand first; what the driver keeps behind them stays here.
  constexpr size_t kVisibleBytes = 4 * sizeof(uint32_t);
  static_assert(kVisibleBytes >= sizeof(CUdevSmResource) && kVisibleBytes <= sizeof reply.sm);
  std::memcpy(reply.sm, &resource.sm, kVisibleBytes);
  request.out.Put(reply);
  return request.out.ok();
}

}  // namespace

bool DeviceResources::Keep(const CUdevResource& resource, uint64_t* number) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(kept_.begin(), kept_.end(), [&](const CUdevResource& other) {
    return std::memcmp(&other, &resource, sizeof resource) == 0;
  });
  *number = static_cast<uint64_t>(known - kept_.begin()) + 1;
  if (known != kept_.end()) return true;
  if (kept_.size() >= kMax) return false;
  kept_.push_back(resource);
  return true;
}

bool DeviceResources::Find(uint64_t number, CUdevResource* resource) const {
  const std::lock_guard lock(mutex_);
  if (number == 0 || number > kept_.size()) return false;
  *resource = kept_[number - 1];
  return true;
}

namespace {

template <class Get>
CUresult ServeGet(Session& session, Request& request, Get get) {
  const auto body = request.in.Get<GetDevResourceBody>();
  if (!request.in.ok()) return request.in.error();
  CUdevResourceType type;
  if (const CUresult result = TakeKnown(body.type, &type)) return result;
  CUdevResource resource{};
  if (const CUresult result = get(body, &resource, type)) return result;
  return PutResource(session, request, resource) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

template <class Context>
CUresult ServeGetOf(Session& session, Request& request,
                    CUresult (*get)(Context, CUdevResource*, CUdevResourceType)) {
  return ServeGet(session, request,
                  [&](const GetDevResourceBody& body, CUdevResource* resource, CUdevResourceType type) {
                    auto* context = session.objects().ToDriver<Context>(body.object, request.in);
                    return request.in.ok() ? get(context, resource, type) : request.in.error();
                  });
}

}  // namespace

CUresult Serve_cuDeviceGetDevResource(Session& session, Request& request) {
  return ServeGet(session, request,
                  [&](const GetDevResourceBody& body, CUdevResource* resource, CUdevResourceType type) {
                    return TheDriver().cuDeviceGetDevResource(body.device, resource, type);
                  });
}

CUresult Serve_cuCtxGetDevResource(Session& session, Request& request) {
  return ServeGetOf<CUcontext>(session, request, TheDriver().cuCtxGetDevResource);
}

CUresult Serve_cuGreenCtxGetDevResource(Session& session, Request& request) {
  return ServeGetOf<CUgreenCtx>(session, request, TheDriver().cuGreenCtxGetDevResource);
}

CUresult Serve_cuDevSmResourceSplitByCount(Session& session, Request& request) {
  const auto body = request.in.Get<SplitResourceBody>();
  if (!request.in.ok()) return request.in.error();
  CUdevResource input{}, rest{};
  if (!session.part<DeviceResources>().Find(body.input, &input) ||
      (body.wants_groups != 0 && body.groups > kMaxResourceGroups))
    return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUdevResource> groups(body.wants_groups != 0 ? std::max(body.groups, 1u) : 0);
  unsigned count = body.groups;
  const CUresult result = TheDriver().cuDevSmResourceSplitByCount(
      body.wants_groups != 0 ? groups.data() : nullptr, &count, &input,
      body.wants_rest != 0 ? &rest : nullptr, body.flags & kSplitFlags, body.minimum);
  if (result != CUDA_SUCCESS) return result;
  request.out.Put(static_cast<uint32_t>(count));
  for (size_t i = 0; i < groups.size() && i < count; ++i) {
    if (!PutResource(session, request, groups[i])) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (body.wants_rest != 0 && !PutResource(session, request, rest)) return CUDA_ERROR_OUT_OF_MEMORY;
  return request.out.error();
}

CUresult Serve_cuDevResourceGenerateDesc(Session& session, Request& request) {
  const auto body = request.in.Get<GenerateDescriptionBody>();
  if (!request.in.ok()) return request.in.error();
  if (body.count > kMaxResourceGroups) return CUDA_ERROR_INVALID_VALUE;
  std::vector<CUdevResource> resources(body.count);
  for (CUdevResource& resource : resources) {
    if (!session.part<DeviceResources>().Find(request.in.Get<uint64_t>(), &resource))
      return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult result = RequireNumber(HandleKind::kResourceDescriptor, body.description)) return result;
  CUdevResourceDesc description = nullptr;
  if (const CUresult result =
          TheDriver().cuDevResourceGenerateDesc(&description, resources.data(), body.count))
    return result;
  session.objects().Bind(HandleKind::kResourceDescriptor, body.description, description, request.out);
  return request.out.error();
}

}  // namespace causeway::host
