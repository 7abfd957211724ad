#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/coverage.md: every exported name of the driver interface, who answers it, and which tests call it.

Usage: coverage.py [--root DIR] [--cuda-include DIR] [--check]. It reads the rows in ivshmem_ring/calls and the sources in
tests/driver. A test calls a name when the name stands in its body, in a helper that the body uses, or in its fixture; as
cuda.h renames it (cuMemAlloc is cuMemAlloc_v2), or exactly in a string ("cuMemAlloc", except as the argument of
cuGetProcAddress). A comment "covers: NAME ..." in a body adds names that the code puts together; shell patterns are
allowed there. Refused names are called by refused_test.cc, all of them. --check writes nothing and exits 1 when the
table is out of date or a name that is not refused has no test.
"""
import argparse
import fnmatch
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
import support_table  # noqa: E402

CLASSES = ["in the guest", "posted", "waits", "by hand", "refused"]  # support_table.COLUMNS
TESTS_SHOWN = 3
TOKEN = re.compile(r'//[^\n]*|/\*.*?\*/|R"\w*\((?:.|\n)*?\)\w*"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'|[A-Za-z_]\w*|\S',
                   re.S)
TEST_MACROS = {"TEST", "TEST_F", "TEST_P", "TYPED_TEST"}


class Block:
    """A function, a test, a class or a table: its name and what stands in it."""

    def __init__(self, file, name, fixture=""):
        self.file, self.name, self.fixture = file, name, fixture
        self.words, self.exact, self.patterns = set(), set(), set()

    def is_test(self):
        return "." in self.name

    def add(self, tokens):
        for index, token in enumerate(tokens):
            if token.startswith(("//", "/*")):
                said = re.search(r"covers:(.*)", token, re.S)
                self.patterns |= set(re.findall(r"cu[\w*?\[\]]+", said.group(1))) if said else set()
            elif token[0] == '"':
                previous = tokens[index - 2] if index >= 2 else ""
                if not previous.startswith("cuGetProcAddress") and re.fullmatch(r'"cu[A-Z]\w*"', token):
                    self.exact.add(token.strip('"'))
            elif token[0].isalpha() or token[0] == "_":
                self.words.add(token)


def name_of(head, file):
    """What the tokens before an opening brace begin: ("open", "") or ("block", Block)."""
    words = [t for t in head if not t.startswith(("//", "/*"))]
    if not words or "namespace" in words or words[0] == "extern":
        return "open", None
    if words[0] in TEST_MACROS and len(words) >= 5:
        fixture = words[2] if words[0] != "TEST" else ""
        return "block", Block(file, f"{words[2]}.{words[4]}", fixture)
    for kind in ("class", "struct", "union"):
        if kind in words and words.index(kind) + 1 < len(words) and "(" not in words[:words.index(kind)]:
            name = next((w for w in words[words.index(kind) + 1:] if re.fullmatch(r"[A-Za-z_]\w*", w)), "unnamed")
            bases = words[words.index(":") + 1:] if ":" in words else []
            block = Block(file, name)
            block.words |= {w for w in bases if w[0].isupper()}
            return "block", block
    stop = words.index("(") if "(" in words else words.index("=") if "=" in words else len(words)
    before = [w for w in words[:stop] if re.fullmatch(r"[A-Za-z_]\w*", w)]
    return "block", Block(file, before[-1] if before else "unnamed")  # constructors and destructors: their class


def parse(path):
    """The blocks of a source file; what follows "using A = B" makes A a name of B."""
    text = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", "", path.read_text(encoding="utf-8"), flags=re.M)
    tokens = TOKEN.findall(text)
    blocks, head, at = [], [], 0
    while at < len(tokens):
        token = tokens[at]
        if token == "{":
            kind, block = name_of(head, path.name)
            head, at = [], at + 1
            if kind == "open":
                continue
            start, depth = at, 1
            while at < len(tokens) and depth > 0:
                depth += {"{": 1, "}": -1}.get(tokens[at], 0)
                at += 1
            block.add(tokens[start:at])
            blocks.append(block)
            continue
        if token in ";}":
            if head[:1] == ["using"] and len(head) >= 4:
                block = Block(path.name, head[1])
                block.add(head[3:])
                blocks.append(block)
            head = []
        else:
            head.append(token)
        at += 1
    return blocks


def renamed(include):
    """What cuda.h's macros make of each name."""
    text = subprocess.run(["c++", "-E", "-dM", "-x", "c++", f"-I{include}", "-include", "cuda.h", "/dev/null"], check=True,
                          capture_output=True, text=True).stdout
    names = {}
    for name, target in re.findall(r"^#define (cu\w+) (?:__CUDA_API_PT\w+\()?(cu\w+)\)?$", text, re.M):
        names[name] = target
    return names


