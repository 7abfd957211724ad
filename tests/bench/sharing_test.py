#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`causeway bench --sharing` on the software GPU: every row is measured in every way, and what fails is named. No speed is judged.

Usage: sharing_test.py CAUSEWAY SOFTWARE_GPU. As root; otherwise it is skipped (77).
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

LIMIT_S = 300
NOBODY = 65534
CAUSEWAY = DRIVER = ""
CAN_DRAW = subprocess.run(["python3", "-c", "import matplotlib"], capture_output=True, check=False).returncode == 0
WAYS = ["native", "slices", "causeway"]
STAND_IN = """#!/usr/bin/python3
import ctypes, sys, time
driver = ctypes.CDLL("libcuda.so.1")
driver.cuInit(0)
print("ready", flush=True)
sys.stdin.readline()
while True:
    time.sleep(0.01)
    print(1000000, flush=True)
"""

COUNTS = """#!/usr/bin/python3
import ctypes, sys
driver, nvml, devices, managed = ctypes.CDLL("libcuda.so.1"), ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_int(), ctypes.c_uint()
driver.cuInit(0), driver.cuDeviceGetCount(ctypes.byref(devices))
nvml.nvmlInit_v2(), nvml.nvmlDeviceGetCount_v2(ctypes.byref(managed))
sys.exit(f"{devices.value} devices of CUDA, {managed.value} of NVML")
"""


def bench(*arguments, **more):
    environment = {**os.environ, **more.pop("environment", {})}
    return subprocess.run([CAUSEWAY, "bench", "--driver", DRIVER, "--quick", "--sharing", *arguments], capture_output=True, text=True,
                          timeout=LIMIT_S, check=False, env=environment, **more)


