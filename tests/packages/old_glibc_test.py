#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that libraries for guests load wherever a release of glibc or a later one is, and keep their C++ runtime to themselves.

usage: old_glibc_test.py --newest 2.17 --compiler CXX LIBRARY...
A library may ask for symbols of glibc up to that release, of glibc's own libraries alone, and may export what its
interface names and nothing of the C++ runtime. What a library with each fault looks like is tried first, with one that
the compiler makes from a few lines.
"""
import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

OF_GLIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
OF_THE_INTERFACE = re.compile(r"((cu[A-Z]|nvml[A-Z])\w*|causeway_tls_(connect|keep_host)_\d+)$")
# References without a version: what is absent in an ordinary program, and the library does without.
OPTIONAL = re.compile(r"(_ITM_\w+|_ZGTt\w+|__gmon_start__|__cxa_pure_virtual)$")

FAULTY = """
#include <string>
extern "C" unsigned arc4random(void) noexcept;
std::string faulty(int value) { if (value == 0) throw value; return std::to_string(arc4random()); }
"""


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def release(text):
    return tuple(int(part) for part in text.split("."))


def faults(library, newest):
    found = []
    for name in re.findall(r"\(NEEDED\).*\[(.*)\]", run("readelf", "-dW", library)):
        if name not in OF_GLIBC:
            found.append(f"needs {name}, which is not glibc's")
    highest = (0,)
    for line in run("readelf", "-W", "--dyn-syms", library).splitlines():
        fields = line.split()
        if len(fields) < 8 or not fields[0].rstrip(":").isdigit():
            continue
        kind, binding, section, symbol = fields[3], fields[4], fields[6], fields[7]
        name, _, version = symbol.partition("@")
        # A program's copy of a variable of glibc's, such as stderr, counts as what it needs.
        if section != "UND" and not version.startswith("GLIBC_"):
            if not OF_THE_INTERFACE.match(name):
                found.append(f"exports {name}")
            continue
        if version.startswith("GLIBC_"):
            asked = release(version[len("GLIBC_"):])
            highest = max(highest, asked)
            if asked > newest:
                found.append(f"needs {symbol}")
        elif not (binding == "WEAK" and OPTIONAL.match(name)) and kind != "SECTION":
            found.append(f"needs {symbol}, which has no version of glibc's")
    return found, highest


def check_the_check(compiler, newest):
    """Whether each fault is seen in a library that has it."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = pathlib.Path(folder, "faulty.cc"), pathlib.Path(folder, "libfaulty.so")
        source.write_text(FAULTY)
        run(compiler, "-std=c++20", "-shared", "-fPIC", source, "-o", library)
        found = "\n".join(faults(library, newest)[0])
    for expected in ("needs libstdc++.so.6", "needs arc4random@GLIBC_2.36", "exports _Z6faulty", "needs __cxa_throw@CXXABI"):
        if expected not in found:
            sys.exit(f"a library that {expected} passed the check, which found: {found or 'nothing'}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--newest", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("libraries", nargs="+", type=pathlib.Path)
    arguments = parser.parse_args()
    newest = release(arguments.newest)
    check_the_check(arguments.compiler, newest)
    failed = False
    for library in arguments.libraries:
        found, highest = faults(library, newest)
        if found or highest == (0,):
            failed = True
            print("\n".join(f"{library.name} {fault}" for fault in found or ["needs nothing of glibc: is it linked?"]))
        else:
            print(f"{library.name} needs glibc {'.'.join(map(str, highest))} and nothing newer")
    sys.exit(failed)


if __name__ == "__main__":
    main()
