#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Bursts of starts of a trivial program, natively and through Causeway with its default settings, in turns.

Usage: bursts.py [--build DIR] [--driver LIBRARY] [--bursts N,...] [--at-once K,...] [--rounds N] [--limit S]
                 [--config LINE]... [--ratio-at-most R] [--json FILE]

In a burst N processes of tests/bench/startup (ninja startup_program) run one after the other, K at a time; its time is from the
first one's spawning to the last one's end. `native` meets LIBRARY itself (default: the system's libcuda.so.1). A causewayd of this
script's own serves the others; before each burst it is idle again, with no more spare workers than `spare_workers`.
For each burst the table has the totals (medians of the rounds) and their ratio, of a single program the median time to its
result and from there to its end, the most spares that were ready at once, and the spares 20 s afterwards with the
memory of one (PSS). --config adds a line to the daemon's configuration, for example 'max_spare_workers = 1'. --ratio-at-most: fails
if a ratio is larger. --limit: a burst that would end later than so many seconds from the beginning is left out, and said.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE_S = 120
IDLE_S = 20


def run(program, environment):
    """Seconds from the spawning to the result and from there to the end."""
    begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    own = dict(os.environ, **environment, STARTUP_BEGIN=str(begin))
    done = subprocess.run([program], env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    end = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    if done.returncode != 0:
        raise RuntimeError(f"{program} failed with {environment}: {done.stderr.strip()}")
    result = int(done.stdout.split()[1])
    return result / 1e9, (end - begin - result) / 1e9


def burst(program, environment, count, at_once):
    """Seconds of the whole, and what run() says of each program."""
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        each = list(pool.map(lambda _: run(program, environment), range(count)))
    return time.monotonic() - begin, each


class Daemon:
    def __init__(self, build, driver, lines, folder):
        self.causeway = build / "host_backend" / "causeway"
        self.socket = folder / "causeway.sock"
        config = folder / "causewayd.toml"
        config.write_text("\n".join([f'socket = "{self.socket}"', f'driver_library = "{driver}"', *lines, ""]))
        self.log = folder / "log"
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([build / "host_backend" / "causewayd", "--config", config], stdout=log, stderr=log)
        self.most_ready = 0
        self.watching = False

    def status(self):
        asked = subprocess.run([self.causeway, "status", "--json", "--socket", self.socket], capture_output=True, text=True,
                               check=False)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def await_idle(self):
        """The seconds until there are no more workers than the spares that are always kept."""
        begin = time.monotonic()
        while time.monotonic() < begin + PATIENCE_S:
            status = self.status()
            if status and not status["sessions"]:
                workers = status["workers"]
                if workers["starting"] == 0 and workers["all"] == workers["spare_ready"] == workers.get("spare_least", 1):
                    return time.monotonic() - begin
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        sys.exit(f"bursts.py: the daemon does not come to rest; is there a GPU? {self.log.read_text()[-2000:]}")

    def watch(self):
        """Notes the most spares that are ready at once, until self.watching is false."""
        while self.watching:
            status = self.status()
            if status:
                self.most_ready = max(self.most_ready, status["workers"]["spare_ready"])
            time.sleep(0.25)

    def watched(self, work):
        self.most_ready, self.watching = 0, True
        watcher = threading.Thread(target=self.watch)
        watcher.start()
        try:
            return work()
        finally:
            self.watching = False
            watcher.join()

    def spares_mib(self):
        """PSS of each worker; of an idle daemon these are its spares."""
        found = []
        launchers = children(self.process.pid)
        for worker in (child for launcher in launchers for child in children(launcher)):
            try:
                lines = pathlib.Path(f"/proc/{worker}/smaps_rollup").read_text().splitlines()
            except OSError:
                continue  # it has ended, or belongs to another user
            found += [int(line.split()[1]) / 1024 for line in lines if line.startswith("Pss:")]
        return found

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)


def children(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        found += (task / "children").read_text().split()
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--driver", default="libcuda.so.1")
    parser.add_argument("--bursts", default="36,200")
    parser.add_argument("--at-once", default="1,6,12")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit", type=float)
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--ratio-at-most", type=float)
    parser.add_argument("--json", type=pathlib.Path)
    given = parser.parse_args()
    build = given.build.resolve()
    program = build / "tests" / "bench" / "startup"
    native = {"LD_LIBRARY_PATH": os.path.dirname(given.driver)} if os.path.dirname(given.driver) else {}
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(build, given.driver, given.config, pathlib.Path(folder))
        guest = {"LD_LIBRARY_PATH": str(build / "guest_lib"), "CAUSEWAY": f"local:{daemon.socket}"}
        try:
            rows = measure(given, daemon, program, {"native": native, "causeway": guest}, began)
        finally:
            daemon.end()
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1))
    bad = [row for row in rows if given.ratio_at_most is not None and row["ratio"] > given.ratio_at_most]
    if bad or not rows:
        sys.exit(f"bursts.py: {len(bad)} of {len(rows)} bursts took more than {given.ratio_at_most} times native")


def measure(given, daemon, program, sides, began):
    print(f"{'':9}{'total s':>17}{'':8}{'to the result, ms':>19}{'to the end, ms':>17}{'spares':>8}", flush=True)
    print(f"{'N, K':9}{'native':>8}{'Causeway':>9}{'ratio':>8}" + 2 * f"{'native':>9}{'Causeway':>9}" + f"{'most':>6}", flush=True)
    for environment in sides.values():  # what a first start reads from the disk is there for all others
        run(program, environment)
    rows, seconds_of_one = [], 0.0
    for count in (int(word) for word in given.bursts.split(",")):
        for at_once in (int(word) for word in given.at_once.split(",")):
            expected = seconds_of_one * count * given.rounds + IDLE_S
            if given.limit and time.monotonic() - began + expected > given.limit:
                print(f"{count},{at_once}: left out, it would take some {expected:.0f} s", flush=True)
                continue
            totals, singles, most = {side: [] for side in sides}, {side: [] for side in sides}, 0
            for _ in range(given.rounds):
                for side, environment in sides.items():
                    if side == "causeway":
                        daemon.await_idle()
                    total, each = daemon.watched(lambda env=environment: burst(program, env, count, at_once))
                    totals[side].append(total)
                    singles[side] += each
                    most = max(most, daemon.most_ready)
            row = row_of(count, at_once, totals, singles, most)
            seconds_of_one = max(seconds_of_one, sum(row["total_s"].values()) / count)
            rows.append(row)
    idle_s = daemon.await_idle()
    memory = daemon.spares_mib()
    print(f"{len(memory)} spare {idle_s:.1f} s after the last burst, PSS {', '.join(f'{mib:.1f}' for mib in memory)} MiB")
    return rows


def row_of(count, at_once, totals, singles, most):
    row = {"count": count, "at_once": at_once, "most_ready": most, "totals": totals,
           "total_s": {side: statistics.median(values) for side, values in totals.items()},
           "result_ms": {side: 1e3 * statistics.median(one[0] for one in each) for side, each in singles.items()},
           "end_ms": {side: 1e3 * statistics.median(one[1] for one in each) for side, each in singles.items()}}
    row["ratio"] = row["total_s"]["causeway"] / row["total_s"]["native"]
    values = [row[key][side] for key in ("total_s", "result_ms", "end_ms") for side in ("native", "causeway")]
    print(f"{f'{count}, {at_once}':9}{values[0]:8.2f}{values[1]:9.2f}{row['ratio']:8.2f}"
          + "".join(f"{value:9.1f}" for value in values[2:]) + f"{most:6}", flush=True)
    return row


if __name__ == "__main__":
    main()