class Sharing(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.table = self.folder / "sharing.json"

    def report(self, *arguments, expected=0, **more):
        answer = bench("--json", str(self.table), *arguments, **more)
        self.assertEqual(answer.returncode, expected, answer.stdout + answer.stderr)
        self.output = answer.stdout
        return json.loads(self.table.read_text(encoding="utf-8"))

    def check_rows(self, report):
        """Each figure has a value in some way, and each goal that could be looked at is met or not."""
        for row in report["rows"]:
            self.assertEqual(row["errors"], {}, row["id"])
            for figure in row["figures"]:
                self.assertEqual(set(figure["values"]), set(WAYS), row["id"])
                self.assertEqual("goal" in figure, "met" in figure, figure)
                self.assertIn(figure["name"], self.output)
                # In windows of a second that a short row does not have, nothing is told.
                if not figure["id"].startswith("jain_"):
                    self.assertIsNotNone(figure["values"]["causeway"], (row["id"], figure))
                    self.assertIsNotNone(figure.get("met", True), (row["id"], figure))

    def measured(self, *rows, seconds="0.4"):
        report = self.report("--ways", ",".join(WAYS), "--seconds", seconds, "--rows", ",".join(rows))
        self.check_rows(report)
        return {row["id"]: row for row in report["rows"]}

    def test_calls_and_shares(self):
        rows = self.measured("on_off", "wait1", "wait8", "beside", "beside_latency", "mixed", "weights", "processes", "cap25", "cap50", "cap75")
        self.assertEqual(len(rows), 11)
        waits = rows["wait8"]["figures"][0]["values"]
        self.assertGreater(min(waits.values()), 0)
        self.assertIsNone(next(each for each in rows["beside_latency"]["figures"] if each["id"] == "p99")["values"]["slices"])

    def test_copies_and_programs(self):
        rows = self.measured("copies", "copies_1_3", "copy_beside", "inference", "inference_normal", "training2", "training4", "training8")
        for way in WAYS:
            points = rows["inference"]["details"][way]["latency_us"]
            self.assertEqual(points[-1][0], 1)
            self.assertEqual(points, sorted(points))

    def twice(self, *arguments):
        """The report of the second run, which adds up both, and its figures by row."""
        self.check_rows(self.report(*arguments))
        report = self.report(*arguments)
        self.check_rows(report)
        self.assertIn("with the runs before:", self.output)
        return report, {row["id"]: {figure["id"]: figure["values"]["causeway"] for figure in row["figures"]} for row in report["rows"]}

    def test_faults_add_up_over_runs(self):
        report, rows = self.twice("--ways", ",".join(WAYS), "--seconds", "0.4", "--faults", "6", "--rows", "faults")
        self.assertEqual([rows["faults"][name] for name in ("faults", "kills", "errors", "wrong_bytes")], [6, 6, 0, 0])
        self.assertEqual([report["totals"]["faults"][name] for name in ("faults", "kills", "errors")], [12, 12, 0])

    def test_kills_have_a_number_of_their_own(self):
        rows = self.report("--ways", "causeway", "--seconds", "0.4", "--faults", "1", "--kills", "5", "--rows", "faults")["rows"]
        self.assertEqual([figure["values"]["causeway"] for figure in rows[0]["figures"] if figure["id"] in ("faults", "kills")], [1, 5])

    def test_deaths_add_up_over_runs(self):
        report, rows = self.twice("--ways", ",".join(WAYS), "--seconds", "0.4", "--faults", "1", "--rows", "deaths,sessions")
        self.assertEqual([rows["deaths"][name] for name in ("daemon_times", "arbiter_times", "holder_times", "lost", "left")], [1, 1, 1, 0, 0])
        self.assertEqual([report["totals"]["deaths"][name] for name in ("daemon_times", "holder_times", "lost")], [2, 2, 0])

    def test_turns_are_in_force_and_a_pause_holds(self):
        report = self.report("--ways", "causeway", "--seconds", "3", "--rows", "wait4")
        turns = report["rows"][0]["details"]["causeway"]["turns"]
        self.assertEqual(len(turns), 4)
        self.assertGreater(min(turns), 0)
        # Of a pause of 2.6 s, and of 2.7 s after it: how soon is not judged, but that it is at all.
        report = self.report("--ways", "causeway", "--seconds", "8", "--rows", "pause")
        figures = {figure["id"]: figure["values"]["causeway"] for figure in report["rows"][0]["figures"]}
        self.assertGreater(figures["calls_before"], 0)
        self.assertLess(figures["in_force"], 2300)
        self.assertLess(figures["resumed"], 2300)

    def test_turns_that_are_switched_off_are_off(self):
        report = self.report("--ways", "causeway", "--seconds", "1", "--rows", "wait4", environment={"CAUSEWAY_TURNS": "0"})
        self.assertEqual(report["rows"][0]["details"], {})
        self.assertGreater(report["rows"][0]["figures"][0]["values"]["causeway"], 0)

    def test_changes_under_load_and_pictures(self):
        pictures = ["--pictures", str(self.folder)] if CAN_DRAW else []
        report = self.report("--ways", ",".join(WAYS), "--seconds", "1.5", "--rows", "set_*,inference", *pictures)
        self.assertEqual([row["id"] for row in report["rows"]], ["set_weight", "set_cap", "set_class", "set_1_2_4", "inference"])
        for row in report["rows"][:4]:
            self.assertEqual(next(figure for figure in row["figures"] if figure["id"] == "lost")["values"]["causeway"], 0)
            self.assertGreater(row["details"]["causeway"]["changed_s"], 0)
        self.assertEqual([len(each) for each in report["rows"][3]["details"]["causeway"]["shares"]], [3] * 15)
        if not CAN_DRAW:
            return
        for name, lines in ("shares", {"share-1", "share-2", "share-3", "changed"}), ("latency", {f"latency-{way}" for way in WAYS}):
            drawn = xml.etree.ElementTree.fromstring((self.folder / f"sharing-{name}.svg").read_text(encoding="utf-8"))
            found = {group.get("id") for group in drawn.iter("{http://www.w3.org/2000/svg}g")}
            self.assertEqual(lines - found, set(), name)

    def test_what_cannot_be_drawn_is_named(self):
        (self.folder / "matplotlib.py").write_text("raise ImportError", encoding="utf-8")
        answer = bench("--pictures", str(self.folder), "--rows", "wait1", environment={"PYTHONPATH": str(self.folder)})
        self.assertEqual((answer.returncode, answer.stdout), (1, ""))
        self.assertIn("has no package matplotlib", answer.stderr)
        # With a report, the figures are kept; of this row there is nothing to draw.
        answer = bench("--pictures", str(self.folder), "--rows", "wait1", "--seconds", "0.2", "--ways", "native", "--json", str(self.table))
        self.assertEqual(answer.returncode, 3, answer.stdout + answer.stderr)
        self.assertTrue(json.loads(self.table.read_text(encoding="utf-8"))["rows"])

    @unittest.skipUnless(os.path.exists("/usr/bin/python3"), "the stand-in is a program of Python's")
    def test_programs(self):
        os.chmod(self.folder, 0o755)
        answer = bench("--rows", "torch", "--seconds", "0.2", "--ways", "native", environment={"PATH": str(self.folder)})
        self.assertEqual(answer.returncode, 3, answer.stdout + answer.stderr)
        self.assertIn("native: PyTorch does not come to work: python3 cannot be started: No such file or directory", answer.stdout)
        # In PyTorch's place, a program that every user can run, which loads the driver and does nothing with it.
        stand_in = self.folder / "python3"
        stand_in.write_text(STAND_IN, encoding="utf-8")
        stand_in.chmod(0o755)
        path = {"PATH": f"{self.folder}:{os.environ['PATH']}"}
        report = self.report("--rows", "torch", "--seconds", "0.2", "--ways", ",".join(WAYS), environment=path)
        figures = {figure["id"]: figure["values"] for figure in report["rows"][0]["figures"]}
        self.assertEqual(figures["p50"], {way: 1000 for way in WAYS})
        self.assertGreater(figures["steps"]["causeway"], 0)
        # One that does not use the library of the way is not measured as if it did.
        stand_in.write_text(stand_in.read_text(encoding="utf-8").replace("driver.cuInit(0)", "0"), encoding="utf-8")
        report = self.report("--rows", "torch", "--seconds", "0.2", "--ways", "causeway", expected=3, environment=path)
        self.assertEqual(report["rows"][0]["errors"]["causeway"], "a process has no session: it does not use Causeway's library")

    def test_the_list(self):
        listed = bench("--list").stdout
        self.assertRegex(listed, r"(?m)^wait4 +four launch and wait +\S+ s +native,slices")
        self.assertRegex(listed, r"calls a second together +>= 100000\n")
        self.assertRegex(listed, r"About \d+ s for all of these\.\n$")

    def test_what_was_asked_wrongly(self):
        for arguments, sentence in [
                (("--rows", "no such row"), "No row is called no such row; --sharing --list shows them all."),
                (("--native", "/no/libcuda.so.1"), "No GPU can be used natively: no driver: /no/libcuda.so.1"),
                (("--json", __file__), "no report of `causeway bench --sharing`; name another file."),
                (("--ways", "mps", "--rows", "wait1"), "MPS is not measured: there is no nvidia-cuda-mps-control in PATH.")]:
            answer = bench(*arguments, environment={"PATH": "/usr/bin:/bin"})
            self.assertEqual(answer.returncode, 1, answer.stdout)
            self.assertIn(sentence, answer.stderr)
        for arguments in ("--ways", "timeslices"), ("--only", "x"), ("--tcp",), ("--seconds", "0"), ("--pictures", "/no/folder"):
            self.assertGreaterEqual(bench(*arguments).returncode, 100, arguments)
        for option in ("--rows", "wait1"), ("--ways", "mps"):
            self.assertGreaterEqual(subprocess.run([CAUSEWAY, "bench", *option], capture_output=True, check=False).returncode, 100)

    def test_other_users(self):
        answer = bench("--rows", "wait1", user=NOBODY, group=NOBODY, extra_groups=[])
        self.assertEqual(answer.returncode, 1, answer.stdout)
        self.assertIn("run it as root", answer.stderr)

    def test_nvml_has_as_many_devices_as_cuda_where_one_is_chosen(self):
        """PyTorch asks NVML how many there are, and CUDA for each of them."""
        stand_in = self.folder / "python3"
        stand_in.write_text(COUNTS, encoding="utf-8")
        for path in stand_in, self.folder:
            path.chmod(0o755)
        report = self.report("--rows", "torch", "--ways", "causeway", expected=3, environment={
            "PATH": f"{self.folder}:{os.environ['PATH']}", "SOFTWARE_GPU_DEVICES": "2", "CUDA_VISIBLE_DEVICES": "1"})
        self.assertIn("1 devices of CUDA, 1 of NVML", report["rows"][0]["errors"]["causeway"])

    def test_a_way_that_fails_leaves_the_others(self):
        control = self.folder / "nvidia-cuda-mps-control"
        control.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
        control.chmod(0o755)
        report = self.report("--rows", "wait1", "--seconds", "0.2", expected=3,
                             environment={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        row = report["rows"][0]
        self.assertEqual(row["errors"], {"mps": "nvidia-cuda-mps-control did not start."})
        self.assertIn("  mps: nvidia-cuda-mps-control did not start.", self.output)
        self.assertEqual({way for way, value in row["figures"][0]["values"].items() if value}, set(WAYS))

    def test_a_fault_that_is_none_and_a_limit_are_named(self):
        report = self.report("--rows", "faults,wait1", "--seconds", "0.3", "--faults", "1", "--ways", "slices", expected=3,
                             environment={"SOFTWARE_GPU_FAIL": "cuStreamSynchronize:3:719"})
        self.assertTrue(any(row["errors"].get("slices") for row in report["rows"]), self.output)
        self.report("--rows", "wait1", "--limit", "1", "--ways", "slices", expected=3)
        self.assertIn("slices: left out, the time was over (--limit)", self.output)


if __name__ == "__main__":
    CAUSEWAY, DRIVER = sys.argv[1:3]
    if os.geteuid() != 0:
        print("sharing_test.py: its processes are those of several users: run it as root")
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]], testLoader=sessions.Shard())
