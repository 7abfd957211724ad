#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Holds docs/hostile_rows.md against the rows: every row that takes an address or a size has its line, and every name in
the table's first column is a row or a message of the session's own.

Usage: rows_check.py REPOSITORY CUDA_H
"""

import pathlib
import re
import sys

# In a declaration: what a guest could name memory with, or make memory be taken by.
NAMES_MEMORY = re.compile(r"CUdeviceptr|\bsize_t\b|\bvoid ?\*|CUDA_MEMCPY|CUDA_RESOURCE_DESC|CUgraphNodeParams|BatchMemOp"
                          r"|CUarrayMapInfo|DecompressParams|MEMSET_NODE_PARAMS")
# Those alone through which values come back: the driver writes into buffers of the worker's.
ONLY_ANSWERS = re.compile(r"cu\w*(GetLimit|GetParams|GetResourceDesc|GetGlobal|GetGlobal_v2|GetManaged|Granularity|MaxWidth"
                          r"|GetInfo_v2|RefGetAddress_v2)$")


def declarations(header):
    text = re.sub(r"/\*.*?\*/", "", header.read_text(errors="replace"), flags=re.S)
    found = re.findall(r"CUresult\s+CUDAAPI\s+(\w+)\s*\(([^;]*?)\)\s*;", text, re.S)
    return {name: parameters for name, parameters in found}


def main(repository, cuda_h):
    rows = set()
    for path in (repository / "ivshmem_ring/calls").glob("*.def"):
        rows |= set(re.findall(r"^(?:CALL|GUEST|CUSTOM)\((\w+)", path.read_text(), re.M))
    messages = set(re.findall(r"^OPERATION\((\w+)", (repository / "ivshmem_ring/operations.def").read_text(), re.M))
    table = [line for line in (repository / "docs/hostile_rows.md").read_text().splitlines() if line.startswith("| `")]
    named = [name for line in table for name in re.findall(r"`(\w+)`", line.split("|")[1])]
    known = declarations(cuda_h)
    problems = [f"{name} is named twice" for name in sorted({name for name in named if named.count(name) > 1})]
    problems += [f"{name} is no row" for name in named if name not in rows and name not in messages]
    judged = 0
    for row in sorted(rows):
        parameters = known.get(row, known.get(re.sub(r"_v\d$", "", row)))
        if parameters is None and not row.startswith("cuProfiler"):  # those take nothing, and have a header of their own
            problems.append(f"{row} has no declaration")
        elif parameters and NAMES_MEMORY.search(parameters) and not ONLY_ANSWERS.match(row):
            judged += 1
            if row not in named:
                problems.append(f"{row} takes an address or a size: what bounds it belongs into docs/hostile_rows.md")
    if judged < 90:
        problems.append(f"only {judged} rows were found that take addresses or sizes: the declarations are not read")
    for problem in problems:
        print(problem)
    print(f"{len(rows)} rows, {judged} of them with addresses or sizes, {len(named)} names in the table")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])))
