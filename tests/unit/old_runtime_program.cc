// SPDX-License-Identifier: Apache-2.0
// A CUDA program of an older toolkit, without its compiler: it is built with the headers of the runtime that
// it links against, and registers its kernel with the calls that nvcc puts into every object file. Prints one
// line per check; exits 0 when none failed. Arguments
// are names of checks that may be answered with cudaErrorNotSupported instead.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

// What nvcc declares in crt/host_runtime.h and crt/device_functions.h, which the runtime's own package leaves
// out.
extern "C" {
void** __cudaRegisterFatBinary(void* wrapper);
void __cudaRegisterFatBinaryEnd(void** handle);
void __cudaUnregisterFatBinary(void** handle);
void __cudaRegisterFunction(void** handle, const char* host_function, char* device_function,
                            const char* device_name, int thread_limit, uint3* thread, uint3* block,
                            dim3* block_size, dim3* grid_size, int* warp_size);
void __cudaRegisterVar(void** handle, char* host_variable, char* device_address, const char* device_name,
                       int is_external, size_t bytes, int is_constant, int is_global);
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, struct CUstream_st* stream);
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream);
}

namespace {

constexpr char kPtx[] = R"(
.version 6.0
.target sm_52
.address_size 64

.visible .const .align 4 .f32 offset;
.visible .global .align 4 .u32 threads_run;

.visible .entry scale_add(.param .u64 out, .param .u64 in, .param .f32 factor, .param .u32 count)
{
  .reg .pred %p;
  .reg .b32 %r<6>;
  .reg .f32 %f<5>;
  .reg .b64 %rd<6>;
  ld.param.u32 %r0, [count];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  setp.ge.u32 %p, %r4, %r0;
  @%p bra done;
  ld.param.u64 %rd0, [in];
  ld.param.u64 %rd1, [out];
  cvta.to.global.u64 %rd0, %rd0;
  cvta.to.global.u64 %rd1, %rd1;
  mul.wide.u32 %rd2, %r4, 4;
  add.u64 %rd0, %rd0, %rd2;
  add.u64 %rd1, %rd1, %rd2;
  ld.global.f32 %f0, [%rd0];
  ld.param.f32 %f1, [factor];
  ld.const.f32 %f2, [offset];
  fma.rn.f32 %f3, %f0, %f1, %f2;
  st.global.f32 [%rd1], %f3;
  mov.u64 %rd3, threads_run;
  mov.u32 %r5, 1;
  red.global.add.u32 [%rd3], %r5;
done:
  ret;
}
)";

struct FatbinHeader {
  uint32_t magic = 0xba55ed50;
  uint16_t version = 1;
  uint16_t header_bytes = 16;
  uint64_t entries_bytes = 0;
};
static_assert(sizeof(FatbinHeader) == 16);

struct EntryHeader {
  uint16_t kind = 1;  // PTX
  uint16_t version = 0x101;
  uint32_t header_bytes = 64;
  uint64_t payload_bytes = 0;
  uint32_t compressed_bytes = 0;
  uint32_t options_offset = 0;
  uint16_t minor = 0;
  uint16_t major = 6;
  uint32_t architecture = 52;
  uint32_t name_offset = 0;
  uint32_t name_bytes = 0;
  uint64_t flags = 0x2015;  // 64-bit, CUDA, Linux, LZ4
  uint64_t reserved = 0;
  uint64_t decompressed_bytes = 0;
};
static_assert(sizeof(EntryHeader) == 64);

struct Wrapper {
  uint32_t magic = 0x466243b1;
  uint32_t version = 1;
  const void* fatbin = nullptr;
  const void* file_name = nullptr;
};

// The text as an LZ4 block, the compression of the toolkits before 13: one run of literals.
std::string Lz4Literals(const char* text, size_t bytes) {
  std::string block(1, static_cast<char>(0xf0));
  size_t rest = bytes - 15;
  for (; rest >= 255; rest -= 255) block.push_back(static_cast<char>(0xff));
  block.push_back(static_cast<char>(rest));
  return block.append(text, bytes);
}

