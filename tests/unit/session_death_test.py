#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deaths and refusals of whole sessions: causewayd, real workers on the software GPU, real guest processes.

Usage: session_death_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU CLIENT [unittest arguments]
Every wait has a limit; what hangs is a failure that shows where.
"""

import glob
import json
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest

LIMIT_S = 40
LOST = 911  # CUDA_ERROR_EXTERNAL_DEVICE
BACKEND = LIBRARY = DRIVER = CLIENT = ""


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def where(pid):
    """Where a process that hangs is."""
    text = ""
    for task in glob.glob(f"/proc/{pid}/task/*"):
        try:
            text += f"{task}: {pathlib.Path(task + '/wchan').read_text()} "
            text += pathlib.Path(task + "/syscall").read_text()
        except OSError:
            pass
    if shutil.which("gdb"):
        answer = subprocess.run(["gdb", "-p", str(pid), "-batch", "-ex", "thread apply all bt 12"],
                                capture_output=True, text=True, timeout=30, check=False)
        text += answer.stdout
    return text


def children(pid):
    answer = set()
    for stat in glob.glob("/proc/[0-9]*/stat"):
        try:
            fields = pathlib.Path(stat).read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            answer.add(int(stat.split("/")[2]))
    return answer


class Client:
    """A guest process."""

    def __init__(self, test, address, *arguments, user=None, library=None):
        self.test = test
        environment = dict(os.environ, CAUSEWAY=address)
        self.process = subprocess.Popen([CLIENT, library or LIBRARY, *arguments], env=environment, text=True, user=user,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        test.addCleanup(self.end)

    def end(self):
        if self.process.poll() is None:
            self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if not pipe.closed:
                pipe.close()
        self.process.wait()

    def started(self):
        line = self.process.stdout.readline()
        self.test.assertTrue(line.startswith("started"), line)

    def result(self, text=""):
        """What it printed, its log's lines and its exit status."""
        try:
            out, err = self.process.communicate(text, timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            self.test.fail(f"the guest process hangs:\n{where(self.process.pid)}")
        return out.split("\n")[:-1], [line for line in err.split("\n") if line], self.process.returncode


class Deaths(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="causeway-test-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder)
        self.daemon = None
        self.socket = self.folder + "/socket"
        self.address = "local:" + self.socket
        self.addCleanup(self.stop)

    def start(self, driver=None, region_mib=256, mode="0600", **environment):
        config = pathlib.Path(self.folder, "config.toml")
        config.write_text(f'socket = "{self.socket}"\nsocket_mode = "{mode}"\ndriver_library = "{driver or DRIVER}"\n'
                          f"local_region_mib = {region_mib}\n")
        self.log = open(self.folder + "/log", "a+", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.daemon = subprocess.Popen([BACKEND + "/causewayd", "--config", str(config)], stderr=self.log,
                                       stdout=self.log, env=dict(os.environ, **environment))
        self.wait("the daemon to serve", lambda: "accepts sessions at" in self.log_text())

    def log_text(self):
        return pathlib.Path(self.folder, "log").read_text(encoding="utf-8")

    def stop(self):
        if self.daemon is None or self.daemon.poll() is not None:
            return
        self.daemon.terminate()
        try:
            self.daemon.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            self.daemon.kill()
            self.fail("causewayd does not end")

    def wait(self, what, done):
        end = time.monotonic() + LIMIT_S
        while not done():
            if time.monotonic() > end:
                stack = where(self.daemon.pid) if self.daemon else ""
                self.fail(f"waited {LIMIT_S} s for {what}; log:\n{self.log_text()}\n{stack}")
            time.sleep(0.01)

    def status(self):
        answer = subprocess.run([BACKEND + "/causeway", "status", "--json", "--socket", self.socket],
                                capture_output=True, text=True, timeout=LIMIT_S, check=True)
        return json.loads(answer.stdout)

    def worker_of(self, client):
        found = [s["worker_pid"] for s in self.status()["sessions"] if s["pid"] == client.process.pid]
        self.assertEqual(len(found), 1)
        return found[0]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def wait_idle(self):
        """No session, one spare worker and no other child, no region memory held by the daemon."""
        def idle():
            status = self.status()
            return (not status["sessions"] and status["workers"]["spare_ready"] == 1
                    and status["workers"]["all"] == 1 and len(children(self.daemon.pid)) == 1)
        self.wait("the daemon to be idle", idle)
        for holder in {self.daemon.pid} | children(self.daemon.pid):
            links = [os.readlink(link) for link in glob.glob(f"/proc/{holder}/fd/*") if os.path.lexists(link)]
            regions = [link for link in links if "memfd" in link and "causeway-std" not in link]
            self.assertEqual(regions, [], "a session's memory is still held")

    def expect_lost(self, client, text=""):
        out, err, code = client.result(text)
        self.assertEqual(code, 0, (out, err))
        words = out[-1].split()
        self.assertEqual(words[:3], ["lost", str(LOST), str(LOST)], (out, err))
        self.assertLess(int(words[3]), 2000, "the error comes late")
        self.assertEqual(len(err), 1, err)
        self.assertIn("the session is lost", err[0])

    def expect_working(self):
        client = Client(self, self.address, "compute")
        client.started()
        out, err, code = client.result()
        self.assertEqual((code, err), (0, []), out)

    def expect_refused(self, sentence, error=100, user=None, address=None):
        out, err, _ = Client(self, address or self.address, "init", user=user).result()
        self.assertEqual(out, [f"init {error}"], err)
        self.assertEqual(len(err), 1, err)
        self.assertIn(sentence, err[0])

    # ---- the guest dies ----------------------------------------------------------------------------------------

    def kill_copying_guests(self, kind):
        os.environ["CAUSEWAY_COPY_THREADS"] = "4"
        self.addCleanup(os.environ.pop, "CAUSEWAY_COPY_THREADS")
        self.start()
        neighbour = Client(self, self.address, "compute")
        neighbour.started()
        for round_number in range(4):
            client = Client(self, self.address, "copy", kind)
            client.started()
            worker = self.worker_of(client)
            time.sleep(0.01 + 0.013 * round_number)
            client.process.kill()
            client.process.wait()
            self.wait("the worker to end with its guest", lambda worker=worker: not alive(worker))
        out, err, code = neighbour.result()
        self.assertEqual((code, err), (0, []), out)
        self.wait_idle()

    def test_guest_killed_in_pageable_copy(self):
        self.kill_copying_guests("pageable")

    def test_guest_killed_in_pinned_copy(self):
        self.kill_copying_guests("pinned")

    def test_guest_leaves_without_a_word(self):
        self.start()
        for how, last in (("exit", None), ("fork", "parent 0"), ("exec", "init 0"), ("dlclose", "closed 0"),
                          ("threads", None)):
            with self.subTest(how):
                out, err, code = Client(self, self.address, "leave", how).result()
                self.assertEqual((code, err), (0, []), out)
                if last is not None:
                    self.assertEqual(out[-1], last)
                if how == "fork":
                    self.assertEqual(out[0], "child 0")
                self.wait_idle()

    def test_many_sessions_leave_nothing(self):
        self.start()
        self.expect_working()
        self.wait_idle()
        before = self.descriptors()
        for _ in range(int(os.environ.get("CAUSEWAY_TEST_SESSIONS", "40"))):
            clients = [Client(self, self.address, "leave", "exit") for _ in range(5)]
            for client in clients:
                out, err, code = client.result()
                self.assertEqual((code, err), (0, []), out)
        self.wait_idle()
        self.assertEqual(self.descriptors(), before)
        self.assertEqual(self.status()["counters"]["worker_deaths"], 0)

    # ---- the worker dies ---------------------------------------------------------------------------------------

    def lose_worker(self, how, text="", **environment):
        self.start(**environment)
        client = Client(self, self.address, "lose", how)
        client.started()
        worker = self.worker_of(client)
        time.sleep(0.1)
        os.kill(worker, signal.SIGKILL)
        if text:
            self.wait("the worker's death", lambda: not alive(worker))
            time.sleep(0.1)
        self.expect_lost(client, text)
        self.wait_idle()
        self.assertEqual(self.status()["counters"]["worker_deaths"], 1)
        return client

    def test_worker_killed_idle(self):
        self.lose_worker("idle", "go\n")
        self.expect_working()

    def test_worker_killed_in_burst(self):
        self.lose_worker("burst")
        self.expect_working()

    def test_worker_killed_in_waiting_call(self):
        self.lose_worker("waiting", SOFTWARE_GPU_LAUNCH_DELAY_US="8000000")

    def test_worker_killed_in_pageable_copies(self):
        os.environ["CAUSEWAY_COPY_THREADS"] = "4"
        self.addCleanup(os.environ.pop, "CAUSEWAY_COPY_THREADS")
        self.lose_worker("copy")

    def test_driver_aborts(self):
        self.start(SOFTWARE_GPU_ABORT_AT_LAUNCH="3")
        self.expect_lost(Client(self, self.address, "launch"))
        self.wait_idle()

    def test_device_is_lost(self):
        self.start(SOFTWARE_GPU_LOSE_AFTER_LAUNCHES="3")
        out, _, code = Client(self, self.address, "launch").result()
        self.assertEqual((out[-1].split()[:3], code), (["lost", "719", "719"], 0))
        self.wait_idle()
        self.assertEqual(self.status()["counters"]["worker_deaths"], 0)

    # ---- the daemon dies ---------------------------------------------------------------------------------------

    def test_daemon_killed_and_restarted(self):
        self.start()
        client = Client(self, self.address, "lose", "idle")
        client.started()
        self.wait("the spare", lambda: self.status()["workers"]["spare_ready"] == 1)
        workers = children(self.daemon.pid)
        self.assertEqual(len(workers), 2)
        self.daemon.kill()
        self.daemon.wait()
        self.wait("the dead daemon's workers to end", lambda: not any(alive(worker) for worker in workers))
        pathlib.Path(self.folder, "log").write_text("", encoding="utf-8")
        self.start()
        self.expect_lost(client, "go\n")
        self.expect_working()
        self.wait_idle()

    # ---- no way in ---------------------------------------------------------------------------------------------

    def test_no_daemon(self):
        self.expect_refused("is causewayd running?")

    def test_daemon_gone_but_socket_left(self):
        self.start()
        self.daemon.kill()
        self.daemon.wait()
        self.expect_refused("is causewayd running?")

    def test_permission_denied(self):
        if os.getuid() != 0:
            self.skipTest("needs root to become another user")
        for path in (CLIENT, LIBRARY):
            if not os.stat(path).st_mode & 0o005:
                self.skipTest(f"other users cannot read {path}")
        self.start()
        self.expect_refused("is this user in the socket's group?", user=65534)

    def test_value_that_means_nothing(self):
        self.expect_refused("is none of local:/path, module, tcp://host:port", address="carrier-pigeon")

    def test_driver_library_missing(self):
        self.start(driver="/nonexistent/libcuda.so.1")
        self.expect_refused("cannot open the driver library '/nonexistent/libcuda.so.1'")

    def test_driver_without_a_gpu(self):
        self.start(SOFTWARE_GPU_DEVICES="0")
        self.expect_refused("finds no GPU")

    def test_other_versions_are_refused(self):
        self.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(LIMIT_S)
            link.connect(self.socket)
            link.send(struct.pack("<QHHI", 0x314C595745534143, 999, 0, 1))
            reply = link.recv(512)
        accepted = struct.unpack_from("<QI", reply)[1]
        self.assertEqual(accepted, 0)
        self.assertIn(b"version", reply)
        self.expect_working()

    # ---- too little memory -------------------------------------------------------------------------------------

    def test_region_too_small_for_an_allocation(self):
        self.start(region_mib=64)
        out, err, code = Client(self, self.address, "pinned", "60", "8", "100", "4").result()
        self.assertEqual(out, ["pinned 2", "pinned 0", "pinned 2", "pinned 0", "synchronize 0"], err)
        self.assertEqual(code, 0)
        self.assertTrue(err, "a refused allocation needs its sentence")
        self.assertIn("no room for 62914560 bytes of pinned memory", err[0])
        self.assertIn("no room for 104857600 bytes of pinned memory", err[1])
        self.wait_idle()


if __name__ == "__main__":
    BACKEND, LIBRARY, DRIVER, CLIENT = (os.path.abspath(path) for path in sys.argv[1:5])
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)
