// SPDX-License-Identifier: Apache-2.0
// Module images, modules, libraries, functions. An image is parsed by the driver alone, from the worker's own
// copy.
#include <algorithm>
#include <cstring>

#include "host_backend/session.h"

namespace causeway::host {
namespace {

using ImageBytes = std::shared_ptr<std::vector<std::byte>>;

struct FatbinWrapper {  // driver_interface: 24 bytes, version 2 points to an array of fatbins
  uint32_t magic;
  uint32_t version;
  const void* data;
  const void* const* linked;
};

// An image with what must live as long as the library.
struct Image {
  ImageBytes bytes;
  std::vector<const void*> parts;
  FatbinWrapper wrapper;

  const void* driver_view() {
    if (parts.size() == 1) return parts[0];
    wrapper = {0x466243B1, 2, parts[0], parts.data() + 1};
    return &wrapper;
  }
};

CUresult TakeImage(Session& session, Request& request, Image* image) {
  if (request.channel >= kChannelCount) return CUDA_ERROR_INVALID_VALUE;
  image->bytes = std::make_shared<std::vector<std::byte>>(std::move(session.blob(request.channel)));
  session.blob(request.channel).clear();
  session.ReturnBlobRoom(image->bytes->size());
  // The driver may read a word past a text's end; images end in zeros.
  const uint64_t blob_bytes = image->bytes->size();
  image->bytes->resize(blob_bytes + kImageAlign);
  const std::byte* at = image->bytes->data();
  ImageHeader header;
  if (blob_bytes < sizeof header) return CUDA_ERROR_INVALID_IMAGE;
  std::memcpy(&header, at, sizeof header);
  if (header.magic != kImageMagic || header.part_count == 0 || header.part_count > kMaxImageParts ||
      blob_bytes < sizeof header + 8ull * header.part_count) {
    session.violations.fetch_add(1);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  uint64_t offset = sizeof header + 8ull * header.part_count;
  for (uint32_t i = 0; i < header.part_count; ++i) {
    uint64_t bytes;
    std::memcpy(&bytes, at + sizeof header + 8ull * i, sizeof bytes);
    offset = (offset + kImageAlign - 1) & ~(kImageAlign - 1);
    if (offset > blob_bytes || bytes > blob_bytes - offset) {
      session.violations.fetch_add(1);
      return CUDA_ERROR_INVALID_IMAGE;
    }
    image->parts.push_back(at + offset);
    offset += bytes;
  }
  if (header.part_count > 1) image->parts.push_back(nullptr);  // ends the wrapper's array
  return CUDA_SUCCESS;
}

// The compiler's logs, and the options as the driver takes them.
struct Options {
  std::vector<CUjit_option> names;
  std::vector<void*> values;
  std::vector<char> info, error;

  CUresult Take(Request& request, const LoadBody& body) {
    if (body.option_count > kMaxJitOptions || body.info_log_bytes > kMaxLogBytes ||
        body.error_log_bytes > kMaxLogBytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    for (uint32_t i = 0; i < body.option_count; ++i) {
      const auto option = request.in.Get<JitOption>();
      Add(static_cast<CUjit_option>(option.option), reinterpret_cast<void*>(option.value));
    }
    AddLog(&info, body.info_log_bytes, CU_JIT_INFO_LOG_BUFFER, CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES);
    AddLog(&error, body.error_log_bytes, CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES);
    return request.in.error();
  }
  void Reply(Writer& out) const {
    for (const auto* log : {&info, &error}) {
      const auto bytes = log->empty() ? 0u : static_cast<uint32_t>(strnlen(log->data(), log->size()));
      out.Put(bytes);
      out.PutBytes(log->data(), bytes);
    }
  }
  unsigned count() const { return static_cast<unsigned>(names.size()); }

 private:
  void Add(CUjit_option name, void* value) {
    names.push_back(name);
    values.push_back(value);
  }
  void AddLog(std::vector<char>* log, uint32_t bytes, CUjit_option buffer, CUjit_option size) {
    if (bytes == 0) return;
    log->resize(bytes);
    Add(buffer, log->data());
    Add(size, reinterpret_cast<void*>(static_cast<uint64_t>(bytes)));
  }
};

// Options whose value is a plain number; everything that points somewhere is made here, never taken from the
// guest.
bool IsPlainOption(uint32_t option) {
  switch (static_cast<CUjit_option>(option)) {
    case CU_JIT_WALL_TIME:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_INFO_LOG_BUFFER:
    case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES:
    case CU_JIT_ERROR_LOG_BUFFER:
    case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
    case CU_JIT_GLOBAL_SYMBOL_NAMES:
    case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
    case CU_JIT_GLOBAL_SYMBOL_COUNT:
    case CU_JIT_REFERENCED_KERNEL_NAMES:
    case CU_JIT_REFERENCED_KERNEL_COUNT:
    case CU_JIT_REFERENCED_VARIABLE_NAMES:
    case CU_JIT_REFERENCED_VARIABLE_COUNT:
      return false;
    default:
      return true;
  }
}

CUresult TakeLoad(Session& session, Request& request, LoadBody* body, Options* options, Image* image) {
  *body = request.in.Get<LoadBody>();
  if (!request.in.ok()) return request.in.error();
  if (const CUresult result = TakeImage(session, request, image)) return result;
  if (const CUresult result = options->Take(request, *body)) return result;
  for (uint32_t i = 0; i < body->option_count; ++i) {
    if (!IsPlainOption(options->names[i])) {
      session.violations.fetch_add(1);
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  return CUDA_SUCCESS;
}

}  // namespace

CUresult Serve_cuModuleLoadDataEx(Session& session, Request& request) {
  LoadBody body;
  Options options;
  Image image;
  if (const CUresult result = TakeLoad(session, request, &body, &options, &image)) return result;
  CUmodule module = nullptr;
  const CUresult result = TheDriver().cuModuleLoadDataEx(&module, image.driver_view(), options.count(),
                                                         options.names.data(), options.values.data());
  options.Reply(request.out);
  if (result != CUDA_SUCCESS) return result;
  session.Bind(HandleKind::kModule, body.handle, module, request.out);
  return request.out.error();
}

CUresult Serve_cuLibraryLoadData(Session& session, Request& request) {
  LoadBody body;
  Options options;
  auto image = std::make_shared<Image>();
  if (const CUresult result = TakeLoad(session, request, &body, &options, image.get())) return result;
  if (TheDriver().cuLibraryLoadData == nullptr) return CUDA_ERROR_NOT_SUPPORTED;
  // The guest may drop its image once the call returns; ours stays, so the driver need not copy it.
  CUlibraryOption preserved = CU_LIBRARY_BINARY_IS_PRESERVED;
  void* yes = reinterpret_cast<void*>(uintptr_t{1});
  CUlibrary library = nullptr;
  const CUresult result =
      TheDriver().cuLibraryLoadData(&library, image->driver_view(), options.names.data(),
                                    options.values.data(), options.count(), &preserved, &yes, 1);
  options.Reply(request.out);
  if (result != CUDA_SUCCESS) return result;
  session.Bind(HandleKind::kLibrary, body.handle, library, request.out);
  session.KeepImage(body.handle, image);
  return request.out.error();
}

CUresult Serve_cuLibraryUnload(Session& session, Request& request) {
  const auto wire = request.in.Get<WireHandle>();
  auto library = static_cast<CUlibrary>(session.ToDriver(HandleKind::kLibrary, wire, request.in));
  if (!request.in.ok()) return request.in.error();
  const CUresult result = TheDriver().cuLibraryUnload(library);
  if (result == CUDA_SUCCESS) {
    session.Unbind(wire);
    session.DropImage(wire);
  }
  return result;
}

namespace {

// What the guest keeps of a function: attributes, and the parameter layout that launches are packed by.
void Describe(CUfunction function, bool is_kernel, Writer& out) {
  Driver& driver = TheDriver();
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
  constexpr size_t kMost = (kMaxChannelRecordBytes - 512) / sizeof(ParameterLayout);
  for (size_t offset = 0, bytes = 0; layouts.size() < kMost;) {
    const CUresult result = is_kernel ? driver.cuKernelGetParamInfo(reinterpret_cast<CUkernel>(function),
                                                                    layouts.size(), &offset, &bytes)
                                      : driver.cuFuncGetParamInfo(function, layouts.size(), &offset, &bytes);
    if (result != CUDA_SUCCESS) break;
    layouts.push_back({static_cast<uint32_t>(offset), static_cast<uint32_t>(bytes)});
    description.parameter_bytes =
        std::max(description.parameter_bytes, static_cast<uint32_t>(offset + bytes));
  }
  description.parameter_count = static_cast<uint32_t>(layouts.size());
  out.Put(description);
  out.PutBytes(layouts.data(), layouts.size() * sizeof(ParameterLayout));
}

CUresult ReplyFunction(Session& session, Request& request, WireHandle fresh, CUfunction function,
                       bool is_kernel) {
  request.out.Put(session.BindOrKnown(HandleKind::kFunction, fresh, function, request.out));
  Describe(function, is_kernel, request.out);
  return request.out.error();
}

const char* TakeName(Reader& in) {
  const size_t bytes = in.left();
  const auto* text = reinterpret_cast<const char*>(in.Take(bytes));
  return text != nullptr && bytes != 0 && text[bytes - 1] == '\0' ? text : nullptr;
}

}  // namespace

CUresult Serve_cuModuleGetFunction(Session& session, Request& request) {
  const auto body = request.in.Get<GetFunctionBody>();
  auto module = static_cast<CUmodule>(session.ToDriver(HandleKind::kModule, body.owner, request.in));
  const char* name = TakeName(request.in);
  if (!request.in.ok() || name == nullptr)
    return request.in.ok() ? CUDA_ERROR_INVALID_VALUE : request.in.error();
  CUfunction function = nullptr;
  if (const CUresult result = TheDriver().cuModuleGetFunction(&function, module, name)) return result;
  return ReplyFunction(session, request, body.fresh, function, false);
}

CUresult Serve_cuLibraryGetKernel(Session& session, Request& request) {
  const auto body = request.in.Get<GetFunctionBody>();
  auto library = static_cast<CUlibrary>(session.ToDriver(HandleKind::kLibrary, body.owner, request.in));
  const char* name = TakeName(request.in);
  if (!request.in.ok() || name == nullptr)
    return request.in.ok() ? CUDA_ERROR_INVALID_VALUE : request.in.error();
  CUkernel kernel = nullptr;
  if (const CUresult result = TheDriver().cuLibraryGetKernel(&kernel, library, name)) return result;
  return ReplyFunction(session, request, body.fresh, reinterpret_cast<CUfunction>(kernel), true);
}

CUresult Serve_cuKernelGetFunction(Session& session, Request& request) {
  const auto body = request.in.Get<GetFunctionBody>();
  auto kernel = static_cast<CUkernel>(session.ToDriver(HandleKind::kFunction, body.owner, request.in));
  if (!request.in.ok()) return request.in.error();
  CUfunction function = nullptr;
  if (const CUresult result = TheDriver().cuKernelGetFunction(&function, kernel)) return result;
  return ReplyFunction(session, request, body.fresh, function, false);
}

CUresult Serve_kDescribeFunction(Session& session, Request& request) {
  const auto body = request.in.Get<DescribeFunctionBody>();
  auto function = static_cast<CUfunction>(session.ToDriver(HandleKind::kFunction, body.function, request.in));
  if (!request.in.ok() || function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  const char* name = "";
  Driver& driver = TheDriver();
  const CUresult result = body.is_kernel != 0
                              ? driver.cuKernelGetName(&name, reinterpret_cast<CUkernel>(function))
                              : driver.cuFuncGetName(&name, function);
  if (result != CUDA_SUCCESS) return result;
  request.out.Put(body.function);
  Describe(function, body.is_kernel != 0, request.out);
  request.out.PutBytes(name, std::min<size_t>(std::strlen(name), 256));
  return request.out.error();
}

// Body: the owner, then as many fresh handles as the guest has room for. Reply: for each, handle and name.
CUresult Serve_cuModuleEnumerateFunctions(Session& session, Request& request) {
  const auto owner = request.in.Get<WireHandle>();
  auto module = static_cast<CUmodule>(session.ToDriver(HandleKind::kModule, owner, request.in));
  if (!request.in.ok()) return request.in.error();
  std::vector<CUfunction> functions(request.in.left() / sizeof(WireHandle));
  const CUresult result = TheDriver().cuModuleEnumerateFunctions(
      functions.data(), static_cast<unsigned>(functions.size()), module);
  if (result != CUDA_SUCCESS) return result;
  for (CUfunction function : functions) {
    const auto fresh = request.in.Get<WireHandle>();
    request.out.Put(session.BindOrKnown(HandleKind::kFunction, fresh, function, request.out));
  }
  return request.out.error();
}

CUresult Serve_cuLibraryEnumerateKernels(Session& session, Request& request) {
  const auto owner = request.in.Get<WireHandle>();
  auto library = static_cast<CUlibrary>(session.ToDriver(HandleKind::kLibrary, owner, request.in));
  if (!request.in.ok()) return request.in.error();
  std::vector<CUkernel> kernels(request.in.left() / sizeof(WireHandle));
  const CUresult result =
      TheDriver().cuLibraryEnumerateKernels(kernels.data(), static_cast<unsigned>(kernels.size()), library);
  if (result != CUDA_SUCCESS) return result;
  for (CUkernel kernel : kernels) {
    const auto fresh = request.in.Get<WireHandle>();
    request.out.Put(session.BindOrKnown(HandleKind::kFunction, fresh, kernel, request.out));
  }
  return request.out.error();
}

}  // namespace causeway::host
