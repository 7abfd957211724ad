#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes docs/coverage.md: every exported name of the driver interface, who answers it, and which tests call it with success.

Usage: coverage.py [--root DIR] [--answers DIR] [--cuda-include DIR] [--check]. It reads the rows in ivshmem_ring/calls and what
call_counter.cc wrote into DIR (build/tests/driver/answers) when ctest ran the conformance suite through Causeway on the software
GPU. A test covers a name when one of its calls was answered with CUDA_SUCCESS; an alias is covered by the tests of its target too.
Refused names have answered CUDA_ERROR_NOT_SUPPORTED and nothing else. needs_hardware.txt lists the names that cannot succeed there.

Of several tests the table shows first those that name the function: in their body, in a helper that the body uses, or in their
fixture; as cuda.h renames it (cuMemAlloc is cuMemAlloc_v2), or exactly in a string ("cuMemAlloc", except as the argument of
cuGetProcAddress). A comment "covers: NAME ..." in a body adds names that the code puts together; shell patterns are allowed.

--check writes nothing and exits 1 when the table states what this run of the suite did not do, or a name was not called.
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
CUDA_SUCCESS, CUDA_ERROR_NOT_SUPPORTED = 0, 801
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


def read_answers(folder):
    """{name: {result: labels of the tests that got it}}, and the programs whose answers are missing."""
    answers, missing = {}, []
    for path in sorted((HERE).glob("*_test.cc")):
        if path.name == "driver_test.cc":
            continue
        file = folder / path.stem
        if not file.exists():
            missing.append(path.stem)
            continue
        for line in file.read_text(encoding="utf-8").splitlines():
            test, name, result = line.split("\t")
            answers.setdefault(name, {}).setdefault(int(result), set()).add(f"{path.stem.removesuffix('_test')}: {test}")
    return answers, missing


def read_hardware():
    """[(shell pattern, what the software GPU lacks)]"""
    lines = (HERE / "needs_hardware.txt").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split(None, 1)) for line in lines if line and not line.startswith("#")]


