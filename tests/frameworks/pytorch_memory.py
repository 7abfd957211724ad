#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Memory as PyTorch sees it: statistics of the caching allocator, free memory, out-of-memory that is caught, expandable
segments (virtual memory), the driver's own pools, pinned memory, memory pools, snapshots, and what the device says of
itself."""

import suite
from suite import expect_error, pick, require, show

torch = suite.require_torch()
DEVICE = torch.device(suite.DEVICE)
MIB = 1 << 20
# Counted by the allocator itself, so the same wherever the driver is.
FIGURES = ("allocated_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.current",
           "reserved_bytes.all.peak", "allocation.all.allocated", "allocation.all.freed", "segment.all.current",
           "segment.all.allocated", "inactive_split_bytes.all.current", "num_ooms", "num_alloc_retries")


def show_statistics(name):
    values = torch.cuda.memory_stats()
    print(f"{name}: " + ", ".join(f"{figure} {values.get(figure, 0)}" for figure in FIGURES), flush=True)


def device():
    properties = torch.cuda.get_device_properties(0)
    for name in ("name", "major", "minor", "total_memory", "multi_processor_count", "warp_size", "L2_cache_size",
                 "max_threads_per_multi_processor", "regs_per_multiprocessor", "shared_memory_per_block",
                 "shared_memory_per_block_optin", "is_integrated", "is_multi_gpu_board", "uuid", "pci_bus_id",
                 "pci_device_id", "pci_domain_id", "gcnArchName"):
        if hasattr(properties, name):
            print(f"{name}: {getattr(properties, name)}")
    print("count", torch.cuda.device_count(), "capability", torch.cuda.get_device_capability(),
          "architectures", *torch.cuda.get_arch_list())
    print("bf16", torch.cuda.is_bf16_supported(), "cudnn", torch.backends.cudnn.version(), "cuda", torch.version.cuda)
    free, total = torch.cuda.mem_get_info()
    print(f"# free {free} of {total}")
    print("total by mem_get_info", total)
    require(0 < free <= total, "free memory is below the total")


def statistics():
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    show_statistics("at the start")
    kept = [torch.empty(size, dtype=torch.uint8, device=DEVICE) for size in (1, 1000, 700000, 3 * MIB, 40 * MIB)]
    show_statistics("five tensors")
    del kept[1::2]
    show_statistics("three tensors")
    before = torch.cuda.memory_reserved()
    torch.cuda.empty_cache()
    show_statistics("emptied")
    require(torch.cuda.memory_reserved() <= before, "an emptied cache reserves no more than before")
    del kept
    torch.cuda.empty_cache()
    big = torch.empty(pick(2048, 64) * MIB, dtype=torch.uint8, device=DEVICE)
    with_big = torch.cuda.mem_get_info()[0]
    del big
    torch.cuda.empty_cache()
    print(f"# free memory grew by {torch.cuda.mem_get_info()[0] - with_big} when {pick(2048, 64) * MIB} were freed")


def out_of_memory():
    total = torch.cuda.get_device_properties(0).total_memory
    error = expect_error("everything at once", torch.cuda.OutOfMemoryError,
                         lambda: torch.empty(total, dtype=torch.uint8, device=DEVICE))
    print(f"# {suite.first_line(error)}")
    show_statistics("after it")
    expect_error("more than addresses", (RuntimeError, torch.cuda.OutOfMemoryError),
                 lambda: torch.empty(1 << 52, dtype=torch.uint8, device=DEVICE))
    # A limit of its own, so that what else runs on this GPU is not disturbed: the cache is emptied, then all retried.
    torch.cuda.set_per_process_memory_fraction(512 * MIB / total)
    kept = []

    def fill():
        for _ in range(40):
            kept.append(torch.ones(32 * MIB, dtype=torch.uint8, device=DEVICE))

    expect_error("limit reached", torch.cuda.OutOfMemoryError, fill)
    print("tensors until then", len(kept))
    kept.clear()
    torch.cuda.set_per_process_memory_fraction(1.0)
    show("work goes on", torch.arange(10, device=DEVICE) * 2)
    torch.cuda.empty_cache()
    show_statistics("at the end")


CHILD = """
import os, torch
MIB = 1 << 20
def free(): return torch.cuda.mem_get_info()[0]
torch.zeros(1, device="cuda"); start = free()
kept = []
for size in (1, 5, 30, 3, 100, 7):
    kept.append(torch.full((size * MIB,), size, dtype=torch.uint8, device="cuda"))
    if size == 30: kept.pop(0)
