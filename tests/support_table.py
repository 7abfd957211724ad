#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the support table of docs/support.md from the rows in ivshmem_ring/calls: what is answered where, what is refused and why.

Usage: support_table.py [--root DIR] [--write FILE | --check FILE]. Without an option it prints the table. --check exits 1
when the file's table is not the one that the rows give; --write replaces it, between its two markers.
"""
import argparse
import difflib
import pathlib
import re
import sys

BEGIN, END = "<!-- support-table:begin -->", "<!-- support-table:end -->"
ROW = re.compile(r"(CALL|GUEST|CUSTOM|LOCAL|ALIAS|PER_THREAD|REFUSE)\((cu\w+)(?:, k[A-Z]\w+(?: \| k\w+)*)?(?:, (.*))?\)$")

# Row files in the order of the table; a name of the per-thread default stream counts where its plain form does.
AREAS = {
    "driver": "driver, errors, entry points, profiler", "device": "devices", "context": "contexts, peer access",
    "module": "modules, linker", "library": "libraries, kernels", "function": "functions, occupancy",
    "launch": "launches", "memory": "memory", "copy": "copies", "memset": "fills", "pool": "memory pools",
    "vmm": "virtual memory management", "array": "arrays", "texture": "textures, surfaces, tensor maps",
    "stream": "streams", "event": "events", "capture": "stream capture", "graph": "graphs",
    "interop": "other drivers, displays, processes", "legacy": "CUDA 3.1's 32-bit forms",
}
SAME_AREA = {"graph_refused": "graph"}
COLUMNS = {"LOCAL": 0, "CALL": 1, "GUEST": 2, "CUSTOM": 2, "REFUSE": 3}
NAMES_SHOWN = 3


def read_rows(root):
    """Every name with its file's stem, its kind and the rest of its row."""
    rows = {}
    for path in sorted((root / "ivshmem_ring/calls").glob("*.def")):
        for line in path.read_text().splitlines():
            match = ROW.match(line)
            if match:
                rows[match.group(2)] = (path.stem, match.group(1), match.group(3))
    return rows


def plain_name(name):
    """The name without what tells its versions and its default stream's forms apart."""
    return re.sub(r"(_v\d+)?(_pt[ds][sz]?)?$", "", name)


def resolve(rows, name):
    """Area and kind of a name; an alias is what its target is."""
    stem, kind, rest = rows[name]
    if kind in ("ALIAS", "PER_THREAD"):
        return resolve(rows, rest)
    if stem == "per_thread":
        # These rows say what they are themselves; only their area is that of the plain form.
        base = re.sub(r"_pt(ds|sz)$", "", name)
        if base in rows and rows[base][0] != "per_thread":
            stem = resolve(rows, base)[0]
    return SAME_AREA.get(stem, stem), kind


def area_lines(rows):
    counts = {area: [0] * 5 for area in AREAS}
    for name in rows:
        area, kind = resolve(rows, name)
        counts[area][COLUMNS[kind]] += 1
    totals = [sum(column) for column in zip(*counts.values())]
    lines = ["| area | in the guest | waits | by hand | refused |", "|---|---:|---:|---:|---:|"]
    for area, numbers in counts.items():
        lines.append(f"| {AREAS[area]} | " + " | ".join(str(number or "") for number in numbers) + " |")
    lines.append(f"| **all {len(rows)} names** | " + " | ".join(f"**{total}**" for total in totals) + " |")
    return lines


def refusal_lines(rows):
    reasons = {}
    for name in rows:
        _, kind, rest = rows[name]
        if kind == "REFUSE":
            reasons.setdefault(rest.strip('"'), []).append(name)
        elif kind in ("ALIAS", "PER_THREAD") and resolve(rows, name)[1] == "REFUSE":
            reasons.setdefault(rows[rest][2].strip('"'), []).append(name)
    lines = ["| refused because | names | such as |", "|---|---:|---|"]
    for reason, names in sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0])):
        plain = sorted({plain_name(name) for name in names})
        shown = ", ".join(f"`{name}`" for name in plain[:NAMES_SHOWN])
        lines.append(f"| {reason} | {len(names)} | {shown}{', ...' if len(plain) > NAMES_SHOWN else ''} |")
    return lines


def table(root):
    rows = read_rows(root)
    return area_lines(rows) + [""] + refusal_lines(rows)


def split_at_markers(path):
    lines = path.read_text().splitlines()
    if lines.count(BEGIN) != 1 or lines.count(END) != 1 or lines.index(BEGIN) > lines.index(END):
        sys.exit(f"{path}: the lines {BEGIN} and {END} must each be there once, in this order")
    return lines[:lines.index(BEGIN) + 1], lines[lines.index(BEGIN) + 1:lines.index(END)], lines[lines.index(END):]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--check", type=pathlib.Path, metavar="FILE")
    parser.add_argument("--write", type=pathlib.Path, metavar="FILE")
    arguments = parser.parse_args()
    wanted = table(arguments.root)
    if arguments.write:
        before, _, after = split_at_markers(arguments.write)
        arguments.write.write_text("\n".join(before + wanted + after) + "\n")
    elif arguments.check:
        _, present, _ = split_at_markers(arguments.check)
        difference = list(difflib.unified_diff(present, wanted, str(arguments.check), "the rows", lineterm="", n=0))
        print("\n".join(difference) or f"{arguments.check}: the support table is what the rows say")
        if difference:
            sys.exit(f"write it anew: {sys.argv[0]} --write {arguments.check}")
    else:
        print("\n".join(wanted))


if __name__ == "__main__":
    main()
