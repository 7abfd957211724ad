#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A training loop in PyTorch that reads its loss after each step, for training.py.

usage: training_loop.py STEPS
Prints "began" when the first step is over, and at the end a line of JSON: steps, the longest and the median step in
milliseconds, a hash of all losses and one of the trained weights, each bit for bit. Exit status: 77 without PyTorch or GPU.
"""

import hashlib
import json
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "frameworks"))
import suite  # noqa: E402

torch = suite.require_torch()
from torch import nn  # noqa: E402


def main():
    steps = int(sys.argv[1])
    torch.use_deterministic_algorithms(True)
    device = torch.device(suite.DEVICE)
    torch.manual_seed(5)
    layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.0, batch_first=True, norm_first=True)
    model = nn.Sequential(nn.Linear(64, 256), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(256, 64)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    batches = torch.randn(16, 8, 32, 64)  # on the host: each step copies one to the device
    losses, times = hashlib.sha256(), []
    for step in range(steps):
        begun = time.monotonic()
        optimizer.zero_grad(set_to_none=True)
        batch = batches[step % len(batches)].to(device)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            loss = (model(batch) - batch).square().mean()
            loss.backward()
        optimizer.step()
        value = loss.item()
        times.append((time.monotonic() - begun) * 1000)
        losses.update(value.hex().encode())
        if step == 0:
            print("began", flush=True)
    weights = hashlib.sha256()
    for parameter in model.parameters():
        weights.update(parameter.detach().cpu().numpy().tobytes())
    print(json.dumps({"steps": steps, "longest_ms": round(max(times[1:]), 2), "median_ms": round(statistics.median(times), 3), "last_loss": value,
                      "losses": losses.hexdigest(), "weights": weights.hexdigest()}), flush=True)


if __name__ == "__main__":
    main()
