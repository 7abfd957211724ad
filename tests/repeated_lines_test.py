#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks repeated_lines.py against small trees that repeat themselves, or only seem to."""
import pathlib
import tempfile
import unittest

import repeated_lines

BODY = [f"  Step{i}(a, b);" for i in range(6)]


class RepeatedLines(unittest.TestCase):
    def violations(self, files, allowed=""):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, lines in {**files, repeated_lines.ALLOWED: [allowed]}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
            found = []
            repeated_lines.check(root, list(files), lambda place, text: found.append(f"{place}: {text}"))
            return found

    def test_six_lines_in_two_files(self):
        found = self.violations({"guest_lib/a.cc": ["int A() {"] + BODY, "tests/b.cc": ["", "int B() {"] + BODY})
        self.assertEqual(len(found), 1)
        self.assertIn("guest_lib/a.cc:2: 6 lines are written again in tests/b.cc:3", found[0])

    def test_in_one_file(self):
        self.assertEqual(len(self.violations({"guest_lib/a.cc": BODY + ["int x;"] + BODY})), 1)

    def test_five_lines_are_none(self):
        self.assertEqual(self.violations({"guest_lib/a.cc": BODY[:5], "guest_lib/b.cc": BODY[:5]}), [])

    def test_what_says_nothing_neither_counts_nor_separates(self):
        thin = ["{", "}", "", "// six", "#include <a>", "  break;", "} else {", "namespace a {", "using namespace b;"]
        self.assertEqual(self.violations({"guest_lib/a.cc": thin, "guest_lib/b.cc": thin}), [])
        spread = [line for body, other in zip(BODY, thin) for line in (body + "  // why", other)]
        self.assertEqual(len(self.violations({"guest_lib/a.cc": spread, "guest_lib/b.cc": BODY})), 1)

    def test_texts_count(self):
        texts = [f'  Say("{i} // no comment");' for i in range(6)]
        others = [f'  Say("{i} // no comment at all");' for i in range(6)]
        self.assertEqual(self.violations({"guest_lib/a.cc": texts, "guest_lib/b.cc": others}), [])
        self.assertEqual(len(self.violations({"guest_lib/a.cc": texts, "guest_lib/b.cc": texts})), 1)

    def test_a_list_with_reasons(self):
        files = {"guest_lib/a.cc": BODY, "guest_lib/b.cc": BODY}
        self.assertEqual(self.violations(files, "guest_lib/a.cc guest_lib/b.cc 6 because"), [])
        self.assertEqual(len(self.violations(files, "guest_lib/a.cc guest_lib/b.cc 5 because")), 1)

    def test_the_list_only_shrinks(self):
        files = {"guest_lib/a.cc": BODY, "guest_lib/b.cc": BODY}
        self.assertIn("lower or remove", self.violations(files, "guest_lib/a.cc guest_lib/b.cc 7 because")[0])
        self.assertEqual(len(self.violations({"guest_lib/a.cc": BODY}, "guest_lib/a.cc guest_lib/c.cc 6 because")), 1)

    def test_a_run_of_one_line_repeats_itself_once(self):
        same = ["  Step(a);"] * 12
        self.assertEqual(len(self.violations({"guest_lib/a.cc": same})), 1)


if __name__ == "__main__":
    unittest.main()
