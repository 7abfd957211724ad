#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CuPy: NVRTC kernels, RawKernel and RawModule, cuFFT, cuBLAS, cuSOLVER, cuSPARSE, cuRAND, memory pools (own, pinned,
managed, the driver's), streams, events, graphs, textures, virtual and pinned memory, and the device's attributes."""

import ctypes
import sys

import suite
from suite import expect_error, pick, require, show, show_rounded, skip

try:
    import cupy
    import cupyx
    import numpy
except ImportError as error:
    skip(f"CuPy is not installed ({suite.first_line(error)})")

MIB = 1 << 20
RUNTIME = cupy.cuda.runtime


def device():
    print("cupy", cupy.__version__, "driver", RUNTIME.driverGetVersion(), "runtime", RUNTIME.runtimeGetVersion())
    print("count", RUNTIME.getDeviceCount(), "capability", cupy.cuda.Device(0).compute_capability)
    properties = RUNTIME.getDeviceProperties(0)
    for name in sorted(properties):
        value = properties[name]
        print(f"property {name}: {value.hex() if isinstance(value, bytes) and not value.isalnum() else value}")
    for name, value in sorted(cupy.cuda.Device(0).attributes.items()):
        print(f"attribute {name}: {value}")
    free, total = RUNTIME.memGetInfo()
    print(f"# free {free}")
    print("total", total)
    require(0 < free <= total, "free memory is below the total")


def arrays():
    x = cupy.arange(100003, dtype=cupy.float32)
    show("arithmetic", cupy.sin(x * 0.001) + x / 7)
    show("sum by rows", x[:100000].reshape(100, 1000).sum(axis=1))
    show("sorted", cupy.sort((x * 7919) % 1013))
    show("unique", cupy.unique((x * 7919) % 13))
    show("where", cupy.where(x % 3 == 0)[0])
    show("take", x.take(cupy.asarray([5, 99999, 7])))
    show("cumulative", cupy.cumsum(cupy.arange(5000)))
    show("bins", cupy.bincount(cupy.arange(10000) % 17))
    show("einsum", cupy.einsum("ij,kj->ik", x[:600].reshape(20, 30), x[:300].reshape(10, 30)))
    kernel = cupy.ElementwiseKernel("float32 a, float32 b", "float32 c", "c = a * b + 1", "multiply_add")
    show("elementwise kernel", kernel(x, x[::-1].copy()))
    reduction = cupy.ReductionKernel("float32 a", "float32 b", "a * a", "a + b", "b = sqrt(a)", "0", "root_of_squares")
    show("reduction kernel", reduction(x[:10000].reshape(10, 1000), axis=1))

    @cupy.fuse()
    def fused(a, b):  # a lambda's name is no name for a kernel
        return cupy.exp(-a) * b + a
    show("fused", fused(x * 0.001, x))


def random_numbers():
    cupy.random.seed(91)
    show("curand uniform", cupy.random.rand(10007))
    show("curand normal", cupy.random.randn(10007))
    generator = cupy.random.default_rng(92)
    show("philox integers", generator.integers(0, 1000, 10007))
    show("philox normal", generator.standard_normal(1001))
    cupy.random.seed(93)
    show("permutation", cupy.random.permutation(1000))


def linear_algebra():
    rng = cupy.random.default_rng(94)
    size = pick(128, 16)
    a = rng.standard_normal((size, size))
    symmetric = a @ a.T + size * cupy.eye(size)
    show("matmul", a @ a)
    show("matmul fp16", a.astype(cupy.float16) @ a.astype(cupy.float16))
    show_rounded("cholesky", cupy.diag(cupy.linalg.cholesky(symmetric))[:8], 8)
    show_rounded("eigenvalues", cupy.linalg.eigvalsh(symmetric)[:8], 8)
    show_rounded("singular values", cupy.linalg.svd(a, compute_uv=False)[:8], 8)
    show_rounded("solved", cupy.linalg.solve(symmetric, cupy.ones(size))[:8], 8)
    q, r = cupy.linalg.qr(a)
    require(bool(cupy.allclose(q @ r, a)), "QR multiplies back")
    require(bool(cupy.allclose(cupy.linalg.inv(symmetric) @ symmetric, cupy.eye(size))), "the inverse is one")
    print("determinant", f"{float(cupy.linalg.slogdet(symmetric)[1]):.8g}")


def fourier():
    rng = cupy.random.default_rng(95)
    x = rng.standard_normal((8, 1000))
    show("fft", cupy.fft.fft(x))
    show("rfft", cupy.fft.rfft(x.astype(cupy.float32)))
    require(bool(cupy.allclose(cupy.fft.ifft(cupy.fft.fft(x)), x)), "the inverse transform inverts")
    show("fft 3d", cupy.fft.fftn(x.reshape(20, 20, 20).astype(cupy.complex64)))
    plan = cupyx.scipy.fftpack.get_fft_plan(x.astype(cupy.complex128), axes=1)
    with plan:
        show("planned", cupyx.scipy.fftpack.fft(x.astype(cupy.complex128), axis=1))


def sparse():
    from cupyx.scipy import sparse as sparse_arrays
    rng = cupy.random.default_rng(96)
    dense = rng.standard_normal((200, 300))
    dense[dense < 1] = 0
    matrix = sparse_arrays.csr_matrix(dense)
    print("stored", matrix.nnz)
    show_rounded("sparse times vector", (matrix @ cupy.arange(300.0))[:8], 8)
    show_rounded("sparse times sparse", (matrix @ matrix.T).toarray()[:3, :3], 8)
    require(bool(cupy.allclose((matrix @ dense.T), dense @ dense.T)), "sparse products agree with dense ones")


RAW = r"""
extern "C" __global__ void scale(float* x, float factor, int count) {
  int at = blockDim.x * blockIdx.x + threadIdx.x;
  if (at < count) x[at] *= factor;
}
__constant__ float table[8];
__device__ int counter;
extern "C" __global__ void lookup(float* out, int count) {
  int at = blockDim.x * blockIdx.x + threadIdx.x;
  if (at < count) { out[at] = table[at % 8]; atomicAdd(&counter, 1); }
}
template <typename T> __global__ void fill(T* out, T value, int count) {
  int at = blockDim.x * blockIdx.x + threadIdx.x;
  if (at < count) out[at] = value + T(at);
}
extern "C" __global__ void shared_sum(const float* x, float* out) {
  extern __shared__ float part[];
  part[threadIdx.x] = x[blockIdx.x * blockDim.x + threadIdx.x];
  __syncthreads();
  for (int step = blockDim.x / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) part[threadIdx.x] += part[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""


def allow_slow_probes():
    """cuda.pathfinder has a child process load a library and gives it ten seconds: too few for an emulated processor."""
    try:
        from cuda.pathfinder._dynamic_libs import load_nvidia_dynamic_lib as loading
    except ImportError:
        return
    for value in vars(loading).values():
        defaults = getattr(getattr(value, "__wrapped__", value), "__kwdefaults__", None)
        if defaults and isinstance(defaults.get("timeout"), float):
            defaults["timeout"] = 300.0


def raw_modules():
    allow_slow_probes()
    kernel = cupy.RawKernel(RAW, "scale")
    x = cupy.arange(1000, dtype=cupy.float32)
    kernel((4,), (256,), (x, cupy.float32(1.5), cupy.int32(1000)))
    show("raw kernel", x)
    print("attributes", *[f"{key}={value}" for key, value in sorted(kernel.attributes.items())])
    for backend in ("nvrtc", "nvcc"):
        try:
            module = cupy.RawModule(code=RAW, backend=backend, options=("--std=c++17",),
                                    name_expressions=["fill<int>", "fill<double>"] if backend == "nvrtc" else None)
            module.get_function("lookup")
        except Exception as error:  # pylint: disable=broad-except
            print(f"{backend}: {type(error).__name__}")
            print(f"# {suite.first_line(error)}", file=sys.stderr)
            continue
        table = cupy.ndarray(8, cupy.float32, module.get_global("table"))
        table[...] = cupy.arange(8) * 1.25
        out = cupy.zeros(1000, cupy.float32)
        module.get_function("lookup")((4,), (256,), (out, cupy.int32(1000)))
        counter = cupy.ndarray(1, cupy.int32, module.get_global("counter"))
        show(f"{backend} lookup", out)
        print(f"{backend} counter", int(counter[0]))
        sums = module.get_function("shared_sum")
        large = cupy.ones(4096, cupy.float32)
        results = cupy.zeros(4, cupy.float32)
        sums.max_dynamic_shared_size_bytes = 65536
        sums((4,), (1024,), (large, results), shared_mem=60000)
        show(f"{backend} shared", results)
        if backend == "nvrtc":
            for kind, dtype in (("int", cupy.int32), ("double", cupy.float64)):
                out = cupy.zeros(100, dtype)
                module.get_function(f"fill<{kind}>")((1,), (128,), (out, dtype(3), cupy.int32(100)))
                show(f"fill {kind}", out)
    try:
        cupy.RawKernel('extern "C" __global__ void f() { nonsense; }', "f").compile()
    except cupy.cuda.compiler.CompileException as error:
        print("does not compile:", "nonsense" in str(error))
    expect_error("no such kernel", cupy.cuda.driver.CUDADriverError,
                 lambda: cupy.RawKernel(RAW, "missing")((1,), (1,), ()))
    expect_error("block too large", cupy.cuda.driver.CUDADriverError,
                 lambda: kernel((1,), (5000,), (x, cupy.float32(1), cupy.int32(1000))))


def memory_pools():
    pool = cupy.get_default_memory_pool()
    pool.free_all_blocks()
    x = cupy.zeros(10 * MIB, cupy.uint8)
    print("pool", pool.used_bytes() >= 10 * MIB, pool.n_free_blocks() >= 0)
    pool.set_limit(size=64 * MIB + pool.total_bytes())
    expect_error("limit of the pool", cupy.cuda.memory.OutOfMemoryError, lambda: cupy.zeros(200 * MIB, cupy.uint8))
    pool.set_limit(size=0)
    expect_error("out of memory", cupy.cuda.memory.OutOfMemoryError, lambda: cupy.zeros(1 << 45, cupy.uint8))
    del x
    pool.free_all_blocks()


def with_allocators(*allocators):
    for name, allocator in allocators:
        with cupy.cuda.using_allocator(allocator):
            y = cupy.arange(100000, dtype=cupy.float64)
            show(name, y * 2 + 1)
            z = y[::2].copy()
            z += 5
            show(f"{name}, again", z)
            cupy.cuda.Device().synchronize()
            del y, z


def no_pool():
    with_allocators(("no pool", None))


def driver_pools():
    with_allocators(("default pool of the driver", cupy.cuda.malloc_async), ("a pool", cupy.cuda.MemoryAsyncPool().malloc))


def managed_pools():
    with_allocators(("managed", cupy.cuda.malloc_managed),
                    ("managed pool", cupy.cuda.MemoryPool(cupy.cuda.malloc_managed).malloc))


def managed_memory():
    memory = cupy.cuda.malloc_managed(4000)
    on_device = cupy.ndarray(1000, cupy.float32, memory)
    on_device[...] = cupy.arange(1000, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    on_host = numpy.frombuffer((ctypes.c_char * 4000).from_address(memory.ptr), numpy.float32)
    show("managed, read by the host", on_host.copy())
    on_host = numpy.ctypeslib.as_array((ctypes.c_float * 1000).from_address(memory.ptr))
    on_host += 0.5
    show("managed, changed by the host", on_device * 2)
    cupy.cuda.Device().synchronize()
    print("attributes", RUNTIME.pointerGetAttributes(memory.ptr).type, on_host[10])


def pinned_memory():
    pool = cupy.cuda.PinnedMemoryPool()
    cupy.cuda.set_pinned_memory_allocator(pool.malloc)
    for count in (1, 1000, pick(8 * MIB, MIB // 4)):
        host = cupyx.empty_pinned(count, numpy.int32)
        host[...] = numpy.arange(count) % 1000003
        stream = cupy.cuda.Stream(non_blocking=True)
        there = cupy.empty(count, cupy.int32)
        there.set(host, stream=stream)
        with stream:
            there += 1
        back = cupyx.empty_pinned(count, numpy.int32)
        there.get(stream=stream, out=back, blocking=False)
        stream.synchronize()
        require(numpy.array_equal(back, host + 1), "pinned copies keep every element")
    print("free pinned blocks", pool.n_free_blocks())
    mapped = RUNTIME.hostAlloc(4096, RUNTIME.hostAllocMapped)
    pointer = RUNTIME.pointerGetAttributes(mapped)
    print("mapped memory's kind", pointer.type)
    view = cupy.ndarray(1024, cupy.float32, cupy.cuda.MemoryPointer(cupy.cuda.UnownedMemory(
        pointer.devicePointer, 4096, None), 0))
    view[...] = cupy.arange(1024)
    cupy.cuda.Device().synchronize()
    show("written through its device address", numpy.ctypeslib.as_array(
        (ctypes.c_float * 1024).from_address(mapped)).copy())
    del view
    RUNTIME.freeHost(mapped)


def streams_and_events():
    first, second = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(null=False, priority=-1)
    x = cupy.zeros(1 << 16)
    cupy.cuda.Device().synchronize()
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    with first:
        start.record()
        for _ in range(20):
            x += 1
        done = first.record()
    second.wait_event(done)
    with second:
        x *= 2
        stop.record()
    stop.synchronize()
    print("#", cupy.cuda.get_elapsed_time(start, stop), "ms")
    show("two streams", x)
    print("done", first.done, second.done, cupy.cuda.Stream.ptds.ptr, cupy.cuda.Stream.null.ptr)
    with cupy.cuda.Stream.ptds:
        show("per-thread stream", cupy.arange(100) * 2)
        cupy.cuda.Stream.ptds.synchronize()


def host_functions():
    stream, seen = cupy.cuda.Stream(non_blocking=True), []
    stream.launch_host_func(seen.append, "host function ran")
    stream.synchronize()
    stream.add_callback(lambda stream, status, text: seen.append((text, status)), "callback ran")
    stream.synchronize()
    print(*seen)


def graphs():
    first = cupy.cuda.Stream(non_blocking=True)
    with first:
        a, b = cupy.arange(1000.0), cupy.zeros(1000)
        cupy.add(a, 1, out=b)
        first.synchronize()
        first.begin_capture()
        cupy.multiply(a, 3, out=b)
        cupy.add(b, 1, out=b)
        graph = first.end_capture()
        for turn in range(3):
            a += turn
            graph.launch(first)
            first.synchronize()
            show(f"graph {turn}", b)


TEXTURE = r"""
extern "C" __global__ void sample(unsigned long long texture, float* out, int width, int height) {
  int x = blockIdx.x * blockDim.x + threadIdx.x, y = blockIdx.y * blockDim.y + threadIdx.y;
  if (x < width && y < height) out[y * width + x] = tex2D<float>(texture, x + 0.5f, y + 0.5f);
}
"""


def textures():
    from cupy.cuda import texture
    width, height = 64, 32
    data = cupy.arange(width * height, dtype=cupy.float32).reshape(height, width)
    channel = texture.ChannelFormatDescriptor(32, 0, 0, 0, RUNTIME.cudaChannelFormatKindFloat)
    array = texture.CUDAarray(channel, width, height)
    array.copy_from(data)
    for mode in (RUNTIME.cudaFilterModePoint, RUNTIME.cudaFilterModeLinear):
        described = texture.TextureDescriptor((RUNTIME.cudaAddressModeClamp,) * 2, mode, RUNTIME.cudaReadModeElementType)
        made = texture.TextureObject(texture.ResourceDescriptor(RUNTIME.cudaResourceTypeArray, cuArr=array), described)
        out = cupy.zeros((height, width), cupy.float32)
        cupy.RawKernel(TEXTURE, "sample")((4, 4), (16, 8), (made, out, cupy.int32(width), cupy.int32(height)))
        require(bool((out == data).all()), "the texture holds what was copied to it")
        show(f"texture, filter {mode}", out)


if __name__ == "__main__":
    try:
        RUNTIME.getDeviceCount()
    except RUNTIME.CUDARuntimeError as error:
        print("no CUDA device:", suite.first_line(error), flush=True)
        raise SystemExit(1) from error
    import cupyx.scipy.fftpack  # noqa: E402,F401
    suite.finish("cupy_basic", [device, arrays, random_numbers, linear_algebra, fourier, sparse, raw_modules, memory_pools,
                                no_pool, driver_pools, managed_pools, managed_memory, pinned_memory, streams_and_events,
                                host_functions, graphs, textures])
