#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""torch.compile: kernels that Inductor writes and Triton builds at run time, CUDA graph trees, dynamic shapes, a compiled
training step. Seeded, without autotuning."""

import os

import suite
from suite import pick, require, show, show_rounded

os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "4")
torch = suite.require_torch()
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

DEVICE = torch.device(suite.DEVICE)


def random(*shape, seed=31):
    generator = torch.Generator(device=DEVICE).manual_seed(seed)
    return torch.randn(*shape, device=DEVICE, generator=generator)


def pointwise():

    @torch.compile(fullgraph=True)
    def fused(a, b):
        return (torch.sin(a) * b + F.gelu(a - b)).softmax(dim=1)

    a, b = random(pick(512, 16), 300), random(pick(512, 16), 300, seed=32)
    compiled, eager = fused(a, b), (torch.sin(a) * b + F.gelu(a - b)).softmax(dim=1)
    require(torch.allclose(compiled, eager, rtol=1e-4, atol=1e-6), "the compiled function agrees with eager")
    show("pointwise", compiled)


def reductions():

    @torch.compile(fullgraph=True)
    def norm(x):
        return F.layer_norm(x, x.shape[1:]).square().sum(dim=1), x.amax(dim=0), x.argmin(dim=1)

    total, largest, where = norm(random(pick(1000, 10), 777))
    show("layer norm", total)
    show("largest", largest)
    show("smallest at", where)


def dynamic_shapes():
    compiled = torch.compile(lambda x: (x * 2 + 1).relu().sum(dim=-1), dynamic=True)
    for size in (3, 17, pick(1025, 33)):
        show(f"dynamic {size}", compiled(random(size, size + 1)))


def graph_trees():
    """mode="reduce-overhead" records CUDA graphs and replays them from a shared memory pool."""
    torch.manual_seed(33)
    with DEVICE:
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    compiled = torch.compile(model, mode="reduce-overhead")
    with torch.no_grad():
        for turn in range(5):
            x = random(32, 64, seed=34 + turn)
            torch.compiler.cudagraph_mark_step_begin()
            out = compiled(x).clone()
            require(torch.allclose(out, model(x), rtol=1e-4, atol=1e-5), "a replay agrees with eager")
            show(f"graph tree {turn}", out)


def training_step():
    torch.manual_seed(35)
    with DEVICE:
        model = nn.Sequential(nn.Linear(32, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 8))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)

    @torch.compile
    def loss_of(x, y):
        with torch.autocast(DEVICE.type, dtype=torch.bfloat16):
            return F.mse_loss(model(x).float(), y)

    x, y = random(pick(64, 8), 32), random(pick(64, 8), 8, seed=36)
    losses = []
    for _ in range(pick(5, 2)):
        optimizer.zero_grad()
        loss = loss_of(x, y)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    show_rounded("compiled training", losses, 6)
    show("compiled weight", model[0].weight)
    require(losses[-1] < losses[0], "training lowers the loss")


def scatter_and_sort():

    @torch.compile
    def bins(values, where):
        out = torch.zeros(64, device=values.device, dtype=torch.int64)
        return out.index_add(0, where, values), torch.sort(values)[0], values.cumsum(0)

    values = torch.arange(pick(5000, 100), device=DEVICE) * 7919 % 1013
    for name, result in zip(("bins", "sorted", "cumulative"), bins(values, values % 64)):
        show(name, result)


if __name__ == "__main__":
    suite.finish("pytorch_compile", [pointwise, reductions, dynamic_shapes, graph_trees, training_step, scatter_and_sort])
