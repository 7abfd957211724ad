# SPDX-License-Identifier: Apache-2.0
"""The figures of `causeway bench` of two builds, in turns, on one machine in one call.

Both builds' daemons run all the time. In each round both get new probe processes (build/host_backend/causeway-bench-probe),
which are asked for one figure after the other: old, new, and the other way round in the next round, so what disturbs one
disturbs both; `launch, drained` and its sisters are asked several times a round. With --bind all probes but those of `startup` share
one set of processors and all their workers another, so that the builds do not differ by placement; processes differ by up to a quarter
all the same, for as long as they live, which more rounds average out. The estimate is the median of the pairs'
ratios; its interval (95 %) comes from resampling rounds, and pairs within them, because processes differ from one another
more than the samples of one do. Worse means slower, or more of what is counted.

  ok         the interval's upper end is at most what the figure may be worse
  WORSE      its lower end is above that
  not shown  neither, or fewer than six rounds: more time (--limit) would tell
"""

import argparse
import json
import os
import pathlib
import random
import select
import statistics
import subprocess
import sys
import tempfile
import time

from ratio_interval import interval

PATIENCE_S = 90
MAY_BE_WORSE = {"launch_drained": 0.01}
OTHERWISE = 0.02
PAIRS_A_ROUND = {"launch_drained": 3, "launch_enqueue": 3, "launch_sync": 3}
DONE_HERE = ("startup", "resident", "share", "beside")
LEFT_OUT = ("idle_cpu", "crowd_")  # a hundred sessions at once, and crowds: `causeway bench --only idle_cpu`, crowded.py --against
LEAST_ROUNDS = 6  # fewer say nothing of how processes differ


class Trouble(Exception):
    """Nothing can be compared."""


class Probe:
    def __init__(self, side, startup=False):
        self.side = side
        words = [side.build / "host_backend/causeway-bench-probe", side.build / "guest_lib/libcuda.so.1"]
        words += ["--quick"] * side.quick + ["--startup"] * startup
        environment = dict(os.environ, CAUSEWAY=f"local:{side.socket}")
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # the daemon has it, and a guest counts among those devices
        self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env=environment, text=True, bufsize=1)
        self.begun = time.monotonic()

    def await_ready(self):
        """Returns the milliseconds since its start."""
        if not self.line().startswith("ready"):
            raise Trouble(f"a probe of {self.side.build} does not start")
        return (time.monotonic() - self.begun) * 1e3

    def line(self):
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            self.process.kill()
            raise Trouble(f"a probe of {self.side.build} hangs")
        return self.process.stdout.readline()

    def begin(self, figure):
        self.process.stdin.write(f"measure {figure}\n")

    def finish(self):
        """The value, or None where this build or machine cannot do it."""
        words = self.line().split()
        if len(words) != 2:
            raise Trouble(f"a probe of {self.side.build} has ended")
        return float(words[0]) if words[1] == "0" else None

    def measure(self, figure):
        self.begin(figure)
        return self.finish()

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.process.stdout.close()


def bind(process, processors):
    """All threads that the process has now; those that they make later inherit it."""
    if process == 0:
        raise Trouble("a worker was not found, so that it could not be bound")
    for thread in os.listdir(f"/proc/{process}/task"):
        try:
            os.sched_setaffinity(int(thread), processors)
        except ProcessLookupError:  # it has ended meanwhile
            pass