class Coverage:
    """What the table says of each name, and what is wrong with it."""

    def __init__(self, root, include, answers):
        self.rows = support_table.read_rows(root)
        self.mentions = collect(root, self.rows, renamed(include))
        self.answers, self.wrong = answers, []
        self.hardware = read_hardware()
        self.counts = {"with success": 0, "refused": 0, "on a GPU alone": 0, "of CUDA 3.1": 0}
        self.succeeded = {name: self.tests_with_success(name) for name in self.rows}
        for pattern, _ in self.hardware:
            names = fnmatch.filter(self.rows, pattern)
            self.wrong += [f"{name} has succeeded: it does not belong into needs_hardware.txt" for name in names if self.succeeded[name]]
            self.wrong += [] if names else [f"needs_hardware.txt names no function: {pattern}"]

    def target(self, name):
        return self.rows[name][2] if self.rows[name][1] == "ALIAS" else name

    def tests_with_success(self, name):
        done = set()
        for each in {name, self.target(name)}:
            done |= self.answers.get(each, {}).get(CUDA_SUCCESS, set())
        shown_first = [test for test in self.mentions[name] + self.mentions[self.target(name)] if test in done]
        return list(dict.fromkeys(shown_first + sorted(done)))

    def cell(self, name, area, refused):
        """The last cell of a name's line."""
        tests, mentions = self.succeeded[name], ", ".join(self.mentions[name][:TESTS_SHOWN])
        answered = set(self.answers.get(name, {}))
        if refused:
            self.counts["refused"] += 1
            if answered != {CUDA_ERROR_NOT_SUPPORTED}:
                self.wrong.append(f"{name} is refused, but was answered {sorted(answered) or 'by nobody'}")
            return "refused: all names"
        if tests:
            self.counts["with success"] += 1
            return ", ".join(tests[:TESTS_SHOWN]) + (" and more" if len(tests) > TESTS_SHOWN else "")
        if area == "legacy" and answered:
            # They need a context of CUDA 3.1; the driver has none, so this error is what they do.
            self.counts["of CUDA 3.1"] += 1
            return f"answers {', '.join(map(str, sorted(answered)))}: {mentions}"
        for pattern, what in self.hardware:
            if fnmatch.fnmatchcase(name, pattern) and mentions:
                self.counts["on a GPU alone"] += 1
                return f"on a GPU alone ({what}): {mentions}"
        self.wrong.append(f"no test has called {name} with success")
        return "**none**"

    def table(self):
        by_area = {area: [] for area in support_table.AREAS}
        for name in sorted(self.rows):
            area, real = support_table.resolve(self.rows, name)
            what = CLASSES[support_table.COLUMNS[real]]
            if self.rows[name][1] == "ALIAS":
                what += f", as `{self.target(name)}`"
            if real == "REFUSE":
                what += ": " + self.rows[name if self.rows[name][1] == "REFUSE" else self.target(name)][2].strip('"')
            by_area[area].append(f"| `{name}` | {what} | {self.cell(name, area, real == 'REFUSE')} |")
        lines = ["# Which test covers which function", "",
                 "Written by `tests/driver/coverage.py` from the rows in `ivshmem_ring/calls/` and from what the tests in `tests/driver/` were",
                 "answered through Causeway on the software GPU. A test covers a function that answered it with `CUDA_SUCCESS`; an alias is",
                 "covered by the tests of the name that it forwards to. What the software GPU lacks (`tests/driver/needs_hardware.txt`), the",
                 "tests beside it call on a GPU.", "",
                 f"{len(self.rows)} exported names: " + ", ".join(f"{count} {what}" for what, count in self.counts.items()) + ".", ""]
        for area, area_rows in by_area.items():
            lines += [f"## {support_table.AREAS[area]}", "", "| name | class | tests |", "|---|---|---|"] + area_rows + [""]
        return "\n".join(lines).rstrip() + "\n"

    def compare(self, present, wanted):
        """Differences that matter: which of a name's tests the table shows is its own choice."""
        others = {line.split("`")[1]: line for line in wanted.splitlines() if line.startswith("| `")}
        for line in present.splitlines():
            name = line.split("`")[1] if line.startswith("| `") else ""
            wrong = others.pop(name, None) if name else None
            if name and wrong is None:
                self.wrong.append(f"{name} is no name of the rows, or stands twice")
            elif name and line != wrong:
                shown = line.rsplit("|", 2)[1].strip().removesuffix(" and more").split(", ")
                if line.rsplit("|", 2)[0] != wrong.rsplit("|", 2)[0] or not set(shown) <= set(self.succeeded[name]):
                    self.wrong.append(f"the table says of {name}: {line}, and this run: {wrong}")
        self.wrong += [f"the table lacks {name}" for name in others]
        heads = [[line for line in text.splitlines() if not line.startswith("| `")] for text in (present, wanted)]
        if heads[0] != heads[1]:
            self.wrong.append("the table's text or its sums are out of date")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=HERE.parent.parent)
    parser.add_argument("--answers", type=pathlib.Path, default=HERE.parent.parent / "build/tests/driver/answers")
    parser.add_argument("--cuda-include", type=pathlib.Path, default=pathlib.Path("/usr/local/cuda/include"))
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    answers, missing = read_answers(arguments.answers)
    if missing:
        sys.exit(f"{arguments.answers} has no answers of {', '.join(missing)}: run ctest -L driver first")
    coverage = Coverage(arguments.root, arguments.cuda_include, answers)
    text = coverage.table()
    file = arguments.root / "docs/coverage.md"
    if arguments.check:
        coverage.compare(file.read_text(encoding="utf-8") if file.exists() else "", text)
    else:
        file.write_text(text, encoding="utf-8")
    print("\n".join(coverage.wrong + [f"{file.name}: {coverage.counts}, {len(coverage.wrong)} wrong"]))
    if coverage.wrong and arguments.check:
        print(f"If the tests are right, write {file.name} anew with {pathlib.Path(__file__).name}.")
    return 1 if coverage.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
