#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""crowded.py on the software GPU: both sides make steps, and the table has its columns. No speed is judged.

Usage: crowded_test.py BUILD LOAD SOFTWARE_GPU
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import sides

HERE = pathlib.Path(__file__).resolve().parent
LIMIT_S = 100
BUILD = LOAD = DRIVER = ""


def cells(line):
    return [cell.strip() for cell in line.strip("|").split("|")]


class Crowded(unittest.TestCase):
    def test_a_row(self):
        with tempfile.TemporaryDirectory() as folder:
            kept = pathlib.Path(folder, "crowded.json")
            done = subprocess.run([sys.executable, HERE / "crowded.py", BUILD, LOAD, "--rows", "1:2", "--kinds", "wait", "--rounds", "1",
                                   "--seconds", "0.3", "--driver", DRIVER, "--json", kept], capture_output=True, text=True,
                                  timeout=LIMIT_S, check=False, env={**os.environ, "SOFTWARE_GPU_WORK_IN_CALLS": "1"})
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
            results = json.loads(kept.read_text(encoding="utf-8"))
        head, _, *rows = done.stdout.splitlines()
        self.assertEqual(cells(head), ["kind", "row", "side", "steps/s", "ratio", "95 % interval", "processor us a step", "its ratio",
                                       "95 % interval"])
        self.assertEqual([cells(row)[:3] for row in rows], [["wait", "1, 2", "native"], ["wait", "1, 2", "Causeway"]])
        for row in rows:
            self.assertEqual(len(cells(row)), len(cells(head)), row)
            self.assertGreater(float(cells(row)[3]), 0, row)
            self.assertGreater(float(cells(row)[6]), 0, row)
            self.assertEqual((cells(row)[5], cells(row)[8]), ("", ""), "one round has no interval")
        for side in ("native", "Causeway"):
            self.assertGreater(results[0][side]["steps_per_s"], 0, results)

    def test_an_interval_needs_rounds(self):
        self.assertEqual(sides.interval_cell([1.0] * (sides.LEAST_ROUNDS - 1)), "")
        self.assertEqual(sides.interval_cell([1.0] * sides.LEAST_ROUNDS), "1.000 to 1.000")


if __name__ == "__main__":
    BUILD, LOAD, DRIVER = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
