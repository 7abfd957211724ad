#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What strangers who flood the port of causeway-tls cost: connections by the hundred thousand beside a guest that works.

usage: strangers.py BUILD [--short] [--connections N] [--rounds N] [--seconds S] [--processes N] [--json FILE]

A guest with a session over TLS asks for the device's free memory all the time. Beside it, in turns: nobody; a flood of a listener that
accepts and closes and is nothing of Causeway's, which says what the flood itself costs on this machine; the same flood of causeway-tls.
Each process of the flood connects from sixteen addresses and, in turns, closes at once (a port scan), sends random bytes, sends a TLS record of random
bytes, sends the beginning of a record and goes on byte by byte (slow loris, up to 200 at a time), and makes handshakes whose key nobody knows.
Rounds are repeated until N connections were made to causeway-tls, at least --rounds of them. Printed: the guest's calls, median and p99 of each;
connections; the most processes and memory of causeway-tls; lines of its log for each second. Exit status 1: the guest lost its session or had an error,
a bound of docs/remote.md was passed, or something is left.

--short makes some hundred connections beside a guest that works, measures no time, and looks at the bounds alone, also at the memory of all processes
of causeway-tls together.
"""

import argparse
import json
import os
import pathlib
import random
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "unit"))
import remote_hosts_test  # noqa: E402
import sessions  # noqa: E402

MOST_PROCESSES, MOST_LINES_A_SECOND, MOST_LISTENER_KIB = 64 + 16, 20 + 2, 64 << 10
MOST_PROCESS_KIB = 16 << 10  # of a connection's process, with the pages that it shares with the others
SLOW = 200
SHORT_PROCESSES, SHORT_CONNECTIONS = 2, 300  # of --short, and of each of them
# One guest: a line with the number of seconds in, a line of JSON out.
GUEST = """
import ctypes, json, sys, time
cuda = ctypes.CDLL(sys.argv[1])
context, free, total = ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_size_t()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
print("ready", flush=True)
for line in sys.stdin:
    end, times = time.monotonic() + float(line), []
    while time.monotonic() < end:
        begin = time.monotonic()
        assert cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)) == 0
        times.append((time.monotonic() - begin) * 1e6)
        time.sleep(0.001)
    times.sort()
    print(json.dumps({"calls": len(times), "p50": times[len(times) // 2], "p99": times[len(times) * 99 // 100], "max": times[-1]}), flush=True)
"""


def flood(port, seconds, place, most):
    """A process of its own: connections for so many seconds, and at most so many, from sixteen addresses; prints how many were made."""
    random.seed(os.getpid())
    end, made, slow = time.monotonic() + seconds, 0, []
    record = lambda body: bytes([22, 3, 1, len(body) >> 8, len(body) & 255]) + body
    while made < most and time.monotonic() < end:
        kind = made % 5
        stranger = socket.socket()
        stranger.settimeout(2)
        stranger.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # no port is kept after its end
        try:
            stranger.bind((f"127.0.{place}.{2 + made % 16}", 0))
            stranger.connect(("127.0.0.1", port))
            made += 1
            if kind == 1:
                stranger.sendall(random.randbytes(random.randrange(1, 600)))
            elif kind == 2:
                stranger.sendall(record(random.randbytes(random.randrange(4, 500))))
            elif kind == 3 and len(slow) < SLOW:
                stranger.sendall(record(b"x" * 200)[:7])
                slow.append(stranger)
                continue
            elif kind == 4:
                stranger.sendall(hello(random.randbytes(16)))
            for each in slow[::50]:
                each.send(b"x")
        except OSError:
            slow = [each for each in slow if each is not stranger]
        stranger.close()
        if made % 200 == 199:
            for each in slow:
                each.close()
            slow = []
    print(made)


def hello(identity):
    """A ClientHello of TLS 1.3 that offers an external pre-shared key of that name with a binder of random bytes."""
    extension = lambda number, body: number.to_bytes(2, "big") + len(body).to_bytes(2, "big") + body
    offered = (len(identity) + 6).to_bytes(2, "big") + len(identity).to_bytes(2, "big") + identity + bytes(4)
    share = random.randbytes(32)
    extensions = b"".join([extension(43, b"\x02\x03\x04"), extension(10, b"\x00\x02\x00\x1d"), extension(13, b"\x00\x02\x08\x04"),
                           extension(51, b"\x00\x24\x00\x1d\x00\x20" + share), extension(45, b"\x01\x01"),
                           extension(41, offered + b"\x00\x21\x20" + random.randbytes(32))])
    body = b"\x03\x03" + random.randbytes(32) + b"\x20" + random.randbytes(32) + b"\x00\x02\x13\x01" + b"\x01\x00" + len(extensions).to_bytes(2, "big") + extensions
    message = b"\x01" + len(body).to_bytes(3, "big") + body
    return bytes([22, 3, 1]) + len(message).to_bytes(2, "big") + message


def closer():
    """A listener that accepts and closes, in a process of its own; its port."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    port = listener.getsockname()[1]
    process = os.fork()
    if process == 0:
        while True:
            listener.accept()[0].close()
    return process, port


class Strangers(remote_hosts_test.RemoteHostsTest):
    options = None

    def begin_guest(self, host):
        guest = subprocess.Popen([sys.executable, "-c", GUEST, self.library + "/libcuda.so.1"], env=self.environment(host.text),
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (guest.kill(), guest.communicate()))
        self.assertEqual(guest.stdout.readline(), "ready\n")
        return guest

    def begin_watch(self, listener):
        """What the listener and its processes take at most, from now until the event is set."""
        most, stop = {"processes": 0, "KiB": 0, "KiB of processes": 0}, threading.Event()
        watch = threading.Thread(target=self.watch, args=(listener, most, stop))
        watch.start()
        return most, stop, watch

    def runTest(self):
        host, = self.hosts(1024)
        listener = host.processes[1].pid
        guest = self.begin_guest(host)
        control, control_port = closer()
        self.addCleanup(os.kill, control, 9)
        before = set(sessions.children(listener))
        ways = {"nobody": None, "a listener that closes": control_port, "causeway-tls": host.port}
        rows = {name: [] for name in ways}
        most, stop, watch = self.begin_watch(listener)
        lines, busy_s = host.log("causeway-tls").count("\n"), 0.0
        try:
            while len(rows["nobody"]) < self.options.rounds or sum(row["made"] for row in rows["causeway-tls"]) < self.options.connections:
                for name, port in ways.items():
                    row = self.phase(guest, port)
                    rows[name].append(row)
                    busy_s += self.options.seconds if name == "causeway-tls" else 0
        finally:
            stop.set()
            watch.join()
        lines = host.log("causeway-tls").count("\n") - lines
        self.await_("the strangers' processes to end", lambda: set(sessions.children(listener)) <= before)
        self.assertEqual(len(host.status()["sessions"]), 1)
        self.report(rows, most, lines / busy_s)
        self.assertLessEqual(most["processes"] - len(before), MOST_PROCESSES)
        self.assertLessEqual(most["KiB"], MOST_LISTENER_KIB)
        self.assertLessEqual(lines / busy_s, MOST_LINES_A_SECOND)

    def phase(self, guest, port):
        strangers = []
        if port is not None:
            strangers = self.strangers(port, self.options.seconds + 0.5, sys.maxsize, self.options.processes)
            time.sleep(0.5)
        row = self.ask(guest, self.options.seconds)
        row["made"] = sum(int(each.communicate(timeout=sessions.LIMIT_S)[0]) for each in strangers)
        return row

    def short(self):
        host, = self.hosts(1024)
        listener = host.processes[1].pid
        guest = self.begin_guest(host)
        before = set(sessions.children(listener))
        most, stop, watch = self.begin_watch(listener)
        lines, begin = host.log("causeway-tls").count("\n"), time.monotonic()
        strangers = self.strangers(host.port, sessions.LIMIT_S, SHORT_CONNECTIONS, SHORT_PROCESSES)
        made = 0
        try:
            while any(each.poll() is None for each in strangers):
                self.ask(guest, 0.2)
            made = sum(int(each.communicate()[0]) for each in strangers)
        finally:
            stop.set()
            watch.join()
        self.await_("the strangers' processes to end", lambda: set(sessions.children(listener)) <= before)
        self.ask(guest, 0.1)
        lines, seconds = host.log("causeway-tls").count("\n") - lines, time.monotonic() - begin
        print(f"{made} connections in {seconds:.1f} s: at most {most['processes']} processes with {most['KiB of processes'] >> 10} MiB, "
              f"{most['KiB'] >> 10} MiB of the listener, {lines} lines")
        self.assertEqual(made, SHORT_PROCESSES * SHORT_CONNECTIONS)
        self.assertGreater(most["processes"], len(before), "no stranger was seen")
        self.assertLessEqual(most["processes"] - len(before), MOST_PROCESSES)
        self.assertLessEqual(most["KiB of processes"], MOST_PROCESS_KIB * MOST_PROCESSES)
        self.assertLessEqual(most["KiB"], MOST_LISTENER_KIB)
        self.assertLessEqual(lines, MOST_LINES_A_SECOND * (seconds + 1))
        self.assertEqual(len(host.status()["sessions"]), 1)

    @staticmethod
    def watch(listener, most, stop):
        resident = lambda pid: int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4
        while not stop.wait(0.05):
            processes, together = sessions.children(listener), 0
            for process in processes:
                try:
                    together += resident(process)
                except (OSError, IndexError):
                    pass  # it has ended
            try:
                most["KiB"] = max(most["KiB"], resident(listener))
            except OSError:
                return
            most["processes"] = max(most["processes"], len(processes))
            most["KiB of processes"] = max(most["KiB of processes"], together)

    @staticmethod
    def strangers(port, seconds, most, processes):
        return [subprocess.Popen([sys.executable, __file__, "--flood", *map(str, (port, seconds, place, most))], stdout=subprocess.PIPE, text=True)
                for place in range(processes)]

    def ask(self, guest, seconds):
        """Has the guest call for so many seconds; what it says of its calls, of which none fails."""
        guest.stdin.write(f"{seconds}\n")
        guest.stdin.flush()
        return json.loads(guest.stdout.readline() or self.fail("the guest has ended"))

    def report(self, rows, most, lines):
        print(f"{'beside':24} {'rounds':>6} {'connections':>11} {'calls':>8} {'p50 us':>8} {'p99 us':>8} {'longest':>8}")
        for name, of in rows.items():
            print(f"{name:24} {len(of):6} {sum(row['made'] for row in of):11} {sum(row['calls'] for row in of):8} "
                  f"{statistics.median(row['p50'] for row in of):8.0f} {statistics.median(row['p99'] for row in of):8.0f} {max(row['max'] for row in of):8.0f}")
        print(f"causeway-tls: at most {most['processes']} processes beside the listener, {most['KiB'] >> 10} MiB of the listener, {lines:.1f} lines a second")
        if self.options.json:
            self.options.json.write_text(json.dumps({"rows": rows, "most": most, "lines": lines}))


def main():
    if len(sys.argv) == 6 and sys.argv[1] == "--flood":
        flood(int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
        return
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--processes", type=int, default=4, help="that flood")
    parser.add_argument("--json", type=pathlib.Path)
    Strangers.options = options = parser.parse_args()
    build = options.build.resolve()
    sessions.BACKEND, sessions.LIBRARY, sessions.DRIVER = (str(build / name) for name in (
        "host_backend", "guest_lib/libcuda.so.1", "software_gpu/libcuda.so.1"))
    result = unittest.TextTestRunner(verbosity=0).run(Strangers("short" if options.short else "runTest"))
    sys.exit(0 if result.wasSuccessful() else 1)


if __name__ == "__main__":
    main()
