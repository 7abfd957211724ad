#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the rows of ivshmem_ring/calls.def as text: every name once, every target a row that exists, and the same
names as the toolkit's stub library exports.

Usage: rows_test.py <repository> [<toolkit's stub libcuda.so>]
Where the stub library is not installed, a digest of its names stands for it.
"""
import hashlib
import pathlib
import re
import subprocess
import sys

ROW = re.compile(r"(CALL|POST|GUEST|CUSTOM|LOCAL|ALIAS|PER_THREAD|REFUSE)\((cu\w+)(?:, (.*))?\)$")
MAX_ROWS_OF_A_TABLE = 150
# Of CUDA 13.0's stub library: SHA-256 of its sorted names, joined by newlines.
STUB_NAMES_SHA256 = "6439b7746f26ec9ff3fe475dc7554a7f4925decd1d63b3eca92e899352594965"


def read_rows(repository):
    rows, problems = {}, []
    included = re.findall(r'^#include "(.*)"$', (repository / "ivshmem_ring/calls.def").read_text(), re.M)
    present = {str(path.relative_to(repository)) for path in (repository / "ivshmem_ring/calls").glob("*.def")}
    problems += [f"{path} is not included by calls.def" for path in sorted(present - set(included))]
    for path in included:
        lines = [line for line in (repository / path).read_text().splitlines() if line and not line.startswith("//")]
        if len(lines) > MAX_ROWS_OF_A_TABLE:
            problems.append(f"{path} has {len(lines)} rows: split it")
        for line in lines:
            match = ROW.match(line)
            if not match:
                problems.append(f"{path}: not a row: {line}")
                continue
            kind, name, rest = match.groups()
            if name in rows:
                problems.append(f"{path}: {name} has a row already")
            rows[name] = (kind, rest)
    return rows, problems


def check_targets(rows):
    problems = []
    for name, (kind, rest) in rows.items():
        if kind in ("ALIAS", "PER_THREAD"):
            target = rows.get(rest, ("missing",))[0]
            if target in ("missing", "ALIAS", "PER_THREAD") or (target, kind) == ("REFUSE", "PER_THREAD"):
                problems.append(f"{kind}({name}, {rest}): the target is {target}")
        if kind == "REFUSE" and not re.fullmatch(r'"[^"]{10,}"', rest or ""):
            problems.append(f"REFUSE({name}): the reason is missing")
        if kind == "PER_THREAD" and not name.endswith("_ptsz"):
            problems.append(f"PER_THREAD({name}): only _ptsz forms")
    return problems


def main():
    repository = pathlib.Path(sys.argv[1])
    rows, problems = read_rows(repository)
    problems += check_targets(rows)
    stub = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if stub is not None and stub.exists():
        listing = subprocess.run(["nm", "--dynamic", "--defined-only", str(stub)], check=True, capture_output=True,
                                 text=True).stdout
        exported = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
        exported = {name for name in exported if name.startswith("cu")}
        problems += [f"exported by {stub.name} but without a row: {name}" for name in sorted(exported - rows.keys())]
        problems += [f"a row that {stub.name} does not export: {name}" for name in sorted(rows.keys() - exported)]
    elif hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest() != STUB_NAMES_SHA256:
        problems.append("the names are not those of CUDA 13.0's stub library; compare with one to see which differ")
    counts = {}
    for kind, _ in rows.values():
        counts[kind] = counts.get(kind, 0) + 1
    print(len(rows), "rows:", ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
