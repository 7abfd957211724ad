#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs the framework scripts natively and through Causeway and compares what they print, line by line.

Example, on a machine with a GPU:
    compare.py --output OUT --way native= --way "local=build/host_backend/causeway run --"
A way is NAME=COMMAND PREFIX (empty: the script as it is) or, with --captured NAME=DIRECTORY, results taken elsewhere; the
first one is the referee. Lines that begin with '#' are informative. --jobs runs are done at a time, each with its own
caches and temporary folder and its own session, which is killed as a whole when it ends or when its time is up. A script
that differs from the first way is run once more in the first way: a line that differs there too is said to vary.
Exits 1 when a script fails in the first way or differs.
OUTPUT holds SCRIPT.WAY.txt (stdout), SCRIPT.WAY.err (stderr), table.md and table.json.
"""

import argparse
import concurrent.futures
import itertools
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
LEAST_S = 10  # with less time left, nothing is started
HERE = pathlib.Path(__file__).resolve().parent
NOT_SCRIPTS = ("compare.py", "compare_test.py", "suite.py")
WANTS_THE_GPU_FOR_ITSELF = ("pytorch_memory",)  # these fill its memory, or count what is free


class Run:
    """One script in one way: its lines without the informative ones, exit code and seconds."""

    def __init__(self, text, code, seconds):
        self.lines = [line for line in text.splitlines() if not line.startswith("#")]
        self.sections = {"": []}  # by the line "[name]" that begins each
        for line in self.lines:
            if re.fullmatch(r"\[\w+\]", line):
                self.sections[line] = []
            else:
                self.sections[next(reversed(self.sections))].append(line)
        self.notes = [line for line in text.splitlines() if line.startswith("#")]
        self.code, self.seconds = code, seconds

    def section_seconds(self):
        found = {}
        for line in self.notes:
            match = re.fullmatch(r"# (\w+): ([\d.]+) s", line)
            if match:
                found[match[1]] = float(match[2])
        return found


def environment_of(folder, timeout_s):
    """Caches of its own, so that a run neither waits for another nor finds what another has compiled."""
    environment = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", TMPDIR=str(folder),
                       CAUSEWAY_DUMP_AFTER_S=str(max(5, timeout_s - 10)))
    for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "CUPY_CACHE_DIR", "NUMBA_CACHE_DIR", "CUDA_CACHE_PATH"):
        environment[name] = str(folder / name.lower())
    return environment


def end_session(process, how):
    try:
        os.killpg(process.pid, how)
    except ProcessLookupError:
        pass


def run(way, prefix, script, options, suffix=""):
    timeout_s = min(options.timeout, options.ends - time.monotonic())
    if timeout_s < LEAST_S:
        return Run("", "none: time was up", 0)
    folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway-frameworks-"))
    base = options.output / f"{script}.{way}{suffix}"
    command = shlex.split(prefix) + [options.python, str(HERE / f"{script}.py")]
    started, code = time.monotonic(), None
    with open(f"{base}.txt", "wb") as out, open(f"{base}.err", "wb") as err:
        try:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True,
                                       env=environment_of(folder, timeout_s))
        except OSError as error:
            return Run("", f"not started: {error}", 0)
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            code = f"none within {timeout_s:.0f} s"
            end_session(process, signal.SIGTERM)  # `causeway run` then removes its socket and its region
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                pass
        finally:
            end_session(process, signal.SIGKILL)
            process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    text = pathlib.Path(f"{base}.txt").read_text(errors="replace")
    return Run(text, code, time.monotonic() - started)


def read_captured(folder, script):
    """A run made elsewhere, as tests/vm/vm_capture.py leaves it: SCRIPT.stdout, SCRIPT.code."""
    try:
        return Run((folder / f"{script}.stdout").read_text(errors="replace"), int((folder / f"{script}.code").read_text()), 0)
    except (OSError, ValueError) as error:
        return Run("", f"not captured: {error}", 0)


def differences(first, other):
    """What differs: {(section, number): text}; of each section, all lines behind the end of the shorter side are one."""
    found = {}
    for name in dict.fromkeys([*first.sections, *other.sections]):
        mine, its = first.sections.get(name), other.sections.get(name)
        if mine is None or its is None:
            found[name, 0] = f"{name} is {'new here' if mine is None else 'missing'}"
            continue
        for number in range(max(len(mine), len(its))):
            left = mine[number] if number < len(mine) else "(end)"
            right = its[number] if number < len(its) else "(end)"
            if left != right:
                found[name, number] = f"{name or 'before the sections'} line {number + 1}: {right!r}, not {left!r}"
            if "(end)" in (left, right):
                break
    return found


def judge(first, other, again):
    """Text for the table, and whether it counts as a difference. `again`: makes a second run of the first way."""
    different = differences(first, other)
    if other.code == first.code and not different:
        return "same", False, []
    second = again() if different and isinstance(other.code, int) else None
    vary = differences(first, second) if second else {}
    serious = [text for place, text in different.items() if place not in vary]
    if not serious and other.code == first.code:
        return f"same but for {len(different)} lines that vary natively", False, []
    text = f"exit {other.code}, not {first.code}" if other.code != first.code else f"{len(serious)} lines differ"
    return text, True, serious


def cells_of(script, runs, ways, again):
    """The row of the table, whether it failed, and the details to print."""
    first = runs[0]
    if first.code == SKIPPED and all(other.code == SKIPPED for other in runs):
        return [first.lines[-1] if first.lines else "skipped"] + [""] * (len(runs) - 1), False, []
    cells, failed, details = [f"exit {first.code}, {len(first.lines)} lines, {first.seconds:.0f} s"], first.code != 0, []
    if first.code != 0:
        details += [f"{ways[0][0]}: {line}" for line in first.lines if "FAILED" in line] or [f"{ways[0][0]}: exit {first.code}"]
    for (way, _), other in zip(ways[1:], runs[1:]):
        text, differs, more = judge(first, other, again)
        cells.append(f"{text}, {other.seconds:.0f} s")
        failed = failed or differs
        details += [f"{way}: {text}"] * differs + [f"{way}: {line}" for line in more]
    return cells, failed, details


def slower_sections(runs):
    mine, its = runs[0].section_seconds(), runs[1].section_seconds() if len(runs) > 1 else {}
    return {name: (seconds, its[name]) for name, seconds in mine.items() if name in its}


def compare_script(script, ways, captured, pool, options):
    futures = [pool.submit(run, way, prefix, script, options) for way, prefix in ways]
    runs = [future.result() for future in futures]
    runs += [read_captured(pathlib.Path(folder), script) for _, folder in captured]
    again = (lambda: pool.submit(run, *ways[0], script, options, ".again").result()) if ways else (lambda: None)
    cells, failed, details = cells_of(script, runs, ways + captured, again)
    return script, {"cells": cells, "failed": failed, "details": details, "section_seconds": slower_sections(runs)}


def compared(scripts, jobs, ways, captured, options):
    """Each script with its entry, as they end. One thread for each waits for its runs; the pool bounds how many there are."""
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool, \
            concurrent.futures.ThreadPoolExecutor(max(1, len(scripts))) as waiting:
        pending = [waiting.submit(compare_script, script, ways, captured, pool, options) for script in scripts]
        for done in concurrent.futures.as_completed(pending):
            yield done.result()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--way", action="append", default=[], metavar="NAME=PREFIX")
    parser.add_argument("--captured", action="append", default=[], metavar="NAME=DIRECTORY", help="results taken elsewhere")
    parser.add_argument("--only", nargs="*", help="names of scripts; all without it")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2), help="runs at a time")
    parser.add_argument("--timeout", type=float, default=150, help="seconds for one run")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for everything; what is left then is not run")
    parser.add_argument("--lines", type=int, default=5, help="different lines to print of each script")
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--markdown", type=pathlib.Path, help="a copy of table.md")
    return parser.parse_args()


def main():
    options = parse_arguments()
    options.ends = time.monotonic() + options.limit
    ways = [tuple(way.split("=", 1)) for way in options.way]
    captured = [tuple(item.split("=", 1)) for item in options.captured]
    scripts = options.only or sorted(path.stem for path in HERE.glob("*.py") if path.name not in NOT_SCRIPTS)
    options.output.mkdir(parents=True, exist_ok=True)
    header = ["script"] + [name for name, _ in ways + captured]
    table = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    failures, everything = 0, {}
    alone = [script for script in scripts if script in WANTS_THE_GPU_FOR_ITSELF]
    others = [script for script in scripts if script not in alone]
    for script, entry in itertools.chain(compared(others, options.jobs, ways, captured, options),
                                         compared(alone, 1, ways, captured, options)):
        everything[script] = entry
        failures += entry["failed"]
        row = "| " + " | ".join([script] + [cell.replace("|", "\\|") for cell in entry["cells"]]) + " |"
        print(row, *entry["details"][:options.lines], sep="\n    ", flush=True)
        table.append(row)
    table[2:] = sorted(table[2:])
    for path in [options.output / "table.md"] + [options.markdown] * bool(options.markdown):
        path.write_text("\n".join(table) + "\n")
    (options.output / "table.json").write_text(json.dumps(everything, indent=1))
    print(f"{len(scripts)} scripts, {failures} differ or fail")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
