#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch with several processes: DataLoader workers by fork beside a CUDA context, CUDA tensors shared between
processes, a child that breaks its context by an index error, CUDA in a forked child, and a process pool."""

import os
import subprocess
import sys

import suite
from suite import pick, require, show

torch = suite.require_torch()
import torch.multiprocessing as multiprocessing  # noqa: E402
from torch.utils.data import DataLoader, Dataset  # noqa: E402

DEVICE = torch.device(suite.DEVICE)
WAIT_S = 60


class Squares(Dataset):
    """Made in the worker processes, on the CPU."""

    def __len__(self):
        return pick(512, 32)

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.randint(0, 1000, (3, 16, 16), generator=generator).float() / 8, index


def data_loader():
    torch.ones(1, device=DEVICE)  # a CUDA context exists before the workers are forked
    for workers, kind in ((0, None), (pick(4, 2), "fork"), (2, "spawn")):
        loader = DataLoader(Squares(), batch_size=16, num_workers=workers, pin_memory=DEVICE.type == "cuda",
                            multiprocessing_context=kind, persistent_workers=False)
        total, seen = torch.zeros(3, device=DEVICE, dtype=torch.float64), 0
        for images, numbers in loader:
            require(DEVICE.type == "cpu" or images.is_pinned(), "batches are pinned")
            total += images.to(DEVICE, non_blocking=True).double().sum(dim=(0, 2, 3))
            seen += int(numbers.sum())
        show(f"data loader, {workers} workers by {kind}", total)
        print("numbers", seen)


def give(queue, done):
    torch.manual_seed(41)
    tensor = torch.arange(pick(1 << 20, 1 << 12), device=DEVICE, dtype=torch.float32)
    queue.put((tensor, tensor[10:20], torch.full((5,), 7, device=DEVICE)))
    require(done.wait(WAIT_S), "the receiver is done in time")
    queue.put(float(tensor[0]))


def share_from_child():
    """A child makes CUDA tensors; this process reads and changes them where they lie (CUDA IPC)."""
    context = multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Event()
    child = context.Process(target=give, args=(queue, done))
    child.start()
    try:
        tensor, part, small = queue.get(timeout=WAIT_S)
        show("shared tensor", tensor)
        show("part of it", part)
        show("another", small)
        tensor[0] = 42.0
        torch.cuda.synchronize()
        del tensor, part, small
        done.set()
        print("the child reads", queue.get(timeout=WAIT_S))
    finally:
        done.set()
        child.join(WAIT_S)
        print("child exit", child.exitcode)
        if child.exitcode is None:
            child.kill()
    require(child.exitcode == 0, "the child succeeds")


def change(tensor, event, results):
    event.wait()
    tensor.mul_(3)
    torch.cuda.synchronize()
    results.put(float(tensor.sum()))


def share_with_child():
    """This process's tensor and event in a child: the event was recorded behind the work on the tensor."""
    context = multiprocessing.get_context("spawn")
    tensor = torch.ones(100000, device=DEVICE)
    event = torch.cuda.Event(enable_timing=False, interprocess=True)
    for _ in range(20):
        tensor.add_(1)
    event.record()
    results = context.Queue()
    child = context.Process(target=change, args=(tensor, event, results))
    child.start()
    try:
        print("the child sums", results.get(timeout=WAIT_S))
    finally:
        child.join(WAIT_S)
        print("child exit", child.exitcode)
        if child.exitcode is None:
            child.kill()
    print("this process sums", float(tensor.sum()))
    require(float(tensor[0]) == 63.0, "the child's change is seen")


INDEX_ERROR = """
import torch
x = torch.arange(10, device="cuda")
y = x[torch.tensor([3, 99], device="cuda")]
for turn in range(3):
    try:
        torch.cuda.synchronize(); print("no error")
    except RuntimeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
try:
    torch.ones(3, device="cuda"); print("no error")
except RuntimeError as error:
    print(type(error).__name__, str(error).splitlines()[0])
print("device count still", torch.cuda.device_count())
"""


def device_assert():
    """An index out of range stops the child's context for good, says where on stderr, and harms nobody else."""
    kept = torch.arange(100, device=DEVICE)
    done = suite.child("index error", INDEX_ERROR)
    lines = [line for line in done.stderr.splitlines() if "Assertion" in line]
    require(lines, "the assertion's text arrives")
    place, _, text = lines[0].partition("Assertion")
    print("assertion lines", len(lines), "first: Assertion" + text, "at", place.split(": block")[0].split("/")[-1])
    show("this process goes on", kept + 1)


FORKED = """
import os, sys, torch
x = torch.ones(10, device="cuda")
child = os.fork()
if child == 0:
    try:
        torch.ones(1, device="cuda"); print("no error")
    except RuntimeError as error:
        print(type(error).__name__, str(error).splitlines()[0])
    sys.stdout.flush(); os._exit(7)
print("child exit", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print("parent goes on", float((x + 1).sum()))
"""


def fork_after_cuda():
    done = suite.child("fork", FORKED)
    require(done.returncode == 0, "the forking script succeeds")


FORK_FIRST = """
import os, sys, torch
children = []
for number in range(4):
    child = os.fork()
    if child == 0:
        x = torch.full((1000,), float(number), device="cuda")
        print("child", number, float((x * 2).sum())); sys.stdout.flush(); os._exit(0)
    os.waitpid(child, 0)
print("parent", float(torch.ones(10, device="cuda").sum()))
"""


def fork_before_cuda():
    done = suite.child("fork first", FORK_FIRST)
    require(done.returncode == 0, "the forking script succeeds")


def pool_task(number):
    x = torch.arange(1000, device=DEVICE, dtype=torch.float64)
    return float((x * number).sum()), os.getpid()


def process_pool():
    with multiprocessing.get_context("spawn").Pool(pick(4, 2)) as pool:
        results = pool.map_async(pool_task, range(8)).get(WAIT_S)
    print("pool", *[value for value, _ in results])
    print("# by", len({process for _, process in results}), "processes")


def killed_child():
    """A process that is killed while its kernels run leaves this one working."""
    text = ("import torch\nx = torch.ones(4096, 4096, device='cuda')\nprint('ready', flush=True)\n"
            "while True: x = x @ x * 0")
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as child:
        print("child", child.stdout.readline().strip())
        child.kill()
        print("child exit", child.wait(WAIT_S))
    show("after it", torch.arange(10, device=DEVICE) * 3)


if __name__ == "__main__":
    suite.finish("pytorch_processes", [data_loader, share_from_child, share_with_child, device_assert, fork_after_cuda,
                                       fork_before_cuda, process_pool, killed_child])
