#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The systemd units are as closed as they can be: `systemd-analyze security` rates each at 3.0 of 10 or better.

Usage: units_test.py FOLDER. Exits 77 where systemd-analyze is absent or too old to rate a file.
"""
import pathlib
import shutil
import subprocess
import sys

THRESHOLD = 30  # tenths


def main():
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        print("systemd-analyze is not installed: vm_configs/install_dependencies.sh does that")
        return 77
    known = subprocess.run([analyze, "--help"], capture_output=True, text=True, check=False).stdout
    if "--offline" not in known or "--threshold" not in known:
        print("this systemd-analyze cannot rate files: systemd 250 is needed")
        return 77
    units = sorted(pathlib.Path(sys.argv[1]).glob("*.service"))
    failed = not units
    for unit in units:
        done = subprocess.run([analyze, "security", "--offline=true", f"--threshold={THRESHOLD}", "--no-pager", str(unit)],
                              capture_output=True, text=True, check=False)
        print(f"{unit.name}: {(done.stdout.strip() or done.stderr.strip()).splitlines()[-1]}")
        if done.returncode != 0:
            failed = True
            print(done.stdout, done.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
