#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`causeway top`, the exporter and NVML tell the same of sessions that work on a GPU.

usage: figures_agree.py BUILD [--driver FILE] [--seconds N] [--must-compare]

Three sessions: one launches a kernel and waits, over and over, one works like a training step (crowded_load), and one does nothing.
`causeway top --json` and NVML, which this program asks itself, look at the same seconds; the exporter is read at their begin and end.
Checked: the GPU time of each worker, by top and by the exporter, is what NVML says of its process, within 10 of 100, where NVML knows
processes by the numbers that they have here, and where it does not, neither tells any; what a session holds is no more than NVML says of
its process; the exporter's calls lie between two answers of `causeway status`; and `promtool check metrics`, where there is one, finds
nothing in what the exporter answers. The table is printed in any case.
Exit status: 1 if they disagree; 77 where NVML is missing, knows none of the workers or has no samples of processes, so that no GPU time
was compared, which --must-compare makes 1.
"""

import argparse
import ctypes
import json
import os
import pathlib
import shutil
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
    NOT_FOUND = 6

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
        """Of each process that was busy: the mean of its samples, in percent, summed over GPUs. None: no GPU has such samples (MIG)."""
        found, tells = {}, False
        for device in self.devices:
            samples, count = (Sample * 4096)(), ctypes.c_uint(4096)
            result = self.library.nvmlDeviceGetProcessUtilization(device, samples, ctypes.byref(count), ctypes.c_ulonglong(since_us))
            tells |= result in (0, self.NOT_FOUND)
            if result != 0:
                continue
            of_device = {}
            for sample in samples[:count.value]:
                if sample.timestamp_us:
                    of_device.setdefault(sample.pid, []).append(sample.sm)
            for pid, values in of_device.items():
                found[pid] = found.get(pid, 0) + sum(values) / len(values)
        return found if tells else None

    def memory(self):
        """Of each process that NVML knows, the bytes that it says of it, or None where it does not say."""
        found = {}
        for device in self.devices:
            processes, count = (Process * 1024)(), ctypes.c_uint(1024)
            if self.library.nvmlDeviceGetComputeRunningProcesses_v3(device, ctypes.byref(count), processes) == 0:
                for process in processes[:count.value]:
                    used = found.get(process.pid, 0)
                    found[process.pid] = None if used is None or process.used == (1 << 64) - 1 else used + process.used
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
    with urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=LIMIT_S) as answer:
        return answer.read().decode()


def of_sessions(text, metric):
    """The values of a metric by the sessions' numbers, as the exporter tells them."""
    return {int(line.partition('session="')[2].partition('"')[0]): float(line.rsplit(" ", 1)[1])
            for line in text.splitlines() if line.startswith(metric + "{")}


def check_text(text, has_gpu_times):
    """What is wrong with an answer of the exporter, as promtool says it."""
    if has_gpu_times and "# TYPE causeway_session_gpu_utilization_ratio gauge" not in text:
        return ["the exporter does not tell GPU times"]
    if shutil.which("promtool") is None:
        print("promtool is not installed, so that nothing but the values is checked of what the exporter answers.")
        return []
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    return [f"promtool check metrics: {done.stdout}{done.stderr}"] if done.returncode != 0 or done.stdout or done.stderr else []


def wrong_gpu_time(says, nvml_percent, is_known):
    """Whether a share that top or the exporter says of a worker is not NVML's."""
    if not is_known:
        return says is not None
    return says is None or abs(100 * says - nvml_percent) > 10


def measure(options, host, nvml):
    """Rows of what each says, the problems, and whether a GPU time could be compared."""
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
    scrape()  # the exporter's next answer tells of the time from here on
    since_us = int(time.time() * 1e6)
    top = subprocess.run([host.bin / "causeway", "top", "--json", "-n", "1", "-d", str(options.seconds), "--socket", host.socket],
                         capture_output=True, text=True, check=True, timeout=LIMIT_S)
    busy, held = nvml.utilization(since_us), nvml.memory()
    before, text, after = (call() for call in (lambda: json.loads(host.status()), scrape, lambda: json.loads(host.status())))
    shown = {each["number"]: each for each in json.loads(top.stdout.splitlines()[-1])["sessions"]}
    told, told_gpu = of_sessions(text, "causeway_session_calls_total"), of_sessions(text, "causeway_session_gpu_utilization_ratio")
    calls = [{each["number"]: each["calls"] for each in status["sessions"]} for status in (before, after)]
    rows, problems = [], []
    for name, session in sessions.items():
        mine = numbers[session.process.pid]
        number, worker = mine["number"], mine["worker_pid"]
        is_known, percent = busy is not None and (worker in held or worker in busy), (busy or {}).get(worker, 0)
        held_mib = held[worker] >> 20 if held.get(worker) is not None else None
        rows.append((name, worker, shown[number]["gpu"], told_gpu.get(number), percent if is_known else None,
                     shown[number]["memory_bytes"] >> 20, held_mib, told.get(number)))
        for who, says in ("top", shown[number]["gpu"]), ("the exporter", told_gpu.get(number)):
            if wrong_gpu_time(says, percent, is_known):
                problems.append(f"{name}: {who} says {says}, NVML {f'{percent} %' if is_known else 'that it does not know the process'}")
        if held.get(worker) is not None and shown[number]["memory_bytes"] > held[worker]:
            problems.append(f"{name}: top says {shown[number]['memory_bytes']} bytes, NVML {held[worker]}")
        if number not in told or not calls[0][number] <= told[number] <= calls[1][number]:
            problems.append(f"{name}: the exporter says {told.get(number)} calls, status {calls[0][number]} and then {calls[1][number]}")
    for session in sessions.values():
        session.end()
    compared = any(row[4] is not None for row in rows)
    return rows, problems + check_text(text, compared), compared


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--driver", type=pathlib.Path, help="instead of NVIDIA's, with an NVML beside it")
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--must-compare", action="store_true", help="fail where no GPU time can be compared")
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
            rows, problems, compared = measure(options, host, nvml)
        finally:
            exporter.terminate()
            exporter.wait()
    def as_text(value, unit=" %", times=1):
        return "-" if value is None else f"{times * value:.0f}{unit}"
    print(f"{'session':10} {'worker':>8} {'GPU by top':>11} {'exporter':>9} {'NVML':>6} {'MiB by top':>11} {'NVML':>6} {'calls by exporter':>18}")
    for name, worker, by_top, by_exporter, by_nvml, mib, held, told in rows:
        print(f"{name:10} {worker:8} {as_text(by_top, times=100):>11} {as_text(by_exporter, times=100):>9} {as_text(by_nvml):>6} {mib:11} "
              f"{as_text(held, ''):>6} {told or 0:18.0f}")
    for problem in problems:
        print(f"figures_agree: {problem}")
    if not compared:
        print("figures_agree: NVML knows none of the workers by the numbers that they have here, or has no samples, so that no GPU time was compared.")
    sys.exit(1 if problems or (options.must_compare and not compared) else 0 if compared else 77)


def answers():
    try:
        scrape()
        return True
    except OSError:
        return False


if __name__ == "__main__":
    main()