std::vector<uint64_t> MakeFatbin() {
  const std::string block = Lz4Literals(kPtx, sizeof(kPtx));
  EntryHeader entry;
  entry.payload_bytes = (block.size() + 7) / 8 * 8;
  entry.compressed_bytes = static_cast<uint32_t>(block.size());
  entry.decompressed_bytes = sizeof(kPtx);
  FatbinHeader header;
  header.entries_bytes = sizeof(entry) + entry.payload_bytes;
  std::vector<uint64_t> fatbin((sizeof(header) + header.entries_bytes) / 8);
  auto* bytes = reinterpret_cast<char*>(fatbin.data());
  std::memcpy(bytes, &header, sizeof(header));
  std::memcpy(bytes + sizeof(header), &entry, sizeof(entry));
  std::memcpy(bytes + sizeof(header) + sizeof(entry), block.data(), block.size());
  return fatbin;
}

// The shadows of the device's symbols in the host program: only their addresses are used.
float offset_shadow;
uint32_t threads_run_shadow;

// The stub that nvcc makes of a kernel; its address names the kernel.
cudaError_t ScaleAdd(float* out, const float* in, float factor, uint32_t count) {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  cudaStream_t stream = nullptr;
  if (const cudaError_t error = __cudaPopCallConfiguration(&grid, &block, &shared_bytes, &stream))
    return error;
  void* arguments[] = {&out, &in, &factor, &count};
  return cudaLaunchKernel(reinterpret_cast<const void*>(&ScaleAdd), grid, block, arguments, shared_bytes,
                          stream);
}

// Registers the kernel before main() and takes it back after it, as nvcc's constructors do.
class Registration {
 public:
  Registration() : fatbin_(MakeFatbin()) {
    wrapper_.fatbin = fatbin_.data();
    handle_ = __cudaRegisterFatBinary(&wrapper_);
    // The runtime keeps the pointers to the names.
    static char scale_add[] = "scale_add";
    __cudaRegisterFunction(handle_, reinterpret_cast<const char*>(&ScaleAdd), scale_add, scale_add, -1,
                           nullptr, nullptr, nullptr, nullptr, nullptr);
    static char offset[] = "offset";
    __cudaRegisterVar(handle_, reinterpret_cast<char*>(&offset_shadow), offset, offset, 0, sizeof(float), 1,
                      0);
    static char threads_run[] = "threads_run";
    __cudaRegisterVar(handle_, reinterpret_cast<char*>(&threads_run_shadow), threads_run, threads_run, 0,
                      sizeof(uint32_t), 0, 0);
    __cudaRegisterFatBinaryEnd(handle_);
  }
  ~Registration() { __cudaUnregisterFatBinary(handle_); }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;

 private:
  std::vector<uint64_t> fatbin_;
  Wrapper wrapper_;
  void** handle_ = nullptr;
};
const Registration registration;

constexpr uint32_t kCount = 10000;
constexpr size_t kBytes = kCount * sizeof(float);
std::atomic<int> passed{0};
std::atomic<int> failed{0};
int refused_count = 0;
std::vector<std::string> may_be_refused;  // names of checks, from the command line; fixed before the first

void Check(const char* what, bool holds) {
  std::printf("%s %s\n", holds ? "ok  " : "FAIL", what);
  ++(holds ? passed : failed);
}

void Check(const char* what, cudaError_t got, cudaError_t wanted = cudaSuccess) {
  if (got == wanted) {
    Check(what, true);
    return;
  }
  Check(what, false);
  std::printf("     %s (%d), not %s\n", cudaGetErrorName(got), static_cast<int>(got),
              cudaGetErrorName(wanted));
}

// Whether a call that may be refused was. A refusal is taken from the runtime's last error.
bool IsRefused(const char* what, cudaError_t got) {
  if (got != cudaErrorNotSupported) return false;
  if (std::find(may_be_refused.begin(), may_be_refused.end(), what) == may_be_refused.end()) return false;
  std::printf("refused %s\n", what);
  ++refused_count;
  return cudaGetLastError() == cudaErrorNotSupported;
}

