#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Keys that end under programs at work: real daemon, causeway-tls, worker and the software GPU.

Usage: keys_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU [unittest arguments].
"""

import pathlib
import re
import subprocess
import sys
import threading
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "unit"))

import remote_hosts_test  # noqa: E402
import sessions  # noqa: E402

ENDED = 911  # CUDA_ERROR_EXTERNAL_DEVICE
MOST_S = 5  # from the end of a key to that of its sessions
# Copies a word there and back until a call fails, or its input ends; prints what failed.
PROGRAM = """
import ctypes, select, sys
cuda = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
context, place, word = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
assert cuda.cuInit(0) == 0 and cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0 and cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(4)) == 0
print("began", flush=True)
number, result = 0, 0
while result == 0 and not select.select([sys.stdin], [], [], 0.001)[0]:
    number += 1
    result = cuda.cuMemsetD32_v2(place, number, ctypes.c_size_t(1)) or cuda.cuMemcpyDtoH_v2(ctypes.byref(word), place, ctypes.c_size_t(4))
    assert result != 0 or word.value == number
print(result, flush=True)
"""


class KeysTest(unittest.TestCase):
    await_, begin, environment, run_program = (vars(remote_hosts_test.RemoteHostsTest)[name]
                                               for name in ("await_", "begin", "environment", "run_program"))

    def setUp(self):
        remote_hosts_test.RemoteHostsTest.setUp(self)
        # A host that would wait for its guests: a key that has ended is no lost connection.
        self.host = remote_hosts_test.Host(self, 1024, top="wait_for_guests_s = 600\n")
        for name in ("guest", "other"):
            self.host.keys_command("create", name, "--vm", "guest", "--output", f"{self.folder}/{name}")
        self.host.start()

    def programs(self):
        """One with each key, at work; the next one would have the first key."""
        programs = []
        for name in ("other", "guest"):
            self.key = f"{self.folder}/{name}"
            programs.insert(0, self.begin([self.host], text=PROGRAM))
            self.assertEqual(programs[0].stdout.readline(), "began\n")
        return programs

    def check_end(self, programs, end, word):
        """The program of the key that ended at that time gets its error soon; the other's goes on, and nobody begins with that key."""
        program, other = programs
        hangs = threading.Timer(sessions.LIMIT_S, program.kill)
        hangs.start()
        self.addCleanup(hangs.cancel)
        self.assertEqual(program.stdout.readline(), f"{ENDED}\n")
        took = time.time() - end
        self.assertGreaterEqual(took, 0, "its key was good until then")
        self.assertLess(took, MOST_S)
        self.host.await_sessions(1)
        self.assertRegex(self.host.log("causeway-tls"), f"ended: key guest {word}")
        numbers, lines = self.run_program([self.host])
        self.assertEqual((numbers, "key" in lines[-1]), (["failed", "100"], True), lines)
        self.assertIsNone(other.poll())
        self.assertEqual(other.communicate("end\n", timeout=sessions.LIMIT_S)[0], "0\n")
        self.host.await_sessions(0)

    def test_a_revoked_key_ends_its_program(self):
        programs = self.programs()
        begin = time.time()
        self.host.keys_command("revoke", "guest")
        self.check_end(programs, begin, "was revoked at")

    def test_a_key_that_expires_ends_its_program(self):
        programs = self.programs()
        end = int(time.time()) + 2
        file = pathlib.Path(self.host.keys, "guest.key")
        text = time.strftime("expires %Y-%m-%dT%H:%M:%SZ\nsecret", time.gmtime(end))
        file.write_text(re.sub("^secret", text, file.read_text(encoding="utf-8"), flags=re.MULTILINE), encoding="utf-8")
        self.assertIn("good until", subprocess.run([f"{sessions.BACKEND}/causeway", "keys", "list", "--keys", self.host.keys],
                                                   capture_output=True, text=True, timeout=sessions.LIMIT_S, check=True).stdout)
        self.check_end(programs, end, "expired at")


def main():
    sessions.BACKEND, sessions.LIBRARY, sessions.DRIVER = sys.argv[1:4]
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], testLoader=sessions.Shard())


if __name__ == "__main__":
    main()
