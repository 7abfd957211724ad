#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes that share a few processors, natively and through Causeway: steps a second of all together, and processor
time of all for a step.

Usage: crowded.py BUILD LOAD [--against BUILD] [--rows P:N,...] [--kinds KIND,...] [--seconds S] [--rounds N] [--json FILE]
                  [--driver LIBRARY]

LOAD is tests/bench/crowded_load of a build (ninja crowded_load). In a row P:N, N processes, and with Causeway their daemon and
workers as well, are bound to P processors. The kinds are `wait` (a launch and a wait for it), `step` (400 launches with 12 us of the program's own
work before each, and a wait) and `torch` (training steps by PyTorch). Each row is measured natively and through BUILD in turns, --rounds times; with
--against through another build too. The result is each side's median. Processor time is what the processors of the row were
busy. With --driver there is nothing native, and the software GPU's times say nothing of a GPU's.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 120
TICKS = os.sysconf("SC_CLK_TCK")
BUSY_FIELDS = (0, 1, 2, 5, 6)  # of /proc/stat: user, nice, system, interrupts


def busy_s(processors):
    ticks = 0
    for line in pathlib.Path("/proc/stat").read_text().splitlines():
        name, *fields = line.split()
        if name.startswith("cpu") and name != "cpu" and int(name[3:]) in processors:
            ticks += sum(int(fields[field]) for field in BUSY_FIELDS)
    return ticks / TICKS


class Side:
    """Where the processes of a row find libcuda.so.1."""

    def __init__(self, name, build, driver, bound):
        self.name, self.environment, self.daemon = name, dict(os.environ), None
        if build is None:
            return
        # The private daemon of `causeway run` serves all processes of the row: its command tells where it listens.
        command = [*bound, build / "host_backend/causeway", "run", *(["--driver", driver] if driver else []), "--",
                   "sh", "-c", 'echo "$CAUSEWAY"; echo "$LD_LIBRARY_PATH"; read line']
        self.daemon = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for variable in ("CAUSEWAY", "LD_LIBRARY_PATH"):
            self.environment[variable] = self.daemon.stdout.readline().strip()
            if not self.environment[variable]:
                sys.exit(f"crowded.py: {build} starts no daemon")

    def end(self):
        if self.daemon is not None:
            self.daemon.communicate("\n", timeout=PATIENCE_S)


def measure(side, bound, processors, count, command):
    """Steps a second and seconds of processor time for a step."""
    load = [subprocess.Popen([*bound, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=side.environment)
            for _ in range(count)]
    for process in load:
        if process.stdout.readline() != "ready\n":
            sys.exit(f"crowded.py: {command[0]} does not start ({side.name})")
    before = busy_s(processors)
    for process in load:
        process.stdin.write("go\n")
        process.stdin.flush()
    steps = sum(int(process.stdout.readline()) for process in load)
    busy = busy_s(processors) - before
    for process in load:
        process.communicate(timeout=PATIENCE_S)
    return steps, busy / max(steps, 1)


def row_of(words, sides, kind, row):
    processors, count = (int(word) for word in row.split(":"))
    chosen = sorted(os.sched_getaffinity(0))[:processors]
    if len(chosen) < processors:
        return None
    bound = ["taskset", "-c", ",".join(map(str, chosen))]
    command = [sys.executable, str(HERE / "crowded_step.py")] if kind == "torch" else [str(words.load), kind]
    seen = {name: [] for name, _ in sides}
    for _ in range(words.rounds):
        for name, build in sides:
            side = Side(name, build, words.driver, bound)
            steps, cost = measure(side, bound, set(chosen), count, [*command, str(words.seconds)])
            side.end()
            seen[name].append((steps / words.seconds, cost))
    return {name: {"steps_per_s": statistics.median(rate for rate, _ in found),
                   "processor_ms": statistics.median(cost for _, cost in found) * 1e3,
                   "rounds": [rate for rate, _ in found]} for name, found in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("load", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--rows", default="1:1,1:4,2:4,4:4,4:8,8:16,16:16,16:32")
    parser.add_argument("--kinds", default="wait,step")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--driver")
    words = parser.parse_args()
    sides = ([] if words.driver else [("native", None)]) + ([("before", words.against)] if words.against else [])
    sides.append(("Causeway", words.build))
    names = [name for name, _ in sides]
    print("| kind | processors, processes | " + " | ".join(f"{name}: steps/s, ratio, processor ms a step" for name in names) + " |")
    print("|---|---|" + "---|" * len(names))
    results = []
    for kind in words.kinds.split(","):
        for row in words.rows.split(","):
            found = row_of(words, sides, kind, row)
            if found is None:
                print(f"| {kind} | {row.replace(':', ', ')} | not so many processors here |")
                continue
            first = found[names[0]]["steps_per_s"]
            cells = (f"{value['steps_per_s']:.0f}, {value['steps_per_s'] / max(first, 1e-9):.2f}, {value['processor_ms']:.3g}"
                     for value in found.values())
            print(f"| {kind} | {row.replace(':', ', ')} | " + " | ".join(cells) + " |", flush=True)
            results.append({"kind": kind, "row": row, **found})
    if words.json:
        words.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
