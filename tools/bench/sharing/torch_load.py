#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The rows of `causeway bench --sharing` that are PyTorch's: inference and training, with random weights.

Usage: torch_load.py inference|training

It prints "ready" when all is compiled and warm, reads a line, and works until it is killed: `inference` reads the average of the
microseconds between two requests (0: one after the other), and prints for each request the nanoseconds since it was due; `training`
prints those of each step. A request is 16 tokens of a model with GPT-2's shape (124 million parameters, half precision, a cache of keys
and values); a step is one of a transformer of six layers.
Without PyTorch or a GPU it exits with a sentence.
"""

import random
import sys
import time

LAYERS, HEADS, WIDTH, WORDS, TOKENS, PROMPT = 12, 12, 768, 50257, 16, 32


def load_library():
    try:
        import torch  # pylint: disable=import-outside-toplevel
    except ImportError as error:
        sys.exit(f"python3 has no package torch that works ({error})")
    if not torch.cuda.is_available():
        sys.exit("PyTorch finds no GPU")
    return torch


class Generator:
    """GPT-2's shape: what matters here is which kernels run, how many, and that each token waits for the one before."""

    def __init__(self, torch):
        self.torch = torch
        make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.half) * 0.02
        self.words, self.places = make(WORDS, WIDTH), make(1024, WIDTH)
        self.layers = [{"qkv": make(WIDTH, 3 * WIDTH), "out": make(WIDTH, WIDTH), "up": make(WIDTH, 4 * WIDTH), "down": make(4 * WIDTH, WIDTH)}
                       for _ in range(LAYERS)]
        self.prompt = torch.arange(PROMPT, device="cuda")

    def step(self, tokens, first, cache):
        """The next token after these, the first of which is at that place; their keys and values are added to the cache."""
        torch, functional = self.torch, self.torch.nn.functional
        here = self.words[tokens] + self.places[first:first + len(tokens)]
        for at, layer in enumerate(self.layers):
            parts = (functional.layer_norm(here, (WIDTH,)) @ layer["qkv"]).view(len(tokens), 3, HEADS, WIDTH // HEADS).permute(1, 2, 0, 3)
            query, key, value = parts
            if cache[at] is not None:
                key, value = torch.cat([cache[at][0], key], 1), torch.cat([cache[at][1], value], 1)
            cache[at] = (key, value)
            seen = functional.scaled_dot_product_attention(query, key, value, is_causal=len(tokens) > 1)
            here = here + seen.permute(1, 0, 2).reshape(len(tokens), WIDTH) @ layer["out"]
            here = here + functional.gelu(functional.layer_norm(here, (WIDTH,)) @ layer["up"]) @ layer["down"]
        return int((functional.layer_norm(here[-1], (WIDTH,)) @ self.words.T).argmax())

    def request(self):
        cache = [None] * LAYERS
        token = self.step(self.prompt, 0, cache)
        for at in range(PROMPT, PROMPT + TOKENS - 1):
            token = self.step(self.torch.tensor([token], device="cuda"), at, cache)


def serve(torch):
    generator = Generator(torch)
    with torch.no_grad():
        for _ in range(3):
            generator.request()
        print("ready", flush=True)
        gap_ns = float(sys.stdin.readline()) * 1000
        moments = random.Random(1)
        due = time.monotonic_ns()
        while True:
            due = due + moments.expovariate(1 / gap_ns) if gap_ns > 0 else time.monotonic_ns()
            time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
            generator.request()
            print(int(time.monotonic_ns() - due), flush=True)


def train(torch):
    model = torch.nn.TransformerEncoder(torch.nn.TransformerEncoderLayer(512, 8, 2048, batch_first=True), 6).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    batch = torch.randn(16, 128, 512, device="cuda")

    def step():
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return float(loss)

    for _ in range(3):
        step()
    print("ready", flush=True)
    sys.stdin.readline()
    while True:
        begin = time.monotonic_ns()
        step()
        print(time.monotonic_ns() - begin, flush=True)


def main():
    works = {"inference": serve, "training": train}
    if len(sys.argv) != 2 or sys.argv[1] not in works:
        sys.exit(__doc__)
    works[sys.argv[1]](load_library())


if __name__ == "__main__":
    main()
