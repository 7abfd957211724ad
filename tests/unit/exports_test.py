#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares what the guest library exports with the toolkit's stub library: the same names and nothing else.

Usage: exports_test.py <libcuda.so.1> <repository> [<toolkit's stub libcuda.so>]
Where the stub library is not installed, the rows stand for it: rows_test.py holds them to its names.
"""
import pathlib
import re
import subprocess
import sys

# What a linker adds to every shared library, whatever its version script says.
OF_THE_LINKER = {"_init", "_fini", "__bss_start", "_edata", "_end", "__gmon_start__"}


def exported(library):
    listing = subprocess.run(["nm", "--dynamic", "--defined-only", str(library)], check=True, capture_output=True,
                             text=True).stdout
    symbols = [line.split() for line in listing.splitlines()]
    return {fields[-1].split("@")[0] for fields in symbols} - OF_THE_LINKER, [
        fields[-1] for fields in symbols if fields[-1].startswith("cu") and fields[-2] != "T"]


def named_in_rows(repository):
    rows = "".join(path.read_text() for path in sorted((repository / "ivshmem_ring/calls").glob("*.def")))
    return set(re.findall(r"^[A-Z_]+\((cu\w+)[,)]", rows, re.M))


def named_with_versions(repository):
    names = set()
    for line in (repository / "guest_lib/api/proc_versions.def").read_text().splitlines():
        match = re.match(r"(?:ENTRY|PER_THREAD)\(\w+, \d+, (\w+)(?:, \d+, (\w+))?\)$", line)
        if match:
            names.add(match.group(1))
            if match.group(2):
                names.add(match.group(1) + match.group(2))
    return names


def differences(ours, theirs, their_name):
    found = [f"not exported, although {their_name} has it: {name}" for name in sorted(theirs - ours)]
    return found + [f"exported, although {their_name} has no such name: {name}" for name in sorted(ours - theirs)]


def main():
    library, repository = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    stub = pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None
    if not library.is_file():
        print(f"{library} does not exist: build the guest library first")
        return 1
    ours, no_functions = exported(library)
    problems = differences(ours, named_in_rows(repository), "ivshmem_ring/calls")
    problems += differences(ours, named_with_versions(repository), "proc_versions.def")
    problems += [f"not exported as a strong function: {name}" for name in no_functions]
    references = "the rows and proc_versions.def"
    if stub is not None and stub.is_file():
        problems += differences(ours, exported(stub)[0], "the toolkit's stub library")
        references += f" and {stub}"
    print("\n".join(problems) or f"{len(ours)} names, the same as in {references}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
