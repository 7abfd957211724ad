#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sessions of remote guests whose connections are lost: real daemon, causeway-tls, worker and the software GPU, and a relay that cuts.

Usage: cuts_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU [--cuts 20] [--silent 0] [--silence 1] [--down 0] [--grace 60] [--most-mib 8]
[--copy-mib 4] [--seed N] [unittest arguments]. --down: for how many seconds nobody gets through after a cut, several with commas, of which each
cut takes one; --grace: wait_for_guests_s of the host; --silent: of so many cuts the bytes are swallowed instead; --silence: for so many seconds
nothing passes in the place of a cut, several with commas, of which each is taken once; --most-mib: so much passes at most before a cut, and a
128th of it for the training; --copy-mib: the size of a copy.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "unit"))

import remote_hosts_test  # noqa: E402
import sessions  # noqa: E402
from cutter import PROGRAM, TRAINING, Cutter  # noqa: E402

OPTIONS = argparse.Namespace()
# Asks how much memory the device has, until its input ends.
MANAGEMENT = """
import ctypes, select, sys
nvml = ctypes.CDLL(sys.argv[1] + "/libnvidia-ml.so.1")
handle, memory, asked, first = ctypes.c_void_p(), (ctypes.c_uint64 * 3)(), 0, None
assert nvml.nvmlInit_v2() == 0
assert nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)) == 0
print("began", flush=True)
while not select.select([sys.stdin], [], [], 0)[0]:
    assert nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    first = first or memory[0]
    assert memory[0] == first
    asked += 1
print("asked", asked, "times", flush=True)
"""
ENDED = 911  # CUDA_ERROR_EXTERNAL_DEVICE


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


