#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Who wakes up while sessions are idle: every thread of guest processes, their workers and the daemon.

    causeway run [--driver LIB] -- tests/bench/idle_wakeups.py [--sessions N] [--seconds S] [--most PER_SESSION]
    causeway run ... -- tests/bench/idle_wakeups.py --slack

Each guest process (this file with --guest) allocates, copies, launches host functions and waits for all of it; then it
does nothing. Threads that the driver makes in the workers have names of their own. With --most it is a test: it fails
unless, at some time within a minute, no more wake-ups than that came from a session in a second. With --slack it is
another: the timers of the driver's threads in the workers may be late, so that the kernel can let many expire together,
and those of all other threads may not.
"""

import argparse
import collections
import ctypes
import glob
import os
import pathlib
import re
import subprocess
import sys
import time

LIMIT_S = 60


def guest():
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name, *arguments):
        result = getattr(cuda, name)(*arguments)
        if result != 0:
            sys.exit(f"{name} answered {result}")

    context, stream, memory = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()
    size, data = ctypes.c_size_t(4096), ctypes.create_string_buffer(4096)
    ran = []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: ran.append(1))
    callback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(lambda *_: ran.append(1))
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuStreamCreate", ctypes.byref(stream), 1)
    call("cuMemAlloc_v2", ctypes.byref(memory), size)
    call("cuMemcpyHtoD_v2", memory, data, size)
    call("cuMemAllocAsync", ctypes.byref(memory), size, stream)
    call("cuMemFreeAsync", memory, stream)
    call("cuLaunchHostFunc", stream, function, None)
    call("cuStreamAddCallback", stream, callback, None, 0)
    call("cuStreamSynchronize", stream)
    print("ready" if len(ran) == 2 else "the functions did not run", flush=True)
    sys.stdin.read()


def children(parent):
    found = []
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = pathlib.Path(stat).read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(stat.split("/")[2]))
    return found


def name_of(pid):
    return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()


def threads_of(kind, pid):
    """By thread: its kind and name, how often it woke up, and the processor time it used in ns."""
    found = {}
    for task in glob.glob(f"/proc/{pid}/task/*"):
        try:
            status = pathlib.Path(task + "/status").read_text()
            spent = int(pathlib.Path(task + "/schedstat").read_text().split()[0])
            thread = pathlib.Path(task + "/comm").read_text().strip()
        except OSError:
            continue
        switches = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("voluntary"))
        found[task] = ((kind, thread), switches, spent)
    return found


def look(processes):
    found = {}
    for kind, pid in processes:
        found.update(threads_of(kind, pid))
    return found


def sample(processes, seconds):
    before, begin = look(processes), time.monotonic()
    time.sleep(seconds)
    after, seconds = look(processes), time.monotonic() - begin
    rows = collections.defaultdict(lambda: [0, 0.0, 0.0])
    for task, (key, switches, spent) in after.items():
        if task not in before:
            continue
        row = rows[key]
        row[0] += 1
        row[1] += (switches - before[task][1]) / seconds
        row[2] += (spent - before[task][2]) / seconds / 1e7
    return rows


def show(rows, sessions):
    print(f"{'process':8} {'thread':16} {'threads':>7} {'wake-ups/s of each':>18} {'% of a core, all':>17}")
    for (kind, thread), (count, wakeups, percent) in sorted(rows.items()):
        print(f"{kind:8} {thread:16} {count:7} {wakeups / count:18.2f} {percent:17.3f}")
    total = sum(row[2] for row in rows.values())
    print(f"{sessions} idle sessions: {total:.3f} % of a core; 100 of them: {total * 100 / sessions:.2f} %")


def check_slack(workers):
    """Needs CAP_SYS_NICE: the kernel shows it to nobody else."""
    driver_threads = 0
    for worker in workers:
        for task in glob.glob(f"/proc/{worker}/task/*"):
            thread = int(task.rsplit("/", 1)[1])
            name = name_of(thread)
            try:
                slack_ms = int(pathlib.Path(f"/proc/{thread}/timerslack_ns").read_text()) / 1e6
            except PermissionError:
                print("the kernel does not show timer slack: not checked")
                return
            if re.fullmatch(r"(cuda|swgpu)[0-9a-f]{10,11}", name):
                continue  # waits for other processes' questions (checkpoints), and never for a time
            of_driver = name == "cuda-EvtHandlr"
            driver_threads += of_driver
            if slack_ms < 500 if of_driver else slack_ms > 0.05:
                sys.exit(f"the timers of thread '{name}' of a worker may be late by {slack_ms} ms")
    if driver_threads == 0:
        sys.exit("no worker has a thread of the driver's that wakes by itself")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--guest", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--sessions", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--most", type=float, help="wake-ups per session and second of guest process and worker")
    parser.add_argument("--slack", action="store_true", help="check whose timers may be late")
    options = parser.parse_args()
    if options.guest:
        return guest()
    guests = [subprocess.Popen([sys.executable, __file__, "--guest"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True) for _ in range(options.sessions)]
    for process in guests:
        line = process.stdout.readline().strip()
        if line != "ready":
            sys.exit(f"a guest process did not get ready: {line}")
    daemons = [pid for pid in children(os.getppid()) if name_of(pid) == "causewayd"]
    if len(daemons) != 1:
        sys.exit("run this by `causeway run`")
    launchers = children(daemons[0])
    processes = [("daemon", daemons[0])] + [("launcher", pid) for pid in launchers]
    processes += [("worker", pid) for launcher in launchers for pid in children(launcher)]
    processes += [("guest", process.pid) for process in guests]
    if options.slack:
        return check_slack(pid for kind, pid in processes if kind == "worker")
    end = time.monotonic() + LIMIT_S
    while True:
        rows = sample(processes, 1 if options.most is not None else options.seconds)
        of_sessions = sum(row[1] for (kind, _), row in rows.items() if kind not in ("daemon", "launcher")) / options.sessions
        good = options.most is None or of_sessions <= options.most
        if good or time.monotonic() > end:
            break
    show(rows, options.sessions)
    for process in guests:
        process.stdin.close()
        process.wait()
    if not good:
        sys.exit(f"{of_sessions:.2f} wake-ups of each session in a second, expected at most {options.most}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
