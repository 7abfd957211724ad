#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What it costs that a session over TCP or TLS can survive the loss of its connection (docs/remote.md): two hosts on this machine, one with
wait_for_guests_s = 0 and one with 60, a guest at each, and measurements in turns.

Usage: resumable.py BUILD_FOLDER [ROUNDS]. Measurements are short, so that some of them are not disturbed by what else runs; it prints the median
of the fastest tenth, for either host's odd and even rounds, which tells how much of a difference is chance, and the ratio of both tenths.
"""

import os
import pathlib
import statistics
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "unit"))

import remote_hosts_test  # noqa: E402
import sessions  # noqa: E402

COPY_MIB = 16
PROGRAM = """
import ctypes, sys, time
cuda = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
COPY = int(sys.argv[2]) << 20
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        sys.exit(f"{name} answers {result}")
device, context, there = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
free, total = ctypes.c_size_t(), ctypes.c_size_t()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(COPY))
here = ctypes.create_string_buffer(COPY)
size = ctypes.c_size_t(COPY)
def calls():
    for _ in range(200):
        cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return 200
def posts():
    for _ in range(200):
        cuda.cuMemsetD8Async(there, 0, ctypes.c_size_t(16), None)
    call("cuStreamSynchronize", None)
    return 200
def to_device():
    call("cuMemcpyHtoD_v2", there, here, size)
    return 1
def to_host():
    call("cuMemcpyDtoH_v2", here, there, size)
    return 1
for line in sys.stdin:
    begin = time.perf_counter()
    count = globals()[line.strip()]()
    print((time.perf_counter() - begin) / count * 1e6, flush=True)
"""
NAMES = {"calls": "a call that waits, us", "posts": "an asynchronous call in a burst of 200, us",
         "to_device": f"{COPY_MIB} MiB to the device, us", "to_host": f"{COPY_MIB} MiB to the host, us"}


def fastest(values):
    """The median of the fastest tenth."""
    return statistics.median(sorted(values)[:max(1, len(values) // 10)])


class Resumable(unittest.TestCase):
    await_ = remote_hosts_test.RemoteHostsTest.await_
    rounds = 200

    def setUp(self):
        remote_hosts_test.RemoteHostsTest.setUp(self)

    def guest(self, way):
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, self.library, str(COPY_MIB)], stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, text=True, env=dict(os.environ, CAUSEWAY=way, CAUSEWAY_KEY=self.key))
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.communicate)
        return program

    @staticmethod
    def measure(program, what):
        program.stdin.write(what + "\n")
        program.stdin.flush()
        return float(program.stdout.readline())

    def test_in_turns(self):
        hosts = [remote_hosts_test.Host(self, 2048, top=f"wait_for_guests_s = {seconds}\n", more='[tcp]\nlisten = "127.0.0.1:0"\n')
                 for seconds in (0, 60)]
        hosts[0].keys_command("create", "guest", "--output", self.key)
        hosts[1].keys_command("create", "guest", "--from", self.key)
        for host in hosts:
            host.start()
        for scheme in ("tcp", "tls"):
            guests = [self.guest(host.text if scheme == "tls" else "tcp://" + host.status()["tcp"]) for host in hosts]
            for what, name in NAMES.items():
                for guest in guests:
                    self.measure(guest, what)
                pairs = []
                for round_ in range(self.rounds):  # in turns, the one or the other first
                    order = (0, 1) if round_ % 2 == 0 else (1, 0)
                    got = {which: self.measure(guests[which], what) for which in order}
                    pairs.append((got[0], got[1]))
                text = []
                for values in zip(*pairs):
                    text.append("{:.2f} ({:.2f}, {:.2f})".format(*(fastest(values[begin::step]) for begin, step in ((0, 1), (0, 2), (1, 2)))))
                ratio = fastest([b for _, b in pairs]) / fastest([a for a, _ in pairs])
                print(f"{scheme} {name}: {text[0]} without, {text[1]} with; ratio {ratio:.3f}", flush=True)


if __name__ == "__main__":
    build = sys.argv[1]
    sessions.BACKEND, sessions.LIBRARY = build + "/host_backend", build + "/guest_lib/libcuda.so.1"
    sessions.DRIVER = build + "/software_gpu/libcuda.so.1"
    Resumable.rounds = int(sys.argv[2]) if len(sys.argv) > 2 else Resumable.rounds
    unittest.main(argv=[sys.argv[0]])
