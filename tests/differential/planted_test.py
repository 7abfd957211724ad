#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The fuzzer finds a difference that was planted, and shrinks it to the two calls that show it.

usage: planted_test.py PROGRAM LIBRARY_FOLDER PLANTED
Both sides run the software GPU; the second one with PLANTED (planted.cc) in front of it.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def main():
    program, folder, planted = sys.argv[1:]
    native = f"env LD_LIBRARY_PATH={folder}"
    with tempfile.TemporaryDirectory() as out:
        report = pathlib.Path(out) / "report"
        command = [sys.executable, HERE / "differential.py", "--program", program, "--native", native, "--guest",
                   f"{native} LD_PRELOAD={planted}", "--seed", "7", "--programs", "600", "--most", "40", "--report", report]
        status = subprocess.run(command, check=False, timeout=250).returncode
        text = report.read_text()
    found = re.search(r"^== cuStreamGetFlags: output flags .*\n((?:.*\n)*?)natively:", text, re.M)
    shrunk = re.findall(r"EXPECT_EQ\((\w+)\(", found[1]) if found else []
    print(f"exit {status}; shrunk to {shrunk}")
    return 0 if status == 1 and shrunk == ["cuStreamCreateWithPriority", "cuStreamGetFlags"] else 1


if __name__ == "__main__":
    sys.exit(main())
