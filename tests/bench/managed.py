#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Managed memory that both processors use, natively and through Causeway: time and processor time of a round.

Usage: managed.py BUILD LOAD [--against BUILD] [--modes MODE[:SIZE],...] [--rounds N] [--seconds S] [--limit S] [--json FILE]
                  [--step BYTES] [--driver LIBRARY]

LOAD is tests/bench/managed_load of a build (ninja managed_load); tests/bench/managed_load.cc says what it does in each mode. --modes
picks modes, all that begin with such a word (advise) or one size (turns:1M). In each of --rounds turns a process of each side, made
for it, measures all rows for --seconds each, one side after the other. Who begins and which row is first changes with each turn. The
table has each side's median of the microseconds that a round takes, the median of the turns' ratios to native, with the least and the
largest and, from eight turns on, its interval (95 %), by resampling the turns; and the same of the processor time that the program, the
daemon and the workers used for a round. What the kernel does for the driver in threads of its own is in neither side's. --limit: no
turn begins that would end later than so many seconds from the beginning. --against: another build, as `before`. --driver: what native
means; for the software GPU, which interprets kernels, say --step 4096. CAUSEWAY_MANAGED and CAUSEWAY_MANAGED_FAULTS are passed on.

The exit status is 1 only when a program fails, or finds a wrong word: that row is left out from there on, and the others go on.
"""

import argparse
import json
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import time

from sides import Side, Used, descendants, interval_cell, spread

ROWS = [("prefetch", "64K"), ("prefetch", "2M"), ("prefetch", "64M"), ("turns", "1M"), ("turns", "64M"), ("sparse", "64M"),
        ("kernel", "64M"), ("kernel", "1G"), ("kernel_prefetched", "1G"), ("kernel_device", "1G"),
        ("advise_device", "1M"), ("advise_device", "64M"), ("advise_cpu", "1M"), ("advise_cpu", "64M"),
        ("advise_read", "1M"), ("advise_read", "64M")]
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
PATIENCE_S = 120  # for one answer
HEAD = ("| mode | size | side | native us | us | ratio | 95 % interval | native processor us | processor us | its ratio | "
        "95 % interval |\n|---|---|---|---:|---:|---|---|---:|---:|---|---|")


class Failed(Exception):
    """The program ended, gave another answer than it should, or none in time."""


class Load:
    """A process of LOAD on one side."""

    def __init__(self, side, load, step):
        self.side = side
        self.process = subprocess.Popen([str(load), str(step)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=side.environment)

    def answer(self):
        if not select.select([self.process.stdout], [], [], PATIENCE_S)[0]:
            raise Failed(f"it does not answer within {PATIENCE_S} s")
        line = self.process.stdout.readline().decode()  # it prints whole lines
        if not line:
            raise Failed(f"it ended with status {self.process.wait(PATIENCE_S)}")
        return line.rstrip("\n")

    def tell(self, line):
        try:
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise Failed(f"it ended with status {self.process.wait(PATIENCE_S)}") from error

    def expect(self, word):
        answer = self.answer()
        if answer != word:
            raise Failed(f"it answered {answer!r} instead of {word!r}")

    def measure(self, mode, size, seconds):
        """Microseconds of a round, and processor time of it: of all processes, and of the program alone."""
        self.tell(f"measure {mode} {int(size[:-1]) * UNITS[size[-1]]} {seconds}")
        self.expect("prepared")
        used = Used(descendants([self.process.pid] + ([self.side.daemon.pid] if self.side.daemon else [])))
        self.tell("go")
        rate, rounds, own_s = (float(word) for word in self.answer().split())
        all_us = sum(values[0] for values in used.since().values())
        self.tell("look")
        self.expect("right")
        return {"us": 1e6 / rate, "processor_us": all_us / rounds, "own_processor_us": own_s * 1e6 / rounds, "rounds": rounds}

    def end(self):
        self.process.kill()
        self.process.communicate(timeout=PATIENCE_S)


class Measurement:
    """What there is by now of each row, and which rows failed."""

    def __init__(self, words, rows):
        self.words, self.rows, self.sides, self.loads = words, rows, [], {}
        self.seen = {row: [] for row in rows}  # of each turn {side: figures}
        self.failures = {}

    def start_sides(self):
        words = self.words
        builds = [("native", None)] + ([("before", words.against)] if words.against else []) + [("Causeway", words.build)]
        for name, build in builds:
            self.sides.append(Side(name, build, words.driver))

    def load_of(self, side):
        if side.name not in self.loads:
            load = self.loads[side.name] = Load(side, self.words.load, self.words.step)
            load.expect("ready")
        return self.loads[side.name]

    def end_load(self, name):
        if name in self.loads:
            self.loads.pop(name).end()

    def row(self, row, sides):
        found = {}
        for side in sides:
            try:
                found[side.name] = self.load_of(side).measure(*row, self.words.seconds)
            except Failed as error:
                self.failures[row] = f"{side.name}, {' '.join(row)}: {error}"
                print(f"managed.py: {self.failures[row]}", file=sys.stderr, flush=True)
                self.end_load(side.name)
                return
        self.seen[row].append(found)

    def turn(self, number):
        first = number % len(self.rows)
        for row in self.rows[first:] + self.rows[:first]:
            if row not in self.failures:
                self.row(row, self.sides if number % 2 == 0 else self.sides[::-1])
        for side in self.sides:
            self.end_load(side.name)

    def run(self):
        begun = time.monotonic()
        self.start_sides()
        for number in range(self.words.rounds):
            if number and (time.monotonic() - begun) * (number + 1) / number > self.words.limit:
                break
            self.turn(number)
            self.keep()

    def end(self):
        for side in self.sides:
            self.end_load(side.name)
            side.end()

    def keep(self):
        if self.words.json:
            self.words.json.write_text(json.dumps([
                {"mode": row[0], "size": row[1], "turns": self.seen[row], "failure": self.failures.get(row)} for row in self.rows], indent=1))

    def cells(self, row, name):
        turns, cells = self.seen[row], []
        for key in ("us", "processor_us"):
            native, own = ([turn[side][key] for turn in turns] for side in ("native", name))
            ratios = [value / max(base, 1e-9) for value, base in zip(own, native)]
            cells += [f"{statistics.median(native):.4g}", f"{statistics.median(own):.4g}", spread(ratios), interval_cell(ratios)]
        return cells

    def table(self):
        lines = [HEAD]
        for row in self.rows:
            if not self.seen[row]:
                lines.append(f"| {' | '.join(row)} | {'failed' if row in self.failures else 'no time was left'} |" + " |" * 8)
                continue
            for side in self.sides[1:]:
                name = f"{side.name}, failed later" if row in self.failures else side.name
                lines.append(f"| {' | '.join([*row, name, *self.cells(row, side.name)])} |")
        return "\n".join(lines)


def rows_of(modes):
    if modes is None:
        return ROWS
    chosen, names = [], {mode for mode, _ in ROWS}
    for word in modes.split(","):
        mode, _, size = word.partition(":")
        if size and mode in names and size[:-1].isdigit() and size[-1] in UNITS:
            found = [(mode, size)]
        else:
            found = [row for row in ROWS if not size and (row[0] == mode or row[0].startswith(f"{mode}_"))]
        if not found:
            sys.exit(f"managed.py: no mode {word}; there are {', '.join(sorted(names))}, with a size as turns:1M")
        chosen += [row for row in found if row not in chosen]
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("load", type=pathlib.Path)
    parser.add_argument("--against", type=pathlib.Path)
    parser.add_argument("--modes")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--limit", type=float, default=float("inf"))
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--step", type=int, default=16)
    parser.add_argument("--driver")
    words = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the table is printed
    measurement = Measurement(words, rows_of(words.modes))
    try:
        measurement.run()
    finally:
        measurement.keep()
        print(measurement.table(), *measurement.failures.values(), sep="\n\n", flush=True)
        measurement.end()
    sys.exit(1 if measurement.failures else 0)


if __name__ == "__main__":
    main()
