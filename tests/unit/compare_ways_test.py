#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/driver/compare_ways.py on a program that fails, crashes and hangs on request: what its summary says.

usage: compare_ways_test.py COMPARE_WAYS
"""

import pathlib
import subprocess
import sys
import tempfile

# Acts like a gtest program of the conformance suite; BAD is set in the second way.
PROGRAM = '''#!/usr/bin/env python3
import os, sys, time
bad = "BAD" in os.environ
chosen = dict(argument.split("=", 1) for argument in sys.argv[1:]).get("--gtest_filter", "*")
only, _, without = chosen.partition("-")
failed = False
for test in ("A.Same", "A.Skipped", "A.SkippedHere", "A.Value", "A.Crashes", "A.Fails", "A.Hangs", "A.Last", "A.Slow", "A.Late", "A.Crowded"):
    if test in without.split(":") or only not in ("*", "") and test not in only.split(":"):
        continue
    print(f"[ RUN      ] {test}\\nwords of {test}", flush=True)
    result, value = "passed", ""
    if test == "A.Skipped":
        print("x.cc:1: Skipped\\nno such hardware")
        result = "skipped"
    if test == "A.SkippedHere":
        result, failed = ("failed", True) if bad else ("skipped", failed)
    if test == "A.Value":
        value = "\\tsize=2" if bad else "\\tsize=1"
    if test == "A.Crashes" and bad:
        os.abort()
    if test == "A.Fails" and bad:
        print("x.cc:2: Failure\\nwhich is 700")
        result, failed = "failed", True
    if test == "A.Hangs" and bad:
        time.sleep(100)
    if test == "A.Late" and bad and only in ("*", ""):
        time.sleep(100)
    if test == "A.Crowded" and bad and only in ("*", ""):
        result, failed = "failed", True
    print(f"[says] {test} {result}{value}", flush=True)
    if test == "A.Slow":
        print(f"[       OK ] {test} (1700 ms)", flush=True)
sys.exit(1 if failed else 0)
'''


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "programs").mkdir()
        for name in ("one_test", "two_test"):
            (folder / "programs" / name).write_text(PROGRAM)
            (folder / "programs" / name).chmod(0o755)
        done = subprocess.run(
            [sys.executable, sys.argv[1], "--programs", str(folder / "programs"), "--way", "native=", "--way", "other=env BAD=1",
             "--way", "third=", "--jobs", "2", "--timeout", "2", "--summary", str(folder / "summary")],
            capture_output=True, text=True, check=False)
        text = (folder / "summary").read_text()
    wanted = [
        "2 programs, 10 failures in 2 of them; 0 have not run in every way",
        "one_test: native: 9 passed, 2 skipped, 0 failed; other: 5 agree, 5 differ, 2 skipped in native run; "
        "third: 9 agree, 0 differ, 2 skipped in native run",
        "  other: A.SkippedHere: failed",
        "  other: A.Value: size=2, not size=1",
        "  other: A.Crashes: CRASHED (SIGABRT)",
        "  other: A.Fails: failed\n    other| x.cc:2: Failure\n    other| which is 700",
        "  other: A.Hangs: HUNG",
        "  other: only alone, not beside other programs: A.Crowded A.Late",
        "  skipped in native run: A.Skipped: no such hardware",
    ]
    missing = [line for line in wanted if line not in text]
    for line in missing:
        print(f"compare_ways_test: the summary lacks: {line}")
    if missing or done.returncode != 1:
        print(f"exit {done.returncode}\n{done.stdout}{done.stderr}\nsummary:\n{text}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
