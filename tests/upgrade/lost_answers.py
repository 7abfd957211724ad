#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A daemon is killed when it has read a question of a worker's and not answered it: the next daemon answers, and no call waits for ever.
Nor is it forgotten what an earlier daemon had answered: what a process shares with others opens.

usage: lost_answers.py BUILD

  mapping      the kernel's question whether the worker may map a part of the region, between its being read and its answer
  checkpoint   a call about another process, while the process that makes it runs
  shared       memory that a process shares by a handle and by a descriptor is opened after kills, an upgrade and a restart

It needs root: without it no worker is confined so that its mappings are asked about. Exit status 77: it cannot be tried here.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys

import upgrade
from upgrade import expect

# Says what it does; on each line of its input it does what the line says.
GUEST = """
import ctypes, struct, sys
cuda = ctypes.CDLL("libcuda.so.1")
def check(result, *good):
    if result not in (0, *good): sys.exit(f"the driver answers {result}")
    return result
device, context = ctypes.c_int(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
print("working", flush=True)
for line in sys.stdin:
    word, *number = line.split()
    def share():
        memory, handle = ctypes.c_uint64(), ctypes.create_string_buffer(64)
        check(cuda.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(4096)))
        check(cuda.cuMemsetD8_v2(memory, 0x5a, ctypes.c_size_t(4096)))
        check(cuda.cuIpcGetMemHandle(handle, memory))
        return handle.raw.hex()
    if word == "map":
        bytes_, memory, copy = 48 << 20, ctypes.c_void_p(), ctypes.c_uint64()
        check(cuda.cuMemHostAlloc(ctypes.byref(memory), ctypes.c_size_t(bytes_), 0))
        check(cuda.cuMemAlloc_v2(ctypes.byref(copy), ctypes.c_size_t(bytes_)))
        pattern = bytes(range(256)) * (bytes_ // 256)
        ctypes.memmove(memory, pattern, bytes_)
        check(cuda.cuMemcpyHtoD_v2(copy, memory, ctypes.c_size_t(bytes_)))
        ctypes.memset(memory, 0, bytes_)
        check(cuda.cuMemcpyDtoH_v2(memory, copy, ctypes.c_size_t(bytes_)))
        print("right" if ctypes.string_at(memory, bytes_) == pattern else "wrong", flush=True)
    elif word == "share":
        print(*[share() for _ in range(int(number[0]))], flush=True)
    elif word == "open":
        class Handle(ctypes.Structure):
            _fields_ = [("bytes", ctypes.c_char * 64)]
        memory, copy = ctypes.c_uint64(), ctypes.create_string_buffer(4096)
        check(cuda.cuIpcOpenMemHandle_v2(ctypes.byref(memory), Handle.from_buffer_copy(bytes.fromhex(number[0])), 1))
        check(cuda.cuMemcpyDtoH_v2(copy, memory, ctypes.c_size_t(4096)))
        check(cuda.cuIpcCloseMemHandle(memory))
        print("right" if copy.raw == bytes([0x5a]) * 4096 else "wrong", flush=True)
    elif word == "export":
        properties, size = struct.pack("iiiiQQ", 1, 1, 1, 0, 0, 0), ctypes.c_size_t()
        check(cuda.cuMemGetAllocationGranularity(ctypes.byref(size), properties, 0))
        allocation, file = ctypes.c_uint64(), ctypes.c_int()
        check(cuda.cuMemCreate(ctypes.byref(allocation), size, properties, ctypes.c_uint64(0)))
        check(cuda.cuMemExportToShareableHandle(ctypes.byref(file), allocation, 1, ctypes.c_uint64(0)))
        print(file.value, flush=True)
    elif word == "import":
        other = ctypes.c_uint64()
        check(cuda.cuMemImportFromShareableHandle(ctypes.byref(other), ctypes.c_void_p(int(number[0])), 1))
        check(cuda.cuMemRelease(other))
        print("right", flush=True)
    elif word == "state":
        state = ctypes.c_int(-1)
        print(check(cuda.cuCheckpointProcessGetState(int(number[0]), ctypes.byref(state)), 0), state.value, flush=True)
    elif word == "lock":
        # 401: the daemon of before had it locked, and its answer was lost.
        print(check(cuda.cuCheckpointProcessLock(int(number[0]), None), 401), flush=True)
    elif word == "unlock":
        print(check(cuda.cuCheckpointProcessUnlock(int(number[0]), None)), flush=True)
"""
RUNNING, LOCKED = 0, 1
KEPT = 512  # of one scope (shared_objects.h)


