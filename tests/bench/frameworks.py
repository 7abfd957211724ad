#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch and transformers, natively and through Causeway, in turns: import to first result, a training step of a small
transformer (AdamW, float32 and bfloat16 autocast), and generation of tokens with a GPT-2 of random weights.

Usage: frameworks.py [--build DIR] [--driver LIBRARY] [--rounds N] [--starts N] [--json FILE]. Starts a causewayd of its
own. The two processes stay and are asked in turns, so what disturbs one disturbs both; a start is a new process each time,
after a spare worker is ready. Medians; the ratio is causeway / native and less is better, for tokens per second more.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

import startup

STEPS, TOKENS = 50, 100
BEGIN = "FRAMEWORKS_BEGIN_NS"


def now_ns():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def first_result():
    import torch
    imported = now_ns()
    result = float(torch.ones(1000, device="cuda").sum())
    end = now_ns()
    print(json.dumps({"start_ms": (end - int(os.environ[BEGIN])) / 1e6, "imported_ms": (end - imported) / 1e6,
                      "right": result == 1000.0}), flush=True)


class Work:
    def __init__(self):
        import torch
        import transformers
        from torch import nn
        self.torch = torch
        transformers.logging.set_verbosity_error()
        torch.manual_seed(1)
        layer = nn.TransformerEncoderLayer(256, 8, 1024, dropout=0.0, batch_first=True)
        self.model = nn.Sequential(nn.Embedding(1000, 256), nn.TransformerEncoder(layer, 4), nn.Linear(256, 1000)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.words = torch.randint(0, 1000, (16, 65), device="cuda")
        config = transformers.GPT2Config(n_layer=6, n_head=8, n_embd=512, n_positions=512, vocab_size=1000,
                                         bos_token_id=0, eos_token_id=None, pad_token_id=999)
        self.language = transformers.GPT2LMHeadModel(config).cuda().eval()

    def step(self, dtype):
        torch = self.torch
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not None):
            out = self.model(self.words[:, :-1])
            loss = torch.nn.functional.cross_entropy(out.reshape(-1, 1000), self.words[:, 1:].reshape(-1))
        loss.backward()
        self.optimizer.step()

    def training(self, dtype=None):
        self.torch.cuda.synchronize()
        begin = now_ns()
        for _ in range(STEPS):
            self.step(dtype)
        self.torch.cuda.synchronize()
        return (now_ns() - begin) / 1e6 / STEPS

    def half(self):
        return self.training(self.torch.bfloat16)

    def tokens(self):
        words = self.words[:2, :12]
        begin = now_ns()
        with self.torch.no_grad():
            out = self.language.generate(words, attention_mask=self.torch.ones_like(words), max_new_tokens=TOKENS,
                                         min_new_tokens=TOKENS, do_sample=False)
            out.cpu()
        return TOKENS / ((now_ns() - begin) / 1e9)


def serve():
    work = Work()
    print("ready", flush=True)
    for line in sys.stdin:
        print(getattr(work, line.strip())(), flush=True)


class Side:
    def __init__(self, environment):
        self.environment = dict(os.environ, **environment)
        self.process = None

    def start(self):
        own = dict(self.environment, **{BEGIN: str(now_ns())})
        done = subprocess.run([sys.executable, __file__, "--first-result"], env=own, stdout=subprocess.PIPE, text=True,
                              timeout=300, check=True)
        answer = json.loads(done.stdout)
        if not answer["right"]:
            sys.exit("frameworks.py: the first result is wrong")
        return answer

    def ask(self, what):
        if self.process is None:
            self.process = subprocess.Popen([sys.executable, __file__, "--serve"], env=self.environment, text=True,
                                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            if self.process.stdout.readline().strip() != "ready":
                sys.exit("frameworks.py: a process did not come up")
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait(60)


STARTS = [("start_ms", "import to first result, ms"), ("imported_ms", "the same without the import, ms")]
ASKED = [("training", "training step, float32, ms"),
         ("half", "training step, bfloat16 autocast, ms"), ("tokens", "tokens generated a second")]
FIGURES = STARTS + ASKED


def measure(sides, daemon, rounds, starts):
    samples = {name: {key: [] for key in sides} for name, _ in FIGURES}
    for turn in range(starts + 1):
        for key, side in sides.items():
            daemon.await_spare()
            answer = side.start()
            for name, _ in STARTS if turn > 0 else []:  # the first reads files that the others find in memory
                samples[name][key].append(answer[name])
    for name, _ in ASKED:
        for turn in range(rounds + 1):
            for key in list(sides)[::-1 if turn % 2 else 1]:
                value = sides[key].ask(name)
                if turn > 0:
                    samples[name][key].append(value)
        print(f"{name} is measured", file=sys.stderr, flush=True)
    return samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--driver", default="libcuda.so.1")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--starts", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--first-result", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.first_result:
        return first_result()
    if given.serve:
        return serve()
    build = given.build.resolve()
    library_path = [str(build / "guest_lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    with tempfile.TemporaryDirectory() as folder:
        daemon = startup.Daemon(build, given.driver, pathlib.Path(folder))
        sides = {"native": Side({}), "causeway": Side({"LD_LIBRARY_PATH": ":".join(library_path),
                                                       "CAUSEWAY": f"local:{daemon.socket}"})}
        try:
            samples = measure(sides, daemon, given.rounds, given.starts)
        finally:
            for side in sides.values():
                side.end()
            daemon.end()
    print(f"{'':38} {'native':>10} {'causeway':>10} {'ratio':>7}  of pairs")
    for name, text in FIGURES:
        native, causeway = samples[name]["native"], samples[name]["causeway"]
        ratios = [second / first for first, second in zip(native, causeway)]
        print(f"{text:38} {statistics.median(native):10.2f} {statistics.median(causeway):10.2f} "
              f"{statistics.median(causeway) / statistics.median(native):7.3f}  {min(ratios):.3f} .. {max(ratios):.3f}")
    if given.json is not None:
        given.json.write_text(json.dumps(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
