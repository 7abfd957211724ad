#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a flooding user or VM costs a quiet one: session starts, the daemon's lateness, the log.

Usage: flood.py BUILD_FOLDER [--driver LIBCUDA] [--seconds S] [--only NAME]...
One causewayd with two VMs' regions. The quiet user starts sessions (cuInit and a context) one after the other, alone and
then beside each flood: connections that say nothing, requests that mean nothing, sessions as fast as they are had, words of
a VM's slots that mean nothing, slots opened and left. The driver is the software GPU unless --driver names another.
"""

import argparse
import json
import mmap
import os
import pathlib
import random
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

STARTER = ("import ctypes, sys, time\n"
           "begin = time.monotonic()\n"
           "cuda = ctypes.CDLL('libcuda.so.1')\n"
           "context = ctypes.c_void_p()\n"
           "code = cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)\n"
           "print(code, time.monotonic() - begin)\n")


class Daemon:
    def __init__(self, build, driver):
        self.build, self.folder = build, tempfile.mkdtemp(prefix="causeway-flood-")
        self.socket = self.folder + "/socket"
        self.log_path = self.folder + "/log"
        vms = "".join(f'[[vm]]\nname = "{name}"\nregion_file = "{self.folder}/{name}"\nregion_mib = 256\n' for name in "ab")
        pathlib.Path(self.folder, "config.toml").write_text(
            f'socket = "{self.socket}"\nsocket_mode = "0666"\ndriver_library = "{driver}"\nlocal_region_mib = 64\n{vms}',
            encoding="utf-8")
        os.chmod(self.folder, 0o755)
        with open(self.log_path, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([build + "/host_backend/causewayd", "--config", self.folder + "/config.toml"],
                                            stderr=log)
        end = time.monotonic() + 60
        while "accepts sessions" not in self.log() and time.monotonic() < end:
            time.sleep(0.05)

    def log(self):
        return pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")

    def status(self):
        answer = subprocess.run([self.build + "/host_backend/causeway", "status", "--json", "--socket", self.socket],
                                capture_output=True, text=True, check=True, timeout=60)
        return json.loads(answer.stdout)

    def start_session(self):
        """Seconds, or None where it was refused."""
        environment = dict(os.environ, CAUSEWAY="local:" + self.socket, LD_LIBRARY_PATH=self.build + "/guest_lib")
        answer = subprocess.run([sys.executable, "-c", STARTER], env=environment, capture_output=True, text=True,
                                timeout=120, check=False)
        words = answer.stdout.split()
        return float(words[1]) if len(words) == 2 and words[0] == "0" else None

    def stop(self):
        self.process.terminate()
        self.process.wait(60)
        shutil.rmtree(self.folder)


def connect(daemon):
    one = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    one.settimeout(10)
    one.connect(daemon.socket)
    return one


def flood_connections(daemon, stop):
    held = []
    while not stop.is_set():
        try:
            held.append(connect(daemon))
        except OSError:
            time.sleep(0.001)
        if len(held) > 200:
            held.pop(0).close()


def flood_requests(daemon, stop):
    chance = random.Random(1)
    while not stop.is_set():
        try:
            with connect(daemon) as one:
                one.send(chance.randbytes(chance.choice([1, 16, 24, 200])))
                one.recv(1024)
        except OSError:
            time.sleep(0.001)


def flood_bursts(daemon, stop):
    """As many requests at one moment as a user may have connections: its status, sessions' records, and sessions."""
    chance = random.Random(2)
    head = struct.Struct("<QHHI")
    requests = [head.pack(MAGIC, *ABI, 2), head.pack(MAGIC, *ABI, 3) + bytes(8), head.pack(MAGIC, *ABI, 1)]
    while not stop.is_set():
        try:
            burst = [connect(daemon) for _ in range(30)]
            request = chance.choice(requests)
            for one in burst:
                one.send(request)
            for one in burst:
                one.recv(1024)
                one.close()
        except OSError:
            time.sleep(0.001)


def flood_sessions(daemon, stop):
    """Sessions without an end, each asked for and left as soon as it is granted."""
    request = struct.pack("<QHHI", MAGIC, *ABI, 1)
    while not stop.is_set():
        try:
            with connect(daemon) as one:
                one.send(request)
                _, descriptors, _, _ = socket.recv_fds(one, 1024, 1)
                one.send(b"o")
                one.recv(1)
                for descriptor in descriptors:
                    os.close(descriptor)
        except OSError:
            time.sleep(0.001)