class Guest:
    def __init__(self, build, host):
        environment = dict(os.environ, CAUSEWAY=f"local:{host.socket}", LD_LIBRARY_PATH=str(build / "guest_lib"))
        environment.pop("LD_PRELOAD", None)
        self.process = subprocess.Popen([sys.executable, "-c", GUEST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=environment)
        self.answer("working")

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self, *wanted):
        """What it prints, within the limit; without a wish it may be any line."""
        signal.alarm(upgrade.LIMIT_S)
        line = self.process.stdout.readline().strip()
        signal.alarm(0)
        if line not in wanted and (wanted or not line):
            self.process.kill()
            sys.exit(f"lost_answers: a guest says {line!r}, and not one of {wanted}: {self.process.communicate()[1]}")
        return line

    def ask(self, line, *wanted):
        self.say(line)
        return self.answer(*wanted)

    def end(self):
        self.process.stdin.close()
        self.process.stdin = None
        expect(self.process.wait(upgrade.LIMIT_S) == 0, "a guest failed")


def too_late(_number, _frame):
    sys.exit(f"lost_answers: no answer in {upgrade.LIMIT_S} s")


def mapping(options, host):
    for round_ in range(3):
        guest, beside = Guest(options.build, host), Guest(options.build, host)
        (host.folder / "dies").touch()
        guest.say("map")
        expect(host.daemon.wait(upgrade.LIMIT_S) == -signal.SIGKILL, "the daemon was not killed before an answer", host)
        if round_ == 1:  # another one waits, too
            beside.say("map")
        host.start()
        guest.answer("right")
        if round_ == 1:
            beside.answer("right")
        guest.end()
        beside.end()
        upgrade.wait_for("all sessions to end", lambda: '"sessions":[]' in host.status())
    print("mapping        3 daemons killed between question and answer, 0 wrong bytes", flush=True)


def checkpointers(host):
    found = []
    for pid in host.processes().get("causeway-worker", []):
        try:
            if b"--checkpoint" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
        except OSError:
            pass
    return found


def checkpoint(options, host):
    target, asker = Guest(options.build, host), Guest(options.build, host)
    pid = target.process.pid

    def killed_while(line, *wanted):
        asker.say(line)
        upgrade.wait_for("a checkpointer", lambda: checkpointers(host))
        host.daemon.kill()
        host.daemon.wait()
        host.start()
        return asker.answer(*wanted)

    killed_while(f"state {pid}", f"0 {RUNNING}")
    killed_while(f"lock {pid}", "0", "401")
    asker.ask(f"state {pid}", f"0 {LOCKED}")
    asker.ask(f"unlock {pid}", "0")
    asker.ask(f"state {pid}", f"0 {RUNNING}")
    target.ask("map", "right")
    asker.end()
    target.end()
    upgrade.wait_for("all sessions to end", lambda: '"sessions":[]' in host.status())
    print("checkpoint     2 daemons killed while a checkpoint was made, both calls answered", flush=True)


def shared(options, host):
    owner, other = Guest(options.build, host), Guest(options.build, host)
    handle, file = owner.ask("share 1"), owner.ask("export")
    host.keep_program()
    for change in upgrade.kill, upgrade.upgrade, upgrade.restart, upgrade.kill:
        change(host)
        other.ask(f"open {handle}", "right")
        owner.ask(f"import {file}", "right")
        passing = Guest(options.build, host)
        passing.ask(f"open {handle}", "right")
        passing.end()
    # One scope does not fill the launcher: what it shares beyond its bound opens until the daemon ends, and what it shared first also later.
    handles = owner.ask(f"share {KEPT}").split()
    other.ask(f"open {handles[-1]}", "right")
    upgrade.kill(host)
    other.ask(f"open {handles[0]}", "right")
    refused = Guest(options.build, host)
    refused.say(f"open {handles[-1]}")
    expect(refused.process.wait(upgrade.LIMIT_S) != 0, "more is kept than the bound of a scope", host)
    # What ends with its session has ended for the daemons that follow.
    owner.end()
    upgrade.wait_for("the owner's session to end", lambda: host.status().count('"worker_pid"') == 1)
    upgrade.kill(host)
    other.say(f"open {handle}")
    expect(other.process.wait(upgrade.LIMIT_S) != 0, "memory of a process that has ended opens")
    upgrade.wait_for("all sessions to end", lambda: '"sessions":[]' in host.status())
    print("shared         opened after 3 kills, an upgrade and a restart", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    options = parser.parse_args()
    if os.geteuid() != 0:
        print("lost_answers: not root, so that no worker's mappings are asked about.")
        sys.exit(77)
    options.build = options.build.resolve()
    signal.signal(signal.SIGALRM, too_late)
    os.environ["SOFTWARE_GPU_CHECKPOINT_DELAY_MS"] = "1000"
    with upgrade.host_of(options.build) as host:
        os.environ.update(LD_PRELOAD=str(upgrade.library_of(host, "dies_before_answer.c")), DIES_BEFORE_ANSWER=str(host.folder / "dies"))
        host.start()
        for part in mapping, checkpoint, shared:
            part(options, host)


if __name__ == "__main__":
    main()
