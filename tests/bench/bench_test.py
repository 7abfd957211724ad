#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`causeway bench` on the software GPU: every figure is measured on both sides, in all forms. No speed is judged.

Usage: bench_test.py CAUSEWAY SOFTWARE_GPU
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "unit"))
import sessions

LIMIT_S = 120
CAUSEWAY = DRIVER = ""
CAN_DRAW = subprocess.run(["python3", "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0
NO_PACKAGE = (r"causeway: The picture cannot be drawn because \S+ has no package matplotlib; install python3-matplotlib "
              r"\(Debian, Ubuntu\), or matplotlib by pip\.\n")


class Bench(unittest.TestCase):
    def bench(self, *arguments, **environment):
        return subprocess.run([CAUSEWAY, "bench", "--driver", DRIVER, "--quick", *arguments], capture_output=True, text=True,
                              timeout=LIMIT_S, check=False, env={**os.environ, **environment})

    def test_every_figure_in_every_form(self):
        with tempfile.TemporaryDirectory() as folder:
            table, picture = pathlib.Path(folder, "bench.json"), pathlib.Path(folder, "copies.svg")
            answer = self.bench("--rounds", "2", "--json", str(table), "--plot", str(picture))
            self.assertEqual(answer.returncode, 0 if CAN_DRAW else 3, answer.stdout + answer.stderr)
            report = json.loads(table.read_text(encoding="utf-8"))
            if CAN_DRAW:
                self.check_picture(picture)
            else:
                self.assertRegex(answer.stderr, NO_PACKAGE)
        listed = self.bench("--list", "--plot", "none").stdout.splitlines()
        # Those of crowds are measured only if they are asked for.
        self.assertEqual([line.split()[0] for line in listed if not line.startswith("crowd_")],
                         [figure["id"] for figure in report["figures"]])
        self.assertTrue(report["test_only"])
        for figure in report["figures"]:
            once = figure["id"] == "idle_cpu"
            self.assertEqual(len(figure["causeway"]), 1 if once else 2, figure)
            guest_only = figure["id"] in ("idle_cpu", "empty_call")
            self.assertEqual(len(figure["native"]), 0 if guest_only else 1 if once else 2, figure)
            self.assertEqual("goal" in figure, "met" in figure, figure)
            self.assertIn(figure["name"], answer.stdout)
        self.assertGreater(report["geometric_mean"], 0)
        self.assertIn("only show that the benchmark works", answer.stdout)

    def check_picture(self, picture):
        drawn = xml.etree.ElementTree.fromstring(picture.read_text(encoding="utf-8"))
        curves = {}
        for group in drawn.iter("{http://www.w3.org/2000/svg}g"):
            if re.fullmatch("(h2d|d2h)-(pinned|pageable)-(native|causeway)", group.get("id", "")):
                curves[group.get("id")] = sum(path.get("d", "").count("L") for path in group)
        self.assertEqual(len(curves), 8, "two panels of four curves")
        self.assertGreater(min(curves.values()), 5, curves)

    def test_what_is_missing_for_a_picture_is_named_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            pathlib.Path(folder, "matplotlib.py").write_text("raise ImportError", encoding="utf-8")
            answer = self.bench("--only", "launch, enqueue*", "--plot", folder + "/copies.svg", PYTHONPATH=folder)
            self.assertEqual((answer.returncode, answer.stdout), (1, ""))
            self.assertRegex(answer.stderr, "^" + NO_PACKAGE + "$")
            answer = self.bench("--only", "launch, enqueue*", "--plot", folder + "/copies.svg", PATH=folder)
            self.assertEqual((answer.returncode, answer.stdout), (1, ""))
            self.assertIn("because python3 cannot be started (No such file or directory); install", answer.stderr)

    def test_processes_that_share_processors(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "bench.json")
            answer = self.bench("--rounds", "1", "--only", "crowded", "--json", str(table))
            self.assertEqual(answer.returncode, 0, answer.stderr)
            figures = json.loads(table.read_text(encoding="utf-8"))["figures"]
        processors = len(os.sched_getaffinity(0))
        rows = [row for row in ("1:1", "1:4", "2:4", "4:4") if int(row[0]) <= processors]
        self.assertEqual([figure["id"] for figure in figures],
                         [f"crowd_{kind}:{row}{what}" for kind in ("wait", "step") for row in rows for what in ("", ":cpu")])
        for figure in figures:
            self.assertGreater(min(figure["native"] + figure["causeway"]), 0, figure)
            self.assertEqual((figure["unit"], figure["more_is_better"]), ("us", False) if figure["id"].endswith(":cpu") else ("1/s", True))

    def test_processor_time_of_a_crowd_alone(self):
        answer = self.bench("--rounds", "1", "--only", "crowd_wait:1:1:cpu")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertRegex(answer.stdout, r"crowded 1, 1: CPU of launch \+ wait +us +\S+ +\S+ +\S+ +<= 1.2 x native")

    def test_only_some(self):
        answer = self.bench("--rounds", "1", "--only", "launch, *|event_query_done")
        self.assertEqual(answer.returncode, 0, answer.stderr)
        self.assertIn("launch, enqueue", answer.stdout)
        self.assertIn("cuEventQuery, done", answer.stdout)
        self.assertNotIn("cuEventRecord", answer.stdout)
        nothing = self.bench("--only", "no such figure")
        self.assertEqual(nothing.returncode, 1)
        self.assertIn("No figure is called no such figure; --list shows them all.", nothing.stderr)
        self.assertGreaterEqual(self.bench("--no-such-option").returncode, 100)

    def test_a_full_device_spoils_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            places, table = pathlib.Path(folder, "places"), pathlib.Path(folder, "bench.json")
            places.write_bytes(bytes(10))  # contexts: of a spare worker, and of 9 sessions
            answer = self.bench("--rounds", "1", "--only", "idle session", "--idle-sessions", "12", "--json", str(table),
                                SOFTWARE_GPU_CONTEXT_PLACES=str(places))
            report = json.loads(table.read_text(encoding="utf-8"))
        self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
        self.assertEqual([len(figure["causeway"]) for figure in report["figures"]], [1, 1], answer.stdout)
        self.assertRegex(answer.stdout, r"Only (8|9|10) of 12 idle sessions could be started \(The probe on the causeway library "
                                        r".* ended with exit status 1.*measured with (4|5|6) and scaled")

    def test_transports_beside_bare_sockets(self):
        with tempfile.TemporaryDirectory() as folder:
            table = pathlib.Path(folder, "bench.json")
            answer = self.bench("--rounds", "2", "--transport", "tcp,tls", "--json", str(table))
            self.assertEqual(answer.returncode, 0, answer.stdout + answer.stderr)
            report = json.loads(table.read_text(encoding="utf-8"))
        self.assertEqual(len(report["ping_pong_us"]), 2)
        senders = {copy: {way: len(samples) for way, samples in ways.items()} for copy, ways in report["sender_gb_per_s"].items()}
        self.assertEqual(senders, {f"16 MiB {way} the guest": {"tcp": 2, "tls": 2} for way in ("from", "to")})
        self.assertIn("copy:d2h:pageable:16777216", report["figures"])
        for name, ways in report["figures"].items():
            expected = ["ring", "tcp", "tls"] if name == "empty_call" else ["native", "ring", "tcp", "tls"]
            self.assertEqual({way: len(samples) for way, samples in ways.items()}, dict.fromkeys(expected, 2), name)
        self.assertRegex(answer.stdout, r"empty waiting message / bare +\S+ [+-] +\S+ [+-]\n")
        self.assertGreaterEqual(self.bench("--transport", "udp").returncode, 100)
        self.assertGreaterEqual(self.bench("--transport", "tcp", "--tls").returncode, 100)

    def test_what_fails_is_named(self):
        answer = self.bench("--tcp", "--rounds", "1", "--only", "mapped_*", SOFTWARE_GPU_FAIL="cuMemHostAlloc:1:2")
        self.assertEqual(answer.returncode, 3, answer.stdout + answer.stderr)
        self.assertIn("kernel reads mapped pinned memory, native: error 2", answer.stdout)
        self.assertNotIn("causeway: error", answer.stdout)


if __name__ == "__main__":
    CAUSEWAY, DRIVER = sys.argv[1:3]
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], testLoader=sessions.Shard())
