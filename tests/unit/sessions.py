# SPDX-License-Identifier: Apache-2.0
"""What tests of whole sessions have in common: a causewayd, real workers on the software GPU, guest processes.

Every wait has a limit; what hangs is a failure that shows where.
"""

import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

LIMIT_S = 40
BACKEND = LIBRARY = DRIVER = CLIENT = ""  # paths, from the command line


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


def workers_of(daemon):
    """The daemon's one child is its launcher, whose children they are."""
    return {worker for launcher in children(daemon) for worker in children(launcher)}


class Client:
    """A guest process."""

    def __init__(self, test, address, *arguments, user=None, library=None, **variables):
        self.test = test
        environment = dict(os.environ, CAUSEWAY=address, **variables)
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


class Sessions(unittest.TestCase):
    """A causewayd of the test's own, real workers on the software GPU."""

    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="causeway-test-")
        os.chmod(self.folder, 0o755)
        self.addCleanup(shutil.rmtree, self.folder)
        self.daemon = None
        self.socket = self.folder + "/socket"
        self.address = "local:" + self.socket
        self.addCleanup(self.stop)

    def start(self, driver=None, region_mib=256, mode="0600", more="", serving=True, **environment):
        config = pathlib.Path(self.folder, "config.toml")
        # As many spares as the tests count, whatever sessions they open at once.
        if "spare_workers" not in more:
            more = "max_spare_workers = 1\n" + more
        config.write_text(f'socket = "{self.socket}"\nsocket_mode = "{mode}"\ndriver_library = "{driver or DRIVER}"\n'
                          f"local_region_mib = {region_mib}\n{more}")
        # Emptied: what an earlier daemon said would pass for this one's. Appended to: the daemon writes, too.
        pathlib.Path(self.folder, "log").write_text("", encoding="utf-8")
        self.log = open(self.folder + "/log", "a+", encoding="utf-8")
        self.addCleanup(self.log.close)
        self.daemon = subprocess.Popen([BACKEND + "/causewayd", "--config", str(config)], stderr=self.log,
                                       stdout=self.log, env=dict(os.environ, **environment))
        if not serving:
            return
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

    def trace(self, *arguments):
        answer = subprocess.run([BACKEND + "/causeway", "trace", "--socket", self.socket, *arguments],
                                capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual((answer.returncode, answer.stderr), (0, ""))
        return answer.stdout

    def worker_of(self, client):
        found = [s["worker_pid"] for s in self.status()["sessions"] if s["pid"] == client.process.pid]
        self.assertEqual(len(found), 1)
        return found[0]

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon.pid}/fd"))

    def wait_idle(self):
        """No session, nothing in any account, the launcher and one spare worker, no region memory held by any of them."""
        def idle():
            status = self.status()
            return (not status["sessions"] and not status["accounts"] and status["workers"]["spare_ready"] == 1
                    and status["workers"]["all"] == 1 and len(children(self.daemon.pid)) == 1
                    and len(workers_of(self.daemon.pid)) == 1)
        self.wait("the daemon to be idle", idle)
        # A thread of the daemon's own closes what a session had, after its end.
        self.wait("all sessions' memory to be given back", lambda: not self.memory_held())

    def memory_held(self):
        """Memory files of sessions that the daemon, its launcher or a worker has open."""
        held = []
        for holder in {self.daemon.pid} | children(self.daemon.pid) | workers_of(self.daemon.pid):
            for link in glob.glob(f"/proc/{holder}/fd/*"):
                try:
                    name = os.readlink(link)
                except OSError:
                    continue  # closed meanwhile
                # Output is the daemon's, as is the place for questions of workers; images are kept for the next session.
                if "memfd" in name and not re.search("causeway-(std|image|question)", name):
                    held.append(f"{holder}: {name}")
        return held


class Shard(unittest.TestLoader):
    """The tests that are this process's, in the words of GoogleTest: ../in_shards.py."""

    def getTestCaseNames(self, testCaseClass):  # the name is unittest's
        names = super().getTestCaseNames(testCaseClass)
        count, index = (int(os.environ.get(f"GTEST_{word}", default)) for word, default in (("TOTAL_SHARDS", 1), ("SHARD_INDEX", 0)))
        return names[index::count]


def main():
    """Usage: TEST BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU CLIENT [unittest arguments]"""
    global BACKEND, LIBRARY, DRIVER, CLIENT
    BACKEND, LIBRARY, DRIVER, CLIENT = (os.path.abspath(path) for path in sys.argv[1:5])
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2, testLoader=Shard())
