#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks two libraries the same random questions about CUDA, and tells where their answers differ.

usage: differential.py --program build/tests/differential/differential --native "env LD_LIBRARY_PATH=DIR" \
           --guest "build/host_backend/causeway run --" [--seed S] [--programs N] [--seconds S] [--processes P | --in-turns]
--native and --guest are what stands before a command: empty for NVIDIA's library on this host, or as compare_ways.py
takes it. Both sides run programs of the same numbers of the same seed, batch by batch, each batch in a process of its
own. Where the hash of a program differs it is run again alone, as text; the difference is shrunk and printed.
--count FILE: a JSON file whose counts grow with each run. Exits 1 if anything differs.
"""

import argparse
import collections
import concurrent.futures
import json
import pathlib
import random
import sys
import tempfile
import threading
import time

from shrink import Difference, Shrinker, readable
from sides import ServedSides, Side, run_both

HERE = pathlib.Path(__file__).resolve().parent
GRACE_S = 5  # for batches that are under way when the time is over
ENDED_BY_OTHERS = {"signal 2", "signal 9", "signal 15"}


class Counts:
    """What all runs came to. `pairs` has (row, result) as natively answered, of programs that were compared."""

    def __init__(self, names):
        self.names = names
        self.programs = self.calls = self.left_out = self.native_ends = self.broken = 0
        self.pairs = collections.Counter()

    def add(self, native, compared):
        """Which answers they were is known only of all programs that the process has run, and is left out where the other side did not
        come so far."""
        self.programs += compared
        self.calls += sum(native.calls[:compared])
        self.broken += bool(native.broken)
        if len(native.hashes) == compared:
            self.left_out += native.left_out
            self.pairs.update(native.pairs)

    def write(self, path, seed, differences):
        old = json.loads(path.read_text()) if path.exists() else {}
        for key in ("programs", "calls", "left_out", "native_ends", "broken"):
            old[key] = old.get(key, 0) + getattr(self, key)
        rows = old.setdefault("rows", {})
        for (row, result), count in sorted(self.pairs.items()):
            its = rows.setdefault(self.names[row], {})
            its[str(result)] = its.get(str(result), 0) + count
        old["rows_reached"] = len(rows)
        old["pairs"] = sum(map(len, rows.values()))
        old.setdefault("runs", []).append({"seed": seed, "programs": self.programs, "calls": self.calls, "differences": differences})
        new = path.with_suffix(".new")
        new.write_text(json.dumps(old, indent=1) + "\n")
        new.replace(path)


class Learned:
    """The list of what is left out, which grows by what ends the native process."""

    def __init__(self, first, also, parameters, folder):
        self.lines = first.read_text().splitlines() + [line for path in also for line in path.read_text().splitlines()]
        self.parameters, self.folder, self.known, self.number = parameters, folder, [], 0
        self.write()

    def write(self):
        self.number += 1
        self.file = self.folder / f"left_out{self.number}"
        self.file.write_text("\n".join(self.lines + self.known) + "\n")

    def add(self, call):
        """First its null and wild arguments; where it ends the process again, the row."""
        row, *words = call.split(" ")[2:]
        kinds = {"0": "null", "w": "wild"}
        suspects = [f"{row} {name} {kinds[word[0]]}" for name, word in zip(self.parameters[row], words) if word[0] in kinds]
        suspects += [f"{row} {name} wild" for name, word in zip(self.parameters[row], words) if word[0] == "n" and int(word[1:]) > 100000]
        new = [line for line in suspects if not any(known.startswith(line) for known in self.known)] or [f"{row} * *"]
        self.known += [f"{line} it ended the native process" for line in new]
        self.write()

    def text(self):
        return "".join(f"left out since it ended the native process: {line}\n" for line in self.known)


class Comparison:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.sides = [Side("native", options.native, options.program, folder), Side("guest", options.guest, options.program, folder)]
        native, guest = (side.rows() for side in self.sides)
        self.names_file = folder / "names"
        both = [name for name in native if native[name][0] and guest[name][0]]
        self.names_file.write_text("\n".join(both) + "\n")
        print(f"{len(native)} rows, {len(both)} of them in both libraries; seed {options.seed}", flush=True)
        self.counts = Counts(list(native))
        self.learned = Learned(options.left_out, options.also_left_out, {name: words for name, (_, words) in native.items()}, folder)
        self.next, self.lock = options.first, threading.Lock()
        self.end = time.monotonic() + options.seconds
        self.differing, self.ended, self.guest_ended, self.found, self.unexplained, self.tolerated = {}, [], [], [], set(), set()
        lines = [line for path in options.explained for line in path.read_text().splitlines()]
        self.explained = {line.split(" | ")[0] for line in lines if " | " in line and not line.startswith("#")}

    def common(self):
        """The options that all processes of a batch have."""
        return ("--seed", self.options.seed, "--left-out", self.learned.file, "--names", self.names_file)

    def take(self):
        with self.lock:
            last = self.options.first + self.options.programs
            count = min(self.options.batch, last - self.next)
            if count <= 0 or time.monotonic() > self.end:
                return None
            self.next += count
            return self.next - count, count

    def work(self):
        while (piece := self.take()) is not None:
            first, count = piece
            while count > 0 and time.monotonic() < self.end + self.options.bound:
                done = self.run_batch(first, count)
                first, count = first + done, count - done

    def run_alone(self, options, sides=None):
        return run_both(sides or self.sides, options, self.options.bound, explain=True, in_turns=self.options.in_turns)

    def run_batch(self, first, count):
        """Returns how many programs are behind it: less than `count` when a program ended its process, or lost its context."""
        common = self.common()
        native, guest = run_both(self.sides, [*common, "--first", first, "--count", count], self.options.bound, in_turns=self.options.in_turns,
                                 deadline=self.end + GRACE_S)
        for side in (native, guest):
            if side.end == "exit code 2":
                raise SystemExit(f"differential.py: a process cannot begin: {side.errors}")
        done = min(len(native.hashes), len(guest.hashes))
        self.log(first, done, native, guest)
        with self.lock:
            self.counts.add(native, done)
            self.differing.update((first + i, common) for i in range(done) if native.hashes[i] != guest.hashes[i])
            if guest.end:
                self.guest_ended.append((guest.program, guest.end, guest.call or guest.row, guest.errors))
        if native.is_cut or guest.is_cut:
            return count
        if not native.end and not guest.end:
            return max(done, 1)
        if done == count:  # it ended after its last program
            with self.lock:
                self.ended += [(native.program, native.end, native.row, native.errors)] if native.end else []
            return done
        stop = first + done
        if native.end and native.program == stop:
            self.ended_natively(stop, native, common)
        else:
            with self.lock:
                self.differing[stop] = common
        return done + 1

    def log(self, first, done, *batches):
        """A line for each batch: how many programs both sides have behind them, how long each process took, and why it ended."""
        if self.options.log:
            words = [f"{batch.seconds:.2f} s {batch.end or ('cut' if batch.is_cut else 'context lost' if batch.broken else 'whole')} at {batch.row}" for batch in batches]
            with self.lock, open(self.options.log, "a") as file:
                print(first, done, *words, sep=" | ", file=file)

    def ended_natively(self, program, native, common):
        """What ends NVIDIA's process also when its program runs alone is left out from now on."""
        crashed = native.end.startswith("signal") and native.end not in ENDED_BY_OTHERS
        alone = self.run_alone([*common, "--first", program, "--count", 1], self.sides[:1])[0] if crashed and native.call else None
        with self.lock:
            self.counts.native_ends += 1
            again = "" if alone is None or alone.end else ", and not alone"
            self.ended.append((program, native.end + again, native.call or native.row, native.errors))
            if alone is not None and alone.end and alone.call:
                self.learned.add(alone.call)

    def explain(self, program):
        common = self.differing[program]
        return Difference(*self.run_alone([*common, "--first", program, "--count", 1]))

    def explain_all(self, limit):
        """{program: Difference} of those for which there was time, the first ones first."""
        def one(program):
            return (program, self.explain(program)) if time.monotonic() < limit else None

        with concurrent.futures.ThreadPoolExecutor(self.options.processes) as pool:
            return dict(each for each in pool.map(one, sorted(self.differing)[:self.options.most]) if each)

    def look(self):
        """[(key, program, count, text)] for each kind of difference. All kinds are named before the first is shrunk, which takes longest."""
        groups, alone = collections.defaultdict(list), []
        self.unexplained, self.tolerated = set(self.differing), set()
        begin = time.monotonic()
        limit = begin + self.options.look_seconds
        for program, difference in self.explain_all(begin + self.options.look_seconds / 2).items():
            difference.program = program
            if difference.key in self.explained:
                self.unexplained.discard(program)
            elif difference.key is None:
                alone.append(program)
            else:
                groups[difference.key].append((len(difference.calls), program, difference))
        if alone:
            self.found.append(("only beside other programs", alone[0], len(alone), "not again when they ran alone"))
            if self.options.tolerate:
                self.tolerated |= set(alone)
        smallest = []
        for key, members in sorted(groups.items(), key=lambda item: -len(item[1])):
            _, program, difference = min(members, key=lambda one: one[:2])
            # Others ran at the same time, and the difference may be theirs.
            if self.options.processes > 1 and self.explain(program).key != key:
                self.found.append(("only beside other programs", program, len(members), f"{key}: not again when it ran alone"))
                continue
            smallest.append((len(self.found), difference))
            self.found.append((key, program, len(members), self.unshrunk(difference)))
            if len(members) <= self.options.tolerate:
                self.tolerated |= {number for _, number, _ in members}
        self.report()
        for at, difference in smallest:
            self.found[at] = (*self.found[at][:3], self.shrunk(difference, limit))
            print(self.paragraph(self.found[at]), flush=True)
            self.report()
        return self.found

    def total(self):
        counts = self.counts
        return (f"{counts.programs} programs, {counts.calls} calls, {len({row for row, _ in counts.pairs})} of {len(counts.names)} rows, "
                f"{len(counts.pairs)} pairs of row and result; {len(self.differing)} programs differ, {len(self.unexplained)} of them unexplained (of these {len(self.tolerated)} are tolerated as rare or do not come again alone), "
                f"in {len(self.found)} ways; "
                f"{counts.native_ends} ended the native process, {len(self.guest_ended)} the guest's; in {counts.broken} batches the native process lost its context")

    def report(self):
        """The report, whole: whoever ends this process has what was found by then."""
        if self.options.report:
            ended = [f"ended the native process ({end}): program {stop} at {call}" for stop, end, call, _ in self.ended]
            ended += [f"ended the guest's process ({end}): program {stop} at {call}" for stop, end, call, _ in self.guest_ended]
            parts = [self.total(), self.learned.text(), *ended, "", *map(self.paragraph, self.found)]
            new = self.options.report.with_suffix(".new")
            new.write_text("\n".join(parts))
            new.replace(self.options.report)

    def shrunk(self, difference, limit):
        """First with servers. What those leave has to show the difference in new processes as well, or it is shrunk with these."""
        common = self.differing[difference.program]
        file = self.folder / "candidate"
        served = ServedSides(self.sides, self.options.bound, self.options.in_turns)

        def run_served():
            return served.run(common, "calls", file)

        def run_alone():
            return self.run_alone([*common, "--program", file])

        try:
            for run in (run_served, run_alone):
                left = min(self.options.shrink_seconds, limit - time.monotonic())
                calls = Shrinker(run, file, left).shrink(difference) if left > 5 else None
                if calls is None:
                    continue
                file.write_text("\n".join(calls) + "\n")
                native, guest = run_alone()
                last = Difference(native, guest)
                if last.key == difference.key:
                    return "\n".join([readable(native.text), f"natively: {last.native}", f"guest:    {last.guest}", *("> " + call for call in calls)])
        finally:
            served.close()
        return self.unshrunk(difference)

    @staticmethod
    def unshrunk(difference):
        return f"natively: {difference.native}\nguest:    {difference.guest}\n(not shrunk)"

    @staticmethod
    def paragraph(found):
        key, program, count, text = found
        return f"== {key} ({count} programs, such as {program})\n{text}\n"


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True, type=pathlib.Path)
    parser.add_argument("--native", default="", metavar="PREFIX")
    parser.add_argument("--guest", required=True, metavar="PREFIX")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 40), help="random, and printed, without it")
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--programs", type=int, default=1 << 31)
    parser.add_argument("--seconds", type=float, default=60, help="for running programs; looking at differences comes after it")
    parser.add_argument("--processes", type=int, default=1, help="batches at a time, each a native and a guest process")
    parser.add_argument("--in-turns", action="store_true", help="the two processes of a batch one after the other: on a GPU each waits for the other's time slices")
    parser.add_argument("--batch", type=int, default=1000, help="programs of a process")
    parser.add_argument("--bound", type=float, default=120, help="seconds in one call after which a process is taken for hung")
    parser.add_argument("--most", type=int, default=200, help="differing programs that are looked at")
    parser.add_argument("--look-seconds", type=float, default=240)
    parser.add_argument("--shrink-seconds", type=float, default=60, help="for each kind of difference")
    parser.add_argument("--left-out", type=pathlib.Path, default=HERE / "left_out.txt")
    parser.add_argument("--also-left-out", type=pathlib.Path, action="append", default=[], help="another such file")
    parser.add_argument("--explained", type=pathlib.Path, action="append", default=[], help="kinds of difference that are no failure")
    parser.add_argument("--tolerate", type=int, default=0, metavar="N", help="kinds of difference in at most N programs, and what does not come again when a program runs alone, are printed and are no failure")
    parser.add_argument("--count", type=pathlib.Path)
    parser.add_argument("--log", type=pathlib.Path, help="a file that gets a line for each batch: first program, programs done, what became of both processes")
    parser.add_argument("--report", type=pathlib.Path, help="a file for what was found")
    return parser.parse_args()


def main():
    options = parse()
    with tempfile.TemporaryDirectory(prefix="differential") as folder:
        comparison = Comparison(options, pathlib.Path(folder))
        try:
            with concurrent.futures.ThreadPoolExecutor(options.processes) as pool:
                for one in [pool.submit(comparison.work) for _ in range(options.processes)]:
                    one.result()
            for stop, end, call, errors in comparison.ended:
                print(f"program {stop} ended the native process ({end}) at: {call}\n{errors}", flush=True)
            for stop, end, call, errors in comparison.guest_ended:
                print(f"program {stop} ended the guest's process ({end}) at: {call}\n{errors}", flush=True)
            print(comparison.learned.text(), end="")
            comparison.report()
            comparison.look()
        finally:
            for side in comparison.sides:
                side.close()
            if options.count:
                comparison.counts.write(options.count, options.seed, [key for key, *_ in comparison.found])
            comparison.report()
    print(comparison.total())
    return 1 if comparison.unexplained - comparison.tolerated else 0


if __name__ == "__main__":
    sys.exit(main())