def words_of(daemon, stop, make):
    with open(daemon.folder + "/a", "r+b") as file, mmap.mmap(file.fileno(), 256 << 20) as region:
        number = 0
        while not stop.is_set():
            number += 1
            for slot in range(32):
                struct.pack_into("<I", region, SLOT_WORDS + 4 * slot, make(number, slot))


def flood_words(daemon, stop):
    words_of(daemon, stop, lambda number, slot: (number * 0x9E3779B1 + slot * 77) & 0xFFFFFFFF)


def flood_slots(daemon, stop):
    words_of(daemon, stop, lambda number, slot: ((number // 64) & 0xFFFFFF) << 8 | (1 if number % 64 < 32 else 2))


FLOODS = {"none": None, "connections": flood_connections, "requests": flood_requests, "bursts": flood_bursts, "sessions": flood_sessions,
          "words": flood_words, "slots": flood_slots}
ABI = (0, 0)
MAGIC = 0x314C595745534143  # of a local request
SLOT_WORDS = 0


def read_layout(build):
    """Version and place of the slot words, from the header that this daemon was built with."""
    source = r'''
#include <cstdio>
#include "ivshmem_ring/transport/layout.h"
int main() {
  using namespace causeway;
  std::printf("%u %u %zu\n", unsigned(kAbiMajor), unsigned(kAbiMinor), size_t(kGuestPageOffset) + offsetof(GuestPage, slot));
}'''
    root = pathlib.Path(__file__).resolve().parents[2]
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "layout.cc").write_text(source, encoding="utf-8")
        subprocess.run(["c++", "-std=c++20", f"-I{root}", "-o", folder + "/layout", folder + "/layout.cc"], check=True)
        words = subprocess.run([folder + "/layout"], capture_output=True, text=True, check=True).stdout.split()
    return (int(words[0]), int(words[1])), int(words[2])


def percentile(values, part):
    values = sorted(values)
    return values[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def measure(build, driver, name, seconds):
    daemon = Daemon(build, driver)
    try:
        stop = threading.Event()
        flood = FLOODS[name]
        attacker = None
        if flood is not None:
            attacker = os.fork()
            if attacker == 0:
                if flood not in (flood_words, flood_slots) and os.geteuid() == 0:
                    os.setgroups([])
                    os.setgid(65534)
                    os.setuid(65534)
                threads = [threading.Thread(target=flood, args=(daemon, stop), daemon=True) for _ in range(2)]
                for thread in threads:
                    thread.start()
                time.sleep(seconds + 3600)
                os._exit(0)
            time.sleep(1)
        lines = daemon.log().count("\n")
        starts, refused, begin = [], 0, time.monotonic()
        while time.monotonic() - begin < seconds:
            took = daemon.start_session()
            if took is None:
                refused += 1
            else:
                starts.append(1e3 * took)
            time.sleep(0.3)
        took_s = time.monotonic() - begin
        lines = daemon.log().count("\n") - lines
        status = daemon.status()
        if attacker:
            os.kill(attacker, 9)
            os.waitpid(attacker, 0)
        print(f"{name:12s} {len(starts):5d} {refused:8d} {percentile(starts, 0.5):9.1f} {percentile(starts, 0.99):9.1f} "
              f"{status['loop_late']['p99_ms']:9.2f} {status['loop_late']['max_ms']:9.2f} "
              f"{status['loop_busy']['p99_ms']:9.3f} {status['loop_busy']['max_ms']:9.2f} {lines / took_s:9.1f}", flush=True)
        for work in status["loop_work"][:5]:
            print(f"    {work['what']}: {work['times']} times, longest {work['max_ms']:.2f} ms, of which "
                  f"{work['max_processor_ms']:.2f} ms on a processor", flush=True)
    finally:
        daemon.stop()


def main():
    global ABI, SLOT_WORDS
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("build")
    parser.add_argument("--driver")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--only", action="append", choices=FLOODS)
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    ABI, SLOT_WORDS = read_layout(build)
    print(f"{'flood':12s} {'starts':>5s} {'refused':>8s} {'p50 ms':>9s} {'p99 ms':>9s} {'late p99':>9s} {'late max':>9s} "
          f"{'busy p99':>9s} {'busy max':>9s} {'lines/s':>9s}")
    for name in options.only or FLOODS:
        measure(build, options.driver or build + "/software_gpu/libcuda.so.1", name, options.seconds)


if __name__ == "__main__":
    main()
