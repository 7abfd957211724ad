#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds old_runtime_program.cc for each old CUDA runtime that is found and runs it in one way.

Usage: old_runtimes_test.py --runtimes FOLDER --cuda-include FOLDER [--compiler C++] [--way "COMMAND PREFIX"]
FOLDER holds <version>/include and <version>/lib, as fetch_old_runtimes.sh leaves them, or toolkit-<version> with lib64;
a static runtime is tried as well as a shared one where there is one. FOLDER: the environment variable
CAUSEWAY_OLD_RUNTIMES takes precedence. Without a way, the program runs as it is. Exits 1 when a check of a program
fails, 77 when there is no runtime.
"""
import argparse
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

TIMEOUT_S = 60
# What Causeway refuses with cudaErrorNotSupported, by the name of the check. Any other answer must be right.
MAY_BE_REFUSED = ["cudaLaunchHostFunc"]


def find_runtimes(folder):
    """(version, headers, library) of each runtime in the folder, oldest first."""
    found = []
    for entry in folder.iterdir() if folder.is_dir() else []:
        if not (entry / "include/cuda_runtime_api.h").exists():
            continue
        version = entry.name.removeprefix("toolkit-")
        for library in sorted(entry.glob("lib/libcudart.so.*"))[:1]:
            found.append((version, entry / "include", library))
        for library in sorted(entry.glob("lib*/libcudart_static.a"))[:1]:
            found.append((version + " static", entry / "include", library))
    return sorted(found, key=lambda runtime: [int(part) if part.isdigit() else 0
                                              for part in runtime[0].replace(" ", ".").split(".")])


def build(compiler, include, library, cuda_include, program):
    """An empty text, or what the compiler said."""
    source = pathlib.Path(__file__).with_name("old_runtime_program.cc")
    # crt/ is in the compiler's package, not in the runtime's: its macros are taken from the toolkit at hand.
    command = [compiler, "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-isystem", include, "-idirafter",
               cuda_include, source, "-o", program, library, f"-Wl,-rpath,{library.parent}", "-pthread", "-ldl", "-lrt"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    return done.stderr if done.returncode != 0 else ""


def run(way, program):
    """(problem or empty, the program's last line)"""
    try:
        done = subprocess.run(shlex.split(way) + [str(program)] + MAY_BE_REFUSED, stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return f"it did not end within {TIMEOUT_S} s", ""
    lines = done.stdout.splitlines() or [""]
    if done.returncode == 0 and lines[-1].endswith(" 0 failed"):
        return "", lines[-1]
    # A failed check is followed by what was wrong.
    failures = [line for number, line in enumerate(lines) if "FAIL" in (line[:4], lines[number - 1][:4])]
    return "\n".join([f"it exited with {done.returncode}", *failures, done.stderr]), lines[-1]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runtimes", type=pathlib.Path, required=True)
    parser.add_argument("--cuda-include", type=pathlib.Path, required=True)
    parser.add_argument("--compiler", default="c++")
    parser.add_argument("--way", default="")
    arguments = parser.parse_args()
    folder = pathlib.Path(os.environ.get("CAUSEWAY_OLD_RUNTIMES") or arguments.runtimes).absolute()
    runtimes = find_runtimes(folder)
    if not runtimes:
        print(f"No CUDA runtime was found in {folder}: run tests/unit/fetch_old_runtimes.sh first.")
        return 77
    problems = 0
    with tempfile.TemporaryDirectory() as scratch:
        for version, include, library in runtimes:
            program = pathlib.Path(scratch) / f"program_{version.replace(' ', '_')}"
            problem = build(arguments.compiler, include, library, arguments.cuda_include, program)
            last_line = "the program could not be built"
            if not problem:
                problem, last_line = run(arguments.way, program)
            print(f"CUDA runtime {version}: {last_line}")
            if problem:
                print(problem)
                problems += 1
    print(f"{len(runtimes) - problems} of {len(runtimes)} runtimes are right")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
