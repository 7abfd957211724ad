#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Finds code that is written twice: six equal lines in a row at two places.

Usage: repeated_lines.py [--root DIR] [--list] [--lines N] [FOLDER...]. Without folders it reads FOLDERS.

Only lines that say something are compared, without their comments and with runs of blanks as one. Left out are preprocessor lines,
`using` and `namespace` lines, access specifiers, and lines without a word of their own: braces, `break;`, `return;`, `} else {`.
Two places are a pair when at least N (6) such lines in a row are equal; a pair is as long as the lines stay equal, and places of
one file that overlap are none.

tests/repeated_lines.txt lists what may stay, as FILE FILE LINES REASON with the number of lines in all pairs of the two files.
More lines than listed are a violation, and so are fewer, so that the list only shrinks. --list prints all pairs with their places
instead, and exits 0.
"""
import argparse
import collections
import pathlib
import re
import sys

FOLDERS = ["guest_lib", "host_backend", "ivshmem_ring", "tests", "tools"]
ALLOWED = "tests/repeated_lines.txt"
SUFFIXES = {".h", ".cc", ".c", ".def"}
LINES = 6

# A comment, or what only looks like one because it stands in a literal.
COMMENT = re.compile(r'(//(?:[^\\\n]|\\.|\\\n)*|/\*.*?\*/)|(R"(\w*)\(.*?\)\3"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\')', re.S)
SAYS_NOTHING = re.compile(
    r"#.*|using .*;|(inline )?namespace\b.*|(public|private|protected):|default:|template<[^<>]*>"
    r"|[\s{}()\[\];,]*((else|break|return|continue|do|const|override|nullptr)[\s{}()\[\];,]*)*")


def lines_that_say_something(text):
    """[(line number, line without comments and blanks)]"""
    text = COMMENT.sub(lambda match: "\n" * match.group(1).count("\n") if match.group(1) else match.group(2), text)
    found, continued = [], False
    for number, line in enumerate(text.splitlines(), 1):
        stripped = line.strip()
        preprocessor = continued or stripped.startswith("#")
        continued = preprocessor and stripped.endswith("\\")
        if not preprocessor and not SAYS_NOTHING.fullmatch(stripped):
            found.append((number, re.sub(r"\s+", " ", stripped)))
    return found


class Pair:
    """Two places whose next `length` lines that say something are equal."""

    def __init__(self, first, first_at, second, second_at, length):
        self.first, self.first_at, self.second, self.second_at, self.length = first, first_at, second, second_at, length


def find_pairs(sources, least):
    """All pairs in {file: [(number, line)]}, each as long as it can be."""
    places = collections.defaultdict(list)
    for name, lines in sources.items():
        for at in range(len(lines) - least + 1):
            places[tuple(line for _, line in lines[at:at + least])].append((name, at))
    starts = {(one, other) for same in places.values() for index, one in enumerate(same) for other in same[index + 1:]}
    pairs = []
    for (first, first_at), (second, second_at) in sorted(starts):
        if ((first, first_at - 1), (second, second_at - 1)) in starts:
            continue  # The pair began earlier.
        length = least
        while ((first, first_at + length - least + 1), (second, second_at + length - least + 1)) in starts:
            length += 1
        if first != second or first_at + length <= second_at:
            pairs.append(Pair(first, first_at, second, second_at, length))
    return pairs


def read_allowed(path):
    """{(file, file): (lines, reason)} of the list; the two files in the order of their names."""
    allowed = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        if line and not line.startswith("#"):
            first, second, lines, reason = line.split(None, 3)
            allowed[tuple(sorted((first, second)))] = (int(lines), reason)
    return allowed


def read_sources(root, names):
    return {name: lines_that_say_something((root / name).read_text(encoding="utf-8")) for name in sorted(names)}


def check(root, names, add, least=LINES):
    """Calls add(place, text) for each violation among the files that are named."""
    sources = read_sources(root, [name for name in names
                                  if name.split("/")[0] in FOLDERS and pathlib.PurePath(name).suffix in SUFFIXES])
    found = collections.defaultdict(list)
    for pair in find_pairs(sources, least):
        found[(pair.first, pair.second)].append(pair)
    allowed = read_allowed(root / ALLOWED)
    for files, pairs in found.items():
        lines = sum(pair.length for pair in pairs)
        most = allowed.get(files, (0, ""))[0]
        for pair in pairs if lines > most else []:
            add(f"{pair.first}:{sources[pair.first][pair.first_at][0]}",
                f"{pair.length} lines are written again in {pair.second}:{sources[pair.second][pair.second_at][0]}; "
                f"let one function say them, or give the reason in {ALLOWED}")
    for files, (most, _) in allowed.items():
        lines = sum(pair.length for pair in found.get(files, []))
        if lines < most:
            add(ALLOWED, f"{files[0]} and {files[1]} share {lines} lines and not {most}: lower or remove the entry")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parent.parent)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--lines", type=int, default=LINES)
    parser.add_argument("folders", nargs="*", default=FOLDERS)
    options = parser.parse_args()
    names = [str(path.relative_to(options.root)) for folder in options.folders
             for path in (options.root / folder).rglob("*") if path.suffix in SUFFIXES]
    if not options.list:
        violations = []
        check(options.root, names, lambda place, text: violations.append(f"{place}: {text}"), options.lines)
        print("\n".join(violations + [f"repeated lines: {len(names)} files, {len(violations)} violations"]))
        return 1 if violations or not names else 0
    sources = read_sources(options.root, names)
    pairs = find_pairs(sources, options.lines)
    for pair in sorted(pairs, key=lambda each: -each.length):
        one, other = sources[pair.first], sources[pair.second]
        print(f"{pair.length} lines: {pair.first}:{one[pair.first_at][0]}-{one[pair.first_at + pair.length - 1][0]} "
              f"{pair.second}:{other[pair.second_at][0]}-{other[pair.second_at + pair.length - 1][0]}")
        print(f"    {one[pair.first_at][1][:140]}")
    print(f"{len(pairs)} pairs, {sum(pair.length for pair in pairs)} lines")
    return 0


if __name__ == "__main__":
    sys.exit(main())
