#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Triton: kernels compiled at run time and loaded as cubins: vector add, softmax, matmul with fixed configurations (tensor
cores, pipelined copies), atomics, a TMA descriptor, launch hooks, and what a failed launch says."""

import suite
from suite import expect_error, pick, require, show, skip

torch = suite.require_torch()
try:
    import triton
    import triton.language as tl
except ImportError as error:
    skip(f"Triton is not installed ({suite.first_line(error)})")

DEVICE = torch.device(suite.DEVICE)


@triton.jit
def add_kernel(x, y, out, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


@triton.jit
def softmax_kernel(x, out, columns, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * stride + at, mask=at < columns, other=-float("inf"))
    values = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * stride + at, values / tl.sum(values, axis=0), mask=at < columns)


@triton.jit
def matmul_kernel(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    columns = tl.program_id(1) * BN + tl.arange(0, BN)
    inner = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for start in range(0, K, BK):
        left = tl.load(a + rows[:, None] * K + (start + inner)[None, :])
        right = tl.load(b + (start + inner)[:, None] * N + columns[None, :])
        total = tl.dot(left, right, total)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(c.dtype.element_ty))


@triton.jit
def histogram_kernel(x, bins, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < count
    tl.atomic_add(bins + tl.load(x + at, mask=inside, other=0), 1, mask=inside)


@triton.jit
def tma_copy_kernel(x, out, M, N, BM: tl.constexpr, BN: tl.constexpr):
    source = tl.make_tensor_descriptor(x, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    target = tl.make_tensor_descriptor(out, shape=[M, N], strides=[N, 1], block_shape=[BM, BN])
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]) * 2)


@triton.jit
def host_tma_kernel(source, target, BM: tl.constexpr, BN: tl.constexpr):
    row, column = tl.program_id(0) * BM, tl.program_id(1) * BN
    target.store([row, column], source.load([row, column]) + 1)


def random(*shape, dtype=torch.float32, seed=71):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(*shape, device=DEVICE, generator=generator).to(dtype)


def vector_add():
    for count in (1, 1000, pick(1 << 20, 1 << 12)):
        x, y = random(count), random(count, seed=72)
        out = torch.empty_like(x)
        add_kernel[(triton.cdiv(count, 1024),)](x, y, out, count, BLOCK=1024)
        require(torch.equal(out, x + y), "Triton adds as PyTorch does")
        show(f"add {count}", out)


def softmax():
    x = random(pick(512, 8), 781)
    out = torch.empty_like(x)
    softmax_kernel[(len(x),)](x, out, x.shape[1], x.stride(0), BLOCK=1024, num_warps=4)
    require(torch.allclose(out, torch.softmax(x, dim=1), rtol=1e-4, atol=1e-6), "softmax agrees with PyTorch")
    show("softmax", out)


def matmul():
    size = pick(512, 64)
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        a, b = random(size, size, dtype=dtype), random(size, size, dtype=dtype, seed=73)
        for blocks, warps, stages in (((32, 32, 32), 4, 2), ((64, 64, 32), 4, 3), ((64, 64, 64), 8, 4)):
            c = torch.empty(size, size, device=DEVICE, dtype=torch.float32)
            grid = (size // blocks[0], size // blocks[1])
            matmul_kernel[grid](a, b, c, size, size, size, *blocks, num_warps=warps, num_stages=stages)
            require(torch.allclose(c, a.float() @ b.float(), rtol=2e-2, atol=2e-1), "matmul agrees with PyTorch")
            show(f"matmul {str(dtype)[6:]} {blocks}", c)


def atomics():
    x = (torch.arange(pick(100000, 1000), device=DEVICE) * 7919) % 257
    bins = torch.zeros(257, device=DEVICE, dtype=torch.int32)
    histogram_kernel[(triton.cdiv(len(x), 256),)](x, bins, len(x), BLOCK=256)
    require(torch.equal(bins.long(), torch.bincount(x, minlength=257)), "the histogram is right")
    show("histogram", bins)


def tensor_descriptors():
    if torch.cuda.get_device_capability()[0] < 9:
        print("no TMA before compute capability 9.0: left out")
        return
    triton.set_allocator(lambda size, alignment, stream: torch.empty(size, device=DEVICE, dtype=torch.int8))
    x = random(256, 512, dtype=torch.float16)
    out = torch.zeros_like(x)
    tma_copy_kernel[(4, 8)](x, out, 256, 512, BM=64, BN=64)
    require(torch.equal(out, x * 2), "a descriptor made on the device")
    show("device descriptor", out)
    from triton.tools.tensor_descriptor import TensorDescriptor
    out = torch.zeros_like(x)
    host_tma_kernel[(4, 8)](TensorDescriptor.from_tensor(x, [64, 64]), TensorDescriptor.from_tensor(out, [64, 64]), BM=64,
                            BN=64)
    require(torch.equal(out, x + 1), "a descriptor made on the host (cuTensorMapEncodeTiled)")
    show("host descriptor", out)


def kernel_facts():
    x = random(1024)
    compiled = add_kernel[(1,)](x, x, torch.empty_like(x), 1024, BLOCK=1024)
    print("registers", compiled.n_regs, "spills", compiled.n_spills, "shared", compiled.metadata.shared,
          "warps", compiled.metadata.num_warps)
    # Only on a GPU: what the compiler makes of the machine.
    from triton.runtime import driver
    properties = driver.active.utils.get_device_properties(torch.cuda.current_device())
    print("device", *[f"{key}={value}" for key, value in sorted(properties.items())])


def failed_launch():
    # Five stages of two tiles of 32 KiB: it compiles, and no GPU has as much shared memory.
    x, out = torch.zeros(1024, 1024, device=DEVICE, dtype=torch.float16), torch.zeros(1024, 1024, device=DEVICE)
    expect_error("too much shared memory", triton.runtime.errors.OutOfResources,
                 lambda: matmul_kernel[(8, 8)](x, x, out, 1024, 1024, 1024, 128, 128, 128, num_warps=8, num_stages=5))
    show("after it", x[:2, :2] + 1)


def streams_and_graphs():
    x, y, out = random(4096), random(4096, seed=74), torch.zeros(4096, device=DEVICE)
    add_kernel[(4,)](x, y, out, 4096, BLOCK=1024)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(10):
            add_kernel[(4,)](out, y, out, 4096, BLOCK=1024)
    side.synchronize()
    show("on a stream", out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add_kernel[(4,)](x, y, out, 4096, BLOCK=1024)
    x.fill_(1.0)
    graph.replay()
    show("replayed", out)


if __name__ == "__main__":
    print("triton", triton.__version__)
    suite.finish("triton_kernels", [vector_add, softmax, matmul, atomics, tensor_descriptors, kernel_facts, failed_launch,
                                    streams_and_graphs])
