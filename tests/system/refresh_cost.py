#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a refresh of `causeway top` costs, in itself and in causewayd, with real sessions on the software GPU.

usage: refresh_cost.py BUILD [--users N] [--sessions N] [--refreshes N] [--delay S] [--idle] [--nvml]

By default 16 users of this host have 4 sessions each; each session copies 64 KiB and waits for it ten times a second (--idle: never).
causewayd is watched for as long as the refreshes take, first without top and then with it; what it does for sessions varies by more than a
refresh costs, and so that cost is taken from many questions in a row, less what it did without them. Processor times are those of
/proc/PID/task/*/schedstat. --nvml has top ask the software GPU's NVML, which reads the maps of all processes of this machine to find its
users: that is this stand-in's own cost, for which there is no limit. It takes a little more than 2 * refreshes * delay seconds.
Exit status: 1 if a refresh costs more than 1 % of a processor at that delay; 77 where this user is not root, which other users take.
"""

import argparse
import ctypes
import json
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "upgrade"))
from upgrade import LIMIT_S, expect, host_of, wait_for  # noqa: E402

FIRST_UID = 61000
PR_SET_DUMPABLE = 4
MOST_PERCENT = 1
QUESTIONS = 200


def work(uid, guest_library, idle):
    """A session of that user, until it is ended."""
    cuda = ctypes.CDLL(str(guest_library))
    os.setgid(uid)
    os.setuid(uid)
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)  # as a process is that was this user's from its start
    context, place = ctypes.c_void_p(), ctypes.c_uint64()
    size, data = ctypes.c_size_t(64 << 10), ctypes.create_string_buffer(64 << 10)
    results = [cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
               cuda.cuMemAlloc_v2(ctypes.byref(place), size)]
    while not any(results):
        time.sleep(0.1)
        if not idle:
            results = [cuda.cuMemcpyHtoD_v2(place, data, size), cuda.cuCtxSynchronize()]
    print(f"a session failed: {results}", flush=True)
    os._exit(1)


def begin_sessions(options, host):
    os.environ["CAUSEWAY"] = f"local:{host.socket}"
    children = []
    for number in range(options.users * options.sessions):
        child = os.fork()
        if child == 0:
            work(FIRST_UID + number % options.users, options.build / "guest_lib/libcuda.so.1", options.idle)
        children.append(child)
    return children


def sessions_of(host):
    return [each for each in json.loads(host.status())["sessions"] if each["state"] == "serving"]


def used_ms(pid):
    """Processor time of all threads that live."""
    return sum(int((task / "schedstat").read_text().split()[0]) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()) / 1e6


def refresh(top):
    """Reads one refresh: its lines end with an empty one."""
    while line := top.stdout.readline():
        if line == "\n":
            return
    expect(False, "top ended")


def question_ms(host, alone_ms_per_s):
    """What one question costs causewayd: top asks the same once for each refresh."""
    before, begin = used_ms(host.daemon.pid), time.monotonic()
    for _ in range(QUESTIONS):
        host.status()
    return (used_ms(host.daemon.pid) - before - alone_ms_per_s * (time.monotonic() - begin)) / QUESTIONS


def watch(options, host):
    """Milliseconds of causewayd without top, of causewayd with it, of top, and of causewayd for one question."""
    daemon, seconds = host.daemon.pid, options.refreshes * options.delay
    before = used_ms(daemon)
    time.sleep(seconds)
    alone = used_ms(daemon) - before
    question = question_ms(host, alone / seconds)
    top = subprocess.Popen([host.bin / "causeway", "top", "-b", "-d", str(options.delay), "--socket", host.socket], stdout=subprocess.PIPE,
                           text=True)
    try:
        refresh(top)
        before, before_top = used_ms(daemon), used_ms(top.pid)
        for _ in range(options.refreshes):
            refresh(top)
        return alone, used_ms(daemon) - before, used_ms(top.pid) - before_top, question
    finally:
        top.terminate()
        top.wait()


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("build", type=pathlib.Path)
    for name, value in ("users", 16), ("sessions", 4), ("refreshes", 20):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--delay", type=float, default=3)
    parser.add_argument("--idle", action="store_true")
    parser.add_argument("--nvml", action="store_true")
    options = parser.parse_args()
    options.build = options.build.resolve()
    if os.geteuid() != 0:
        print("refresh_cost: not root, which sessions of other users take.")
        sys.exit(77)
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with host_of(options.build) as host:
        host.folder.chmod(0o755)
        driver = options.build / "software_gpu/libcuda.so.1"
        if not options.nvml:  # a folder without NVML
            (host.folder / "driver").mkdir()
            (host.folder / "driver/libcuda.so.1").symlink_to(driver)
            driver = host.folder / "driver/libcuda.so.1"
        all_sessions = options.users * options.sessions
        host.config.write_text(f'socket = "{host.socket}"\nsocket_mode = "0666"\nstate_folder = "{host.folder}/state"\n'
                               f'driver_library = "{driver}"\nlocal_region_mib = 64\nmax_sessions = {all_sessions + 8}\n'
                               'reserved_sessions = 0\nspare_workers = 1\n')
        host.start()
        children = begin_sessions(options, host)
        try:
            wait_for("the sessions", lambda: len(sessions_of(host)) == all_sessions)
            time.sleep(5)  # spare workers that begin meanwhile are no part of it
            scopes = {each["scope"] for each in sessions_of(host)}
            expect(len(scopes) == options.users, f"the sessions are of {len(scopes)} users")
            alone, daemon, top, question = watch(options, host)
            expect(len(sessions_of(host)) == all_sessions, "a session has ended")
        finally:
            for child in children:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
        wait_for("sessions to end", lambda: not json.loads(host.status())["sessions"])
    for_top = top / options.refreshes
    percent = (for_top + question) / (10 * options.delay)
    print(f"{all_sessions} {'idle ' if options.idle else ''}sessions of {options.users} users, {options.refreshes} refreshes, one each {options.delay:g} s"
          f"{', NVML asked' if options.nvml else ''}:")
    print(f"  causewayd without top: {alone:.0f} ms, {alone / (10 * options.refreshes * options.delay):.2f} % of a processor; with top: {daemon:.0f} ms")
    print(f"  causewayd:  {question:.2f} ms a question ({QUESTIONS} in a row)")
    print(f"  top:        {for_top:.2f} ms a refresh ({top:.0f} ms)")
    print(f"  a refresh:  {for_top + question:.2f} ms, {percent:.3f} % of a processor")
    sys.exit(0 if options.nvml or percent <= MOST_PERCENT else 1)


if __name__ == "__main__":
    main()
