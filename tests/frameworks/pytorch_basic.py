#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Seeded PyTorch run whose printed numbers must be the same natively and through Causeway.

Run it twice, with NVIDIA's libcuda.so.1 and with ours, and compare the outputs line by line:
    python3 pytorch_basic.py > native.txt
    causeway run -- python3 pytorch_basic.py > causeway.txt && diff native.txt causeway.txt
Numbers are printed as hexadecimal floats and as checksums of raw bytes, so the comparison is bit for bit.
Nothing printed depends on time, addresses or the device's name.
"""

import threading

import suite
from suite import pick, require, show

torch = suite.require_torch()
import torch.nn.functional as F  # noqa: E402

DEVICE = torch.device(suite.DEVICE)


def tensors(device):
    a = torch.arange(10007, device=device, dtype=torch.float32)
    show("in place", a.mul_(0.5).add_(1.25))
    show("reduction", torch.stack([a.sum(), a.mean(), a.std(), a.max(), a.norm()]))
    generator = torch.Generator(device=device).manual_seed(11)
    random = torch.rand(1000, 37, device=device, generator=generator)
    show("random", random)
    show("normal", torch.randn(513, device=device, generator=generator))
    show("sorted", random.flatten().sort().values[::100])
    show("cumulative", (random * 1000).long().cumsum(0)[::100])  # whole numbers: their order does not matter
    show("index", random[random > 0.75][:50])
    show("gather", random.gather(1, torch.randint(0, 37, (1000, 4), device=device, generator=generator)))
    print("item", a[77].item().hex(), int((random > 0.5).sum().item()))
    show("complex", torch.fft.fft(random[:, :32].contiguous()).abs())


def matrix_products(device):
    generator = torch.Generator(device=device).manual_seed(12)
    for rows, inner, columns in ((3, 5, 7), (129, 65, 33), (512, 256, 384), (pick(1024, 128),) * 3):
        a = torch.randn(rows, inner, device=device, generator=generator)
        b = torch.randn(inner, columns, device=device, generator=generator)
        product = a @ b
        show(f"matmul {rows}x{inner}x{columns}", product)
        exact = (a.cpu().double() @ b.cpu().double()).float()
        require(torch.allclose(product.cpu(), exact, rtol=1e-3, atol=1e-3), "matmul agrees with the CPU")
        for dtype in (torch.float16, torch.bfloat16):
            show(f"matmul {str(dtype)[6:]}", a.to(dtype) @ b.to(dtype))
    a = torch.randn(8, 40, 50, device=device, generator=generator)
    show("batched", torch.bmm(a, a.transpose(1, 2)))
    square = torch.randn(64, 64, device=device, generator=generator) + 64 * torch.eye(64, device=device)
    show("linear", F.linear(square, square[:5], square[:5, 0].contiguous()))
    show("softmax", torch.softmax(square, dim=1))


class ConvNet(torch.nn.Module):

    def __init__(self):
        super().__init__()
        self.first = torch.nn.Conv2d(3, 16, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(16)
        self.second = torch.nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.head = torch.nn.Linear(32 * 16, 10)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = F.avg_pool2d(F.relu(self.second(x)), 4)
        return self.head(x.flatten(1))


def training(device):
    torch.manual_seed(13)
    model = ConvNet()
    images, labels = torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))
    model, images, labels = model.to(device), images.to(device), labels.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(pick(5, 2)):
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        print(f"conv net step {step}: loss {float(loss.detach().double()).hex()}")
    for name, parameter in model.named_parameters():
        show(f"gradient {name}", parameter.grad)
        show(f"parameter {name}", parameter)
    require(bool(torch.isfinite(loss)), "the loss is finite")


def graphs(device):
    torch.manual_seed(14)
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 16)).to(device)
    static_input = torch.zeros(32, 64, device=device)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.no_grad():
        with torch.cuda.stream(side):
            for _ in range(3):
                layers(static_input)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            static_output = layers(static_input)
        for replay in range(10):
            batch = torch.full((32, 64), 0.01 * (replay + 1)) + torch.arange(64) * 0.001
            static_input.copy_(batch)
            graph.replay()
            show(f"graph replay {replay}", static_output)
            require(torch.equal(static_output, layers(static_input)), "a replay equals the direct run")
    training_graph(device)


def training_graph(device):
    torch.manual_seed(15)
    model = torch.nn.Linear(32, 4).to(device)
    data, target = torch.randn(8, 32, device=device), torch.randn(8, 4, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        optimizer.zero_grad(set_to_none=True)
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
    for _ in range(20):
        graph.replay()
    show("trained by replays", model.weight)
    print("loss after replays", float(loss.detach()).hex())


def copies_and_streams(device):
    for count in (1, 1000, 1 << 16, pick((1 << 23) + 3, (1 << 17) + 3)):
        pinned = torch.arange(count, dtype=torch.int32).pin_memory()
        require(pinned.is_pinned(), "pin_memory pins")
        on_device = pinned.to(device, non_blocking=True)
        on_device.add_(1)
        back = torch.empty(count, dtype=torch.int32, pin_memory=True)
        back.copy_(on_device, non_blocking=True)
        torch.cuda.synchronize()
        require(torch.equal(back, pinned + 1), "pinned copies keep every element")
        pageable = torch.arange(count, dtype=torch.int32).to(device).cpu()
        require(torch.equal(pageable, pinned), "pageable copies keep every element")
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    values = torch.zeros(1 << 16, device=device)
    torch.cuda.synchronize()
    start.record(first)
    with torch.cuda.stream(first):
        for _ in range(50):
            values.add_(1)
        done = first.record_event()
    with torch.cuda.stream(second):
        second.wait_event(done)
        values.mul_(2)
        stop.record(second)
    stop.synchronize()
    require(start.elapsed_time(stop) > 0, "time passes between two events")
    require(bool((values == 100).all()), "a stream waits for an event of another")
    print("copies and streams: equal")


def threads(device):
    results = [None] * 4

    def work(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            value = torch.full((256, 256), float(number + 1), device=device)
            for _ in range(20):
                value = value @ torch.eye(256, device=device)
            torch.cuda.current_stream().synchronize()
            results[number] = float(value.sum())

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    print("threads:", *[value.hex() for value in results])


def errors(device):
    try:
        torch.empty(1 << 46, device=device)
        print("out of memory: not reported")
    except torch.cuda.OutOfMemoryError:
        print("out of memory: reported")
    require(float(torch.ones(4, device=device).sum()) == 4.0, "work goes on after an error")
    free, total = torch.cuda.mem_get_info()
    require(0 < free <= total, "free memory is below the total")


def section(function):
    """One that takes the device, as a section of the suite."""

    def run():
        function(DEVICE)

    run.__name__ = function.__name__
    return run


if __name__ == "__main__":
    suite.finish("pytorch_basic", [section(part) for part in (tensors, matrix_products, training, graphs,
                                                              copies_and_streams, threads, errors)])
