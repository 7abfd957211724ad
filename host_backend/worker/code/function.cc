// SPDX-License-Identifier: Apache-2.0
#include "host_backend/worker/code/function.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "host_backend/worker/driver/logs.h"
#include "host_backend/worker/session/blob.h"
#include "host_backend/worker/session/session.h"
#include "ivshmem_ring/messages/graph_messages.h"

namespace causeway::host {

bool ParametersOf(CUfunction function, CUkernel kernel, std::vector<ParameterLayout>* layout) {
  const OwnCalls own_calls;
  const Driver& driver = TheDriver();
  auto ask = [&](size_t index, size_t* offset, size_t* bytes) {
    if (function != nullptr && driver.cuFuncGetParamInfo(function, index, offset, bytes) == CUDA_SUCCESS) {
      return true;
    }
    const auto either = kernel != nullptr ? kernel : reinterpret_cast<CUkernel>(function);
    return driver.cuKernelGetParamInfo(either, index, offset, bytes) == CUDA_SUCCESS;
  };
  layout->clear();
  if (function == nullptr && kernel == nullptr) return false;
  size_t offset = 0, bytes = 0;
  while (ask(layout->size(), &offset, &bytes)) {
    if (layout->size() == kMaxNodeParameters) return false;
    layout->push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
  }
  return !layout->empty();
}

namespace {

// What the guest keeps of a function: attributes, and the parameter layout that launches are packed by.
void Describe(CUfunction function, bool is_kernel, uint32_t first, Writer& out) {
  const OwnCalls own_calls;
  const Driver& driver = TheDriver();
  FunctionDescription description{};
  CUdevice device = 0;
  if (is_kernel) driver.cuCtxGetDevice(&device);
  for (uint32_t i = 0; i < kFunctionAttributes; ++i) {
    const auto attribute = static_cast<CUfunction_attribute>(i);
    description.attribute_result[i] = static_cast<uint16_t>(
        is_kernel ? driver.cuKernelGetAttribute(&description.attribute[i], attribute,
                                                reinterpret_cast<CUkernel>(function), device)
                  : driver.cuFuncGetAttribute(&description.attribute[i], attribute, function));
  }
  std::vector<ParameterLayout> layouts;
  constexpr size_t kMost = (kMaxChannelRecordBytes - 1024) / sizeof(ParameterLayout);
  for (size_t i = 0, offset = 0, bytes = 0; i < kMaxLaunchParameterBytes; ++i) {
    const CUresult result =
        is_kernel ? driver.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function), i, &offset, &bytes)
                  : driver.cuFuncGetParamInfo(function, i, &offset, &bytes);
    if (result != CUDA_SUCCESS) break;
    if (i >= first && layouts.size() < kMost)
      layouts.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
    description.parameter_bytes =
        std::max(description.parameter_bytes, static_cast<uint32_t>(offset + bytes));
    description.parameter_count = static_cast<uint32_t>(i + 1);
  }
  description.first_parameter = first;
  description.here = static_cast<uint32_t>(layouts.size());
  out.Put(description);
  out.PutBytes(layouts.data(), layouts.size() * sizeof(ParameterLayout));
}

CUresult ReplyFunction(Session& session, Request& request, WireHandle fresh, CUfunction function,
                       bool is_kernel) {
  const HandleKind kind = is_kernel ? HandleKind::kKernel : HandleKind::kFunction;
  request.out.Put(session.objects().BindOrKnown(kind, fresh, function, request.out));
  Describe(function, is_kernel, 0, request.out);
  return request.out.error();
}

// The name that a look-up came with. False: there is none.
bool TakeName(Session& session, Request& request, const GetFunctionBody& body, std::string* name) {
  if (!request.in.ok() || body.name_bytes == 0 || request.channel >= kChannelCount) return false;
  if (body.name_bytes <= kMaxInlineNameBytes) {
    const auto* text = reinterpret_cast<const char*>(request.in.Take(body.name_bytes));
    if (text != nullptr) name->assign(text, body.name_bytes - 1);
    return text != nullptr;
  }
  uint64_t bytes = 0;
  const auto blob = session.part<Blobs>().Take(request, &bytes);
  if (bytes == body.name_bytes) name->assign(reinterpret_cast<const char*>(blob->data()), bytes - 1);
  return bytes == body.name_bytes;
}

