#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`causeway top`, the exporter and NVML tell the same of sessions that work on a GPU.

usage: figures_agree.py BUILD [--driver FILE] [--seconds N]

Three sessions: one launches a kernel and waits, over and over, one works like a training step (crowded_load), and one does nothing. `causeway top --json` and NVML, which this program asks
itself, look at the same seconds; the exporter is read at their end. Checked: the GPU time of each worker is what NVML says of its
process, within 10 of 100, where NVML knows processes by the numbers that they have here; what a session holds is no more than NVML
says of its process; the exporter's calls lie between two answers of `causeway status`. The table is printed in any case.
Exit status: 1 if they disagree, 77 where NVML is missing.
"""

import argparse
import ctypes
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "upgrade"))
from upgrade import expect, host_of, wait_for  # noqa: E402

LIMIT_S = 120


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


PORT = free_port()


class Sample(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("timestamp_us", ctypes.c_ulonglong), ("sm", ctypes.c_uint), ("memory", ctypes.c_uint),
                ("encoder", ctypes.c_uint), ("decoder", ctypes.c_uint)]


class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("instance", ctypes.c_uint), ("compute", ctypes.c_uint)]


class Nvml:
    def __init__(self, folder):
        try:
            self.library = ctypes.CDLL(str(folder / "libnvidia-ml.so.1") if folder else "libnvidia-ml.so.1")
        except OSError as error:
            print(f"there is no NVML here: {error}")
            sys.exit(77)
        count = ctypes.c_uint()
        expect(self.library.nvmlInit_v2() == 0 and self.library.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0, "NVML does not begin")
        self.devices = []
        for index in range(count.value):
            device = ctypes.c_void_p()
            if self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device)) == 0:
                self.devices.append(device)

    def utilization(self, since_us):
        """Of each process that was busy: the mean of its samples, in percent, summed over GPUs."""
        found = {}
        for device in self.devices:
            samples, count = (Sample * 4096)(), ctypes.c_uint(4096)
            if self.library.nvmlDeviceGetProcessUtilization(device, samples, ctypes.byref(count), ctypes.c_ulonglong(since_us)) != 0:
                continue
            of_device = {}
            for sample in samples[:count.value]:
                if sample.timestamp_us:
                    of_device.setdefault(sample.pid, []).append(sample.sm)
            for pid, values in of_device.items():
                found[pid] = found.get(pid, 0) + sum(values) / len(values)
        return found

    def memory(self):
        """Of each process, the bytes that NVML says it uses."""
        found = {}
        for device in self.devices:
            processes, count = (Process * 1024)(), ctypes.c_uint(1024)
            if self.library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes) == 0:
                for process in processes[:count.value]:
                    if process.used != (1 << 64) - 1:
                        found[process.pid] = found.get(process.pid, 0) + process.used
        return found


class Session:
    """crowded_load, or a program that holds memory and sleeps."""

    HOLDS = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
device, context, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
assert cuda.cuCtxSetCurrent(context) == 0 and cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(32 << 20)) == 0
print("ready", flush=True)
sys.stdin.readline()
"""

    def __init__(self, words, environment):
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        line = self.process.stdout.readline()
        expect(line == "ready\n", f"{words[0]} did not begin: {line}")

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def end(self):
        self.process.stdin.close()
        expect(self.process.wait(LIMIT_S) == 0, "a session failed")


def scrape():
    """Calls of each session by its number, as the exporter tells them."""
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=LIMIT_S) as answer:
        lines = answer.read().decode().splitlines()
    return {int(line.partition('session="')[2].partition('"')[0]): float(line.rsplit(" ", 1)[1])
            for line in lines if line.startswith("causeway_session_calls_total{")}


