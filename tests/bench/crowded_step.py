# SPDX-License-Identifier: Apache-2.0
"""One of the processes that share processors in crowded.py: training steps of a small transformer by PyTorch, each of
which ends by reading its loss. Usage: crowded_step.py SECONDS; it prints "ready", waits for a line, prints its steps, and ends
with its input."""

import sys
import time

import torch


def main():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    layer = torch.nn.TransformerEncoderLayer(256, 4, 512, batch_first=True, dropout=0.0)
    model = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 4, enable_nested_tensor=False), torch.nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    samples, wanted = torch.randn(8, 32, 256, device="cuda"), torch.randn(8, 32, 1, device="cuda")

    def step():
        optimizer.zero_grad()
        loss = ((model(samples) - wanted) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    for _ in range(10):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    end, steps = time.monotonic() + float(sys.argv[1]), 0
    while time.monotonic() < end:
        step()
        steps += 1
    print(steps, flush=True)
    sys.stdin.read()  # until its processor time was read


main()
