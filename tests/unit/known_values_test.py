#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds what a guest may send against cuda.h: every enum of ivshmem_ring/known_values.def lists all that the header
names, parameters that are flags travel by the direction Flags, and no handler makes a driver's enum of a number without
looking it up.

Usage: known_values_test.py <repository> <cuda.h>
"""
import pathlib
import re
import sys

import rows as reader
from rows_test import ROW

# Named by the header, but none that a guest may send: no resource, and ends of enumerations.
LEFT_OUT = {"CU_DEV_RESOURCE_TYPE_INVALID", "CU_JIT_NUM_OPTIONS", "CU_JIT_NUM_INPUT_TYPES"}
# What TakeKnown makes of a number, and where enums come from places other than the guest.
CASTS = {"private_text.cc", "jit_options.cc", "function.cc", "open.cc"}


def without_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


def enumerations(header):
    """{type: {name: value as text or None}}, aliases of one value left in."""
    found = {}
    for match in re.finditer(r"typedef\s+enum\s+\w*\s*\{(.*?)\}\s*(\w+)\s*;", header, re.S):
        body = re.sub(r"#if.*?#endif", "", match[1], flags=re.S)
        entries = [re.sub(r"\s+", " ", entry).strip() for entry in body.split(",")]
        found[match[2]] = dict((entry.split("=") + [None])[:2] if "=" in entry else (entry, None) for entry in entries if entry)
        found[match[2]] = {name.strip(): value and value.strip() for name, value in found[match[2]].items()}
    return found


def check_lists(repository, header):
    text = (repository / "ivshmem_ring/known_values.def").read_text()
    known = enumerations(header)
    problems, lists = [], 0
    for match in re.finditer(r"^KNOWN_VALUES\((\w+),(.*?)\)$", text, re.M | re.S):
        lists += 1
        listed = {name.strip() for name in match[2].split(",")}
        values = known.get(match[1])
        if values is None:
            problems.append(f"{match[1]}: cuda.h has no such enum")
            continue
        problems += [f"{match[1]}: cuda.h does not name {name}" for name in sorted(listed - values.keys())]
        seen = {values[name] for name in listed if values.get(name)}
        for name, value in values.items():
            is_end = name.endswith("_MAX") and value in (None, "0x7FFFFFFF")
            if name not in listed and not is_end and name not in LEFT_OUT and (value is None or value not in seen):
                problems.append(f"{match[1]}: {name} is not listed")
    return lists, problems


def check_flags(repository, header):
    """Parameters called flags have the direction Flags."""
    rows, problems = reader.read_rows(repository, "ivshmem_ring/calls.def", "ivshmem_ring/calls", ROW)
    declared, current = {}, {}
    for match in re.finditer(r"CUresult\s+CUDAAPI\s+(\w+)\s*\(([^;]*?)\)\s*;", header, re.S):
        declared.setdefault(match[1], []).append([parameter.strip() for parameter in match[2].split(",")])
    for match in re.finditer(r"#\s*define\s+(cu\w+)\s+(?:__CUDA_API_PT[DS]+[SZ]?\()?(cu\w+)\)?\s*$", header, re.M):
        current.setdefault(match[2], match[1])
    checked = 0
    for name, (kind, rest) in rows.items():
        if kind not in ("CALL", "GUEST") or rest is None:
            continue
        directions = [direction.strip() for direction in rest.split(",")]
        forms = [form for known in (name, current.get(name)) for form in declared.get(known, []) if len(form) == len(directions)]
        for parameter, direction in zip(forms[0] if forms else [], directions):
            if re.search(r"flags$", parameter, re.I) and "*" not in parameter:
                checked += 1
                if not direction.startswith("Flags<"):
                    problems.append(f"{name}: {parameter} travels as {direction}")
    return checked, problems


def check_casts(repository):
    problems = []
    for path in sorted((repository / "host_backend").rglob("*.cc")):
        if path.name in CASTS:
            continue
        for match in re.finditer(r"static_cast<(CU(?!deviceptr)\w+)>\((body|message|request)\.[^)]*\)", path.read_text()):
            problems.append(f"{path.name}: {match[0]}: use TakeKnown")
    return problems


def main():
    repository = pathlib.Path(sys.argv[1])
    header = without_comments(pathlib.Path(sys.argv[2]).read_text(errors="replace"))
    lists, problems = check_lists(repository, header)
    flags, more = check_flags(repository, header)
    problems += more + check_casts(repository)
    print(f"{lists} enums, {flags} words of flags")
    for problem in problems:
        print(problem)
    return 1 if problems or lists < 50 or flags < 35 else 0


if __name__ == "__main__":
    sys.exit(main())