def measure(options, host, nvml):
    """Rows of what each says, and the problems."""
    load = options.build / "tests/bench/crowded_load"
    environment = dict(os.environ, CAUSEWAY=f"local:{host.socket}", LD_LIBRARY_PATH=str(options.build / "guest_lib"))
    environment.pop("CUDA_VISIBLE_DEVICES", None)  # the daemon has it, which decides for its guests
    seconds = str(options.seconds + 6)
    words = {"waits": [load, "wait", seconds], "steps": [load, "step", seconds], "sleeps": [sys.executable, "-c", Session.HOLDS]}
    sessions = {name: Session(line, environment) for name, line in words.items()}
    numbers = {each["pid"]: each for each in json.loads(host.status())["sessions"]}
    for name in "waits", "steps":
        sessions[name].go()
    time.sleep(2)
    since_us = int(time.time() * 1e6)
    top = subprocess.run([host.bin / "causeway", "top", "--json", "-n", "1", "-d", str(options.seconds), "--socket", host.socket],
                         capture_output=True, text=True, check=True, timeout=LIMIT_S)
    busy, held = nvml.utilization(since_us), nvml.memory()
    before, told, after = (call() for call in (lambda: json.loads(host.status()), scrape, lambda: json.loads(host.status())))
    shown = {each["number"]: each for each in json.loads(top.stdout.splitlines()[-1])["sessions"]}
    calls = [{each["number"]: each["calls"] for each in status["sessions"]} for status in (before, after)]
    rows, problems = [], []
    for name, session in sessions.items():
        mine = numbers[session.process.pid]
        number, worker = mine["number"], mine["worker_pid"]
        percent = shown[number]["gpu"]
        rows.append((name, worker, percent, busy.get(worker), shown[number]["memory_bytes"] >> 20,
                     held[worker] >> 20 if worker in held else None, told.get(number)))
        if worker in busy and (percent is None or abs(100 * percent - busy[worker]) > 10):
            problems.append(f"{name}: top says {percent}, NVML {busy[worker]} %")
        if worker in held and shown[number]["memory_bytes"] > held[worker]:
            problems.append(f"{name}: top says {shown[number]['memory_bytes']} bytes, NVML {held[worker]}")
        if number not in told or not calls[0][number] <= told[number] <= calls[1][number]:
            problems.append(f"{name}: the exporter says {told.get(number)} calls, status {calls[0][number]} and then {calls[1][number]}")
    for session in sessions.values():
        session.end()
    return rows, problems, bool(busy) and not any(row[3] is not None for row in rows)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--driver", type=pathlib.Path, help="instead of NVIDIA's, with an NVML beside it")
    parser.add_argument("--seconds", type=float, default=5)
    options = parser.parse_args()
    options.build = options.build.resolve()
    nvml = Nvml(options.driver.resolve().parent if options.driver else None)
    with host_of(options.build, options.driver.resolve() if options.driver else "libcuda.so.1") as host:
        host.start()
        # What pack_build.sh has put beside a build for a host where nothing can be installed.
        libraries = dict(os.environ, LD_LIBRARY_PATH=str(options.build / "exporter_libraries"))
        exporter = subprocess.Popen([options.build / "host_backend/causeway-exporter", "--listen", f"127.0.0.1:{PORT}", "--socket", host.socket],
                                    env=libraries)
        try:
            wait_for("the exporter", lambda: exporter.poll() is not None or answers())
            expect(exporter.poll() is None, f"the exporter ended with status {exporter.poll()}: see above")
            rows, problems, strange = measure(options, host, nvml)
        finally:
            exporter.terminate()
            exporter.wait()
    print(f"{'session':10} {'worker':>8} {'top: GPU':>9} {'NVML: GPU':>10} {'top: MiB':>9} {'NVML: MiB':>10} {'exporter: calls':>16}")
    for name, worker, percent, busy, mib, held, told in rows:
        shown = ["-" if value is None else text for value, text in ((percent, f"{100 * (percent or 0):.0f} %"), (busy, f"{busy} %"), (held, str(held)))]
        print(f"{name:10} {worker:8} {shown[0]:>9} {shown[1]:>10} {mib:9} {shown[2]:>10} {told or 0:16.0f}")
    if strange:
        print("NVML knows processes here by other numbers than they have, so that nothing can be said of GPU time.")
    for problem in problems:
        print(f"figures_agree: {problem}")
    sys.exit(1 if problems else 0)


def answers():
    try:
        scrape()
        return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
