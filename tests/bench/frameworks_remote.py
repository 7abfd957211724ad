#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch and transformers natively, through shared memory, over TCP and over TLS, without and with added delay, in turns: a training step
that reads its loss, a convolution's training step that does, and a token of a GPT-2 with random weights.

Usage: frameworks_remote.py BUILD [--driver LIBRARY] [--delays MS,...] [--ways tcp,tls] [--rounds N] [--json FILE] [--markdown FILE]

The host is this one; a delay is added by tests/remote/relay.py, which is a process in user space: each way takes so many milliseconds, and
some tenths of one more. Where two delays were measured, the added time of a step divided by the added time of a round trip says how many
round trips a step waits for. Medians.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import frameworks
from private_daemon import PrivateDaemon

HERE = pathlib.Path(__file__).resolve().parent
STEPS, LEAST_STEPS, PATIENCE_S = 40, 8, 4.0
FIGURES = [("reading", "training step that reads its loss, ms"), ("convolution", "convolution's training step, ms"),
           ("token", "one token, ms")]


class Work(frameworks.Work):
    """Each figure's time for one step, in milliseconds."""

    def __init__(self):
        super().__init__()
        nn = self.torch.nn
        self.layers = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.ReLU(),
                                    nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 8 * 8, 10)).cuda()
        self.descent = self.torch.optim.SGD(self.layers.parameters(), lr=1e-3, momentum=0.9)
        self.pictures = self.torch.randn(64, 3, 32, 32, device="cuda")
        self.kinds = self.torch.randint(0, 10, (64,), device="cuda")
        for _ in range(3):
            self.one_step()
            self.one_convolution()

    def one_step(self):
        self.optimizer.zero_grad(set_to_none=True)
        out = self.model(self.words[:, :-1])
        loss = self.torch.nn.functional.cross_entropy(out.reshape(-1, 1000), self.words[:, 1:].reshape(-1))
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def one_convolution(self):
        self.descent.zero_grad(set_to_none=True)
        loss = self.torch.nn.functional.cross_entropy(self.layers(self.pictures), self.kinds)
        loss.backward()
        self.descent.step()
        return loss.item()

    def average(self, step):
        """Of as many as fit into some seconds, where a step is slow."""
        self.torch.cuda.synchronize()
        begin, done = time.monotonic(), 0
        while done < STEPS and (done < LEAST_STEPS or time.monotonic() < begin + PATIENCE_S):
            step()
            done += 1
        return (time.monotonic() - begin) * 1e3 / done

    def reading(self):
        return self.average(self.one_step)

    def convolution(self):
        return self.average(self.one_convolution)

    def token(self):
        return 1e3 / self.tokens()


def serve():
    work = Work()
    print("ready", flush=True)
    for line in sys.stdin:
        print(getattr(work, line.strip())(), flush=True)


class Way:
    """One way to the GPU, with a process that works there."""

    def __init__(self, name, build, driver, kind=None, delay_ms=0.0):
        self.name, self.delay_ms = name, delay_ms
        self.environment, self.daemon, self.relay = dict(os.environ), None, None
        if kind is not None:
            self.connect(build, driver, kind)
        command = [sys.executable, __file__, "--serve"]
        self.process = subprocess.Popen(command, env=self.environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def connect(self, build, driver, kind):
        self.daemon = PrivateDaemon(build, driver, kind)
        self.environment.update(self.daemon.environment)
        if self.delay_ms:
            host, port = re.fullmatch(r"\w+://(.*):(\d+)", self.environment["CAUSEWAY"]).groups()
            command = [sys.executable, HERE.parent / "remote/relay.py", "127.0.0.1", "0", host, port, str(self.delay_ms)]
            self.relay = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
            relayed = re.search(r":(\d+) ", self.relay.stdout.readline()).group(1)
            self.environment["CAUSEWAY"] = f"{kind}://127.0.0.1:{relayed}"

    def await_ready(self):
        if self.process.stdout.readline() != "ready\n":
            sys.exit(f"frameworks_remote.py: PyTorch does not come to work ({self.name})")

    def ask(self, what):
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def end(self):
        self.process.stdin.close()
        self.process.wait(60)
        if self.relay is not None:
            self.relay.terminate()
            self.relay.wait()
        if self.daemon is not None:
            self.daemon.end()


def table(ways, samples):
    lines = ["| what | " + " | ".join(way.name for way in ways) + " |", "|---" + "|---:" * len(ways) + "|"]
    for figure, text in FIGURES:
        values = [statistics.median(samples[figure][way.name]) for way in ways]
        lines.append(f"| {text} | " + " | ".join(f"{value:.2f}" for value in values) + " |")
        lines.append("| of native | " + " | ".join(f"{value / values[0]:.2f}" for value in values) + " |")
        trips = []
        for way, value in zip(ways, values):
            base = [other for other in ways if other.name.split()[0] == way.name.split()[0] and not other.delay_ms]
            added = value - statistics.median(samples[figure][base[0].name]) if base else 0
            trips.append(f"{added / (2 * way.delay_ms):.1f}" if way.delay_ms >= 1 else "")
        lines.append("| round trips that it waits for | " + " | ".join(trips) + " |")
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path, nargs="?")
    parser.add_argument("--driver")
    parser.add_argument("--delays", default="0.1,1,10")
    parser.add_argument("--ways", default="tcp,tls")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        return serve()
    if given.build is None:
        parser.error("BUILD is missing")
    build = given.build.resolve()
    ways = [Way("native", build, given.driver), Way("local", build, given.driver, "local")]
    for kind in given.ways.split(","):
        for delay in [0.0, *(float(word) for word in given.delays.split(","))]:
            ways.append(Way(f"{kind} +{delay:g} ms" if delay else kind, build, given.driver, kind, delay))
    samples = {figure: {way.name: [] for way in ways} for figure, _ in FIGURES}
    try:
        for way in ways:
            way.await_ready()
        for turn in range(given.rounds + 1):
            for figure, _ in FIGURES:
                for way in ways[::-1 if turn % 2 else 1]:
                    value = way.ask(figure)
                    if turn > 0:
                        samples[figure][way.name].append(value)
            if turn > 0 and given.markdown is not None:
                given.markdown.write_text(table(ways, samples))
            print(f"round {turn} of {given.rounds} is measured", file=sys.stderr, flush=True)
    finally:
        for way in ways:
            way.end()
    print(table(ways, samples), end="")
    if given.json is not None:
        given.json.write_text(json.dumps(samples))
    return 0


if __name__ == "__main__":
    sys.exit(main())