class Side:
    """A build with a daemon of its own."""

    def __init__(self, build, folder, driver, quick, bound):
        self.build, self.folder, self.quick, self.bound = pathlib.Path(build).resolve(), folder, quick, bound
        self.socket = folder / "socket"
        self.probes = {}
        chosen = f'driver_library = "{pathlib.Path(driver).resolve()}"\n' if driver else ""
        (folder / "config.toml").write_text(f'socket = "{self.socket}"\nsocket_mode = "0600"\nspare_workers = 1\n{chosen}'
                                            "local_region_mib = 4096\n", encoding="utf-8")
        with open(folder / "log", "w", encoding="utf-8") as log:
            self.daemon = subprocess.Popen([self.build / "host_backend/causewayd", "--config", folder / "config.toml"],
                                           stdout=log, stderr=log)

    def status(self):
        asked = subprocess.run([self.build / "host_backend/causeway", "status", "--json", "--socket", self.socket],
                               capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        return json.loads(asked.stdout) if asked.returncode == 0 else None

    def await_spare(self):
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            status = self.status()
            if status and status["workers"]["spare_ready"] >= 1 and status["workers"]["starting"] == 0:
                return
            time.sleep(0.02)
        raise Trouble(f"{self.build}: no spare worker is ready: {(self.folder / 'log').read_text(encoding='utf-8')[-1000:]}")

    def begin_probe(self, name):
        self.await_spare()
        self.probes[name] = Probe(self)

    def finish_probe(self, name):
        self.probes[name].await_ready()
        self.await_spare()  # its start would be in the way
        worker = self.worker_of(self.probes[name])
        self.probes[name].process.stdin.write(f"worker {worker}\n")
        for process, processors in zip((self.probes[name].process.pid, worker), self.bound):
            bind(process, processors)

    def probe(self, name):
        if name not in self.probes:
            self.begin_probe(name)
            self.finish_probe(name)
        return self.probes[name]

    def worker_of(self, probe):
        return next((each["worker_pid"] for each in self.status()["sessions"] if each["pid"] == probe.process.pid), 0)

    def end_probes(self):
        for probe in self.probes.values():
            probe.end()
        self.probes.clear()

    def end(self):
        self.end_probes()
        self.daemon.terminate()
        try:
            self.daemon.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self.daemon.kill()

    # ---- samples -------------------------------------------------------------------------------------------------

    def sample(self, figure):
        if figure == "startup":
            self.await_spare()
            probe = Probe(self, startup=True)
            ready_ms = probe.await_ready()
            probe.end()
            self.await_spare()
            return ready_ms
        if figure == "resident":
            worker = self.worker_of(self.probe("idle"))
            pages = pathlib.Path(f"/proc/{worker}/statm").read_text(encoding="utf-8").split()[1]
            return int(pages) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
        if figure in ("share", "beside"):
            return self.sample_pair(figure)
        return self.probe(self.probe_of(figure)).measure(figure)

    @staticmethod
    def probe_of(figure):
        return "managed" if "managed" in figure else "first"

    def sample_pair(self, figure):
        """As `causeway bench`: two sessions work during the same span of time."""
        pair = [self.probe("first"), self.probe("second")]
        large = 16 << 20 if self.quick or figure == "share" else 1 << 30
        for probe, size in zip(pair, (large, 16 << 20)):
            if probe.measure(f"make:{size}") is None:
                return None
        span = f":{int((time.monotonic() + 0.02) * 1e6)}:{40 if self.quick else 400}"
        pair[0].begin(("share" if figure == "share" else "stream") + span)
        pair[1].begin(("share" if figure == "share" else "beside") + span)
        first, second = pair[0].finish(), pair[1].finish()
        if first is None or second is None or figure == "beside":
            return second if first is not None else None
        return min(first, second) / (first + second) if first + second > 0 else None


def list_figures(build, only, quick):
    """[(id, name, more is better)], of those that both builds have."""
    text = subprocess.run([pathlib.Path(build) / "host_backend/causeway", "bench", "--list", *(["--quick"] if quick else [])],
                          capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout
    found = []
    for line in text.splitlines():
        figure = line.split()[0]
        rest = line[len(figure):].lstrip()  # a name in 40 columns, a unit in 5
        name, unit = rest[:40].strip(), rest[41:46].strip()
        wanted = not only or any(part in figure or part in name for part in only.split("|"))
        if wanted and not figure.startswith(LEFT_OUT):
            found.append((figure, name, unit in ("GB/s", "M/s") or figure == "share"))
    return found


def one_round(sides, figures, number, rounds, over):
    """Adds {figure: [(old, new), ...]}, in the order old, new or new, old."""
    pairs = {}
    order = [0, 1] if number % 2 == 0 else [1, 0]
    if figures[0][0] not in DONE_HERE:  # both start side by side, which is half of a short round
        first = Side.probe_of(figures[0][0])
        for act in (Side.begin_probe, Side.finish_probe):
            for index in order:
                act(sides[index], first)
    for figure, _, _ in figures:
        for turn in range(PAIRS_A_ROUND.get(figure, 1)):
            if over():
                break
            values = [None, None]
            for index in order if turn % 2 == 0 else order[::-1]:
                values[index] = sides[index].sample(figure)
            if all(value is not None and value > 0 for value in values):
                pairs.setdefault(figure, []).append(tuple(values))
    for side in sides:
        side.end_probes()
    rounds.append(pairs)


def judge(figures, rounds, chance):
    table = []
    for figure, name, more in figures:
        pairs = [each[figure] for each in rounds if figure in each]
        if not pairs:
            table.append({"id": figure, "name": name, "verdict": "not measured"})
            continue
        # How many times worse: above 1 is worse, whatever the unit.
        estimate, low, high = interval([[old / new if more else new / old for old, new in each] for each in pairs], chance)
        limit = 1 + MAY_BE_WORSE.get(figure, OTHERWISE)
        count = sum(len(each) for each in pairs)
        verdict = "ok" if high <= limit else "WORSE" if low > limit else "not shown"
        flat = [pair for each in pairs for pair in each]
        table.append({"id": figure, "name": name, "pairs": count, "rounds": len(pairs),
                      "old": statistics.median(old for old, _ in flat), "new": statistics.median(new for _, new in flat),
                      "worse": estimate, "low": low, "high": high, "limit": limit,
                      "verdict": verdict if len(pairs) >= LEAST_ROUNDS else "not shown", "samples": pairs})
    return table


def markdown(table, title):
    lines = [title, "", "| figure | old | new | worse by | 95 % interval | pairs | may be | |", "|---|---:|---:|---:|---|---:|---:|---|"]
    percent = "{:+.1f} %".format
    for row in table:
        if "old" not in row:
            lines.append(f"| {row['name']} | | | | | 0 | | {row['verdict']} |")
            continue
        worse, low, high, limit = (percent((row[key] - 1) * 100) for key in ("worse", "low", "high", "limit"))
        lines.append(f"| {row['name']} | {row['old']:.4g} | {row['new']:.4g} | {worse} | {low} to {high} | {row['pairs']} "
                     f"| {limit} | {row['verdict']} |")
    return "\n".join(lines) + "\n"


def two_lists(text):
    lists = [[int(number) for number in part.split(",")] for part in text.split(":")]
    if len(lists) != 2:
        raise ValueError(text)
    return lists


def arguments():
    parser = argparse.ArgumentParser(prog="compare_builds.sh", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("old", "new", "out"):
        parser.add_argument(name, type=pathlib.Path)
    parser.add_argument("--limit", type=float, default=440, help="seconds for all rounds")
    parser.add_argument("--only", help="figures whose id or name has one of these in it: A|B")
    parser.add_argument("--driver", help="another library than NVIDIA's, as the software GPU: few repetitions, times say nothing")
    parser.add_argument("--bind", metavar="PROBE:WORKER", type=two_lists, default=[],
                        help="processors that all probes share, and that all their workers share: two of each, as 2,3:8,9, because on one alone waits are planned otherwise; not for startup")
    parser.add_argument("--seed", type=int, default=1, help="of the resampling")
    return parser.parse_args()


def main():
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    quick = bool(given.driver)
    known = {figure for figure, _, _ in list_figures(given.old, given.only, quick)}
    figures = [each for each in list_figures(given.new, given.only, quick) if each[0] in known]
    if not figures:
        sys.exit(f"compare_builds.sh: no figure of both builds is called {given.only}")
    begun = told = time.monotonic()
    rounds, sides, lengths = [], [], []
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, build in (("old", given.old), ("new", given.new)):
                own = pathlib.Path(folder, name)
                own.mkdir()
                sides.append(Side(build, own, given.driver, quick, given.bind))
            # A round that would be cut short tells of its first figures only: the last is begun only if it ends in time.
            while not rounds or time.monotonic() - begun + statistics.mean(lengths) < given.limit:
                before = time.monotonic()
                one_round(sides, figures, len(rounds), rounds, lambda: time.monotonic() - begun > given.limit)
                lengths.append(time.monotonic() - before)
                if time.monotonic() > told + 10:
                    told = time.monotonic()
                    print(f"{len(rounds)} rounds after {told - begun:.0f} s", file=sys.stderr, flush=True)
        except Trouble as trouble:
            print(f"compare_builds.sh: {trouble}", file=sys.stderr)
            if not rounds:
                return 2
        finally:
            for side in sides:
                side.end()
    table = judge(figures, rounds, random.Random(given.seed))
    text = markdown(table, f"{len(rounds)} rounds in {time.monotonic() - begun:.0f} s, new against old." +
                    (" On another driver than NVIDIA's: the times say nothing." if quick else ""))
    (given.out / "compare.md").write_text(text, encoding="utf-8")
    (given.out / "compare.json").write_text(json.dumps(table), encoding="utf-8")
    print(text)
    counts = {word: sum(row["verdict"] == word for row in table) for word in ("ok", "WORSE", "not shown", "not measured")}
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["WORSE"] else 0


if __name__ == "__main__":
    sys.exit(main())
