#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Copies of a remote guest over a slow link, compressed and not: real daemon, causeway-tls, worker and the software GPU, and a relay that bounds.

Usage: compression_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU [--mbit 200] [--mib 8] [--rounds 2] [unittest arguments]. What was copied is
compared. It prints MB/s of both directions, the best of the rounds, in turns, for zeros, text (this project's documentation) and random bytes, with
and without CAUSEWAY_COMPRESSION=off. --mbit: what the relay lets pass each way, several with commas; 0: there is no relay.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "unit"))

import remote_hosts_test  # noqa: E402
import sessions  # noqa: E402

HERE = pathlib.Path(__file__).resolve().parent
OPTIONS = argparse.Namespace()
DELAY_MS = 0.1
KINDS = ("zeros", "text", "random")
# Copies bytes of the kind that each line names to the device and back, compares them and says how many seconds either took.
PROGRAM = """
import ctypes, os, pathlib, sys, time
cuda = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
size = int(sys.argv[2]) << 20
documents = b"".join(path.read_bytes() for path in sorted(pathlib.Path(sys.argv[3]).glob("*.md")))
def call(name, *arguments):
    result = getattr(cuda, name)(*arguments)
    if result:
        sys.exit(f"{name} answers {result}")
data = {"zeros": bytes(size), "text": (documents * (size // len(documents) + 1))[:size], "random": os.urandom(size)}
device, context, there = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", ctypes.byref(device), 0)
call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
call("cuCtxSetCurrent", context)
call("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(size))
here, back, length = ctypes.create_string_buffer(size), ctypes.create_string_buffer(size), ctypes.c_size_t(size)
for line in sys.stdin:
    ctypes.memmove(here, data[line.strip()], size)
    ctypes.memset(back, 0xa5, size)
    begin = time.perf_counter()
    call("cuMemcpyHtoD_v2", there, here, length)
    middle = time.perf_counter()
    call("cuMemcpyDtoH_v2", back, there, length)
    end = time.perf_counter()
    if here.raw != back.raw:
        sys.exit("other bytes came back")
    print(middle - begin, end - middle, flush=True)
"""


class CompressionTest(unittest.TestCase):
    await_ = remote_hosts_test.RemoteHostsTest.await_

    def setUp(self):
        remote_hosts_test.RemoteHostsTest.setUp(self)

    def host(self, top=""):
        host = remote_hosts_test.Host(self, 2048, top=top, more='[tcp]\nlisten = "127.0.0.1:0"\n')
        host.keys_command("create", "guest", "--output", self.key)
        host.start()
        return {"tcp": int(host.status()["tcp"].rsplit(":", 1)[1]), "tls": host.port}

    def relayed(self, port, mbit):
        """The port of a relay before that port."""
        if mbit == 0:
            return port
        relay = subprocess.Popen([sys.executable, str(HERE / "relay.py"), "127.0.0.1", "0", "127.0.0.1", str(port), str(DELAY_MS), str(mbit)],
                                 stdout=subprocess.PIPE, text=True)
        self.addCleanup(relay.communicate)
        self.addCleanup(relay.kill)
        return int(re.search(r"relays at \S+:(\d+)", relay.stdout.readline())[1])

    def guest(self, scheme, port, **environment):
        program = subprocess.Popen([sys.executable, "-c", PROGRAM, self.library, str(OPTIONS.mib), str(HERE.parent.parent / "docs")],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, CAUSEWAY=f"{scheme}://127.0.0.1:{port}", CAUSEWAY_KEY=self.key, **environment))
        self.addCleanup(program.stdout.close)
        self.addCleanup(program.communicate)
        return program

    def copy(self, program, kind):
        """MB/s to the device and to the host."""
        program.stdin.write(kind + "\n")
        program.stdin.flush()
        line = program.stdout.readline()
        self.assertTrue(line, "the program has ended")
        return [OPTIONS.mib * (1 << 20) / 1e6 / float(seconds) for seconds in line.split()]

    def best(self, programs, kind):
        """Of each program, both directions; in turns. What the first round does not show is how both sides learn the link."""
        got = {name: [0, 0] for name in programs}
        for round_ in range(OPTIONS.rounds + 1):
            for name, program in programs.items():
                rates = self.copy(program, kind)
                if round_ > 0:
                    got[name] = [max(pair) for pair in zip(got[name], rates)]
        return got

    def test_over_a_slow_link(self):
        ports = self.host()
        for mbit in OPTIONS.mbit:
            for scheme, port in ports.items():
                way = scheme, self.relayed(port, mbit)
                programs = {"with": self.guest(*way), "without": self.guest(*way, CAUSEWAY_COMPRESSION="off")}
                for kind in KINDS:
                    got = self.best(programs, kind)
                    text = "; ".join(f"{name} compression {rates[0]:.0f} to the device, {rates[1]:.0f} to the host" for name, rates in got.items())
                    print(f"{scheme}, {mbit or 'no bound of'} Mbit/s, {OPTIONS.mib} MiB of {kind}, MB/s: {text}", file=sys.stderr, flush=True)
                    self.check(kind, mbit, got)

    def check(self, kind, mbit, got):
        for with_, without in zip(got["with"], got["without"]):
            self.assertGreater(with_, without / 10, "an order of magnitude slower")
            if mbit == 0:
                continue
            link = mbit / 8
            self.assertLess(without, link * 1.2, "the relay does not bound")
            if kind == "zeros" and mbit <= 200:
                self.assertGreater(with_, link * 1.5, "no more than the link brings: these were not compressed")

    def test_the_host_may_forbid_it(self):
        mbit = 200
        port = self.relayed(self.host("remote_compression = false\n")["tcp"], mbit)
        got = self.best({"guest": self.guest("tcp", port)}, "zeros")
        for rate in got["guest"]:
            self.assertLess(rate, mbit / 8 * 1.2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("backend", "library", "driver"):
        parser.add_argument(name)
    parser.add_argument("--mbit", type=lambda text: tuple(map(int, text.split(","))), default=(200,))
    parser.add_argument("--mib", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    OPTIONS, rest = parser.parse_known_args()
    sessions.BACKEND, sessions.LIBRARY, sessions.DRIVER = OPTIONS.backend, OPTIONS.library, OPTIONS.driver
    unittest.main(argv=[sys.argv[0], *rest])