void QueryDevices() {
  int version = 0;
  Check("cudaRuntimeGetVersion", cudaRuntimeGetVersion(&version));
  Check("the runtime is the one of the headers", version / 10 == CUDART_VERSION / 10);
  Check("cudaDriverGetVersion", cudaDriverGetVersion(&version));
  Check("the driver is new enough", version >= CUDART_VERSION / 1000 * 1000);
  int count = 0;
  Check("cudaGetDeviceCount", cudaGetDeviceCount(&count));
  Check("there is a device", count >= 1);
  cudaDeviceProp properties{};
  Check("cudaGetDeviceProperties", cudaGetDeviceProperties(&properties, 0));
  int attribute = 0;
  Check("cudaDeviceGetAttribute", cudaDeviceGetAttribute(&attribute, cudaDevAttrMaxThreadsPerBlock, 0));
  Check("properties and attributes agree", attribute == properties.maxThreadsPerBlock && attribute >= 512);
  Check("the warp has 32 threads", properties.warpSize == 32);
  Check("the device has a name", properties.name[0] != '\0');
  char bus_id[32] = {};
  Check("cudaDeviceGetPCIBusId", cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), 0));
  int device = -1;
  Check("cudaDeviceGetByPCIBusId", cudaDeviceGetByPCIBusId(&device, bus_id));
  Check("the bus id names the device", device == 0);
  Check("cudaSetDevice", cudaSetDevice(0));
  unsigned flags = 0;
  Check("cudaGetDeviceFlags", cudaGetDeviceFlags(&flags));
  size_t stack_bytes = 0;
  Check("cudaDeviceGetLimit", cudaDeviceGetLimit(&stack_bytes, cudaLimitStackSize));
  int least = 0;
  int greatest = 1;
  Check("cudaDeviceGetStreamPriorityRange", cudaDeviceGetStreamPriorityRange(&least, &greatest));
  Check("priorities are a range", greatest <= least);
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  Check("cudaMemGetInfo", cudaMemGetInfo(&free_bytes, &total_bytes));
  Check("memory figures agree", free_bytes <= total_bytes && total_bytes == properties.totalGlobalMem);
}

std::vector<float> Ramp() {
  std::vector<float> values(kCount);
  for (uint32_t i = 0; i < kCount; ++i) values[i] = static_cast<float>(i % 1000) * 0.5F;
  return values;
}

void CopyMemory() {
  const std::vector<float> values = Ramp();
  std::vector<float> back(kCount);
  void* first = nullptr;
  void* second = nullptr;
  Check("cudaMalloc", cudaMalloc(&first, kBytes));
  Check("cudaMalloc again", cudaMalloc(&second, kBytes));
  Check("cudaMemcpy to the device", cudaMemcpy(first, values.data(), kBytes, cudaMemcpyHostToDevice));
  Check("cudaMemcpy on the device", cudaMemcpy(second, first, kBytes, cudaMemcpyDeviceToDevice));
  Check("cudaMemcpy from the device", cudaMemcpy(back.data(), second, kBytes, cudaMemcpyDefault));
  Check("the copy is the same", back == values);
  Check("cudaMemset", cudaMemset(second, 0x40, kBytes));
  Check("cudaMemcpy after cudaMemset", cudaMemcpy(back.data(), second, kBytes, cudaMemcpyDeviceToHost));
  Check("memory was set", back[0] == back[kCount - 1] && back[7] == 3.0039215087890625F);
  cudaPointerAttributes attributes{};
  Check("cudaPointerGetAttributes", cudaPointerGetAttributes(&attributes, first));
  Check("it is device memory", attributes.type == cudaMemoryTypeDevice && attributes.devicePointer == first);
  void* pitched = nullptr;
  size_t pitch = 0;
  Check("cudaMallocPitch", cudaMallocPitch(&pitched, &pitch, 400, 100));
  Check("the pitch holds a row", pitch >= 400);
  Check("cudaMemcpy2D to the device",
        cudaMemcpy2D(pitched, pitch, values.data(), 400, 400, 100, cudaMemcpyHostToDevice));
  back.assign(kCount, 0);
  Check("cudaMemcpy2D from the device",
        cudaMemcpy2D(back.data(), 400, pitched, pitch, 400, 100, cudaMemcpyDeviceToHost));
  Check("rows are the same", back == values);
  Check("cudaFree of rows", cudaFree(pitched));
  Check("cudaFree", cudaFree(first));
  Check("cudaFree again", cudaFree(second));
}