def uses(block, helpers, seen):
    """(own, through helpers): the blocks that count for this one."""
    reached = []
    for word in sorted(block.words | ({block.fixture} if block.fixture else set())):
        for helper in helpers.get(word, []):
            if id(helper) not in seen:
                seen.add(id(helper))
                reached.append(helper)
                reached += uses(helper, helpers, seen)
    return reached


def names_in(blocks, rows, macros):
    found = set()
    for block in blocks:
        found |= {macros.get(word, word) for word in block.words}
        found |= block.exact
        for pattern in block.patterns:
            found |= set(fnmatch.filter(rows, pattern))
    return found & rows.keys()


def collect(root, rows, macros):
    """Per name the tests that call it: those that do so themselves first."""
    folder = root / "tests/driver"
    shared = [block for path in sorted(folder.glob("*.h")) + [folder / "driver_test.cc"] for block in parse(path)]
    direct, indirect = {}, {}
    for path in sorted(folder.glob("*_test.cc")):
        if path.name in ("driver_test.cc", "refused_test.cc"):
            continue
        blocks = parse(path)
        helpers = {}
        for block in shared + blocks:
            if not block.is_test():
                helpers.setdefault(block.name, []).append(block)
        for test in (block for block in blocks if block.is_test()):
            own = names_in([test], rows, macros)
            label = f"{path.stem.removesuffix('_test')}: {test.name}"
            for name in own:
                direct.setdefault(name, []).append(label)
            for name in names_in(uses(test, helpers, set()), rows, macros) - own:
                indirect.setdefault(name, []).append(label)
    return {name: direct.get(name, []) + indirect.get(name, []) for name in rows}


def table(root, include):
    rows = support_table.read_rows(root)
    tests = collect(root, rows, renamed(include))
    lines = ["# Which test covers which function", "",
             "Written by `tests/driver/coverage.py` from the rows in `ivshmem_ring/calls/` and the sources in",
             "`tests/driver/`. An alias is covered by the tests of the name that it forwards to.", ""]
    missing, by_area = [], {area: [] for area in support_table.AREAS}
    for name in sorted(rows):
        _, kind, rest = rows[name]
        area, real = support_table.resolve(rows, name)
        called = list(tests[name])
        if kind == "ALIAS":
            called += [test for test in tests[rest] if test not in called]
        what = CLASSES[support_table.COLUMNS[real]]
        if kind == "ALIAS":
            what += f", as `{rest}`"
        if real == "REFUSE":
            what += ": " + rows[name if kind == "REFUSE" else rest][2].strip('"')
            called = ["refused: all names"]
        elif not called:
            missing.append(name)
        more = " and more" if len(called) > TESTS_SHOWN else ""
        by_area[area].append(f"| `{name}` | {what} | {', '.join(called[:TESTS_SHOWN]) or '**none**'}{more} |")
    for area, area_rows in by_area.items():
        lines += [f"## {support_table.AREAS[area]}", "", "| name | class | tests |", "|---|---|---|"] + area_rows + [""]
    covered = len(rows) - len(missing)
    lines.insert(5, f"{len(rows)} exported names, {covered} with a test, {len(missing)} without.")
    lines.insert(6, "")
    return "\n".join(lines).rstrip() + "\n", missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent.parent)
    parser.add_argument("--cuda-include", type=pathlib.Path, default=pathlib.Path("/usr/local/cuda/include"))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    text, missing = table(arguments.root, arguments.cuda_include)
    file = arguments.root / "docs/coverage.md"
    stale = not file.exists() or file.read_text(encoding="utf-8") != text
    print("\n".join(f"no test calls {name}" for name in missing))
    print(f"{file.name}: {len(missing)} names without a test")
    if not arguments.check:
        file.write_text(text, encoding="utf-8")
    elif stale:
        print(f"{file} is out of date: write it anew with {sys.argv[0]}")
    return 1 if arguments.check and (stale or missing) else 0


if __name__ == "__main__":
    sys.exit(main())
