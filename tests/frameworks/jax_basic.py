#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""JAX: jit, grad, vmap, scan, pmap on one device, matrix products in several types, linear algebra, FFT, convolution,
random numbers, transfers from pageable and pinned host memory, donated buffers, callbacks to the host, errors."""

import os

import suite
from suite import pick, require, show, show_rounded, skip

# One process of several on this GPU, and one that repeats itself: no autotuning between algorithms.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true --xla_gpu_autotune_level=0")
if suite.DEVICE == "cpu":
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = ""
try:
    import jax
    import jax.numpy as jnp
    import numpy
except ImportError as error:
    skip(f"JAX is not installed ({suite.first_line(error)})")

KEY = jax.random.PRNGKey(81) if suite.DEVICE == "cpu" or jax.default_backend() == "gpu" else None


def shown(name, value):
    show(name, numpy.asarray(value.astype(jnp.float32) if value.dtype == jnp.bfloat16 else value))


def devices():
    for device in jax.devices():
        print("device", device.device_kind, device.id, device.platform)
    print("local devices", jax.local_device_count(), "memories", *sorted(m.kind for m in jax.devices()[0].addressable_memories()))
    statistics = jax.devices()[0].memory_stats() or {}
    print("statistics", *sorted(statistics))
    print("#", statistics)


def jit_and_grad():

    @jax.jit
    def loss(weights, x, y):
        for w, b in weights[:-1]:
            x = jax.nn.gelu(x @ w + b)
        w, b = weights[-1]
        return jnp.mean((x @ w + b - y)**2)

    keys = jax.random.split(KEY, 8)
    sizes = (32, pick(256, 32), pick(256, 32), 4)
    weights = [(jax.random.normal(keys[i], (m, n)) * 0.1, jnp.zeros(n)) for i, (m, n) in enumerate(zip(sizes, sizes[1:]))]
    x, y = jax.random.normal(keys[6], (64, 32)), jax.random.normal(keys[7], (64, 4))
    step = jax.jit(lambda w: jax.tree.map(lambda p, g: p - 0.05 * g, w, jax.grad(loss)(w, x, y)))
    losses = []
    for number in range(pick(10, 2)):
        losses.append(float(loss(weights, x, y)))
        print(f"loss {number}: {losses[-1].hex()} ~{losses[-1]:.6g}")
        weights = step(weights)
    require(losses[-1] < losses[0], "training lowers the loss")
    shown("weights", weights[0][0])


def matrix_products():
    for dtype in (jnp.float32, jnp.float16, jnp.bfloat16, jnp.int8):
        size = pick(1024, 64)
        a = jax.random.normal(KEY, (size, size)) * 3
        a = a.astype(dtype)
        product = jax.jit(lambda a: jnp.matmul(a, a.T, preferred_element_type=jnp.int32 if a.dtype == jnp.int8 else None))
        shown(f"matmul {jnp.dtype(dtype).name}", product(a))
    ones = jnp.ones((256, 256))
    total = float((ones @ ones).sum())
    print("sum of a product of ones", total)
    require(total == 256.0**3, "the product of ones is right")
    size = pick(4096, 128)
    big = jax.random.normal(KEY, (size, size), dtype=jnp.bfloat16)
    shown("large matmul", (big @ big)[:64, :64])


def transforms():
    xs = jnp.linspace(0, 1, 1000)
    shown("vmap", jax.vmap(jax.grad(lambda x: jnp.sin(x) * x**2))(xs))
    carried, stacked = jax.lax.scan(lambda c, x: (c * 0.9 + x, c), 0.0, xs)
    shown("scan", stacked)
    print("carried", float(carried).hex())
    shown("while", jax.jit(lambda x: jax.lax.while_loop(lambda v: v[0] < 100, lambda v: v * 1.5 + 1, x))(xs[:3]))
    shown("cond", jax.jit(lambda x: jax.lax.cond(x.sum() > 3, lambda v: v * 2, lambda v: v - 1, x))(xs))
    shown("pmap", jax.pmap(lambda x: jax.lax.psum(x * 2, "i"), axis_name="i")(xs.reshape(1, -1)))
    shown("sort", jnp.sort(jax.random.normal(KEY, (5000,))))
    shown("cumulative", jnp.cumsum(jnp.arange(10000)))
    shown("hessian", jax.hessian(lambda v: jnp.sum(v**3) + v[0] * v[1])(xs[:8]))


def libraries():
    """cuSOLVER, cuFFT, cuDNN and cuBLAS behind XLA."""
    a = jax.random.normal(KEY, (pick(128, 16),) * 2)
    symmetric = a @ a.T + len(a) * jnp.eye(len(a))
    show_rounded("cholesky", jnp.diag(jnp.linalg.cholesky(symmetric))[:8], 4)
    show_rounded("eigenvalues", jnp.linalg.eigvalsh(symmetric)[:8], 3)
    show_rounded("singular values", jnp.linalg.svd(a, compute_uv=False)[:8], 3)
    show_rounded("solved", jnp.linalg.solve(symmetric, jnp.ones(len(a)))[:8], 3)
    q, r = jnp.linalg.qr(a)
    require(bool(jnp.allclose(q @ r, a, atol=1e-3)), "QR multiplies back")
    shown("fft", jnp.abs(jnp.fft.fft(jax.random.normal(KEY, (8, 1024)))))
    x, w = jax.random.normal(KEY, (4, 8, 32, 32)), jax.random.normal(KEY, (16, 8, 3, 3))
    shown("convolution", jax.jit(lambda x, w: jax.lax.conv(x, w, (1, 1), "SAME"))(x, w))


def randoms():
    shown("normal", jax.random.normal(KEY, (10007,)))
    shown("uniform", jax.random.uniform(KEY, (10007,)))
    shown("integers", jax.random.randint(KEY, (10007,), 0, 1000))
    shown("permutation", jax.random.permutation(KEY, 1000))


def transfers():
    for count in (1, 1000, pick(1 << 24, 1 << 14)):
        host = (numpy.arange(count) % 1000003).astype(numpy.int32)
        there = jax.device_put(host)
        require(numpy.array_equal(numpy.asarray(there + 1), host + 1), "transfers keep every element")
    print("pageable transfers: equal")
    device = jax.devices()[0]
    pinned = jax.sharding.SingleDeviceSharding(device, memory_kind="pinned_host")
    on_device = jax.sharding.SingleDeviceSharding(device, memory_kind="device")
    x = jax.random.normal(KEY, (pick(1 << 20, 1 << 10),))
    on_host = jax.device_put(x, pinned)
    print("memory kinds", on_host.sharding.memory_kind, x.sharding.memory_kind)
    require(bool((jax.device_put(on_host, on_device) == x).all()), "pinned transfers keep every element")
    shown("offloaded", jax.jit(lambda v: v * 2, out_shardings=pinned)(x))


def donated_buffers():
    step = jax.jit(lambda x: x * 1.5 + 1, donate_argnums=0)
    x = jnp.zeros(pick(1 << 20, 1 << 10))
    for _ in range(10):
        before = x
        x = step(x)
    print("donated buffer is deleted:", before.is_deleted())
    shown("ten steps", x)


def host_callbacks():

    @jax.jit
    def f(x):
        y = jax.pure_callback(lambda v: numpy.asarray(v) + 10, jax.ShapeDtypeStruct(x.shape, x.dtype), x)
        return y * 2

    shown("pure callback", f(jnp.arange(10.0)))
    seen = []
    jax.jit(lambda x: jax.debug.callback(lambda v: seen.append(float(v)), x.sum()))(jnp.ones(100))
    jax.effects_barrier()
    print("debug callback saw", *seen)


def too_much():
    try:
        jnp.zeros((1 << 44,), dtype=jnp.int8).block_until_ready()
    except Exception as error:
        raise MemoryError(str(error).split(" [")[0]) from error  # what follows is in no order


def out_of_memory():
    suite.expect_error("out of memory", MemoryError, too_much)
    print("work goes on", float(jnp.ones(10).sum()))


if __name__ == "__main__":
    if KEY is None:
        print("no GPU: the backend is", jax.default_backend(), flush=True)
        raise SystemExit(1)
    print("jax", jax.__version__)
    suite.finish("jax_basic", [devices, jit_and_grad, matrix_products, transforms, libraries, randoms, transfers,
                               donated_buffers, host_callbacks, out_of_memory])
