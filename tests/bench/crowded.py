#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes that share a few processors, natively and through Causeway: steps a second of all together, and processor
time of all for a step.

Usage: crowded.py BUILD LOAD [--against BUILD] [--rows P:N[:H],...] [--bound set|max] [--kinds KIND,...] [--seconds S] [--rounds N]
                  [--limit S] [--json FILE] [--driver LIBRARY] [--threads FILE]

LOAD is tests/bench/crowded_load of a build (ninja crowded_load). In a row P:N, N processes, and with Causeway their daemon and
workers as well, share P processors; in a row P:N:H beside H threads that never sleep. With --bound set (the default) all are bound to
the first P processors; with max they are in a group of processes that gets P processors' time (cpu.max, or cpu.cfs_quota_us of cgroup v1; as
root, where the cpu controller can be had). The kinds are `wait` (a launch and a wait for it), `step` (400 launches with 12 us of the program's own work before
each, and a wait) and `torch` (training steps by PyTorch). Each row is measured natively and through BUILD in turns, --rounds
times, with --against through another build too; who begins changes with each round. The result is each side's median, the median of the rounds' ratios to
the first side with the least and the largest, and the processor time that all processes of a side used for a step; from eight rounds on
also the interval (95 %) of each median ratio, by resampling the rounds. With --limit the rows share so many seconds, and each is given as many
rounds as fit into its share, up to --rounds, but one at least. The exit status is 77 where --bound max cannot be had. --threads writes a
table of what the threads of each name used for a step: processor time, of it in the kernel, and how often they slept and were
interrupted. With --driver that library is what native
means; of the software GPU say SOFTWARE_GPU_WORK_IN_CALLS=1, or its own threads are most of the crowd.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

from sides import Side, Used, descendants, interval_cell, spread

HERE = pathlib.Path(__file__).resolve().parent
PATIENCE_S = 120
LEFT_OUT_STATUS = 77
PERIOD_US = 100_000


