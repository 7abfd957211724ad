#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the conformance programs in several ways and holds each against the first one, test by test.

Example, on a machine with a GPU:
    compare_ways.py --programs build/driver_tests --way native= --way "local=build/host_backend/causeway run --"
A way is NAME=COMMAND PREFIX (empty: the program as it is). A test agrees when it passed in both and recorded the same
values. One that the first way skips agrees with nothing: it is counted apart, and fails only where another way fails it.
One that only another way skips fails, unless its reason is that TCP shares no memory. A test that crashes or hangs ends
its run; the program's other tests are run without it; one that hardly had time, because the tests before it took the
program's, is late and no hang. A program that the limit for everything cuts short counts as not run. The first two ways
are run for all programs before the third. Exits 1 when any test fails in the first way or differs, or when a program
dies.
--jobs N runs N programs at a time; what then differs is run again alone, since some tests measure whether a call waits.
--markdown FILE writes a table, --json FILE everything, --summary FILE what there is to mend, in as few lines as
possible. All three are complete after each program, so whoever ends this program early has what was done.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time

TCP_REASON = "TCP shares no memory"
MOST_RUNS = 5  # of one program in one way: each but the last ends with a crash or a hang
SHOWN_LINES = 10  # of a failed test, for each way


class Run:
    """What one program did in one way: per test its result and recorded values, and how the program ended."""

    def __init__(self):
        self.tests, self.output, self.code, self.seconds = {}, "", 0, 0.0

    def lost(self):
        """The test that began and did not end; empty without one."""
        begun = re.findall(r"^\[ RUN      \] (\S+)", self.output, re.M)
        return begun[-1] if begun and begun[-1] not in self.tests else ""

    def lost_result(self):
        """What became of that test."""
        if isinstance(self.code, int) or "within" not in self.code:
            return ending(self.code)
        before_s = sum(map(int, re.findall(r"^\[[ A-Z]+\] \S+ \((\d+) ms\)$", self.output, re.M))) / 1000
        own_s = self.seconds - before_s
        return "HUNG" if own_s > self.seconds / 2 else f"LATE: {own_s:.0f} s of {self.seconds:.0f} s were left for it"

    def add(self, other):
        """A later run of the same program, of other tests or of the same ones once more."""
        self.tests.update(other.tests)
        self.output += other.output
        self.seconds += other.seconds
        self.code = self.code or other.code


def parse(text):
    tests = {}
    for line in text.splitlines():
        if line.startswith("[says] "):
            head, *values = line[len("[says] "):].split("\t")
            name, result = head.rsplit(" ", 1)
            tests[name] = (result, values)
    return tests


def run_once(prefix, program, timeout_s, gtest_filter):
    this, begin = Run(), time.monotonic()
    command = shlex.split(prefix) + [str(program)] + ([f"--gtest_filter={gtest_filter}"] if gtest_filter else [])
    # Into a file: a process that outlives its parent would keep a pipe open.
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                       start_new_session=True)
            try:
                this.code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                this.code = f"none within {timeout_s} s"
        except OSError as error:
            this.code = f"none: {error}"
        output.seek(0)
        this.output = output.read().decode(errors="replace")
    this.tests, this.seconds = parse(this.output), time.monotonic() - begin
    return this


def ending(code):
    """How a program ended that neither passed nor failed its tests."""
    if not isinstance(code, int):
        return "HUNG" if "within" in code else code
    number = -code if code < 0 else code - 128
    try:
        return f"CRASHED ({signal.Signals(number).name})"
    except ValueError:
        return f"ENDED with exit code {code}"


def run(prefix, program, timeout_s, gtest_filter):
    """The program until all its tests have ended, each that ends the program being left out of the next run."""
    whole = run_once(prefix, program, timeout_s, gtest_filter)
    latest, without = whole, []
    for _ in range(MOST_RUNS - 1):
        if latest.code in (0, 1) or not latest.lost():
            break
        without += list(latest.tests) + [latest.lost()]
        whole.tests[latest.lost()] = (latest.lost_result(), [])
        latest = run_once(prefix, program, timeout_s, (gtest_filter or "*") + "-" + ":".join(without))
        whole.add(latest)
    if latest.lost():
        whole.tests[latest.lost()] = (latest.lost_result(), [])
    return whole


