#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""managed.py on the software GPU: every mode works and is right on both sides, and the table has its columns. No speed is judged.

Usage: managed_test.py BUILD LOAD SOFTWARE_GPU
"""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

import managed

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 100
BUILD = LOAD = DRIVER = ""


def run(*words):
    return subprocess.run([sys.executable, HERE / "managed.py", BUILD, LOAD, "--driver", DRIVER, "--step", "4096", "--rounds", "1", *words],
                          capture_output=True, text=True, timeout=LIMIT_S, check=False)


class Managed(unittest.TestCase):
    def test_every_mode(self):
        modes = list(dict.fromkeys(mode for mode, _ in managed.ROWS))
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder, "managed.json")
            done = run("--modes", ",".join(f"{mode}:1M" for mode in modes), "--seconds", "0.05", "--json", kept)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            results = json.loads(kept.read_text(encoding="utf-8"))
        head, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in done.stdout.splitlines())
        self.assertEqual(head, ["mode", "size", "side", "native us", "us", "ratio", "95 % interval", "native processor us", "processor us",
                                "its ratio", "95 % interval"])
        self.assertEqual([row[:3] for row in rows], [[mode, "1M", "Causeway"] for mode in modes])
        for row in rows:
            self.assertEqual(len(row), len(head), row)
            for column in (3, 4, 7, 8):
                self.assertGreater(float(row[column]), 0, row)
        for result in results:
            for side in ("native", "Causeway"):
                self.assertGreaterEqual(result["turns"][0][side]["rounds"], 1, result)

    def test_the_program_has_these_modes(self):
        answer = subprocess.run([LOAD], input="modes\n", env={"LD_LIBRARY_PATH": str(pathlib.Path(DRIVER).parent)}, capture_output=True,
                                text=True, timeout=LIMIT_S, check=True)
        self.assertEqual(set(answer.stdout.split()) - {"ready"}, {mode for mode, _ in managed.ROWS})

    def test_a_program_that_fails_is_said(self):
        done = run("--modes", "turns:3M,turns:1M", "--seconds", "0.05")  # the program takes powers of two
        self.assertEqual(done.returncode, 1, done.stdout + done.stderr)
        self.assertIn("native, turns 3M: it ended with status 1", done.stderr)
        self.assertIn("| turns | 3M | failed |", done.stdout)
        self.assertIn("| turns | 1M | Causeway |", done.stdout)


if __name__ == "__main__":
    BUILD, LOAD, DRIVER = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
