#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the referee programs in several ways and compares stdout, stderr and exit code with the first way.

Example, on a machine with a GPU:
    compare.py --programs build/programs --way native= --way "local=build/causeway run --" --markdown table.md
A way is NAME=COMMAND PREFIX (empty: the program as it is) or, with --captured NAME=DIRECTORY, results taken elsewhere:
PROGRAM.stdout, PROGRAM.stderr and PROGRAM.code in that directory. --capture DIRECTORY writes the first way's results so.
Where a way differs, the end of what it printed follows its row.
Exits 1 when any program differs from the first way or when the first way does not exit 0.
"""

import argparse
import pathlib
import shlex
import subprocess
import sys
import time


class Result:
    """What one program did: its outputs as bytes, its exit code, and how long it took (not compared)."""

    def __init__(self, stdout, stderr, code, seconds):
        self.stdout, self.stderr, self.code, self.seconds = stdout, stderr, code, seconds

    def difference(self, other):
        """Empty when both did the same, else the first thing that differs."""
        if self.code != other.code:
            return f"exit code {other.code}, not {self.code}"
        for stream in ("stdout", "stderr"):
            mine, its = getattr(self, stream).splitlines(), getattr(other, stream).splitlines()
            for number in range(max(len(mine), len(its))):
                left = mine[number] if number < len(mine) else b"(end)"
                right = its[number] if number < len(its) else b"(end)"
                if left != right:
                    return f"{stream} line {number + 1}: {right.decode(errors='replace')!r}, " \
                           f"not {left.decode(errors='replace')!r}"
            if getattr(self, stream) != getattr(other, stream):
                return f"{stream} differs in its line ends"
        return ""


def last_lines(result):
    """The end of both outputs, for whoever cannot run it again."""
    kept = []
    for stream in ("stdout", "stderr"):
        lines = getattr(result, stream).decode(errors="replace").splitlines()[-20:]
        kept += [f"    {stream}| {line[:300]}" for line in lines]
    return kept


def without_lines(data, prefix):
    """The data without the lines that begin with prefix; unchanged when prefix is None."""
    if prefix is None:
        return data
    return b"".join(line for line in data.splitlines(keepends=True) if not line.startswith(prefix.encode()))


def run(prefix, program, timeout_s, drop_stderr):
    start = time.monotonic()
    try:
        done = subprocess.run(shlex.split(prefix) + [str(program)], stdin=subprocess.DEVNULL, capture_output=True,
                              timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired as expired:
        return Result(expired.stdout or b"", expired.stderr or b"", f"none within {timeout_s} s", timeout_s)
    except OSError as error:
        return Result(b"", str(error).encode(), "none: could not be started", 0)
    stderr = without_lines(done.stderr, drop_stderr)
    return Result(done.stdout, stderr, done.returncode, time.monotonic() - start)


def read_captured(directory, name):
    try:
        parts = [(directory / f"{name}.{part}").read_bytes() for part in ("stdout", "stderr", "code")]
    except OSError as error:
        return Result(b"", str(error).encode(), "none: not captured", 0)
    return Result(parts[0], parts[1], int(parts[2]), 0)


def write_captured(directory, name, result):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / f"{name}.stdout").write_bytes(result.stdout)
    (directory / f"{name}.stderr").write_bytes(result.stderr)
    (directory / f"{name}.code").write_text(f"{result.code}\n")


def named(text):
    name, separator, value = text.partition("=")
    if not separator:
        raise argparse.ArgumentTypeError(f"'{text}' is not NAME=VALUE")
    return name, value


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=pathlib.Path, required=True, help="folder with programs.txt and binaries")
    parser.add_argument("--way", type=named, action="append", default=[], metavar="NAME=PREFIX")
    parser.add_argument("--captured", type=named, action="append", default=[], metavar="NAME=DIRECTORY")
    parser.add_argument("--capture", type=pathlib.Path, help="write the first way's results to this folder")
    parser.add_argument("--only", nargs="*", help="these programs instead of all in programs.txt")
    parser.add_argument("--timeout", type=float, default=120, help="seconds for each program")
    parser.add_argument("--drop-stderr", metavar="PREFIX",
                        help="ignore lines of stderr that begin so, such as the software GPU's own explanations")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table to this file")
    arguments = parser.parse_args()
    if not arguments.way:
        parser.error("at least one --way is needed")
    return arguments


def compare_one(name, arguments):
    """Returns the table's cells for one program, whether all ways agree, and what those that differ printed."""
    program = (arguments.programs / name).resolve()
    results = [run(prefix, program, arguments.timeout, arguments.drop_stderr) for _, prefix in arguments.way]
    results += [read_captured(pathlib.Path(directory), name) for _, directory in arguments.captured]
    if arguments.capture:
        write_captured(arguments.capture, name, results[0])
    reference = results[0]
    good = reference.code == 0
    cells = [f"exit {reference.code}" + (f", {reference.seconds:.2f} s" if good else "")]
    if not good:
        print(f"{name}: {(reference.stdout + reference.stderr).decode(errors='replace').strip()[-600:]}")
    printed = []
    for (way, _), result in zip((arguments.way + arguments.captured)[1:], results[1:]):
        difference = reference.difference(result)
        good = good and not difference
        if difference:
            printed += [f"  {way} printed at the end:"] + last_lines(result)
        cells.append(difference.replace("|", "\\|") or f"same, {result.seconds:.2f} s")
    return cells, good, printed


def main():
    arguments = parse_arguments()
    names = arguments.only or (arguments.programs / "programs.txt").read_text().split()
    header = ["program"] + [name for name, _ in arguments.way + arguments.captured]
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    failed = 0
    for name in names:
        cells, good, printed = compare_one(name, arguments)
        failed += not good
        lines.append("| " + " | ".join([name] + cells) + " |")
        print("\n".join(lines[-1:] + printed), flush=True)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")
    print(f"{len(names)} programs, {failed} differ or fail")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
