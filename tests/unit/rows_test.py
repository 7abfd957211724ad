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
import sys

import rows as reader

# Traits (ivshmem_ring/protocol/operation.h) are passed over: the compiler holds each row to them.
ROW = re.compile(r"(CALL|GUEST|CUSTOM|LOCAL|ALIAS|PER_THREAD|REFUSE)\((cu\w+)(?:, k[A-Z]\w+(?: \| k\w+)*)?(?:, (.*))?\)$")
# Of CUDA 13.0's stub library: SHA-256 of its sorted names, joined by newlines.
STUB_NAMES_SHA256 = "6439b7746f26ec9ff3fe475dc7554a7f4925decd1d63b3eca92e899352594965"


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
    rows, problems = reader.read_rows(repository, "ivshmem_ring/calls.def", "ivshmem_ring/calls", ROW)
    problems += check_targets(rows)
    stub = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    if stub is not None and stub.exists():
        exported = reader.exported(stub, "cu")
        problems += [f"exported by {stub.name} but without a row: {name}" for name in sorted(exported - rows.keys())]
        problems += [f"a row that {stub.name} does not export: {name}" for name in sorted(rows.keys() - exported)]
    elif hashlib.sha256("\n".join(sorted(rows)).encode()).hexdigest() != STUB_NAMES_SHA256:
        problems.append("the names are not those of CUDA 13.0's stub library; compare with one to see which differ")
    return reader.report(rows, problems)


if __name__ == "__main__":
    sys.exit(main())
