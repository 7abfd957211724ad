#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every promise of SECURITY.md and every bound of docs/limits.md names a test that is there, or says "no test".

usage: promises_check.py SOURCE_DIR BUILD_DIR CTEST

In SECURITY.md the last column of the promises' table holds commands: what `ctest -R` or `ctest -L` is given must match tests of the
build, each alternative of it at least one, and scripts must exist. In docs/limits.md it holds names: of tests of ctest, or of the cases and suites in
their sources.
"""
import pathlib
import re
import subprocess
import sys

NONE = "no test"


def rows(text, first_cell):
    """The tables whose first cell is that, row by row: lists of cells."""
    inside = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] if line.startswith("|") else []
        if cells and cells[0] == first_cell:
            inside = True
        elif not cells:
            inside = False
        elif inside and not set(cells[0]) <= set("-: "):
            yield cells


def alternatives(pattern):
    """The parts of a regular expression between bars that are in no parentheses."""
    parts, depth = [""], 0
    for letter in pattern:
        depth += (letter == "(") - (letter == ")")
        if letter == "|" and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class Tests:
    def __init__(self, source, build, ctest):
        def ask(option):
            return subprocess.run([ctest, "--test-dir", build, option], check=True, capture_output=True, text=True).stdout
        self.names = re.findall(r"^ *Test +#\d+: (\S+)", ask("-N"), re.MULTILINE)
        self.labels = re.findall(r"^  (\S+)$", ask("--print-labels"), re.MULTILINE)
        self.cases = set()
        for file in (source / "tests").rglob("*"):
            if file.suffix == ".cc":
                for suite, case in re.findall(r"^TEST(?:_F|_P)?\((\w+),\s*(\w+)\)", file.read_text(encoding="utf-8"), re.MULTILINE):
                    self.cases |= {suite, case}
            elif file.suffix == ".py":
                self.cases |= set(re.findall(r"^ +def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE))

    def of_command(self, command, source):
        """What is wrong with a command between backticks; empty: nothing."""
        found = re.match(r"(?:\w+=\S+ )*ctest -(R|L) (?:'([^']*)'|\"([^\"]*)\"|(\S+))$", command)
        if found is None:
            script = next((word for word in command.split() if "/" in word and not word.startswith("-")), "")
            known = (source / script).exists() or pathlib.PurePath(script).name in self.names
            return "" if known else f"`{command}` is no test of ctest and no script of this repository"
        pattern = next(group for group in found.groups()[1:] if group is not None).replace("\\|", "|")
        among = self.names if found.group(1) == "R" else self.labels
        missing = [part for part in alternatives(pattern) if not any(re.search(part, name) for name in among)]
        return f"`{command}`: nothing is called {', '.join(missing)}" if missing else ""

    def has(self, word):
        return word in self.cases or any(re.search(re.escape(word), name) for name in self.names)


def check_promises(source, tests):
    count = 0
    for promise, command in rows((source / "SECURITY.md").read_text(encoding="utf-8"), "promise"):
        count += 1
        commands = [each for each in re.findall(r"`([^`]+)`", command) if "ctest" in each or "/" in each]
        if not commands and command != "the same" and not command.startswith(NONE):
            yield f'"{promise}" names no test and does not say "{NONE}"'
        for each in commands:
            if problem := tests.of_command(each, source):
                yield f'"{promise}": {problem}'
    if count < 20:
        yield f"SECURITY.md has a table of {count} promises: its form is not known here"


def check_limits(source, tests):
    count = 0
    for cells in rows((source / "docs" / "limits.md").read_text(encoding="utf-8"), "what"):
        count += 1
        named = re.sub(r"\([^)]*\)|\band\b", " ", cells[-1]).replace("*", " ")
        words = re.findall(r"[\w.]+", named)
        if cells[-1] != NONE and not words:
            yield f'limits.md: "{cells[0]}" names no test and does not say "{NONE}"'
        for word in words if cells[-1] != NONE else []:
            if not tests.has(word):
                yield f'limits.md: "{cells[0]}": there is no test {word}'
    if count < 30:
        yield f"docs/limits.md has a table of {count} bounds: its form is not known here"


def main():
    source = pathlib.Path(sys.argv[1])
    tests = Tests(source, sys.argv[2], sys.argv[3])
    problems = [*check_promises(source, tests), *check_limits(source, tests)]
    print("\n".join(problems) if problems else f"every promise and bound names a test among {len(tests.names)}")
    return 1 if problems else 0


sys.exit(main())
