#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a wait by a blocking event costs: wake-ups and processor time of every thread, for each of many copies.

    tests/bench/blocking_waits.py PROBE LIBRARY [--runs N]              natively
    causeway run [--driver LIB] -- tests/bench/blocking_waits.py PROBE libcuda.so.1 [--runs N] [--most WAKE-UPS]

PROBE (causeway-bench-probe) measures `cpu:pinned` as often as --runs says: asynchronous copies of 64 MiB pinned memory,
each waited for by a blocking event. A wake-up is a voluntary context switch. With --most it is a test: it fails unless
a run comes, within a minute, where for each wait the waiting thread and the worker's dispatcher woke no more often than
that, and the driver's own thread hardly ever.
"""

import argparse
import collections
import os
import subprocess
import sys
import time

from idle_wakeups import children, look, name_of

COPIES = 33  # of one measurement: 32 that count and one before them
LIMIT_S = 60
MOST_INTERRUPTS = 0.5  # for a wait; the driver's thread is woken by each record of a blocking event


def worker_of_parent():
    """The worker that the daemon of `causeway run` gave the probe; None natively."""
    daemons = [pid for pid in children(os.getppid()) if name_of(pid) == "causewayd"]
    if not daemons:
        return None

    def spent(pid):
        return sum(used for _, _, used in look([("worker", pid)]).values())

    return max((pid for launcher in children(daemons[0]) for pid in children(launcher)), key=spent)  # the others are spare


def ask(probe, line):
    probe.stdin.write(line + "\n")
    probe.stdin.flush()
    value, error = probe.stdout.readline().split()
    if error != "0":
        sys.exit(f"{line}: CUDA error {error}")
    return float(value)


def sample(probe, processes):
    before = look(processes)
    ms = ask(probe, "measure cpu:pinned")
    rows = collections.defaultdict(lambda: [0.0, 0.0])
    after = look(processes)
    for task, (key, switches, spent) in after.items():
        _, switched, used = before.get(task, (key, 0, 0))
        kind, thread = key
        thread_id, pid = int(task.split("/")[4]), int(task.split("/")[2])
        row = rows[kind, "waiting" if kind == "program" and thread_id == pid else
                   "dispatcher" if thread_id == pid else thread]
        row[0] += (switches - switched) / COPIES
        row[1] += (spent - used) / 1000 / COPIES
    return ms, rows


def show(run, ms, rows):
    print(f"run {run}: {ms:.2f} ms of processor time per GiB, {ms * 1000 / 16:.1f} us per copy; for each copy:")
    for (kind, thread), (wakeups, spent) in sorted(rows.items(), key=lambda item: -item[1][1]):
        if wakeups >= 0.01 or spent >= 0.1:
            print(f"  {kind:8} {thread:16} {wakeups:6.2f} wake-ups {spent:8.1f} us")


def is_quiet(rows, most):
    return (rows["program", "waiting"][0] <= most and rows["worker", "dispatcher"][0] <= most and
            rows["worker", "cuda-EvtHandlr"][0] <= MOST_INTERRUPTS)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("probe")
    parser.add_argument("library")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--most", type=float, help="wake-ups of either thread for a wait: a test")
    options = parser.parse_args()
    with subprocess.Popen([options.probe, options.library], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as probe:
        if not probe.stdout.readline().startswith("ready"):
            sys.exit("the probe did not get ready")
        ask(probe, "measure cpu:pinned")
        worker = worker_of_parent()
        processes = [("program", probe.pid)] + ([("worker", worker)] if worker is not None else [])
        if worker is not None:
            probe.stdin.write(f"worker {worker}\n")
        end, run, good = time.monotonic() + LIMIT_S, 0, False
        while run < options.runs or (options.most is not None and not good and time.monotonic() < end):
            ms, rows = sample(probe, processes)
            show(run, ms, rows)
            run, good = run + 1, is_quiet(rows, options.most or 0)
        probe.stdin.close()
    if options.most is not None and not good:
        sys.exit(f"expected a run with at most {options.most} wake-ups of either thread for a wait, "
                 f"and at most {MOST_INTERRUPTS} of the driver's")


if __name__ == "__main__":
    main()
