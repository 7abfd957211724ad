# SPDX-License-Identifier: Apache-2.0
"""The rows of ivshmem_ring (calls.def, nvml_calls.def) as text, for the tests that hold them against libraries."""
import re
import subprocess

MAX_ROWS_OF_A_TABLE = 150


def read_rows(repository, table, folder, row):
    """{name: (kind, the rest)} of all files that `table` includes, each line matching the pattern `row`, and what is wrong."""
    rows, problems = {}, []
    included = re.findall(r'^#include "(.*)"$', (repository / table).read_text(), re.M)
    present = {str(path.relative_to(repository)) for path in (repository / folder).glob("*.def")}
    problems += [f"{path} is not included by {table}" for path in sorted(present - set(included))]
    for path in included:
        lines = [line for line in (repository / path).read_text().splitlines() if line and not line.startswith("//")]
        if len(lines) > MAX_ROWS_OF_A_TABLE:
            problems.append(f"{path} has {len(lines)} rows: split it")
        for line in lines:
            match = row.match(line)
            if not match:
                problems.append(f"{path}: not a row: {line}")
                continue
            kind, name, rest = match.groups()
            if name in rows:
                problems.append(f"{path}: {name} has a row already")
            rows[name] = (kind, rest)
    return rows, problems


def exported(library, prefix):
    """The names that begin with prefix and that the shared library exports."""
    listing = subprocess.run(["nm", "--dynamic", "--defined-only", str(library)], check=True, capture_output=True,
                             text=True).stdout
    names = {line.split()[-1].split("@")[0] for line in listing.splitlines()}
    return {name for name in names if name.startswith(prefix)}


def report(rows, problems):
    """Prints what was found; the exit status."""
    counts = {}
    for kind, _ in rows.values():
        counts[kind] = counts.get(kind, 0) + 1
    print(len(rows), "rows:", ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())))
    for problem in problems:
        print(problem)
    return 1 if problems else 0
