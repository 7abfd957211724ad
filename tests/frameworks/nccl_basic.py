#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NCCL through torch.distributed: every collective with one process, DistributedDataParallel, and the same with two
processes where there are two GPUs. Multicast (NVLS) stays off."""

import os
import socket
import tempfile
import time

import suite
from suite import pick, require, show

torch = suite.require_torch()
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as multiprocessing  # noqa: E402
from torch import nn  # noqa: E402

WAIT_S = 60


def show_rank(rank, name, tensor):
    if rank == 0:
        show(name, tensor)


def join(rank, world, store):
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", init_method=f"file://{store}", rank=rank, world_size=world,
                            device_id=torch.device("cuda", rank))


def collectives(rank, world):
    device = torch.device("cuda", rank)
    x = torch.arange(pick(1 << 20, 1 << 10), device=device, dtype=torch.float32) * (rank + 1)
    for name, operation in (("sum", dist.ReduceOp.SUM), ("max", dist.ReduceOp.MAX), ("product", dist.ReduceOp.PRODUCT),
                            ("average", dist.ReduceOp.AVG)):
        y = x.clone()
        dist.all_reduce(y, op=operation)
        show_rank(rank, f"all_reduce {name}", y)
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.uint8):
        y = torch.full((1000,), 3, device=device, dtype=dtype)
        dist.all_reduce(y)
        show_rank(rank, f"all_reduce {str(dtype)[6:]}", y)
    y = x.clone()
    dist.broadcast(y, src=world - 1)
    show_rank(rank, "broadcast", y)
    gathered = torch.empty(world * 100, device=device)
    dist.all_gather_into_tensor(gathered, x[:100].contiguous())
    show_rank(rank, "all_gather", gathered)
    part = torch.empty(100, device=device)
    dist.reduce_scatter_tensor(part, x[:world * 100].contiguous())
    show_rank(rank, "reduce_scatter", part)
    swapped = torch.empty(world * 10, device=device)
    dist.all_to_all_single(swapped, x[:world * 10].contiguous())
    show_rank(rank, "all_to_all", swapped)
    works = [dist.all_reduce(torch.ones(5000, device=device), async_op=True) for _ in range(10)]
    for work in works:
        work.wait()
    if world > 1:
        y = torch.full((1000,), float(rank), device=device)
        if rank == 0:
            dist.send(y, 1)
            dist.recv(y, 1)
        else:
            other = torch.empty_like(y)
            dist.recv(other, 0)
            dist.send(other + 10, 0)
        show_rank(rank, "sent and received", y)
    dist.barrier()
    torch.cuda.synchronize()


def graph_capture(rank, world):
    device = torch.device("cuda", rank)
    x = torch.ones(1000, device=device)
    dist.all_reduce(x)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 2
        dist.all_reduce(y)
    for value in (1.0, 2.5):
        x.fill_(value)
        graph.replay()
        torch.cuda.synchronize()
        show_rank(rank, f"captured all_reduce of {value}", y)
    del graph


def data_parallel(rank, world):
    device = torch.device("cuda", rank)
    torch.manual_seed(51)
    with device:
        model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 4))
        data, target = torch.randn(64, 32)[rank::world], torch.randn(64, 4)[rank::world]
    parallel = nn.parallel.DistributedDataParallel(model, device_ids=[rank])
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.1)
    for step in range(pick(5, 2)):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(parallel(data), target)
        loss.backward()
        optimizer.step()
        show_rank(rank, f"loss {step}", loss)
    show_rank(rank, "weight", model[0].weight)


def work(rank, world, store):
    join(rank, world, store)
    try:
        for part in (collectives, graph_capture, data_parallel):
            if rank == 0:
                print(f"- {part.__name__}, {world} processes", flush=True)
            part(rank, world)
    finally:
        dist.destroy_process_group()


def one_process():
    print("NCCL", *torch.cuda.nccl.version())
    print("#", socket.gethostname())
    with tempfile.TemporaryDirectory() as folder:
        work(0, 1, f"{folder}/store")


def two_processes():
    if torch.cuda.device_count() < 2:
        print("one GPU: left out")
        return
    with tempfile.TemporaryDirectory() as folder:
        context = multiprocessing.spawn(work, args=(2, f"{folder}/store"), nprocs=2, join=False)
        end = time.monotonic() + WAIT_S
        ended = False
        while not ended and time.monotonic() < end:  # join() returns when the first of them has ended
            ended = context.join(1)
        require(ended, "both processes end in time")


def two_processes_on_one_gpu():
    """NCCL refuses it: the error, not a hang, must arrive."""
    text = """
import os, sys
os.environ.update(NCCL_NVLS_ENABLE="0", NCCL_SOCKET_IFNAME="lo")
import datetime, tempfile, torch, torch.distributed as dist
store = tempfile.mktemp()
child = os.fork()
rank = 0 if child else 1
torch.cuda.set_device(0)
dist.init_process_group("nccl", init_method="file://" + store, rank=rank, world_size=2,
                        timeout=datetime.timedelta(seconds=30))
try:
    dist.all_reduce(torch.ones(4, device="cuda")); torch.cuda.synchronize(); text = "no error"
except Exception as error:
    text = type(error).__name__ + (": duplicate GPU" if "Duplicate GPU" in str(error) else ": " + str(error)[:100])
if child:
    print(text, flush=True)
    os.waitpid(child, 0)
os._exit(0)
"""
    suite.child("two on one GPU", text)


if __name__ == "__main__":
    suite.finish("nccl_basic", [one_process, two_processes, two_processes_on_one_gpu])
