// SPDX-License-Identifier: Apache-2.0
// Kernel launches: what the driver would refuse at once is refused here, the rest is posted with its
// parameters packed in the kernel's own layout. A launch whose rules only the driver knows (clusters,
// cooperative launches, events, anything out of the ordinary) waits for its answer the first time, so that
// its error is the call's own; once accepted, the same launch is posted.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "guest_lib/code/kernel_parameters.h"
#include "guest_lib/session/blob.h"
#include "guest_lib/stream/capture_rule.h"
#include "guest_lib/stream/remote.h"

namespace causeway::guest {
namespace {

struct Shape3 {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int shared_bytes;
};

// What no kernel may have. A kernel's own limits can be changed by more ways than are followed here: whatever
// goes beyond those that are known, the driver judges (IsOrdinary).
CUresult CheckConfiguration(const Object* context, const Shape3& shape) {
  const DeviceDescription& device = Session::Made().devices()[static_cast<size_t>(ContextOf(context).device)];
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
  return CUDA_SUCCESS;
}

bool MayUseShared(Function& function, uint32_t bytes) {
  constexpr CUfunction_attribute kMost = CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
  const uint64_t changes = AttributeChanges(function);
  if (function.read_at[kMost] == changes && int64_t{bytes} <= function.attribute[kMost]) return true;
  const std::lock_guard lock(function.mutex);
  return function.accepted_at == changes && bytes <= function.accepted_shared_bytes;
}

// One launch on its way.
struct Launch {
  CUfunction handle;
  const Object* object;
  const Object* context;  // the current one
  Function* function = nullptr;
  KernelParameters parameters;
  ResolvedStream stream{nullptr};
  CUlaunchAttribute* given = nullptr;  // the caller's attributes
  CUlaunchAttribute attributes[kMaxLaunchAttributes];
  LaunchBody body;
  Submission submission;
};

bool ReturnsNode(const CUlaunchAttribute& attribute) {
  return attribute.id == CU_LAUNCH_ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE;
}

// Attributes that name events carry the event's wire handle instead. What a launch does not read of the value
// is cleared: it may be anything, and two launches with the same meaning should look alike.
CUresult PackAttribute(CUlaunchAttribute* attribute) {
  auto pack = [](CUevent* event) {
    Writer check{{}};
    const WireHandle wire = Remote{}.ToWire(*event, check);
    std::memcpy(event, &wire, sizeof wire);
    return check.error();
  };
  CUlaunchAttribute packed;
  std::memset(&packed, 0, sizeof packed);
  packed.id = attribute->id;
  const CUlaunchAttributeValue& value = attribute->value;
  CUresult result = CUDA_SUCCESS;
  switch (attribute->id) {
    case CU_LAUNCH_ATTRIBUTE_IGNORE:
      break;
    case CU_LAUNCH_ATTRIBUTE_COOPERATIVE:
    case CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY:
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
    case CU_LAUNCH_ATTRIBUTE_PRIORITY:
    case CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN:
      packed.value.cooperative = value.cooperative;  // all of them are one int
      break;
    case CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION:
    case CU_LAUNCH_ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
      packed.value.clusterDim = value.clusterDim;
      break;
    case CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT:
      packed.value.programmaticEvent = value.programmaticEvent;
      result = pack(&packed.value.programmaticEvent.event);
      break;
    case CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT:
      packed.value.launchCompletionEvent = value.launchCompletionEvent;
      result = pack(&packed.value.launchCompletionEvent.event);
      break;
    default:
      packed.value = value;
  }
  *attribute = packed;
  return result;
}

// Fills in what is checked and packed here.
CUresult Prepare(Launch* launch, const Shape3& shape, CUstream stream, void** kernel_params, void** extra,
                 unsigned attribute_count, LaunchForm form) {
  launch->context = CurrentContextObject();
  if (launch->context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  launch->object = Find(launch->handle);
  if (launch->object == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  launch->function = KnownFunction(*launch->object);
  if (launch->function == nullptr) launch->function = FunctionOf(launch->handle);
  if (launch->function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  Function& function = *launch->function;
  if (const CUresult result = CheckConfiguration(launch->context, shape)) return result;
  if (attribute_count > kMaxLaunchAttributes) return CUDA_ERROR_INVALID_VALUE;
  uint32_t parameter_bytes = 0;
  if (const CUresult result = launch->parameters.Take(kernel_params, extra)) return result;
  if (const CUresult result = launch->parameters.SizeFor(function, &parameter_bytes)) return result;
  launch->parameters.NameOnDevice(function);
  launch->stream = ResolvedStream(stream);
  if (const CUresult result = launch->stream.error()) return result;
  launch->body = {WireOf(launch->object),
                  launch->stream.wire(),
                  {shape.grid[0], shape.grid[1], shape.grid[2]},
                  {shape.block[0], shape.block[1], shape.block[2]},
                  shape.shared_bytes,
                  parameter_bytes,
                  attribute_count,
                  form};
  launch->submission = launch->stream.submission();
  if (attribute_count != 0) {  // they may name events
    launch->submission.stays_in_stream = false;
    launch->submission.records_any_event = true;
  }
  for (unsigned i = 0; i < attribute_count; ++i) {
    launch->attributes[i] = launch->given[i];
    if (const CUresult result = PackAttribute(&launch->attributes[i])) return result;
  }
  return CUDA_SUCCESS;
}

// Whether everything that the driver would refuse at once has been checked here.
bool IsOrdinary(const Launch& launch) {
  Function& function = *launch.function;
  const LaunchBody& body = launch.body;
  const Object* stream = launch.stream.object();
  const Object* context = launch.context;
  const int most_threads = function.attribute[CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK];
  return body.form == kPlainLaunch && most_threads > 0 &&
         body.block[0] * body.block[1] * body.block[2] <= static_cast<uint32_t>(most_threads) &&
         (body.shared_bytes == 0 || MayUseShared(function, body.shared_bytes)) &&
         body.parameter_bytes == function.parameter_bytes &&
         function.attribute[CU_FUNC_ATTRIBUTE_CLUSTER_SIZE_MUST_BE_SET] == 0 &&
         function.attribute[CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH] == 0 &&
         (launch.object->context != nullptr ? launch.object->context == context
                                            : function.device == ContextOf(context).device) &&
         (stream == nullptr || stream->context == nullptr || stream->context == context);
}

uint64_t HashOf(const Launch& launch) {
  const uint64_t body = QuickHash(&launch.body, sizeof launch.body, WireOf(launch.context));
  return QuickHash(launch.attributes, launch.body.attribute_count * sizeof(CUlaunchAttribute), body);
}

// As a posted call.
CUresult PostLaunch(const Launch& launch) {
  const size_t attribute_bytes = launch.body.attribute_count * sizeof(CUlaunchAttribute);
  PendingPost post(Op::cuLaunchKernel, launch.submission,
                   sizeof launch.body + attribute_bytes + launch.body.parameter_bytes);
  Writer& w = post.writer();
  w.Put(launch.body);
  w.PutBytes(launch.attributes, attribute_bytes);
  if (std::byte* space = w.Reserve(launch.body.parameter_bytes))
    launch.parameters.Pack(*launch.function, space, launch.body.parameter_bytes);
  return post.Finish();
}

// As one that waits for the driver's answer. Parameters that do not fit the record go through a bulk buffer.
CUresult AwaitLaunch(const Launch& launch) {
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  const size_t attribute_bytes = launch.body.attribute_count * sizeof(CUlaunchAttribute);
  const uint32_t bytes = launch.body.parameter_bytes;
  const bool fits =
      sizeof(RecordHeader) + sizeof launch.body + attribute_bytes + bytes <= kMaxChannelRecordBytes;
  Writer w = lease.Begin();
  w.Put(launch.body);
  w.PutBytes(launch.attributes, attribute_bytes);
  CUresult result = CUDA_SUCCESS;
  Reader reply;
  if (fits) {
    if (std::byte* space = w.Reserve(bytes)) launch.parameters.Pack(*launch.function, space, bytes);
    result = lease.AwaitSent(lease.Send(Op::cuLaunchKernelEx, w, 0, 0, 0, launch.submission), &reply);
  } else {
    const uint32_t index = lease.session().AcquireBulk();
    const Bulk bulk = lease.session().bulk(index);
    launch.parameters.Pack(*launch.function, bulk.bytes, bytes);
    result = lease.Send(Op::cuLaunchKernelEx, w, kBulkToHost, bulk.offset, bytes, launch.submission);
    result = lease.AwaitSent(result, &reply);
    lease.session().ReleaseBulk(index);
  }
  for (unsigned i = 0; result == CUDA_SUCCESS && i < launch.body.attribute_count; ++i) {
    if (!ReturnsNode(launch.attributes[i])) continue;
    const auto node = reply.Get<uint64_t>();
    launch.given[i].value.deviceUpdatableKernelNode.devNode = reinterpret_cast<CUgraphDeviceNode>(node);
  }
  return result;
}

CUresult SendLaunch(const Launch& launch) {
  constexpr size_t kMostAccepted = 256;
  if (IsOrdinary(launch)) return PostLaunch(launch);
  bool returns_node = false;
  for (unsigned i = 0; i < launch.body.attribute_count; ++i)
    returns_node = returns_node || ReturnsNode(launch.attributes[i]);
  const uint64_t hash = HashOf(launch);
  Function& function = *launch.function;
  const uint64_t changes = AttributeChanges(function);
  std::unique_lock lock(function.mutex);
  if (!returns_node && function.accepted_at == changes && function.accepted.contains(hash)) {
    lock.unlock();
    return PostLaunch(launch);
  }
  lock.unlock();
  if (const CUresult result = AwaitLaunch(launch)) return result;
  lock.lock();
  if (function.accepted_at > changes) return CUDA_SUCCESS;  // accepted under attributes of before
  if (function.accepted_at != changes || function.accepted.size() >= kMostAccepted) {
    function.accepted.clear();
    function.accepted_shared_bytes = 0;
    function.accepted_at = changes;
  }
  function.accepted_shared_bytes = std::max(function.accepted_shared_bytes, launch.body.shared_bytes);
  if (!returns_node) function.accepted.insert(hash);
  return CUDA_SUCCESS;
}

CUresult LaunchOne(CUfunction handle, const Shape3& shape, CUstream stream, void** kernel_params,
                   void** extra, CUlaunchAttribute* attributes, unsigned attribute_count, LaunchForm form) {
  if (!IsUsable(ThisThread())) return InitialisedOrError();
  static const bool blocking = [] {
    const char* value = getenv("CUDA_LAUNCH_BLOCKING");
    return value != nullptr && atoi(value) != 0;
  }();
  const WithContextOf scope(stream);
  Launch launch;
  launch.handle = handle;
  launch.given = attributes;
  if (const CUresult wrong = Prepare(&launch, shape, stream, kernel_params, extra, attribute_count, form))
      [[unlikely]]
    return AnswerBesideCaptures(
        wrong, launch.function != nullptr ? CaptureRule::kLaunches : CaptureRule::kInStream, stream);
  const CUresult result = SendLaunch(launch);
  return result == CUDA_SUCCESS && blocking && !AnyCapture() ? cuStreamSynchronize(stream) : result;
}

// All launches of a multi-device launch, one after another.
CUresult PackLaunches(const CUDA_LAUNCH_PARAMS* list, unsigned count, unsigned flags,
                      std::vector<std::byte>* packed) {
  const auto append = [packed](const void* bytes, size_t size) {
    const size_t at = packed->size();
    packed->resize(at + size);
    if (size != 0) std::memcpy(packed->data() + at, bytes, size);
  };
  append(&count, sizeof count);
  append(&flags, sizeof flags);
  for (unsigned i = 0; i < count; ++i) {
    const CUDA_LAUNCH_PARAMS& one = list[i];
    Launch launch;
    launch.handle = one.function;
    const Shape3 shape{{one.gridDimX, one.gridDimY, one.gridDimZ},
                       {one.blockDimX, one.blockDimY, one.blockDimZ},
                       one.sharedMemBytes};
    if (const CUresult result =
            Prepare(&launch, shape, one.hStream, one.kernelParams, nullptr, 0, kCooperativeLaunch)) {
      return result;
    }
    append(&launch.body, sizeof launch.body);
    std::vector<std::byte> parameters(launch.body.parameter_bytes);
    launch.parameters.Pack(*launch.function, parameters.data(), launch.body.parameter_bytes);
    append(parameters.data(), parameters.size());
  }
  return CUDA_SUCCESS;
}

}  // namespace
}  // namespace causeway::guest

using namespace causeway;
using namespace causeway::guest;

extern "C" {

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z,
                        unsigned int shared_bytes, CUstream stream, void** parameters, void** extra) {
  return LaunchOne(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}, stream,
                   parameters, extra, nullptr, 0, kPlainLaunch);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void** parameters) {
  return LaunchOne(function, {{grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes}, stream,
                   parameters, nullptr, nullptr, 0, kCooperativeLaunch);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (config == nullptr || (config->attrs == nullptr && config->numAttrs != 0))
    return CUDA_ERROR_INVALID_VALUE;
  const Shape3 shape{{config->gridDimX, config->gridDimY, config->gridDimZ},
                     {config->blockDimX, config->blockDimY, config->blockDimZ},
                     config->sharedMemBytes};
  return LaunchOne(function, shape, config->hStream, parameters, extra, config->attrs, config->numAttrs,
                   config->numAttrs != 0 ? kAttributeLaunch : kPlainLaunch);
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* list, unsigned int count,
                                              unsigned int flags) {
  if (const CUresult result = InitialisedOrError()) return result;
  if (list == nullptr || count == 0 || count > kMaxDeviceLaunches || !OnlyFlags(flags, kMultiDeviceFlags))
    return CUDA_ERROR_INVALID_VALUE;
  // Each launch needs a device of its own, which the driver asks before it looks at the functions.
  int devices = 0;
  if (const CUresult result = cuDeviceGetCount(&devices)) return result;
  if (count > static_cast<unsigned>(devices)) return CUDA_ERROR_INVALID_VALUE;
  // The driver refuses default streams here.
  const auto is_refused = [](const CUDA_LAUNCH_PARAMS& one) {
    return one.function == nullptr || IsDefaultStream(one.hStream);
  };
  if (std::any_of(list, list + count, is_refused)) return CUDA_ERROR_INVALID_HANDLE;
  const WithContextOf scope(list->hStream);
  std::vector<std::byte> packed;
  if (const CUresult result = PackLaunches(list, count, flags, &packed)) return result;
  ChannelLease lease;
  if (lease.error() != CUDA_SUCCESS) return lease.error();
  const auto copy = [&](uint64_t at, std::span<std::byte> to) {
    CopyPart(at, to, packed.data(), 0, packed.size());
  };
  Blob blob(lease);
  if (const CUresult result = blob.Fill(packed.size(), copy)) return result;
  const CUresult sent =
      blob.Send(Op::cuLaunchCooperativeKernelMultiDevice, lease.Begin(), Submission{.several_streams = true});
  Reader none;
  return lease.AwaitSent(sent, &none);
}

// One call may set more bytes than a message holds.
CUresult cuParamSetv(CUfunction function, int offset, void* from, unsigned int bytes) {
  constexpr unsigned kPiece = 2048;
  if (const CUresult result = NeedContext()) return result;
  if (from == nullptr) return CUDA_ERROR_INVALID_VALUE;
  NameAllOnDevice(from, bytes);
  unsigned at = 0;
  do {
    const unsigned piece = bytes - at < kPiece ? bytes - at : kPiece;
    if (const CUresult result =
            Wait<Op::cuParamSetv>(function, offset + static_cast<int>(at),
                                  static_cast<void*>(static_cast<std::byte*>(from) + at), piece)) {
      return result;
    }
    at += piece;
  } while (at < bytes);
  return CUDA_SUCCESS;
}

}  // extern "C"
