#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Start-up of a trivial program, natively and through Causeway, in turns: from its spawning to main, from there to a
kernel's result in its memory, and how many replies of the host it waits for on the way.

Usage: startup.py [--build DIR] [--driver LIBRARY] [--runs N] [--most-replies N]. Starts a causewayd of its own and waits
for its spare workers before each run, so that the figures are those of a machine whose daemon runs. `native` meets
LIBRARY itself (default: the system's libcuda.so.1). --most-replies: fails if a run waits for more.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

PATIENCE_S = 60


def run(program, environment):
    """Milliseconds to main, from main to the result, and the number of replies."""
    own = dict(os.environ, **environment, STARTUP_BEGIN=str(time.clock_gettime_ns(time.CLOCK_MONOTONIC)))
    done = subprocess.run([program], env=own, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode != 0:
        sys.exit(f"startup.py: {program} failed with {environment}: {done.stderr.strip()}")
    entered, finished, replies = (int(word) for word in done.stdout.split()[:3])
    return entered / 1e6, (finished - entered) / 1e6, replies


class Daemon:
    def __init__(self, build, driver, folder):
        self.causeway = build / "host_backend" / "causeway"
        self.socket = folder / "causeway.sock"
        config = folder / "causewayd.toml"
        config.write_text(f'socket = "{self.socket}"\ndriver_library = "{driver}"\nspare_workers = 2\nmax_spare_workers = 2\n')
        with open(folder / "log", "w", encoding="utf-8") as log:
            self.process = subprocess.Popen([build / "host_backend" / "causewayd", "--config", config], stdout=log,
                                            stderr=log)

    def await_spare(self):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            asked = subprocess.run([self.causeway, "status", "--json", "--socket", self.socket], capture_output=True,
                                   text=True, check=False)
            if asked.returncode == 0:
                workers = json.loads(asked.stdout)["workers"]
                if workers["spare_ready"] == 2 and workers["starting"] == 0:
                    return
            time.sleep(0.05)
        sys.exit("startup.py: no spare worker is ready; is there a GPU?")

    def end(self):
        self.process.terminate()
        self.process.wait(PATIENCE_S)


def line(name, values):
    low, high = min(values), max(values)
    return f"{name:34} {statistics.median(values):10.2f} {low:10.2f} {high:10.2f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("."))
    parser.add_argument("--driver", default="libcuda.so.1")
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--most-replies", type=int)
    given = parser.parse_args()
    build = given.build.resolve()
    program = build / "tests" / "bench" / "startup"
    native = {"LD_LIBRARY_PATH": os.path.dirname(given.driver)} if os.path.dirname(given.driver) else {}
    results = {"native": [], "causeway": []}
    with tempfile.TemporaryDirectory() as folder:
        daemon = Daemon(build, given.driver, pathlib.Path(folder))
        guest = {"LD_LIBRARY_PATH": str(build / "guest_lib"), "CAUSEWAY": f"local:{daemon.socket}"}
        try:
            for _ in range(given.runs):
                results["native"].append(run(program, native))
                daemon.await_spare()
                results["causeway"].append(run(program, guest))
        finally:
            daemon.end()
    print(f"{'ms, of ' + str(given.runs) + ' runs':34} {'median':>10} {'least':>10} {'most':>10}")
    for side, runs in results.items():
        print(line(f"{side}: spawned to main", [entered for entered, _, _ in runs]))
        print(line(f"{side}: main to result", [worked for _, worked, _ in runs]))
    medians = [statistics.median(worked for _, worked, _ in results[side]) for side in ("causeway", "native")]
    print(f"main to result, causeway / native: {medians[0] / medians[1]:.3f}")
    replies = max(count for _, _, count in results["causeway"])
    print(f"replies awaited: {replies}")
    if given.most_replies is not None and replies > given.most_replies:
        sys.exit(f"startup.py: a run waited for {replies} replies, more than {given.most_replies}")


if __name__ == "__main__":
    main()
