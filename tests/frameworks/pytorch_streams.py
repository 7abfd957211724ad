#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Streams, events, priorities and CUDA graphs as PyTorch uses them: order between streams, elapsed time, memory that
crosses streams, graphs that share a pool, captured training with AMP, host work between launches."""

import threading
import time

import suite
from suite import expect_error, pick, require, show

torch = suite.require_torch()
import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402

DEVICE = torch.device(suite.DEVICE)


def busy(cycles=50_000_000):
    """A kernel that only spins: about 25 ms at 2 GHz."""
    torch.cuda._sleep(cycles)


def order_between_streams():
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    values = torch.zeros(1 << 16, device=DEVICE)
    torch.cuda.synchronize()
    for turn in range(10):
        with torch.cuda.stream(first):
            busy(1_000_000)
            values.add_(1)
        second.wait_stream(first)
        with torch.cuda.stream(second):
            values.mul_(2)
        first.wait_stream(second)
    first.synchronize()
    show("ten turns", values)
    require(bool((values == 2046).all()), "each stream waits for the other")


def asynchronous_launches():
    """A launch returns while the stream is busy, a query says so, and a synchronisation waits."""
    torch.cuda.synchronize()
    event = torch.cuda.Event()
    started = time.monotonic()
    busy()
    event.record()
    launched = time.monotonic() - started
    print("done at once:", event.query(), torch.cuda.current_stream().query())
    event.synchronize()
    print("done at last:", event.query(), torch.cuda.current_stream().query())
    print(f"# launched in {launched * 1e6:.0f} us, done after {(time.monotonic() - started) * 1e3:.1f} ms")


def elapsed_time():
    start, middle, stop = (torch.cuda.Event(enable_timing=True) for _ in range(3))
    start.record()
    busy()
    middle.record()
    busy()
    stop.record()
    stop.synchronize()
    first, both = start.elapsed_time(middle), start.elapsed_time(stop)
    print(f"# {first:.2f} ms and {both:.2f} ms")
    require(0 < first < both, "time passes between events")
    expect_error("without timing", (RuntimeError, ValueError),
                 lambda: torch.cuda.Event().elapsed_time(torch.cuda.Event()))
    expect_error("not recorded", (RuntimeError, ValueError), lambda: torch.cuda.Event(
        enable_timing=True).elapsed_time(torch.cuda.Event(enable_timing=True)))


def priorities():
    print("priority range", torch.cuda.Stream.priority_range())
    for priority in (0, -1, -100):
        stream = torch.cuda.Stream(priority=priority)
        print(f"asked {priority}, got {stream.priority}")
    with torch.cuda.stream(torch.cuda.Stream(priority=-1)):
        show("on a high priority", torch.arange(1000, device=DEVICE).sum())
    torch.cuda.synchronize()


def memory_across_streams():
    """record_stream keeps a freed block from being handed out while another stream still reads it."""
    side = torch.cuda.Stream()
    total = torch.zeros(1, device=DEVICE, dtype=torch.float64)
    for turn in range(20):
        block = torch.full((1 << 18,), float(turn), device=DEVICE)
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            busy(200_000)
            total += block.double().sum()
        block.record_stream(side)
        del block
        torch.full((1 << 18,), -1.0, device=DEVICE)
    torch.cuda.synchronize()
    print("read from blocks", float(total))
    require(float(total) == (1 << 18) * 190.0, "no block was overwritten too early")


def graphs_share_a_pool():
    pool = torch.cuda.graph_pool_handle()
    x = torch.zeros(1000, device=DEVICE)
    graphs, outs = [], []
    torch.cuda.synchronize()
    for factor in (2.0, 3.0):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            outs.append((x * factor).cos() + torch.arange(1000, device=DEVICE) * 0.001)
        graphs.append(graph)
    for value in (0.0, 0.5, 1.0):
        x.fill_(value)
        for number, graph in enumerate(graphs):
            graph.replay()
            show(f"graph {number} of {value}", outs[number])
    graphs[0].reset()
    graphs[1].replay()
    show("after a reset of the other", outs[1])


def fork_and_join_in_a_graph():
    x = torch.ones(4096, device=DEVICE)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        side.wait_stream(torch.cuda.current_stream())
        left = x * 2
        with torch.cuda.stream(side):
            right = x * 3
        torch.cuda.current_stream().wait_stream(side)
        both = left + right
    for value in range(5):
        x.fill_(float(value))
        graph.replay()
        print("joined", float(both.sum()))


def random_numbers_in_a_graph():
    torch.cuda.manual_seed(45)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        noise = torch.rand(1000, device=DEVICE)
    for turn in range(3):
        graph.replay()
        show(f"noise {turn}", noise)
    torch.cuda.manual_seed(45)
    graph.replay()
    show("noise again", noise)


CAPTURE_ERROR = """
import torch
graph = torch.cuda.CUDAGraph()
x = torch.ones(10, device="cuda")
try:
    with torch.cuda.graph(graph):
        (x + 1).sum().item()
    print("no error")
except RuntimeError as error:
    print(type(error).__name__, str(error).splitlines()[0])
torch.cuda.synchronize()
print("after it", float((x + 2).sum()))
"""


def capture_errors():
    """What may not happen during a capture is refused, and the process goes on."""
    done = suite.child("capture error", CAPTURE_ERROR)
    require(done.returncode == 0, "work goes on")


def captured_training():
    torch.manual_seed(46)
    with DEVICE:
        model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 8))
        data, target = torch.randn(32, 64), torch.randn(32, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=True)

    def step():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(data), target)
        loss.backward()
        optimizer.step()
        return loss

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = step()
    for _ in range(pick(30, 3)):
        graph.replay()
    show("captured loss", loss)
    show("captured weight", model[0].weight)


def make_graphed():
    torch.manual_seed(47)
    with DEVICE:
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        x = torch.randn(8, 16)
    graphed = torch.cuda.make_graphed_callables(model, (x.clone().requires_grad_(False),))
    for turn in range(3):
        out = graphed(x * (turn + 1))
        out.sum().backward()
        show(f"graphed {turn}", out)
    show("graphed gradient", next(model.parameters()).grad)


def threads_with_streams():
    results = [None] * 8

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            x = torch.full((pick(256, 64),) * 2, number + 1.0, device=DEVICE)
            for _ in range(pick(50, 5)):
                x = (x @ torch.eye(len(x), device=DEVICE)).contiguous()
            results[number] = float(x.sum())

    workers = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("threads", *results)


if __name__ == "__main__":
    suite.finish("pytorch_streams", [order_between_streams, asynchronous_launches, elapsed_time, priorities,
                                     memory_across_streams, graphs_share_a_pool, fork_and_join_in_a_graph,
                                     random_numbers_in_a_graph, capture_errors, captured_training, make_graphed,
                                     threads_with_streams])
