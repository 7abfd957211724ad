# SPDX-License-Identifier: Apache-2.0
"""What scripts share that run a program natively and through builds of Causeway in turns: where its libcuda.so.1 is, what processor
time all its processes use, and what the ratios of the turns say."""

import os
import pathlib
import random
import statistics
import sys

from private_daemon import PrivateDaemon

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "gpu_host"))
from ratio_interval import interval

LEAST_ROUNDS = 8  # fewer say too little of how rounds differ


def descendants(roots):
    """The processes that have one of `roots` as an ancestor, and these."""
    children = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    found, open_ends = [], list(roots)
    while open_ends:
        process = open_ends.pop()
        found.append(process)
        open_ends += children.get(process, [])
    return found


class Used:
    """What the threads of these processes have used since it was made, in sums by process and thread name."""

    FIELDS = ("run_us", "kernel_us", "sleeps", "interrupted")

    def __init__(self, processes):
        self.processes, self.before = processes, self.now(processes)

    @staticmethod
    def now(processes):
        seen, tick_us = {}, 1e6 / os.sysconf("SC_CLK_TCK")
        for process in processes:
            try:
                program = pathlib.Path(f"/proc/{process}/comm").read_text().strip()
            except OSError:
                continue
            for thread in pathlib.Path(f"/proc/{process}/task").glob("*"):
                try:
                    stat = (thread / "stat").read_text().rpartition(")")
                    status = dict(line.split(":", 1) for line in (thread / "status").read_text().splitlines())
                    run_us = int((thread / "schedstat").read_text().split()[0]) / 1e3
                except OSError:
                    continue
                seen[thread] = (f"{program}/{status['Name'].strip().rstrip('0123456789')}", (
                    run_us, int(stat[2].split()[12]) * tick_us, int(status["voluntary_ctxt_switches"]),
                    int(status["nonvoluntary_ctxt_switches"])))
        return seen

    def since(self):
        sums = {}
        for thread, (name, values) in self.now(self.processes).items():
            old = self.before.get(thread, (name, (0,) * len(values)))[1]
            sums[name] = [total + value - less for total, value, less in zip(sums.get(name, [0] * len(values)), values, old)]
        return sums


class Side:
    """Where processes find libcuda.so.1: natively (without `build`), or by a daemon of their own; `bound`: words in front of its command."""

    def __init__(self, name, build, driver, bound=()):
        self.name, self.environment, self.daemon = name, dict(os.environ), None
        if build is None:
            if driver:
                self.environment["LD_LIBRARY_PATH"] = str(pathlib.Path(driver).resolve().parent)
            return
        self.daemon = PrivateDaemon(build, driver, bound=bound)
        self.environment.update(self.daemon.environment)

    def end(self):
        if self.daemon is not None:
            self.daemon.end()


def spread(ratios):
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"


def interval_cell(ratios):
    if len(ratios) < LEAST_ROUNDS:
        return ""
    _, low, high = interval([[ratio] for ratio in ratios], random.Random(1))
    return f"{low:.3f} to {high:.3f}"