def judge(name, first, other):
    """Empty when the test agrees in both ways or was skipped with reason, else what differs."""
    (result, values), (its_result, its_values) = first.tests[name], other.tests.get(name, ("did not run", []))
    if result == "skipped":
        # It says nothing of what the other does, but whether the test's own expectations hold there.
        return "" if its_result in ("passed", "skipped", "did not run") else its_result
    if its_result == "skipped":
        return "" if TCP_REASON in other.output else "skipped here only"
    if its_result != "passed" and result == its_result:
        return ""  # held against the first way already
    if its_result != result:
        return its_result
    for mine, its in zip(values, its_values):
        if mine != its:
            return f"{its}, not {mine}"
    return "" if len(values) == len(its_values) else f"{len(its_values)} values, not {len(values)}"


def test_lines(output, name):
    """What the test printed in its last run, without how long it took."""
    start = output.rfind(f"[ RUN      ] {name}\n")
    if start < 0:
        return []
    end = re.compile(r"^\[says\]|^\[ RUN      \]", re.M).search(output, start + 1)
    lines = output[start:end.start() if end else None].strip().splitlines()[1:]
    return [re.sub(r" \(\d+ ms\)$", "", line) for line in lines]


def both_texts(name, ways):
    """The first differing lines of two ways, [(way, its Run), ...], or what the only one printed."""
    texts = [test_lines(its.output, name) for _, its in ways]
    same = 0
    while len(texts) > 1 and same < min(map(len, texts)) and texts[0][same] == texts[1][same]:
        same += 1
    return [f"    {way}| {line}" for (way, _), text in zip(ways, texts) for line in text[same:same + SHOWN_LINES]]


class Comparison:
    """All runs so far, and what they tell."""

    def __init__(self, options):
        self.options = options
        self.ways = [way.split("=", 1) for way in options.way]
        self.names = options.only or sorted(
            p.name for p in options.programs.iterdir() if os.access(p, os.X_OK) and p.is_file())
        self.runs = {name: {} for name in self.names}
        self.alone = {}  # (program, way): tests that agreed only when run alone
        self.lock = threading.Lock()

    def left_s(self):
        return self.options.limit - (time.monotonic() - BEGIN)

    def run_one(self, name, ways):
        for way, prefix in ways:
            if self.left_s() < 5:
                return
            timeout_s = min(self.options.timeout, int(self.left_s()))
            this = run(prefix, self.options.programs / name, timeout_s, self.options.filter)
            if "within" in str(this.code) and timeout_s < self.options.timeout:
                return
            with self.lock:
                self.runs[name][way] = this
                self.write()
        with self.lock:
            print(self.line(name), flush=True)

    def run_all(self):
        for ways in [self.ways[:2]] + [[way] for way in self.ways[2:]]:
            with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
                for done in [pool.submit(self.run_one, name, ways) for name in self.names]:
                    done.result()
            if self.options.jobs > 1:
                self.repeat_alone(ways)

    def repeat_alone(self, ways):
        """What differed while other programs ran is run once more by itself, and counts as it is then."""
        for name in self.names:
            for way, prefix in ways:
                wrong = [test for test, why in self.wrong(name, way) if "HUNG" not in why and test != "the program"]
                if not wrong or self.left_s() < 5:
                    continue
                again = run(prefix, self.options.programs / name, min(self.options.timeout, int(self.left_s())),
                            ":".join(wrong))
                with self.lock:
                    this = self.runs[name][way]
                    this.tests.update(again.tests)
                    hung = any(result == "HUNG" for result, _ in this.tests.values())
                    if this.code == 1 or ("within" in str(this.code) and not hung):
                        this.code = again.code
                    this.output += again.output
                    mended = set(wrong) - {test for test, _ in self.wrong(name, way)}
                    self.alone[name, way] = sorted(mended)
                    self.write()
                    print(f"again, alone: {self.line(name)}", flush=True)

    def wrong(self, name, way):
        """[(test, why)]: failures of the first way, and what differs from it in another."""
        first, this = (self.runs[name].get(w) for w in (self.ways[0][0], way))
        if this is None or first is None:
            return []
        found = []
        for test, (result, _) in first.tests.items():
            why = (result if result not in ("passed", "skipped") else "") if this is first else judge(test, first, this)
            if why:
                found.append((test, why))
        if not found and (this.code not in (0, 1) or not this.tests):
            found.append(("the program", f"{ending(this.code)} after: {this.output[-1500:]}"))
        return found

    def cell(self, name, way):
        this, first = self.runs[name].get(way), self.runs[name].get(self.ways[0][0])
        if this is None:
            return "not run"
        wrong = [test for test, _ in self.wrong(name, way)]
        if this is first:
            passed = sum(result == "passed" for result, _ in this.tests.values())
            skipped = sum(result == "skipped" for result, _ in this.tests.values())
            return f"{passed} passed, {skipped} skipped, {len(wrong)} failed"
        skipped = [test for test, (result, _) in first.tests.items() if result == "skipped"]
        here = [test for test in first.tests if this.tests.get(test, ("", []))[0] == "skipped"]
        here = [test for test in here if test not in skipped + wrong]
        agree = len(set(first.tests) - set(skipped) - set(here) - set(wrong))
        return (f"{agree} agree, {len(wrong)} differ" + (f", {len(skipped)} skipped in {self.ways[0][0]} run" if skipped else "")
                + (f", {len(here)} left out: {TCP_REASON}" if here else ""))

    def line(self, name):
        return f"{name}: " + "; ".join(f"{way}: {self.cell(name, way)}" for way, _ in self.ways)

    def details(self, name):
        lines, first = [], self.runs[name].get(self.ways[0][0])
        for way, _ in self.ways:
            this = self.runs[name].get(way)
            for test, why in self.wrong(name, way):
                lines.append(f"  {way}: {test}: {why}")
                lines += both_texts(test, [(way, this)] if this is first else [(self.ways[0][0], first), (way, this)])
            if self.alone.get((name, way)):
                lines.append(f"  {way}: only alone, not beside other programs: {' '.join(self.alone[name, way])}")
        skipped = [test for test, (result, _) in first.tests.items() if result == "skipped"] if first else []
        for test in skipped:
            why = re.search(r": Skipped$\n(.+)", "\n".join(test_lines(first.output, test)), re.M)
            lines.append(f"  skipped in {self.ways[0][0]} run: {test}{': ' + why[1] if why else ''}")
        return lines

    def failures(self):
        return sum(len(self.wrong(name, way)) for name in self.names for way, _ in self.ways)

    def write(self):
        options, ways = self.options, [way for way, _ in self.ways]
        if options.markdown:
            rows = [[name.removeprefix("driver_").removesuffix("_test")] + [self.cell(name, way) for way in ways]
                    for name in self.names]
            lines = [["program"] + ways, ["---"] * (len(ways) + 1)] + rows
            replace(options.markdown, "".join("| " + " | ".join(line) + " |\n" for line in lines))
        if options.json:
            replace(options.json, json.dumps(
                {name: {way: {"code": its.code, "seconds": round(its.seconds, 1), "tests": its.tests}
                        for way, its in runs.items()} for name, runs in self.runs.items()}, indent=1))
        if options.summary:
            wrong = [name for name in self.names if any(self.wrong(name, way) for way in ways)]
            open_ = [name for name in self.names if len(self.runs[name]) < len(ways)]
            lines = [f"{len(self.names)} programs, {self.failures()} failures in {len(wrong)} of them; {len(open_)} have "
                     f"not run in every way; {time.monotonic() - BEGIN:.0f} s"]
            # What differs first, for a reader who sees only the beginning.
            for name in wrong + [name for name in self.names if name not in wrong]:
                lines += [self.line(name)] + self.details(name)
            replace(options.summary, "\n".join(lines) + "\n")


