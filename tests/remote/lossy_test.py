#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Remote guests on networks that lose, reorder, duplicate, corrupt and delay packets: netem at both ends of a veth pair and a bridge.

Usage: lossy_test.py BACKEND_FOLDER SOFTWARE_GPU GUEST_LIBRARY_FOLDER PROGRAMS DRIVER_TESTS [--only NAME ...] [--seconds 3] (as root).
For each disturbance and over TLS and TCP: a CUDA program prints what it prints on the software GPU itself, over TLS tests of the driver's
functions agree with it, too, a kernel counts its launches, and what was copied comes back unchanged. Then the host has as many processes
and descriptors as before, and the kernel's counters show that packets were disturbed. Exit status 77: this machine has no netem.
"""

import argparse
import ctypes
import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "driver"))

import compare_ways  # noqa: E402
import network  # noqa: E402
from cutter import PROGRAM  # noqa: E402

LIMIT_S, COPY_BYTES = 180, 512 << 10
CLONE_NEWNET = 0x40000000
# What netem does at each end; and the counters that tell of it, of the queues (drops) or of both ends' TCP and IP, which have to grow by
# such a part of the segments together. Some grow a little in a network that is not disturbed, too.
DISTURBANCES = {
    "nothing": ("", (), 0),
    "loss_1": ("loss 1%", ("drops",), 0.005),
    "loss_5": ("loss 5%", ("drops",), 0.025),
    "reorder": ("delay 5ms reorder 25% 50%", ("TCPOFOQueue",), 0.02),
    "duplicate": ("duplicate 1%", ("TCPDSACKOldSent", "TCPDSACKOfoSent"), 0.002),
    "corrupt": ("corrupt 0.1%", ("InCsumErrors", "InHdrErrors"), 0.0002),
    "delay": ("delay 10ms 5ms", (), 0),
}
LEAST_ROUND_TRIP_MS = {"delay": 10}
DRIVER_TESTS = ("driver_memcpy_test", "driver_event_test")
SHOWN = ("drops", "RetransSegs", "TCPOFOQueue", "TCPDSACKOldSent", "TCPDSACKOfoSent", "InCsumErrors", "InHdrErrors")


def why_not():
    if why := network.why_not():
        return why
    name = f"cw-try-{os.getpid()}"
    tried = subprocess.run(f"ip netns add {name} && ip netns exec {name} tc qdisc add dev lo root netem loss 1%; result=$?; "
                           f"ip netns del {name}; exit $result", shell=True, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    return "" if tried.returncode == 0 else f"this kernel has no netem: {tried.stderr.strip()}"


def await_(what, done):
    end = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {LIMIT_S} s for {what}")
        time.sleep(0.1)


def connection_ms(namespace, host, port):
    """How long a connection from that namespace takes, which is a round trip at least."""
    took = []

    def connect():  # a thread has a network namespace of its own
        with open(f"/run/netns/{namespace}", "rb") as there:
            if ctypes.CDLL(None, use_errno=True).setns(there.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), "setns")
        begin = time.monotonic()
        with socket.create_connection((host, port), LIMIT_S):
            took.append(1000 * (time.monotonic() - begin))

    thread = threading.Thread(target=connect)
    thread.start()
    thread.join()
    return took[0]


class Lossy:
    """The host and its guest, with the lines between them."""

    def __init__(self, net, options):
        self.net, self.options, self.folder = net, options, net.folder()
        self.key, keys, self.socket = self.folder / "key", self.folder / "keys", self.folder / "socket"
        self.ends = ((net.guest, "eth0"), (net.host, "port0"))
        for there, device in (*self.ends, (net.host, network.BRIDGE)):
            # Packets of the size that a wire has, so that netem loses one and not all of a large send.
            network.run("ip", "-n", there, "link", "set", device, "gso_max_segs", 1)
        config = self.folder / "config.toml"
        config.write_text(f'socket = "{self.socket}"\nsocket_mode = "0600"\ndriver_library = "{options.driver}"\nmax_spare_workers = 1\n'
                          f'[tcp]\nlisten = "{network.HOST}:0"\nallow_plaintext_remote = true\nbridge = "{network.BRIDGE}"\n'
                          f'[tls]\nlisten = ["{network.HOST}:0"]\nkeys = "{keys}"\n[[remote]]\nname = "guest"\n', encoding="utf-8")
        network.run(f"{options.backend}/causeway", "keys", "create", "guest", "--output", self.key, "--keys", keys)
        tcp = net.start(net.host, self.folder / "daemon.log", "TCP sessions are accepted at ", f"{options.backend}/causewayd", "--config", config)
        self.tls = net.start(net.host, self.folder / "tls.log", "TLS sessions are accepted at ", f"{options.backend}/causeway-tls",
                             "--config", config)
        self.ways = {"tls": f"tls://{self.tls}", "tcp": f"tcp://{tcp}"}
        self.before = self.wait_idle()

    def status(self):
        answer = subprocess.run([f"{self.options.backend}/causeway", "status", "--json", "--socket", self.socket], capture_output=True,
                                text=True, timeout=LIMIT_S, check=True)
        return json.loads(answer.stdout)

    def left(self):
        """Processes and descriptors of the daemon and of causeway-tls."""
        return [count for process in self.net.processes for count in (
            len(subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, check=False).stdout.split()),
            len(os.listdir(f"/proc/{process.pid}/fd")))]

    def wait_idle(self):
        def idle():
            status = self.status()
            return not status["sessions"] and not status["accounts"] and status["workers"]["all"] == status["workers"]["spare_ready"] == 1
        await_("no session to be left, and one spare worker", idle)
        return self.left()

    def disturb(self, how):
        for there, device in self.ends:
            # Anew: a queue that is changed goes on with what the next command does not name.
            subprocess.run(["tc", "-n", there, "qdisc", "del", "dev", device, "root"], capture_output=True, check=False, timeout=LIMIT_S)
            network.run("tc", "-n", there, "qdisc", "add", "dev", device, "root", "netem", "limit", 10000, *how.split())

    def counters(self):
        """The sums of both ends, by the kernel's names."""
        sums = {}
        for there, device in self.ends:
            shown = subprocess.run(["tc", "-n", there, "-s", "-j", "qdisc", "show", "dev", device], capture_output=True, text=True, check=True,
                                   timeout=LIMIT_S)
            values = {"drops": json.loads(shown.stdout)[0]["drops"]}
            text = subprocess.run([*self.net.inside(there), "cat", "/proc/net/snmp", "/proc/net/netstat"], capture_output=True, text=True,
                                  check=True, timeout=LIMIT_S).stdout.splitlines()
            for names, numbers in zip(text[::2], text[1::2]):
                if names.split()[0] in ("Ip:", "Tcp:", "TcpExt:"):
                    values.update(zip(names.split()[1:], map(int, numbers.split()[1:])))
            sums = {name: sums.get(name, 0) + value for name, value in values.items()}
        return sums

    def prefix(self, way):
        return " ".join([*self.net.inside(self.net.guest), "env", f"CAUSEWAY={self.ways[way]}", f"CAUSEWAY_KEY={self.key}",
                         f"LD_LIBRARY_PATH={self.options.library}"])

    def run(self, program, prefix):
        return compare_ways.run_once(prefix, program, LIMIT_S, "")

    def count(self, way):
        """Launches that the device counts, and copies that are compared, for some seconds; the program's last line."""
        with subprocess.Popen(["timeout", str(2 * LIMIT_S), *self.prefix(way).split(), sys.executable, "-c", PROGRAM, self.options.library, str(COPY_BYTES)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
            try:
                first = program.stdout.readline()
                if first == "began\n":
                    time.sleep(self.options.seconds)
                out, _ = program.communicate("end\n", timeout=LIMIT_S)
            finally:
                program.terminate()
        words = out.split()
        if first != "began\n" or words[:1] != ["launched"] or words[1] != words[3] or program.returncode != 0:
            raise RuntimeError(f"the counting program said: {first}{out}")
        return int(words[1]), int(words[5])


def compare(lossy, direct, way):
    """What differs from the programs' direct runs."""
    wrong = []
    for program, first in direct.items():
        name = program.name
        if name in DRIVER_TESTS and way != "tls":
            continue  # below the records both ways are the same
        this = lossy.run(program, lossy.prefix(way))
        if name in DRIVER_TESTS:
            wrong += [f"{name}: {test}: {why}" for test in first.tests if (why := compare_ways.judge(test, first, this))]
        elif this.output != first.output:
            wrong.append(f"{name}: it printed: {this.output}")
        if this.code != first.code:
            wrong.append(f"{name} ended with {this.code}: {this.output[-1500:]}")
    return wrong


def under(lossy, direct, name, way):
    """The programs over that way under that disturbance: whether all was well, and how the counters have grown."""
    how = DISTURBANCES[name][0]
    lossy.disturb(how)
    counted, begin = lossy.counters(), time.monotonic()
    log = (lossy.folder / "daemon.log").read_text(encoding="utf-8")
    wrong = compare(lossy, direct, way)
    try:
        launches, copies = lossy.count(way)
    except RuntimeError as error:
        launches, copies = 0, 0
        wrong.append(str(error))
    grown = {key: value - counted.get(key, 0) for key, value in lossy.counters().items()}
    round_trip = connection_ms(lossy.net.guest, *re.fullmatch(r"(.+):(\d+)", lossy.tls).groups())
    if round_trip < LEAST_ROUND_TRIP_MS.get(name, 0):
        wrong.append(f"a round trip took {round_trip:.1f} ms")
    lossy.disturb("")
    left = lossy.wait_idle()
    if left != lossy.before:
        wrong.append(f"processes and descriptors: {left}, before {lossy.before}")
    said = (lossy.folder / "daemon.log").read_text(encoding="utf-8")[len(log):]
    waited, lost = said.count("waits for its guest"), said.count("the guest has not come back")
    if lost:
        wrong.append(f"{lost} sessions were lost")
    shown = ", ".join(f"{key} {grown[key]}" for key in SHOWN if grown.get(key))
    print(f"{name} ({how}), {way}: {len(wrong)} wrong; {launches} launches counted, {copies} copies compared; connections that came back: {waited}; "
          f"{grown['OutSegs']} segments, {shown or 'none disturbed'}; {time.monotonic() - begin:.0f} s", flush=True)
    for line in wrong:
        print(f"  {line}", flush=True)
    return not wrong, grown


def enough(name, grown):
    """Whether the kernel's counters over all ways show the disturbance; a short way alone may have met too little of it."""
    _, evidence, least = DISTURBANCES[name]
    found = sum(each.get(key, 0) for each in grown for key in evidence)
    if found >= least * sum(each["OutSegs"] for each in grown):
        return True
    print(f"{name}: too few packets were disturbed: {', '.join(evidence)} have grown by {found}", flush=True)
    return False


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("backend", "driver", "library", "programs", "driver_tests"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--only", nargs="*", choices=DISTURBANCES, default=list(DISTURBANCES), help="these disturbances")
    parser.add_argument("--seconds", type=float, default=3, help="for which launches are counted")
    options = parser.parse_args()
    if why := why_not():
        print(f"lossy_test.py: skipped: {why}.")
        sys.exit(77)
    failures = 0
    with network.Network() as net:
        lossy = Lossy(net, options)
        native = f"env LD_LIBRARY_PATH={options.driver.parent}"
        direct = {path: lossy.run(path, native) for path in
                  (options.programs / "vector_add", *(options.driver_tests / name for name in DRIVER_TESTS))}
        for path, first in direct.items():
            if first.code != 0 or not first.output or (path.name in DRIVER_TESTS and not first.tests):
                print(f"lossy_test.py: {path.name} does not run on the software GPU itself: {first.code} {first.output}")
                sys.exit(1)
        for name in options.only:
            seen = [under(lossy, direct, name, way) for way in lossy.ways]
            failures += sum(not well for well, _ in seen) + (not enough(name, [grown for _, grown in seen]))
        if failures:
            for log in ("daemon.log", "tls.log"):
                print(f"last lines of {log}:", *(lossy.folder / log).read_text(encoding="utf-8").splitlines()[-15:], sep="\n")
    print(f"lossy_test.py: {len(options.only)} disturbances, {failures} failures")
    sys.exit(failures != 0)


if __name__ == "__main__":
    main()