total = sum(int(t[::4096].long().sum()) for t in kept)
grown = torch.zeros(0, device="cuda")
for _ in range(20):
    grown = torch.cat([grown, torch.ones(MIB, device="cuda")])
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    kept.append(torch.ones(10 * MIB, device="cuda"))
torch.cuda.current_stream().wait_stream(side)
x = torch.ones(1000, device="cuda")
graph = y = None
if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = x * 3 + torch.ones(1000, device="cuda")
    for value in (1.0, 2.0):
        x.fill_(value); graph.replay(); print("graph", float(y.sum()))
print("total", total, "grown", float(grown.sum()), "side", float(kept[-1].sum()))
print("allocated", torch.cuda.memory_allocated(), "backend", torch.cuda.get_allocator_backend())
del kept, grown, y, graph
try:
    torch.empty(torch.cuda.get_device_properties(0).total_memory, dtype=torch.uint8, device="cuda")
except RuntimeError as error:  # without the cache it is an AcceleratorError instead of an OutOfMemoryError
    print(f"out of memory: {type(error).__name__}:", str(error).split(". ")[0].splitlines()[0])
torch.cuda.synchronize(); torch.cuda.empty_cache()
print("#", start - free(), "bytes less free than at the start")
print("value after all", float((x + 1).sum()))
"""


def child(name, **environment):
    done = suite.child(name, CHILD, environment)
    require(done.returncode == 0, f"{name} succeeds")


def expandable_segments():
    child("expandable segments", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True",
          PYTORCH_ALLOC_CONF="expandable_segments:True")


def driver_pools():
    child("driver's pools", PYTORCH_CUDA_ALLOC_CONF="backend:cudaMallocAsync",
          PYTORCH_ALLOC_CONF="backend:cudaMallocAsync")


def no_cache():
    child("no cache", PYTORCH_NO_CUDA_MEMORY_CACHING="1")


def pinned():
    for count in (1, 4097, pick(64, 2) * MIB):
        host = torch.arange(count, dtype=torch.int32).remainder_(1000003).pin_memory()
        require(host.is_pinned(), "pin_memory pins")
        there = host.to(DEVICE, non_blocking=True)
        back = torch.empty_like(host, pin_memory=True)
        back.copy_(there.flip(0), non_blocking=True)
        torch.cuda.current_stream().synchronize()
        require(torch.equal(back.flip(0), host), "pinned copies keep every element")
        show(f"pinned {count}", back[:100000])
    registered = torch.arange(1 << 20, dtype=torch.float32)
    runtime = torch.cuda.cudart()
    code = runtime.cudaHostRegister(registered.data_ptr(), registered.numel() * 4, 0)
    print("host register", int(code))
    require(registered.is_pinned(), "registered memory counts as pinned")
    show("registered", registered.to(DEVICE, non_blocking=True) + 1)
    print("host unregister", int(runtime.cudaHostUnregister(registered.data_ptr())))
    require(not registered.is_pinned(), "unregistered memory does not")
    two = torch.arange(64, dtype=torch.float32).reshape(8, 8).pin_memory()
    show("strided copy", two[:, 2:5].to(DEVICE, non_blocking=True))


def pools_and_snapshots():
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        x = torch.ones(5 * MIB, device=DEVICE)
    print("segments in the pool", len(pool.snapshot()), "sum", float(x.sum()))
    del x, pool
    torch.cuda.memory._record_memory_history(max_entries=1000)
    y = torch.ones(1 << 20, device=DEVICE)
    del y
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    print("actions", *[entry["action"] for entry in snapshot["device_traces"][0]][-4:])


if __name__ == "__main__":
    suite.finish("pytorch_memory", [device, statistics, out_of_memory, expandable_segments, driver_pools, no_cache, pinned,
                                    pools_and_snapshots])