// Sets the symbols, launches through the stub on the stream, and checks all that the kernel wrote.
void Launch(const char* where, cudaStream_t stream, float offset) {
  std::printf("---- launch on %s\n", where);
  const std::vector<float> values = Ramp();
  std::vector<float> results(kCount);
  float* in = nullptr;
  float* out = nullptr;
  Check("cudaMalloc of the input", cudaMalloc(reinterpret_cast<void**>(&in), kBytes));
  Check("cudaMalloc of the output", cudaMalloc(reinterpret_cast<void**>(&out), kBytes));
  Check("cudaMemcpyToSymbol", cudaMemcpyToSymbol(&offset_shadow, &offset, sizeof(offset)));
  uint32_t threads_run = 0;
  Check("cudaMemcpyToSymbol of a counter",
        cudaMemcpyToSymbol(&threads_run_shadow, &threads_run, sizeof(uint32_t)));
  Check("cudaMemcpyAsync to the device",
        cudaMemcpyAsync(in, values.data(), kBytes, cudaMemcpyHostToDevice, stream));
  Check("__cudaPushCallConfiguration",
        __cudaPushCallConfiguration(dim3((kCount + 255) / 256), dim3(256), 0, stream) == 0);
  Check("cudaLaunchKernel", ScaleAdd(out, in, 2.0F, kCount));
  Check("cudaMemcpyAsync from the device",
        cudaMemcpyAsync(results.data(), out, kBytes, cudaMemcpyDeviceToHost, stream));
  Check("cudaStreamSynchronize", cudaStreamSynchronize(stream));
  bool right = true;
  for (uint32_t i = 0; i < kCount; ++i) right = right && results[i] == values[i] * 2.0F + offset;
  Check("the kernel's results", right);
  Check("cudaMemcpyFromSymbol", cudaMemcpyFromSymbol(&threads_run, &threads_run_shadow, sizeof(uint32_t)));
  Check("every thread ran once", threads_run == kCount);
  Check("cudaFree of the input", cudaFree(in));
  Check("cudaFree of the output", cudaFree(out));
}

void AskAboutKernel() {
  cudaFuncAttributes attributes{};
  const void* const kernel = reinterpret_cast<const void*>(&ScaleAdd);
  Check("cudaFuncGetAttributes", cudaFuncGetAttributes(&attributes, kernel));
  Check("the kernel takes a block", attributes.maxThreadsPerBlock >= 256);
  int blocks = 0;
  Check("cudaOccupancyMaxActiveBlocksPerMultiprocessor",
        cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, 256, 0));
  Check("a multiprocessor takes a block", blocks >= 1);
  void* address = nullptr;
  size_t bytes = 0;
  Check("cudaGetSymbolAddress", cudaGetSymbolAddress(&address, &threads_run_shadow));
  Check("cudaGetSymbolSize", cudaGetSymbolSize(&bytes, &threads_run_shadow));
  Check("the symbol is a word", address != nullptr && bytes == sizeof(uint32_t));
}