def replace(path, text):
    """A reader, also one after a kill, sees the old or the new file and nothing between."""
    new = path.with_name(path.name + ".new")
    new.write_text(text)
    new.replace(path)


BEGIN = time.monotonic()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True, type=pathlib.Path, help="folder of the programs")
    parser.add_argument("--way", action="append", required=True, metavar="NAME=PREFIX")
    parser.add_argument("--only", nargs="*", help="names of programs; all without it")
    parser.add_argument("--filter", default="", help="a gtest filter for all programs, without a '-' in it")
    parser.add_argument("--timeout", type=int, default=240, help="seconds for one run of a program")
    parser.add_argument("--jobs", type=int, default=1, help="programs at a time")
    parser.add_argument("--limit", type=float, default=86400, help="seconds for everything")
    parser.add_argument("--fresh", type=pathlib.Path, metavar="FILE", help="a file that the programs append to: begin without it")
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--summary", type=pathlib.Path)
    comparison = Comparison(parser.parse_args())
    if comparison.options.fresh:
        comparison.options.fresh.unlink(missing_ok=True)
    comparison.run_all()
    for name in comparison.names:
        for line in comparison.details(name):
            print(f"{name}: {line.lstrip()}")
    failures = comparison.failures()
    complete = all(len(runs) == len(comparison.ways) for runs in comparison.runs.values())
    print(f"{len(comparison.names)} programs, {failures} failures" + ("" if complete else ", not all were run"))
    return 1 if failures or not complete else 0


if __name__ == "__main__":
    sys.exit(main())