class Group:
    """A group whose processes together get so many processors' time: of cgroup v2, or of v1 where that has the cpu controller."""

    def __init__(self, processors):
        mounts = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
        of_two = [pathlib.Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"]
        of_one = [pathlib.Path(mount[1]) for mount in mounts if mount[2] == "cgroup" and "cpu" in mount[3].split(",")]
        two = bool(of_two) and "cpu" in (of_two[0] / "cgroup.controllers").read_text().split()
        if two:
            root, files = of_two[0], {"cpu.max": f"{processors * PERIOD_US} {PERIOD_US}"}
        elif of_one and (of_one[0] / "cpu.cfs_quota_us").exists():
            root, files = of_one[0], {"cpu.cfs_period_us": str(PERIOD_US), "cpu.cfs_quota_us": str(processors * PERIOD_US)}
        else:
            self.leave_out("which this kernel does not offer here")
        self.folder = root / f"crowded-{os.getpid()}"
        try:
            if two:
                (root / "cgroup.subtree_control").write_text("+cpu")
            self.folder.mkdir()
            for name, value in files.items():
                (self.folder / name).write_text(value)
        except OSError as error:
            self.leave_out(f"which cannot be used here: {error}")

    @staticmethod
    def leave_out(why):
        print(f"crowded.py: --bound max needs the cpu controller of cgroup v2 or v1, {why}.", file=sys.stderr)
        sys.exit(LEFT_OUT_STATUS)

    def prefix(self):
        return ["sh", "-c", f'echo $$ > {self.folder}/cgroup.procs && exec "$@"', "sh"]

    def throttled(self):
        words = dict(line.split() for line in (self.folder / "cpu.stat").read_text().splitlines())
        return int(words["nr_throttled"])

    def end(self):
        for _ in range(100):
            try:
                return self.folder.rmdir()
            except OSError:  # its last process is ending
                time.sleep(0.1)


def measure(side, bound, count, command):
    """Steps, seconds of processor time for a step, and what threads of each name used for one."""
    load = [subprocess.Popen([*bound, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=side.environment)
            for _ in range(count)]
    for process in load:
        if process.stdout.readline() != "ready\n":
            sys.exit(f"crowded.py: {command[0]} does not start ({side.name})")
    processes = descendants([process.pid for process in load] + ([side.daemon.pid] if side.daemon else []))
    threads = Used(processes)
    for process in load:
        process.stdin.write("go\n")
        process.stdin.flush()
    steps = sum(int(process.stdout.readline()) for process in load)
    by_thread = {name: [value / max(steps, 1) for value in values] for name, values in threads.since().items()}
    for process in load:
        process.communicate(timeout=PATIENCE_S)
    return steps, sum(values[0] for values in by_thread.values()) / 1e6, by_thread


HOG = "while True: pass"
LEAST_US = 1.0  # of a step: threads that use less are not worth a line


def tell_threads(path, what, by_thread):
    lines = [] if path.exists() else ["| kind | row | side | threads | " + " | ".join(Used.FIELDS) + " |",
                                      "|---|---|---|---|" + "---:|" * len(Used.FIELDS)]
    for name, values in sorted(by_thread.items(), key=lambda item: -item[1][0]):
        if values[0] >= LEAST_US:
            lines.append(f"| {what} | {name} | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    with path.open("a") as table:
        table.write("\n".join(lines) + "\n")


def has_processors(row):
    return int(row.split(":")[0]) <= len(os.sched_getaffinity(0))


def row_of(words, sides, kind, row, share_s):
    begun = time.monotonic()
    processors, count, hogs = (int(word) for word in (row + ":0").split(":")[:3])
    chosen = sorted(os.sched_getaffinity(0))[:processors]
    group = Group(processors) if words.bound == "max" else None
    bound = group.prefix() if group else ["taskset", "-c", ",".join(map(str, chosen))]
    command = [sys.executable, str(HERE / "crowded_step.py")] if kind == "torch" else [str(words.load), kind]
    seen = {name: [] for name, _ in sides}
    throttled = {name: 0 for name, _ in sides}
    beside = [subprocess.Popen([*bound, sys.executable, "-c", HOG]) for _ in range(hogs)]
    try:
        for turn in range(words.rounds):
            if turn and (time.monotonic() - begun) * (turn + 1) / turn > share_s:  # the next round would not end in time
                break
            for name, build in sides if turn % 2 == 0 else reversed(sides):
                side = Side(name, build, words.driver, bound)
                before = group.throttled() if group else 0
                steps, cost, by_thread = measure(side, bound, count, [*command, str(words.seconds)])
                side.end()
                seen[name].append((steps / words.seconds, cost))
                throttled[name] += group.throttled() - before if group else 0
                if words.threads:
                    tell_threads(words.threads, f"{kind} | {row.replace(':', ', ')} | {name}", by_thread)
    finally:
        for hog in beside:
            hog.kill()
            hog.wait()
        if group:
            group.end()
    first = seen[sides[0][0]]
    return {name: {"steps_per_s": statistics.median(rate for rate, _ in found),
                   "processor_us": statistics.median(cost for _, cost in found) * 1e6,
                   "ratios": [rate / max(base, 1e-9) for (rate, _), (base, _) in zip(found, first)],
                   "processor_ratios": [cost / max(base, 1e-12) for (_, cost), (_, base) in zip(found, first)],
                   "throttled_periods": throttled[name], "rounds": [rate for rate, _ in found]} for name, found in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("load", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--rows", default="1:1,1:4,2:4,4:4,4:8,8:16,16:16,16:32")
    parser.add_argument("--bound", choices=("set", "max"), default="set")
    parser.add_argument("--kinds", default="wait,step")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--driver")
    parser.add_argument("--threads", type=pathlib.Path)
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no group is left behind
    sides = [("native", None)] + ([("before", words.against)] if words.against else []) + [("Causeway", words.build)]
    print("| kind | row | side | steps/s | ratio | 95 % interval | processor us a step | its ratio | 95 % interval |\n"
          "|---|---|---|---:|---:|---|---:|---:|---|")
    end, results = time.monotonic() + words.limit, []
    rows = [(kind, row) for kind in words.kinds.split(",") for row in words.rows.split(",")]
    to_do = sum(has_processors(row) for _, row in rows)
    for kind, row in rows:
        left_s = end - time.monotonic()
        if not has_processors(row) or left_s <= 0:
            why = "no time was left" if has_processors(row) else "not so many processors here"
            print(f"| {kind} | {row.replace(':', ', ')} | {why} | | | | | | |", flush=True)
            continue
        found = row_of(words, sides, kind, row, left_s / to_do)
        to_do -= 1
        for name, value in found.items():
            print(f"| {kind} | {row.replace(':', ', ')} | {name} | {value['steps_per_s']:.0f} | {spread(value['ratios'])} | "
                  f"{interval_cell(value['ratios'])} | {value['processor_us']:.4g} | {spread(value['processor_ratios'])} | "
                  f"{interval_cell(value['processor_ratios'])} |", flush=True)
        results.append({"kind": kind, "row": row, "bound": words.bound, **found})
        if words.json:
            words.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