template <class Owner, class Found>
CUresult LookUp(Session& session, Request& request, CUresult (*get)(Found*, Owner, const char*)) {
  const auto body = request.in.Get<GetFunctionBody>();
  auto owner = session.objects().ToDriver<Owner>(body.owner, request.in);
  std::string name;
  if (!TakeName(session, request, body, &name))
    return request.in.ok() ? CUDA_ERROR_INVALID_VALUE : request.in.error();
  Found found = nullptr;
  if (const CUresult result = get(&found, owner, name.c_str())) return result;
  return ReplyFunction(session, request, body.fresh, reinterpret_cast<CUfunction>(found),
                       std::is_same_v<Found, CUkernel>);
}

}  // namespace

CUresult Serve_cuModuleGetFunction(Session& session, Request& request) {
  return LookUp(session, request, TheDriver().cuModuleGetFunction);
}

CUresult Serve_cuLibraryGetKernel(Session& session, Request& request) {
  return LookUp(session, request, TheDriver().cuLibraryGetKernel);
}

CUresult Serve_cuKernelGetFunction(Session& session, Request& request) {
  const auto body = request.in.Get<GetFunctionBody>();
  auto kernel =
      static_cast<CUkernel>(session.objects().ToDriver(HandleKind::kKernel, body.owner, request.in));
  if (!request.in.ok()) return request.in.error();
  CUfunction function = nullptr;
  if (const CUresult result = TheDriver().cuKernelGetFunction(&function, kernel)) return result;
  return ReplyFunction(session, request, body.fresh, function, false);
}

CUresult Serve_kDescribeFunction(Session& session, Request& request) {
  const auto body = request.in.Get<DescribeFunctionBody>();
  const HandleKind kind = body.is_kernel != 0 ? HandleKind::kKernel : HandleKind::kFunction;
  auto function = static_cast<CUfunction>(session.objects().ToDriver(kind, body.function, request.in));
  if (!request.in.ok() || function == nullptr || request.channel >= kChannelCount)
    return CUDA_ERROR_INVALID_HANDLE;
  const char* name = "";
  const Driver& driver = TheDriver();
  const CUresult result = body.is_kernel != 0
                              ? driver.cuKernelGetName(&name, reinterpret_cast<CUkernel>(function))
                              : driver.cuFuncGetName(&name, function);
  if (result != CUDA_SUCCESS) return result;
  request.out.Put(body.function);
  Describe(function, body.is_kernel != 0, body.first_parameter, request.out);
  const uint64_t name_bytes = std::strlen(name);
  request.out.Put(name_bytes);
  if (name_bytes <= kMaxInlineNameBytes) {
    request.out.PutBytes(name, name_bytes);
  } else {
    const auto* from = reinterpret_cast<const std::byte*>(name);
    session.part<Blobs>().left(request.channel).assign(from, from + name_bytes);
  }
  return request.out.error();
}

namespace {

// Asks for all, hands on a page of them.
template <class Owner, class T>
CUresult Enumerate(Session& session, Request& request, HandleKind kind, HandleKind found_kind,
                   CUresult (*enumerate)(T*, unsigned, Owner)) {
  const auto body = request.in.Get<EnumerateBody>();
  auto owner = static_cast<Owner>(session.objects().ToDriver(kind, body.owner, request.in));
  if (!request.in.ok()) return request.in.error();
  if (body.count > kMaxEnumerated || body.first > body.count || body.here > body.count - body.first ||
      body.here != request.in.left() / sizeof(WireHandle)) {
    return session.Breach("a list of functions is asked for in pieces that make no sense");
  }
  std::vector<T> found(body.count);
  if (const CUresult result = enumerate(found.data(), body.count, owner)) return result;
  for (uint32_t i = 0; i < body.here; ++i) {
    const auto fresh = request.in.Get<WireHandle>();
    request.out.Put(session.objects().BindOrKnown(found_kind, fresh, found[body.first + i], request.out));
  }
  return request.out.error();
}

}  // namespace

CUresult Serve_cuModuleEnumerateFunctions(Session& session, Request& request) {
  return Enumerate(session, request, HandleKind::kModule, HandleKind::kFunction,
                   TheDriver().cuModuleEnumerateFunctions);
}

CUresult Serve_cuLibraryEnumerateKernels(Session& session, Request& request) {
  return Enumerate(session, request, HandleKind::kLibrary, HandleKind::kKernel,
                   TheDriver().cuLibraryEnumerateKernels);
}

}  // namespace causeway::host
