#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the conformance programs in several ways and holds each against the first one, test by test.

Example, on a machine with a GPU:
    compare_ways.py --programs build/driver_tests --way native= --way "local=build/host_backend/causeway run --"
A way is NAME=COMMAND PREFIX (empty: the program as it is). A test agrees when it passed in both and recorded the same
values, or was skipped in the first. A test that only another way skips is listed, and fails unless its reason is that
TCP shares no memory. Exits 1 when any test fails in the first way or differs, or when a program dies.
--markdown FILE writes a table, --json FILE everything.
"""

import argparse
import json
import os
import pathlib
import shlex
import subprocess
import sys

TCP_REASON = "TCP shares no memory"


class Run:
    """What one program did in one way: per test its result and the values that it recorded."""

    def __init__(self, tests, output, code):
        self.tests, self.output, self.code = tests, output, code


def parse(text):
    tests = {}
    for line in text.splitlines():
        if line.startswith("[says] "):
            head, *values = line[len("[says] "):].split("\t")
            name, result = head.rsplit(" ", 1)
            tests[name] = (result, values)
    return tests


def run(prefix, program, timeout_s, extra):
    try:
        done = subprocess.run(shlex.split(prefix) + [str(program)] + extra, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s, check=False)
        output, code = done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as expired:
        output, code = (expired.stdout or b"").decode(errors="replace"), f"none within {timeout_s} s"
    except OSError as error:
        output, code = str(error), "none: could not be started"
    return Run(parse(output), output, code)


def judge(name, first, other):
    """Empty when the test agrees in both ways, else what differs."""
    if name not in other.tests:
        return "did not end"
    (result, values), (its_result, its_values) = first.tests[name], other.tests[name]
    if result == "skipped":
        return ""
    if its_result == "skipped":
        return "" if TCP_REASON in other.output else "skipped here only"
    if its_result != result:
        return its_result
    for mine, its in zip(values, its_values):
        if mine != its:
            return f"{its}, not {mine}"
    return "" if len(values) == len(its_values) else f"{len(its_values)} values, not {len(values)}"


def failure_text(output, name):
    """gtest's own words on a failed test."""
    start = output.find(f"[ RUN      ] {name}")
    end = output.find("[says]", start)
    return output[start:end].strip() if start >= 0 else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", required=True, type=pathlib.Path, help="folder of the programs")
    parser.add_argument("--way", action="append", required=True, metavar="NAME=PREFIX")
    parser.add_argument("--only", nargs="*", help="names of programs; all without it")
    parser.add_argument("--filter", default="", help="a gtest filter for all programs")
    parser.add_argument("--timeout", type=int, default=240, help="seconds for one program in one way")
    parser.add_argument("--markdown", type=pathlib.Path)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    ways = [way.split("=", 1) for way in options.way]
    names = options.only or sorted(p.name for p in options.programs.iterdir() if os.access(p, os.X_OK) and p.is_file())
    extra = [f"--gtest_filter={options.filter}"] if options.filter else []
    failures, rows, everything = 0, [], {}
    for program in names:
        runs = [run(prefix, options.programs / program, options.timeout, extra) for _, prefix in ways]
        first = runs[0]
        everything[program] = {way: {"code": r.code, "tests": r.tests} for (way, _), r in zip(ways, runs)}
        cells = []
        for (way, _), this in zip(ways, runs):
            passed = sum(result == "passed" for result, _ in this.tests.values())
            skipped = sum(result == "skipped" for result, _ in this.tests.values())
            wrong = []
            for test in first.tests:
                why = judge(test, first, this) if this is not first else ""
                if this is first and this.tests[test][0] == "failed":
                    why = "failed"
                if why:
                    wrong.append(test)
                    print(f"{program} {way}: {test}: {why}")
                    text = failure_text(this.output, test)
                    if text:
                        print("    " + text.replace("\n", "\n    "))
            if not wrong and this.code not in (0, 1) or not this.tests:
                wrong.append("the program")
                print(f"{program} {way}: exit {this.code}, after: {this.output[-1500:]}")
            failures += len(wrong)
            cells.append(f"{passed} passed, {skipped} skipped, {len(wrong)} differ")
        rows.append([program.removeprefix("driver_").removesuffix("_test"), *cells])
        print(f"{program}: " + "; ".join(f"{way}: {cell}" for (way, _), cell in zip(ways, cells)), flush=True)
    if options.markdown:
        lines = ["| program | " + " | ".join(way for way, _ in ways) + " |", "|---" * (len(ways) + 1) + "|"]
        options.markdown.write_text("\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n")
    if options.json:
        options.json.write_text(json.dumps(everything, indent=1))
    print(f"{len(names)} programs, {failures} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
