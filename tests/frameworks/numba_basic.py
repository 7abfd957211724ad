#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Numba: kernels written in Python: grids, shared memory, atomics, device functions, reductions, streams and events,
pinned, mapped and managed arrays, vectorised functions, constant memory, cooperative grids, random numbers, errors."""

import suite
from suite import expect_error, pick, require, show, skip

try:
    import numpy
    if not hasattr(numpy, "row_stack"):
        numpy.row_stack = numpy.vstack  # NumPy 2.5 dropped the other name, by which numba-cuda still asks for it
    import numba
    from numba import cuda, float32, float64, int32
except ImportError as error:
    skip(f"numba is not installed ({suite.first_line(error)})")
try:
    PRESENT = cuda.is_available()
except Exception as problem:  # pylint: disable=broad-except
    PRESENT = False
    print("#", problem)
if not PRESENT:
    print("no CUDA device: numba.cuda.is_available() is False", flush=True)
    raise SystemExit(1)

import warnings  # noqa: E402

warnings.filterwarnings("ignore", category=numba.core.errors.NumbaPerformanceWarning)
COUNT = pick(100003, 1003)
TABLE = numpy.arange(16, dtype=numpy.float32) * 1.5


@cuda.jit
def add_kernel(x, y, out):
    at = cuda.grid(1)
    if at < out.size:
        out[at] = x[at] + y[at]


@cuda.jit(device=True)
def twice_plus_one(value):
    return 2 * value + 1


@cuda.jit
def uses_device_function(x, out):
    for at in range(cuda.grid(1), out.size, cuda.gridsize(1)):
        out[at] = twice_plus_one(x[at])


@cuda.jit
def matmul_kernel(a, b, c):
    left = cuda.shared.array((16, 16), float32)
    right = cuda.shared.array((16, 16), float32)
    row, column = cuda.grid(2)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    total = float32(0)
    for start in range(0, a.shape[1], 16):
        left[x, y] = a[row, start + y]
        right[x, y] = b[start + x, column]
        cuda.syncthreads()
        for k in range(16):
            total += left[x, k] * right[k, y]
        cuda.syncthreads()
    c[row, column] = total


@cuda.jit
def histogram_kernel(x, bins):
    at = cuda.grid(1)
    if at < x.size:
        cuda.atomic.add(bins, x[at], 1)


@cuda.jit
def constant_kernel(out):
    table = cuda.const.array_like(TABLE)
    at = cuda.grid(1)
    if at < out.size:
        out[at] = table[at % 16]


@cuda.jit
def warp_kernel(out):
    value = int32(cuda.threadIdx.x)
    for step in (16, 8, 4, 2, 1):
        value += cuda.shfl_down_sync(0xFFFFFFFF, value, step)
    if cuda.threadIdx.x % 32 == 0:
        out[cuda.threadIdx.x // 32] = value


@cuda.reduce
def total_of(a, b):
    return a + b


def launched(kernel, *arguments, count=COUNT, stream=0):
    kernel[(count + 127) // 128, 128, stream](*arguments)


def device():
    this = cuda.get_current_device()
    print("numba", numba.__version__, "device", this.name, "capability", this.compute_capability)
    for name in ("MAX_THREADS_PER_BLOCK", "MULTIPROCESSOR_COUNT", "WARP_SIZE", "MAX_SHARED_MEMORY_PER_BLOCK", "PCI_BUS_ID",
                 "MAX_GRID_DIM_X", "CLOCK_RATE", "UNIFIED_ADDRESSING"):
        print(name, getattr(this, name))
    free, total = cuda.current_context().get_memory_info()
    print(f"# free {free}")
    print("total", total)


def kernels():
    x, y = numpy.arange(COUNT, dtype=numpy.float32), numpy.full(COUNT, 0.25, numpy.float32)
    out = numpy.zeros(COUNT, numpy.float32)
    launched(add_kernel, x, y, out)
    require(numpy.array_equal(out, x + y), "numba adds")
    show("add", out)
    there = cuda.device_array(COUNT, numpy.float32)
    launched(uses_device_function, cuda.to_device(x), there)
    show("device function", there.copy_to_host())
    a = (numpy.arange(64 * 64) % 17 - 8).astype(numpy.float32).reshape(64, 64)
    c = numpy.zeros((64, 64), numpy.float32)
    matmul_kernel[(4, 4), (16, 16)](a, a, c)
    require(numpy.array_equal(c, a @ a), "the product is right")
    show("matmul", c)
    bins = numpy.zeros(257, numpy.int32)
    numbers = (numpy.arange(COUNT) * 7919 % 257).astype(numpy.int32)
    launched(histogram_kernel, numbers, bins)
    require(numpy.array_equal(bins, numpy.bincount(numbers, minlength=257)), "the histogram is right")
    show("histogram", bins)
    out = numpy.zeros(100, numpy.float32)
    constant_kernel[1, 128](out)
    show("constants", out)
    sums = numpy.zeros(4, numpy.int32)
    warp_kernel[1, 128](sums)
    show("warp sums", sums)


def reductions():
    x = numpy.arange(COUNT, dtype=numpy.float64)
    print("reduce", total_of(x), "expected", x.sum())
    require(total_of(x) == x.sum(), "the reduction is right")


def streams_and_events():
    stream, other = cuda.stream(), cuda.stream()
    host = cuda.pinned_array(COUNT, numpy.float32)
    host[:] = numpy.arange(COUNT)
    there = cuda.to_device(host, stream=stream)
    start, stop = cuda.event(), cuda.event()
    start.record(stream)
    for _ in range(5):
        launched(uses_device_function, there, there, stream=stream)
    stop.record(stream)
    stop.wait(other)
    out = cuda.device_array(COUNT, numpy.float32, stream=other)
    launched(uses_device_function, there, out, stream=other)
    back = cuda.pinned_array(COUNT, numpy.float32)
    out.copy_to_host(back, stream=other)
    other.synchronize()
    print("#", cuda.event_elapsed_time(start, stop), "ms")
    show("two streams", back.copy())
    with stream.auto_synchronize():
        launched(uses_device_function, there, there, stream=stream)
    show("after it", there.copy_to_host())
    values = numpy.arange(1000, dtype=numpy.float32)
    with cuda.pinned(values):
        show("pinned for a while", cuda.to_device(values, stream=stream).copy_to_host())


def mapped_and_managed():
    mapped = cuda.mapped_array(1000, numpy.float32)
    mapped[:] = numpy.arange(1000)
    launched(uses_device_function, mapped, mapped, count=1000)
    cuda.synchronize()
    show("mapped", numpy.array(mapped))
    managed = cuda.managed_array(1000, numpy.float32)
    managed[:] = numpy.arange(1000)
    launched(uses_device_function, managed, managed, count=1000)
    cuda.synchronize()
    show("managed", numpy.array(managed))
    managed[:] += 1
    launched(uses_device_function, managed, managed, count=1000)
    cuda.synchronize()
    show("managed, changed by the host", numpy.array(managed))


def vectorised():

    @numba.vectorize(["float32(float32, float32)", "float64(float64, float64)"], target="cuda")
    def squares(a, b):
        return a * a + b

    x = numpy.arange(10000, dtype=numpy.float32)
    show("vectorize", squares(x, x))
    show("vectorize 64", squares(x.astype(numpy.float64), 0.5))

    @numba.guvectorize(["void(float64[:], float64[:])"], "(n)->()", target="cuda")
    def row_sum(row, out):
        total = 0.0
        for value in row:
            total += value
        out[0] = total

    show("guvectorize", row_sum(numpy.arange(1000.0).reshape(10, 100)))


def cooperative():

    @cuda.jit
    def steps(x):
        grid = cuda.cg.this_grid()
        at = cuda.grid(1)
        for _ in range(5):
            value = x[(at + 1) % x.size]
            grid.sync()
            x[at] = value
            grid.sync()

    x = cuda.to_device(numpy.arange(1024, dtype=numpy.float32))
    steps[8, 128](x)
    show("cooperative grid", x.copy_to_host())


def random_numbers():
    from numba.cuda.random import create_xoroshiro128p_states, xoroshiro128p_uniform_float32

    @cuda.jit
    def draw(states, out):
        at = cuda.grid(1)
        if at < out.size:
            out[at] = xoroshiro128p_uniform_float32(states, at)

    states = create_xoroshiro128p_states(1024, seed=97)
    out = numpy.zeros(1024, numpy.float32)
    draw[8, 128](states, out)
    show("random", out)


def errors():

    @cuda.jit(debug=True, opt=False)
    def divides(x, out):
        if x[0] > 1:
            raise ValueError("too large")
        out[0] = x[0] / x[1]

    out = numpy.zeros(1)
    divides[1, 1](numpy.array([1.0, 4.0]), out)
    print("divided", out[0])
    expect_error("raised in a kernel", ValueError, lambda: divides[1, 1](numpy.array([2.0, 1.0]), out))
    expect_error("block too large", Exception, lambda: add_kernel[1, 5000](TABLE, TABLE, TABLE.copy()))
    expect_error("out of memory", Exception, lambda: cuda.device_array(1 << 45, numpy.uint8))
    print("work goes on", total_of(numpy.arange(100.0)))


if __name__ == "__main__":
    suite.finish("numba_basic", [device, kernels, reductions, streams_and_events, mapped_and_managed, vectorised,
                                cooperative, random_numbers, errors])
