#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How VMs share one GPU: natively by its time slices, by MPS, and through Causeway.

usage: sharing.py BUILD [--seconds S] [--only ROW...] [--ways native,mps,causeway] [--json FILE] [--driver LIBRARY] [--check]

Each row starts some processes of several users (sharing_load.cc), lets them work at the same time, and prints what came of
it, each way in turn. A user stands for a VM: its processes are one scope of the daemon. Times are meaningful on a GPU host
alone. Runs as root.

A share is the work that was done, in time that it takes on the idle GPU. Jain's index is 1 where each has what its weight
gives it; it is given for the whole time, and as the least of all windows of 1 s and of 100 ms that lie within it.
"""

import argparse
import collections
import json
import os
import pathlib
import select
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "hostile"))
import tenants  # noqa: E402  (found by the line before)

FIRST_USER = tenants.FIRST_STRANGER
READY_S = 120
# One process: the user's number, what it does, and which row's figures it belongs to.
Load = collections.namedtuple("Load", "user words")
# `terms`: lines of each user's table in the configuration. `change`: the time in seconds, and what `causeway` is asked then.
Row = collections.namedtuple("Row", "name loads terms change", defaults=[None])


def rows():
    full = ["full", "200"]
    yield Row("one launches and waits", [Load(0, ["wait", "0"])], {})
    yield Row("four launch and wait", [Load(user, ["wait", "0"]) for user in range(4)], {})
    yield Row("eight launch and wait", [Load(user, ["wait", "0"]) for user in range(8)], {})
    yield Row("once a millisecond beside three", [Load(0, ["sometimes", "0", "1000"])] +
              [Load(user, full) for user in (1, 2, 3)], {})
    yield Row("latency class beside three", [Load(0, ["sometimes", "0", "1000"])] +
              [Load(user, full) for user in (1, 2, 3)], {0: 'class = "latency"'})
    yield Row("kernels of 20 us to 20 ms", [Load(user, ["full", us]) for user, us in enumerate(("20", "200", "2000", "20000"))], {})
    yield Row("weights 1:2:4", [Load(user, full) for user in range(3)],
              {0: "weight = 100", 1: "weight = 200", 2: "weight = 400"})
    yield Row("four, one, one and one process", [Load(0, full)] * 4 + [Load(user, full) for user in (1, 2, 3)], {})
    for cap in (25, 50, 75):
        yield Row(f"cap of {cap} %", [Load(0, full)], {0: f"cap = {cap}"})
    yield Row("weight 100 becomes 400 after 1 s", [Load(user, full) for user in range(2)], {},
              (1.0, ["set", f"uid:{FIRST_USER}", "weight=400"]))
    yield Row("paused after 1 s", [Load(0, ["wait", "0"])], {}, (1.0, ["pause", f"uid:{FIRST_USER}"]))
    yield Row("copies of two", [Load(user, ["copy", "1"]) for user in range(2)], {})


class Process:
    """A load that has said "ready"."""

    def __init__(self, bench, load, way):
        variables = bench.tenants.environment(way != "causeway")
        own = {}
        if way == "mps":
            variables["CUDA_MPS_PIPE_DIRECTORY"] = str(bench.mps_folder)
        else:
            own = {"user": FIRST_USER + load.user, "group": FIRST_USER + load.user, "extra_groups": []}
        self.load = load
        words = list(load.words)
        if words[0] != "copy":
            words[1:2] = bench.rounds_of(words[1])
        self.process = subprocess.Popen([bench.program, *words], env=variables, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd="/", **own)

    def await_line(self, limit_s):
        if not select.select([self.process.stdout], [], [], limit_s)[0]:
            raise tenants.Trouble(f"{self.load.words} says nothing for {limit_s} s")
        line = self.process.stdout.readline()
        if line == "":
            raise tenants.Trouble(f"{self.load.words} ended with {self.process.wait()}")
        return line

    def go(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()

    def end(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()


class Bench:
    def __init__(self, options):
        self.tenants = tenants.Tenants(options.build, options.driver)
        self.tenants.copy_program(self.tenants.build / "tests/bench/sharing_load")
        self.program = self.tenants.bin / "sharing_load"
        self.seconds = options.seconds
        self.mps_folder, self.mps = None, None
        self.rounds = {"0": ["1", "0"]}

    def rounds_of(self, kernel_us):
        """How many rounds a kernel of that length has, and how long it takes: of the idle GPU, natively."""
        if kernel_us not in self.rounds:
            done = subprocess.run([self.program, "calibrate", kernel_us], env=self.tenants.environment(True), text=True,
                                  capture_output=True, timeout=READY_S, check=True)
            self.rounds[kernel_us] = done.stdout.split()
        return self.rounds[kernel_us]

    def start(self, way, row):
        if way == "causeway":
            users = {load.user for load in row.loads}
            state = self.tenants.folder / "state"
            state.mkdir(exist_ok=True)
            settings = f'spare_workers = 0\nmax_sessions = 64\nlocal_region_mib = 2048\nstate_folder = "{state}"\n'
            for user in sorted(users):
                settings += f"[[user]]\nuid = {FIRST_USER + user}\nown_spares = 1\n{row.terms.get(user, '')}\n"
            self.tenants.start_daemon(settings)
        if way == "mps":
            self.mps_folder = pathlib.Path(tempfile.mkdtemp(prefix="sharing-mps-"))
            variables = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(self.mps_folder), CUDA_MPS_LOG_DIRECTORY=str(self.mps_folder))
            self.mps = subprocess.Popen(["nvidia-cuda-mps-control", "-f"], env=variables, stdin=subprocess.DEVNULL,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(0.5)

    def stop(self):
        self.tenants.stop_daemon()
        if self.mps is not None:
            variables = dict(os.environ, CUDA_MPS_PIPE_DIRECTORY=str(self.mps_folder))
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, env=variables, timeout=20, check=False,
                           capture_output=True)
            try:
                self.mps.wait(10)
            except subprocess.TimeoutExpired:
                self.mps.kill()
                self.mps.wait()
            shutil.rmtree(self.mps_folder, ignore_errors=True)
            self.mps = None

    def change(self, after_s, words):
        time.sleep(after_s)
        def ask(*asked):
            subprocess.run([self.tenants.build / "host_backend/causeway", *asked, "--control-socket",
                            f"{self.tenants.socket}.control"], check=True, timeout=tenants.PATIENCE_S, capture_output=True)
        ask(*words)
        if words[0] == "pause":
            time.sleep(after_s)
            ask("resume", words[1])

    def measure(self, way, row):
        processes = []
        try:
            for load in row.loads:
                if load.words[0] != "copy":
                    self.rounds_of(load.words[1])
            self.start(way, row)
            for load in row.loads:
                processes.append(Process(self, load, way))
                processes[-1].await_line(READY_S)
            for process in processes:
                process.go(self.seconds)
            if way == "causeway" and row.change:
                self.change(*row.change)
            results = [json.loads(process.await_line(self.seconds + 60)) for process in processes]
            if way == "causeway":
                results[0]["shares"] = self.tenants.status().get("shares")
            return results
        finally:
            for process in processes:
                process.end()
            self.stop()


def jain(values):
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares else float("nan")


def of_users(row, results, windows=None):
    """{user: work in us}, of all windows or of those in the slice."""
    work = collections.Counter()
    for load, result in zip(row.loads, results):
        units = result["count"] if windows is None else sum(result["windows"][windows])
        work[load.user] += units * max(result["kernel_us"], 1e-9)
    return work


def weight_of(row, user):
    words = row.terms.get(user, "").split()
    return float(words[2]) if words[:1] == ["weight"] else 100.0


def describe(row, results, seconds):
    said = []
    waits = [result for load, result in zip(row.loads, results) if load.words[0] in ("wait", "sometimes")]
    if waits:
        rate = sum(result["count"] for result in waits) / seconds
        worst = max(waits, key=lambda result: result["p99"])
        said.append(f"{rate:,.0f} calls/s; p50 {worst['p50']:.1f}, p99 {worst['p99']:.1f}, p99.9 {worst['p999']:.1f}, "
                    f"longest {max(result['max'] for result in waits):.0f} us")
    full = [(load, result) for load, result in zip(row.loads, results) if load.words[0] == "full"]
    if full:
        work = of_users(row, results)
        whole = sum(work.values()) / 1e6 / seconds
        said.append(f"{whole:.3f} of the GPU; shares " +
                    ", ".join(f"{work[user] / max(sum(work.values()), 1e-9):.3f}" for user in sorted(work) if work[user]))
        users = [user for user in sorted(work) if work[user] and any(load.user == user for load, _ in full)]
        if len(users) > 1:
            index = {}
            for length, name in ((10, "1 s"), (1, "100 ms")):
                ends = range(length, int(seconds * 10) + 1, length)
                windows = [of_users(row, results, slice(end - length, end)) for end in ends]
                index[name] = min((jain([window[user] / weight_of(row, user) for user in users]) for window in windows),
                                  default=float("nan"))
            whole_index = jain([work[user] / weight_of(row, user) for user in users])
            said.append(f"Jain {whole_index:.3f}, least of 1 s {index['1 s']:.3f}, of 100 ms {index['100 ms']:.3f}")
    if row.change:
        windows = [of_users(row, results, slice(at, at + 1)) for at in range(min(len(results[0]["windows"]), 25))]
        said.append("the first one's windows of 100 ms: " + " ".join(
            f"{window[0] / max(sum(window.values()), 1e-9):.2f}" if len(row.loads) > 1 else f"{results[0]['windows'][at]}"
            for at, window in enumerate(windows)))
    copies = [result for load, result in zip(row.loads, results) if load.words[0] == "copy"]
    if copies:
        said.append(", ".join(f"{result['count'] * (1 << 30) / seconds / 1e9:.1f} GB/s" for result in copies))
    return "; ".join(said)


def wrong(row, results):
    """What cannot be if turns are in force, whatever the GPU's speed: sentences."""
    if any(result["count"] == 0 for result in results):
        yield "a process did nothing"
    shares = results[0]["shares"]
    if len({load.user for load in row.loads}) > 1 and not all(share["turns"] for share in shares):
        yield f"not every user had a turn: {shares}"
    if row.change and row.change[1][0] == "pause":
        windows = [sum(result["windows"][at] for result in results) for at in range(len(results[0]["windows"]))]
        still = [at for at, count in enumerate(windows) if count == 0]
        if len(still) < 5 or not any(windows[still[-1] + 1:]):
            yield f"it was not paused and resumed: {windows}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--only", nargs="+")
    parser.add_argument("--ways", default="native,mps,causeway")
    parser.add_argument("--json")
    parser.add_argument("--driver")
    parser.add_argument("--check", action="store_true", help="fail where turns were not in force")
    parser.add_argument("--limit", type=float, default=1e9, help="no row begins after so many seconds")
    options = parser.parse_args()
    begin = time.monotonic()
    if os.geteuid() != 0:
        print("sharing.py: its processes are those of several users: run it as root")
        return 77
    bench = Bench(options)
    all_results, failed = {}, 0
    try:
        for row in rows():
            if options.only and not any(part in row.name for part in options.only):
                continue
            if time.monotonic() - begin > options.limit:
                print(f"{row.name}: left out, the time is over")
                continue
            for way in options.ways.split(","):
                if (row.name.startswith("cap") or row.change) and way != "causeway":
                    continue
                try:
                    results = bench.measure(way, row)
                except (tenants.Trouble, OSError, ValueError, IndexError) as trouble:
                    print(f"{row.name} | {way} | failed: {trouble}", flush=True)
                    failed += 1
                    continue
                for sentence in wrong(row, results) if options.check and way == "causeway" else ():
                    print(f"{row.name} | {way} | wrong: {sentence}", flush=True)
                    failed += 1
                all_results.setdefault(row.name, {})[way] = results
                print(f"{row.name} | {way} | {describe(row, results, options.seconds)}", flush=True)
    finally:
        bench.tenants.end()
        if options.json:
            pathlib.Path(options.json).write_text(json.dumps(all_results, indent=1), encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