class CutsTest(unittest.TestCase):
    await_ = remote_hosts_test.RemoteHostsTest.await_

    def setUp(self):
        remote_hosts_test.RemoteHostsTest.setUp(self)
        self.relays = []
        self.addCleanup(lambda: [relay.stop() for relay in self.relays])

    def host(self, top="", more=""):
        host = remote_hosts_test.Host(self, max(2048, 3 * OPTIONS.copy_mib), more=more, top=top)
        host.keys_command("create", "guest", "--output", self.key)
        return host.start()

    def host_of(self, scheme, grace=None):
        """A host that waits for its guests, and the port at which it serves guests that come that way."""
        host = self.host(f"wait_for_guests_s = {OPTIONS.grace if grace is None else grace}\n", more='[tcp]\nlisten = "127.0.0.1:0"\n')
        return host, host.port if scheme == "tls" else int(host.status()["tcp"].rsplit(":", 1)[1])

    def relay(self, port, **options):
        relay = Cutter(("127.0.0.1", port), **options)
        self.relays.append(relay)
        return relay

    def begin(self, way, text=PROGRAM, *more):
        program = subprocess.Popen([sys.executable, "-c", text, self.library, str(OPTIONS.copy_mib << 20), *more],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, CAUSEWAY=way, CAUSEWAY_KEY=self.key, LD_LIBRARY_PATH=self.library))
        for pipe in (program.stdin, program.stdout):
            self.addCleanup(pipe.close)
        self.addCleanup(program.kill)
        self.assertEqual(program.stdout.readline(), "began\n")
        return program

    def output_of(self, program):
        """Of one that ends by itself: its standard input stays open, whose end would end it, too."""
        program.wait(timeout=60)
        return program.stdout.read()

    def finish(self, program):
        """The program's own count is compared with the device's by the program; here only that it got there."""
        out, _ = program.communicate("end\n", timeout=600)
        words = out.split()
        self.assertEqual(words[0:1], ["launched"], out)
        self.assertEqual(words[1], words[3], out)
        return out.strip()

    def state(self, host):
        return [session["state"] for session in host.status()["sessions"]]

    def assert_over(self, out):
        """The call that met the end says so, and so do those after it."""
        self.assertRegex(out, f"^failed [a-zA-Z0-9_]+ {ENDED}\nagain {ENDED} {ENDED} {ENDED} {ENDED}\n$")

    def cut_all(self, scheme, text=PROGRAM, most_bytes=None):
        host, port = self.host_of(scheme)
        # What the host has before, and after the session: nothing may be left.
        daemon, tls = (process.pid for process in host.processes)
        self.await_("a spare", lambda: host.status()["workers"]["spare_ready"] > 0)
        before = descriptors(daemon), descriptors(tls)
        relay = self.relay(port, cuts=OPTIONS.cuts, most_bytes=most_bytes or OPTIONS.most_mib << 20, seed=OPTIONS.seed, silent=OPTIONS.silent,
                           down_s=OPTIONS.down, silences=OPTIONS.silence)
        program = self.begin(f"{scheme}://127.0.0.1:{relay.port}", text)
        worker = host.status()["sessions"][0]["worker_pid"]
        slowest_s = max(OPTIONS.down) + 5 + OPTIONS.most_mib / 20
        end = time.monotonic() + 60 + OPTIONS.cuts * slowest_s + OPTIONS.silent * 60 + sum(OPTIONS.silence) * 2
        while relay.cuts < OPTIONS.cuts and program.poll() is None:
            self.assertLess(time.monotonic(), end, f"{relay.cuts} cuts of {OPTIONS.cuts}")
            time.sleep(0.05)
        self.await_("the relay to pass on what comes", lambda: time.monotonic() > max(relay.silent_until, relay.open_at))
        self.await_("the session to go on", lambda: self.state(host) == ["serving"] or program.poll() is not None)
        self.assertEqual(host.status()["sessions"][0]["worker_pid"], worker, "the same worker serves")
        said = self.finish(program)
        print(f"{scheme}: {relay.cuts} cuts (seed {OPTIONS.seed}) of {relay.made} connections, {said}", file=sys.stderr)
        host.await_sessions(0)
        self.await_("no process of a connection", lambda: not subprocess.run(["pgrep", "-P", str(tls)], capture_output=True,
                                                                             check=False).stdout)
        self.await_("the worker's end", lambda: not os.path.exists(f"/proc/{worker}"))
        self.await_("a spare again", lambda: host.status()["workers"]["spare_ready"] > 0)
        self.await_("no descriptor to be left", lambda: (descriptors(daemon), descriptors(tls)) <= before)

    def test_nothing_is_executed_twice_over_tls(self):
        self.cut_all("tls")

    def test_nothing_is_executed_twice_over_tcp(self):
        self.cut_all("tcp")

    def test_a_training_is_what_the_processor_computes_over_tls(self):
        self.cut_all("tls", TRAINING, OPTIONS.most_mib << 13)

    def test_a_training_is_what_the_processor_computes_over_tcp(self):
        self.cut_all("tcp", TRAINING, OPTIONS.most_mib << 13)

    def wait_in_vain(self, scheme):
        host, port = self.host_of(scheme, grace=2)
        relay = self.relay(port, cuts=1, most_bytes=30 << 20, seed=1, down_s=(600,))
        program = self.begin(f"{scheme}://127.0.0.1:{relay.port}", PROGRAM, "stays")
        self.await_("the session to wait", lambda: self.state(host) == ["waiting"])
        begin = time.monotonic()
        out = program.stdout.readline()
        self.assertLess(time.monotonic() - begin, 30)
        host.await_sessions(0)
        self.assertIn("waits for its guest: ", host.log("causewayd"))
        self.assertIn("the guest has not come back: ", host.log("causewayd"))
        # The host can be reached again, and serves another process. This one's error stays.
        relay.open_at = 0.0
        self.finish(self.begin(f"{scheme}://127.0.0.1:{relay.port}"))
        self.assert_over(out + program.communicate("go on\n", timeout=60)[0])

    def test_a_waiting_session_is_shown_and_ends_for_good_after_the_grace_period_over_tls(self):
        self.wait_in_vain("tls")

    def test_a_waiting_session_is_shown_and_ends_for_good_after_the_grace_period_over_tcp(self):
        self.wait_in_vain("tcp")

    def test_without_a_grace_period_a_lost_connection_ends_the_session(self):
        host = self.host("wait_for_guests_s = 0\n")
        relay = self.relay(host.port, cuts=1, most_bytes=30 << 20, seed=1)
        program = self.begin(f"tls://127.0.0.1:{relay.port}")
        self.assert_over(self.output_of(program))
        host.await_sessions(0)

    def test_a_revoked_key_ends_a_session_that_waits(self):
        host = self.host("wait_for_guests_s = 600\n")
        relay = self.relay(host.port, cuts=1, most_bytes=30 << 20, seed=2, down_s=(600,))
        program = self.begin(f"tls://127.0.0.1:{relay.port}")
        self.await_("the session to wait", lambda: self.state(host) == ["waiting"])
        begin = time.monotonic()
        host.keys_command("revoke", "guest")
        host.await_sessions(0)
        self.assertLess(time.monotonic() - begin, 5)
        self.assertIn("its key is good no more", host.log("causewayd"))
        relay.open_at = 0.0  # the guest may come again, and is told
        out, _ = program.communicate(timeout=1) if program.poll() is not None else (None, None)
        self.assertIsNone(out, "it goes on trying: it cannot tell a revoked key from one that is not known yet")
        program.kill()
        program.communicate()

    def test_a_folder_of_keys_that_is_replaced_or_removed(self):
        """What the new folder says counts, and a key that is in none any more is good no more."""
        host = self.host("wait_for_guests_s = 600\n")
        keys = pathlib.Path(host.folder) / "keys"
        program = self.begin(f"tls://127.0.0.1:{host.port}")
        os.rename(keys, f"{keys}.old")
        shutil.copytree(f"{keys}.old", keys)
        self.await_("the new folder to be seen", lambda: "is watched again" in host.log("causeway-tls"))
        self.assertEqual(self.state(host), ["serving"])
        host.keys_command("revoke", "guest")
        host.await_sessions(0)
        self.assertIn("was revoked at", host.log("causeway-tls"))
        program.kill()
        program.communicate()
        shutil.rmtree(keys)
        self.await_("the loss to be seen", lambda: "cannot be watched: No such file" in host.log("causeway-tls"))
        shutil.copytree(f"{keys}.old", keys)
        self.await_("keys to be known again", lambda: host.log("causeway-tls").count("is watched again") == 2)
        self.finish(self.begin(f"tls://127.0.0.1:{host.port}"))

    def test_a_link_to_a_folder_of_keys_may_name_another_one(self):
        host = self.host("wait_for_guests_s = 600\n")
        keys = pathlib.Path(host.folder) / "keys"
        for name in ("first", "second"):
            shutil.copytree(keys, f"{keys}.{name}")
        os.rename(keys, f"{keys}.old")
        os.symlink(f"{keys}.first", keys)
        self.await_("the link to be seen", lambda: "is watched again" in host.log("causeway-tls"))
        program = self.begin(f"tls://127.0.0.1:{host.port}")
        os.symlink(f"{keys}.second", f"{keys}.new")
        os.rename(f"{keys}.new", keys)
        host.keys_command("revoke", "guest")
        host.await_sessions(0)
        program.kill()
        program.communicate()

    def test_a_folder_of_keys_that_is_removed_ends_sessions(self):
        host = self.host("wait_for_guests_s = 600\n")
        program = self.begin(f"tls://127.0.0.1:{host.port}")
        shutil.rmtree(pathlib.Path(host.folder) / "keys")
        begin = time.monotonic()
        host.await_sessions(0)
        self.assertLess(time.monotonic() - begin, 5)
        program.kill()
        program.communicate()

    def test_causeway_tls_may_be_killed(self):
        host = self.host()
        program = self.begin(f"tls://127.0.0.1:{host.port}")
        for how in (signal.SIGKILL, signal.SIGTERM):
            host.processes[1].send_signal(how)
            host.processes[1].wait()
            self.await_("the session to wait", lambda: self.state(host) == ["waiting"])
            host.processes.pop()
            log = open(f"{host.folder}/causeway-tls.log", "w+", encoding="utf-8")
            self.addCleanup(log.close)
            host.config.write_text(host.config.read_text(encoding="utf-8").replace(":0\"]", f":{host.port}\"]"), encoding="utf-8")
            host.processes.append(subprocess.Popen([f"{sessions.BACKEND}/causeway-tls", "--config", str(host.config)], stdout=log,
                                                   stderr=log))
            self.await_("the session to go on", lambda: self.state(host) == ["serving"])
        self.finish(program)
        host.await_sessions(0)

    def test_a_key_that_was_revoked_while_causeway_tls_did_not_run(self):
        host = self.host("wait_for_guests_s = 600\n")
        program = self.begin(f"tls://127.0.0.1:{host.port}")
        host.processes[1].kill()
        host.processes[1].wait()
        self.await_("the session to wait", lambda: self.state(host) == ["waiting"])
        host.keys_command("revoke", "guest")
        host.processes.pop()
        log = open(f"{host.folder}/causeway-tls.log", "w+", encoding="utf-8")
        self.addCleanup(log.close)
        host.processes.append(subprocess.Popen([f"{sessions.BACKEND}/causeway-tls", "--config", str(host.config)], stdout=log,
                                               stderr=log))
        host.await_sessions(0)
        program.kill()
        program.communicate()

    def test_a_session_that_is_no_more_ends_its_program_at_once(self):
        """Its worker is killed, of which the daemon tells; or the daemon stops, of which the worker tells."""
        host = self.host("wait_for_guests_s = 600\n")
        for killed in (True, False):
            program = self.begin(host.text)
            begin = time.monotonic()
            if killed:
                os.kill(host.status()["sessions"][0]["worker_pid"], signal.SIGKILL)
            else:
                host.processes[0].terminate()
            self.assert_over(self.output_of(program))
            self.assertLess(time.monotonic() - begin, 30)

    def test_a_session_of_nvml_goes_on_too(self):
        host = self.host()
        relay = self.relay(host.port, cuts=5, most_bytes=20_000, seed=OPTIONS.seed)
        program = self.begin(f"tls://127.0.0.1:{relay.port}", MANAGEMENT)
        self.await_("the cuts", lambda: relay.cuts == 5 or program.poll() is not None)
        out, _ = program.communicate("end\n", timeout=60)
        self.assertRegex(out, r"asked \d+ times")
        host.await_sessions(0)

    def test_a_forked_child_disturbs_nothing(self):
        """It was forked before the connection was lost, and lives on when its parent has ended."""
        host = self.host("wait_for_guests_s = 600\n")
        relay = self.relay(host.port, cuts=5, most_bytes=4 << 20, seed=OPTIONS.seed)
        child = "if os.fork() == 0:\n    os.close(0), os.close(1)\n    import time\n    time.sleep(20)\n    os._exit(0)\nends = False\n"
        program = self.begin(f"tls://127.0.0.1:{relay.port}", PROGRAM.replace("ends = False\n", child))
        self.await_("the cuts", lambda: relay.cuts == 5 or program.poll() is not None)
        self.finish(program)
        begin = time.monotonic()
        host.await_sessions(0)
        self.assertLess(time.monotonic() - begin, 10)

    def test_a_killed_guest_is_not_waited_for(self):
        """Its kernel closes the connection in order, unless bytes lay unread; then it cannot be told from a lost one."""
        host = self.host("wait_for_guests_s = 600\n")
        program = self.begin(host.text, PROGRAM.replace("while not ends", "sys.stdin.read()\nwhile False"))
        time.sleep(0.2)  # so that nothing is under way
        program.kill()
        program.communicate()
        host.await_sessions(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("backend", "library", "driver"):
        parser.add_argument(name)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--silent", type=int, default=0)
    for name, default in (("--down", (0.0,)), ("--silence", (1.0,))):
        parser.add_argument(name, type=lambda text: tuple(map(float, filter(None, text.split(",")))), default=default)
    parser.add_argument("--grace", type=int, default=60)
    parser.add_argument("--most-mib", type=int, default=8)
    parser.add_argument("--copy-mib", type=int, default=4)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    OPTIONS, rest = parser.parse_known_args()
    if OPTIONS.silent + len(OPTIONS.silence) > OPTIONS.cuts:
        parser.error("--silent and --silence take the place of cuts, of which there are too few")
    sessions.LIMIT_S += int(max(OPTIONS.down) + sum(OPTIONS.silence))
    sessions.BACKEND, sessions.LIBRARY, sessions.DRIVER = OPTIONS.backend, OPTIONS.library, OPTIONS.driver
    unittest.main(argv=[sys.argv[0], *rest], verbosity=2)
