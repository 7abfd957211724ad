#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how the code is laid out: files and lines of each folder, what uses what, cycles, and what goes upwards.

A unit is a header and a source file of one name in one folder. A unit uses another when it includes its header or, with
--build, when its object calls a function or names a variable of the other (read with nm, so what the linker sees). Calls
through pointers and virtual functions are no edges: they are the hooks by which a lower folder tells a higher one. Units
that use each other are no circle where one of them alone has a header: the others are further sources of what it declares.
Which folder stands above which is in structure_floors.py.

With --check the exit status is 1 when an edge goes upwards or between parts that are to stay apart, when units, folders or
headers use each other in circles, when a folder holds too many files, or when a folder has no floor.
"""
import argparse
import collections
import json
import pathlib
import sys

import structure_floors
import structure_graph
import structure_picture
from structure_graph import folder_of


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", default=pathlib.Path(__file__).resolve().parent.parent, type=pathlib.Path,
                        help="The tree to measure; by default the one that this script lies in.")
    parser.add_argument("--build", type=pathlib.Path, help="A build folder whose objects tell the calls.")
    parser.add_argument("--moves", type=pathlib.Path,
                        help="A table of lines OLD<tab>NEW: files are counted as if they had been moved.")
    parser.add_argument("--json", action="store_true", help="Print everything as JSON.")
    parser.add_argument("--svg", type=pathlib.Path, metavar="FILE", help="Draw the folders and their edges.")
    parser.add_argument("--check", action="store_true", help="Exit with 1 when a rule is broken; print what breaks it.")
    parser.add_argument("--upward", action="store_true", help="List every edge that goes upwards, with what it uses.")
    return parser.parse_args()


def read_moves(path):
    if path is None:
        return {}
    rows = [line.split("\t") for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return {row[0]: row[1] for row in rows}


def tree_of(name):
    return name.split("/")[0]


def is_below(folder, part):
    return folder == part or folder.startswith(part + "/")


class Structure:
    """What is measured: edges between units and folders, cycles, and the edges that break the order of the floors."""

    def __init__(self, code):
        self.code = code
        self.floor = {folder: rank for floors in structure_floors.FLOORS.values()
                      for rank, floor in enumerate(floors) for folder in floor}
        self.includes = code.include_edges()
        self.edges = {edge: sorted(self.includes.get(edge, ())) + sorted(code.calls.get(edge, ()))
                      for edge in sorted(set(self.includes) | set(code.calls))}
        self.folders = sorted({folder_of(unit) for unit in code.units})
        self.folder_edges = between_folders(self.edges)
        self.upward = {edge: uses for edge, uses in self.edges.items() if self.is_upward(*map(folder_of, edge))}

    def is_upward(self, source, target):
        """Whether what lies in the folder `source` may not use what lies in `target`."""
        for one, other in structure_floors.APART:
            if is_below(source, one) and is_below(target, other) or is_below(source, other) and is_below(target, one):
                return True
        if tree_of(source) not in structure_graph.TREES:
            return False
        if tree_of(source) != tree_of(target):
            return tree_of(target) != "ivshmem_ring"
        return self.floor.get(source, 0) < self.floor.get(target, 0)

    def tree(self, tree):
        """The figures of one tree, without its edges to others."""
        code = self.code
        units = [unit for unit in code.units if tree_of(unit) == tree]
        included = [edge for edge in self.includes if tree_of(edge[0]) == tree_of(edge[1]) == tree]
        used = [edge for edge in self.edges if tree_of(edge[0]) == tree_of(edge[1]) == tree]
        folder_includes = between_folders(included)
        folder_uses = between_folders(used)
        return {
            "units": len(units),
            "include_edges": len(included), "use_edges": len(used),
            "include_edges_between_folders": crossing(included), "use_edges_between_folders": crossing(used),
            "folder_pairs_by_includes": len(folder_includes), "folder_pairs_by_uses": len(folder_uses),
            "cycles_by_includes": self.circles(units, included),
            "cycles_by_uses": self.circles(units, used),
            "folder_cycles_by_includes": structure_graph.cycles(self.folders, folder_includes),
            "folder_cycles_by_uses": structure_graph.cycles(self.folders, folder_uses),
            "upward": sum(1 for edge in self.upward if tree_of(edge[0]) == tree),
        }

    def circles(self, units, edges):
        """Units that use each other in a circle, and of which not exactly one has a header."""
        headers = {self.code.unit[name] for name in self.code.unit if name.endswith(".h")}
        return [cycle for cycle in structure_graph.cycles(units, edges)
                if sum(1 for unit in cycle if unit in headers) != 1]

    def header_cycles(self):
        edges = [(name, other) for name, others in self.code.includes.items() for other in others]
        return structure_graph.cycles(sorted(self.code.text), edges)

    def sizes(self):
        """Of each folder: files, units, lines, lines of code."""
        sizes = {folder: {"files": 0, "units": 0, "lines": 0, "code": 0} for folder in self.folders}
        for name, unit in self.code.unit.items():
            lines, code = self.code.lines(name)
            size = sizes[folder_of(unit)]
            size["files"] += 1
            size["lines"] += lines
            size["code"] += code
        for unit in self.code.units:
            sizes[folder_of(unit)]["units"] += 1
        return sizes

    def product_lines(self):
        """All lines and lines of code of the three trees together, without the benchmark."""
        counted = [size for folder, size in self.sizes().items()
                   if not any(is_below(folder, benchmark) for benchmark in structure_floors.BENCHMARK)]
        return sum(size["lines"] for size in counted), sum(size["code"] for size in counted)

    def violations(self):
        found = [f"{source} uses {target}, which stands above it or apart: {', '.join(uses[:4])}"
                 for (source, target), uses in self.upward.items()]
        found += [f"headers include each other in a circle: {', '.join(cycle)}" for cycle in self.header_cycles()]
        found += [f"units use each other in a circle: {', '.join(cycle)}"
                  for cycle in self.circles(self.code.units, self.edges)]
        found += [f"folders use each other in a circle: {', '.join(cycle)}"
                  for cycle in structure_graph.cycles(self.folders, self.folder_edges)]
        found += [f"{folder} holds {size['files']} files; the limit is {structure_floors.MAX_FILES}"
                  for folder, size in self.sizes().items() if size["files"] > structure_floors.MAX_FILES]
        found += [f"{folder} stands on no floor: name it in tests/structure_floors.py"
                  for folder in self.folders if folder not in self.floor and tree_of(folder) in structure_graph.TREES]
        return found


def between_folders(edges):
    """(folder, folder) -> how many edges between units go from the one to the other."""
    counts = collections.Counter((folder_of(source), folder_of(target)) for source, target in edges)
    return {pair: count for pair, count in sorted(counts.items()) if pair[0] != pair[1]}


def crossing(edges):
    return sum(between_folders(edges).values())


def largest(found):
    return ", ".join(f"one of {len(cycle)}" for cycle in found) or "none"


def print_report(structure, has_calls):
    for folder, size in structure.sizes().items():
        print(f"{folder:34} {size['files']:4} files {size['units']:4} units {size['lines']:6} lines {size['code']:6} of code")
    lines, code = structure.product_lines()
    print(f"All without the benchmark: {lines} lines, {code} of them code.\n")
    kinds = [("includes", "include_edges", "includes")]
    if has_calls:
        kinds.append(("includes and calls", "use_edges", "uses"))
    for tree in structure_graph.TREES:
        figures = structure.tree(tree)
        print(f"{tree}: {figures['units']} units")
        for words, edges, kind in kinds:
            print(f"  {words}: {figures[edges]} edges, {figures[edges + '_between_folders']} of them between folders "
                  f"({figures['folder_pairs_by_' + kind]} pairs of folders); cycles of units: "
                  f"{largest(figures['cycles_by_' + kind])}; cycles of folders: "
                  f"{largest(figures['folder_cycles_by_' + kind])}")
        print(f"  upwards: {figures['upward']} edges between units")
    print(f"Cycles of files that include each other: {largest(structure.header_cycles())}.")
    if not has_calls:
        print("Calls were not read; name a build folder with --build.")
    elif structure.code.uncompiled:
        print(f"{len(structure.code.uncompiled)} sources have no object in the build, so their calls are missing: "
              f"{', '.join(structure.code.uncompiled[:5])}")


def as_json(structure):
    return {
        "folders": structure.sizes(),
        "product_lines": dict(zip(("lines", "code"), structure.product_lines())),
        "trees": {tree: structure.tree(tree) for tree in structure_graph.TREES},
        "header_cycles": structure.header_cycles(),
        "folder_edges": [[*pair, count] for pair, count in structure.folder_edges.items()],
        "unit_edges": [[*edge, uses] for edge, uses in structure.edges.items()],
        "upward": [list(edge) for edge in structure.upward],
        "uncompiled": structure.code.uncompiled,
    }


def main():
    options = arguments()
    code = structure_graph.Code(options.root, read_moves(options.moves))
    if options.build:
        code.read_calls(options.build)
    structure = Structure(code)
    if options.json:
        print(json.dumps(as_json(structure), indent=1))
    else:
        print_report(structure, options.build is not None)
    if options.upward:
        for (source, target), uses in structure.upward.items():
            print(f"{source} -> {target}: {', '.join(uses)}")
    if options.svg:
        options.svg.write_text(structure_picture.draw(structure), encoding="utf-8")
    violations = structure.violations() if options.check else []
    for violation in violations:
        print(violation, file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
