#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A daemon is killed when it has read a question of a worker's and not answered it: the next daemon answers, and no call waits for ever.

usage: lost_answers.py BUILD

  mapping      the kernel's question whether the worker may map a part of the region, between its being read and its answer
  checkpoint   a call about another process, while the process that makes it runs

It needs root: without it no worker is confined so that its mappings are asked about. Exit status 77: it cannot be tried here.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import upgrade
from bad_world import expect

# Says what it does; on each line of its input it does what the line says.
GUEST = """
import ctypes, sys
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
        """What it prints, within the limit."""
        signal.alarm(upgrade.LIMIT_S)
        line = self.process.stdout.readline().strip()
        signal.alarm(0)
        if line not in wanted:
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


def preloaded(host):
    library = host.folder / "dies_before_answer.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, pathlib.Path(__file__).with_name("dies_before_answer.c")], check=True)
    os.environ.update(LD_PRELOAD=str(library), DIES_BEFORE_ANSWER=str(host.folder / "dies"))


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
    with tempfile.TemporaryDirectory(prefix="causeway-lost-answers-") as name:
        pathlib.Path(name).chmod(0o755)  # a checkpointer is another user when its program starts
        host = upgrade.Host(options.build, pathlib.Path(name))
        try:
            preloaded(host)
            host.start()
            for part in mapping, checkpoint:
                part(options, host)
            host.daemon.terminate()
            expect(host.daemon.wait(upgrade.LIMIT_S) == 0, "the daemon did not stop", host)
            upgrade.wait_for("all processes to end", lambda: not host.processes())
        except SystemExit:
            print(host.log_tail(), file=sys.stderr)
            raise
        finally:
            host.end_processes()


if __name__ == "__main__":
    main()
