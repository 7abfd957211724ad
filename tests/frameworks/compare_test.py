#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare.py finds what differs and nothing else, ends what hangs, and every script here is valid Python."""

import argparse
import ast
import pathlib
import sys
import tempfile
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.dont_write_bytecode = True
import compare  # noqa: E402

FIRST = "version 1\n[one]\na 1\n# one: 0.10 s\n[two]\nb 1\nb 2\n# two: 1.00 s\n[end]\ndone\n"


def made(text, code=0):
    return compare.Run(text, code, 1.0)


class CompareTest(unittest.TestCase):

    def test_informative_lines_do_not_count(self):
        other = made(FIRST.replace("0.10", "0.20"))
        self.assertEqual(compare.differences(made(FIRST), other), {})
        self.assertEqual(compare.judge(made(FIRST), other, None)[:2], ("same", False))
        self.assertEqual(other.section_seconds(), {"one": 0.2, "two": 1.0})

    def test_a_longer_section_does_not_shift_the_next_one(self):
        found = compare.differences(made(FIRST), made(FIRST.replace("a 1", "a 2\na 3\na 4")))
        self.assertEqual(list(found), [("[one]", 0), ("[one]", 1)])

    def test_missing_sections_and_exit_codes_differ(self):
        shorter = made(FIRST.split("[two]")[0], 1)
        text, differs, details = compare.judge(made(FIRST), shorter, lambda: made(FIRST))
        self.assertTrue(differs)
        self.assertEqual(text, "exit 1, not 0")
        self.assertIn("[two] is missing", details)

    def test_what_varies_natively_is_forgiven(self):
        text, differs, _ = compare.judge(made(FIRST), made(FIRST.replace("b 2", "b 3")), lambda: made(FIRST.replace("b 2", "b 4")))
        self.assertFalse(differs)
        self.assertIn("vary natively", text)

    def test_a_hanging_run_and_its_children_end(self):
        with tempfile.TemporaryDirectory() as folder:
            options = argparse.Namespace(output=pathlib.Path(folder), timeout=3.5, ends=time.monotonic() + 60, python="x")
            self.addCleanup(setattr, compare, "LEAST_S", compare.LEAST_S)
            compare.LEAST_S = 1
            started = time.monotonic()
            hung = compare.run("odd", "sh -c 'echo begun; sleep 100 & sleep 99'", "script", options)
            self.assertLess(time.monotonic() - started, 30)
            self.assertEqual(hung.code, "none within 4 s")
            self.assertEqual(hung.lines, ["begun"])

    def test_no_time_left(self):
        options = argparse.Namespace(output=HERE, timeout=100, ends=time.monotonic() + 1, python="x")
        self.assertEqual(compare.run("way", "true", "script", options).code, "none: time was up")

    def test_scripts_are_python(self):
        for path in HERE.glob("*.py"):
            ast.parse(path.read_text(), str(path))


if __name__ == "__main__":
    unittest.main()