void UseStreams() {
  cudaStream_t stream = nullptr;
  cudaStream_t other = nullptr;
  Check("cudaStreamCreateWithFlags", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  Check("cudaStreamCreateWithPriority", cudaStreamCreateWithPriority(&other, cudaStreamDefault, 0));
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  Check("cudaEventCreate", cudaEventCreate(&begin));
  Check("cudaEventCreateWithFlags", cudaEventCreateWithFlags(&end, cudaEventBlockingSync));
  Check("cudaEventRecord", cudaEventRecord(begin, stream));
  Launch("a stream of its own", stream, 3.0F);
  Check("cudaStreamWaitEvent", cudaStreamWaitEvent(other, begin, 0));
  Check("cudaEventRecord on the other stream", cudaEventRecord(end, other));
  Check("cudaEventSynchronize", cudaEventSynchronize(end));
  Check("cudaEventQuery", cudaEventQuery(end));
  float elapsed_ms = -1;
  Check("cudaEventElapsedTime", cudaEventElapsedTime(&elapsed_ms, begin, end));
  Check("time passed", elapsed_ms >= 0);
  std::atomic<int> calls{0};
  const cudaError_t error = cudaLaunchHostFunc(
      stream, [](void* counter) { ++*static_cast<std::atomic<int>*>(counter); }, &calls);
  const bool refused = IsRefused("cudaLaunchHostFunc", error);
  if (!refused) Check("cudaLaunchHostFunc", error);
  Check("cudaStreamSynchronize after a host function", cudaStreamSynchronize(stream));
  Check("a host function runs once, a refused one never", calls == (refused ? 0 : 1));
  Check("cudaStreamQuery", cudaStreamQuery(stream));
  Check("cudaEventDestroy", cudaEventDestroy(begin));
  Check("cudaEventDestroy again", cudaEventDestroy(end));
  Check("cudaStreamDestroy", cudaStreamDestroy(stream));
  Check("cudaStreamDestroy again", cudaStreamDestroy(other));
}

void UseHostAndPoolMemory() {
  const std::vector<float> values = Ramp();
  void* pinned = nullptr;
  Check("cudaHostAlloc", cudaHostAlloc(&pinned, kBytes, cudaHostAllocDefault));
  std::memcpy(pinned, values.data(), kBytes);
  void* pooled = nullptr;
  Check("cudaMallocAsync", cudaMallocAsync(&pooled, kBytes, nullptr));
  Check("cudaMemcpyAsync from pinned memory",
        cudaMemcpyAsync(pooled, pinned, kBytes, cudaMemcpyHostToDevice, nullptr));
  Check("cudaMemsetAsync", cudaMemsetAsync(static_cast<char*>(pooled) + kBytes / 2, 0, kBytes / 2, nullptr));
  Check("cudaMemcpyAsync to pinned memory",
        cudaMemcpyAsync(pinned, pooled, kBytes, cudaMemcpyDeviceToHost, nullptr));
  Check("cudaFreeAsync", cudaFreeAsync(pooled, nullptr));
  Check("cudaDeviceSynchronize", cudaDeviceSynchronize());
  const auto* results = static_cast<const float*>(pinned);
  Check("half was copied, half was set", std::memcmp(results, values.data(), kBytes / 2) == 0 &&
                                             results[kCount / 2] == 0 && results[kCount - 1] == 0);
  Check("cudaFreeHost", cudaFreeHost(pinned));
}

void CaptureGraph() {
  void* memory = nullptr;
  Check("cudaMalloc for the graph", cudaMalloc(&memory, kBytes));
  Check("cudaMemset before the graph", cudaMemset(memory, 0, kBytes));
  cudaStream_t stream = nullptr;
  Check("cudaStreamCreate", cudaStreamCreate(&stream));
  Check("cudaStreamBeginCapture", cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Check("cudaMemsetAsync into the graph", cudaMemsetAsync(memory, 0x11, kBytes, stream));
  cudaGraph_t graph = nullptr;
  Check("cudaStreamEndCapture", cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
#if CUDART_VERSION >= 12000
  Check("cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, 0));
#else
  Check("cudaGraphInstantiate", cudaGraphInstantiate(&executable, graph, nullptr, nullptr, 0));
#endif
  Check("cudaGraphLaunch", cudaGraphLaunch(executable, stream));
  Check("cudaStreamSynchronize after the graph", cudaStreamSynchronize(stream));
  unsigned char last = 0;
  Check("cudaMemcpy after the graph",
        cudaMemcpy(&last, static_cast<char*>(memory) + kBytes - 1, 1, cudaMemcpyDeviceToHost));
  Check("the graph ran", last == 0x11);
  Check("cudaGraphExecDestroy", cudaGraphExecDestroy(executable));
  Check("cudaGraphDestroy", cudaGraphDestroy(graph));
  Check("cudaStreamDestroy after the graph", cudaStreamDestroy(stream));
  Check("cudaFree after the graph", cudaFree(memory));
}

void ProvokeErrors() {
  Check("cudaSetDevice of no device", cudaSetDevice(999), cudaErrorInvalidDevice);
  Check("cudaGetLastError", cudaGetLastError(), cudaErrorInvalidDevice);
  Check("the error was taken", cudaGetLastError(), cudaSuccess);
  void* memory = nullptr;
  Check("cudaMalloc of too much", cudaMalloc(&memory, size_t{1} << 50), cudaErrorMemoryAllocation);
  Check("cudaPeekAtLastError", cudaPeekAtLastError(), cudaErrorMemoryAllocation);
  Check("cudaGetLastError again", cudaGetLastError(), cudaErrorMemoryAllocation);
  void* arguments[] = {&memory, &memory, &memory, &memory};
  // Runtime 13.0 passes the driver's own answer on.
  Check(
      "a block of 5000 threads",
      cudaLaunchKernel(reinterpret_cast<const void*>(&ScaleAdd), dim3(1), dim3(5000), arguments, 0, nullptr),
      CUDART_VERSION >= 13000 ? cudaErrorInvalidValue : cudaErrorInvalidConfiguration);
  // Runtimes that also launch kernels by handle (since 12.8) take an unknown address for a bad handle.
  const cudaError_t no_kernel =
      cudaLaunchKernel(reinterpret_cast<const void*>(&MakeFatbin), dim3(1), dim3(1), arguments, 0, nullptr);
  Check("a function that is no kernel",
        no_kernel == cudaErrorInvalidDeviceFunction ||
            (CUDART_VERSION >= 12080 && no_kernel == cudaErrorInvalidResourceHandle));
  Check("cudaMemcpyToSymbol of no symbol", cudaMemcpyToSymbol(&passed, &memory, 1), cudaErrorInvalidSymbol);
  Check("cudaFree of no allocation", cudaFree(reinterpret_cast<void*>(0x1000)), cudaErrorInvalidValue);
  Check("cudaGetLastError of the last", cudaGetLastError(), cudaErrorInvalidValue);
  Check("an error has a text",
        std::strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory") == 0);
}

void LaunchOnThreads() {
  std::thread first([] { Launch("the per-thread stream of a thread", cudaStreamPerThread, 5.0F); });
  first.join();
  std::thread second([] { Launch("the legacy stream of a thread", cudaStreamLegacy, 6.0F); });
  second.join();
}

void Reset() {
  void* memory = nullptr;
  Check("cudaMalloc before the reset", cudaMalloc(&memory, kBytes));
  Check("cudaDeviceReset", cudaDeviceReset());
  Check("memory is gone with the reset", cudaFree(memory), cudaErrorInvalidValue);
  Check("cudaGetLastError after the reset", cudaGetLastError(), cudaErrorInvalidValue);
}

}  // namespace

int main(int argc, char** argv) {
  may_be_refused.assign(argv + 1, argv + argc);
  QueryDevices();
  if (failed == 0) {
    CopyMemory();
    Launch("the default stream", nullptr, 1.0F);
    AskAboutKernel();
    UseStreams();
    UseHostAndPoolMemory();
    CaptureGraph();
    ProvokeErrors();
    LaunchOnThreads();
    Reset();
    Launch("the default stream after a reset", nullptr, 2.0F);
    Reset();
  }
  std::printf("%d passed, %d refused, %d failed\n", passed.load(), refused_count, failed.load());
  return failed == 0 ? 0 : 1;
}
