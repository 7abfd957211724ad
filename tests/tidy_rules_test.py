#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks tidy_test.py's rule about waiting: each loop without a bound is found, and no other."""
import contextlib
import io
import unittest

import tidy_test

UNBOUNDED = [
    "while (!go.load()) std::this_thread::yield();",
    "while (!go) {\n  std::this_thread::yield();\n}",
    "for (; !go.load(); sched_yield()) {\n}",
    "while (copies.load() < 3) std::this_thread::sleep_for(1ms);",
    "while (!ServerDead(first(), 1)) usleep(1000);",
    "while (!static_cast<std::atomic<bool>*>(argument)->load())\n  std::this_thread::sleep_for(milliseconds(1));",
    "while (!*end) SleepMs(10);",
    "while (words[8 * word] < mark) _mm_pause();",
    "while (!begun.load()) {\n}",
    "while (LoadAcquire(word) != value);",
    "while (*flag == 0) continue;",
]
BOUNDED = [
    "test::SleepUntil([&] { return copies.load() >= 3; });",
    "while (value.load() != wanted && std::chrono::steady_clock::now() < end) std::this_thread::sleep_for(1ms);",
    "while (!done && tries++ < 100) usleep(1000);",
    "while (shared->first < 0 && kill(first, 0) == 0) SleepMs(10);",  # the process that is waited for may end
    "while (!Over()) usleep(10'000);",
    "do {\n  Work();\n} while (!stop.load());",
    "while (!stop.load()) Work();",
    "while (job.DoOne()) {\n}",
]


class Waits(unittest.TestCase):
    def found(self, text, name="tests/unit/some_test.cc"):
        report = tidy_test.Report()
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            tidy_test.check_waits(name, "int x;\n" + text + "\n", report)
        return printed.getvalue().splitlines()

    def test_loops_without_a_bound(self):
        for text in UNBOUNDED:
            with self.subTest(text):
                found = self.found(text)
                self.assertEqual(len(found), 1, found)
                self.assertRegex(found[0], r"^tests/unit/some_test.cc:[23]: a loop .* has a bound")

    def test_loops_with_one(self):
        for text in BOUNDED:
            with self.subTest(text):
                self.assertEqual(self.found(text), [])

    def test_where(self):
        self.assertEqual(len(self.found(UNBOUNDED[0], "tools/bench/probe/probe_calls.cc")), 1)
        self.assertEqual(self.found(UNBOUNDED[0], "tests/yield_until.h"), [])
        # The product has rules of its own: its loops end with the peer.
        self.assertEqual(self.found(UNBOUNDED[0], "ivshmem_ring/transport/waiter.cc"), [])


class Receives(unittest.TestCase):
    def test_the_daemons_own_way(self):
        for name, text, found in [("host_backend/daemon/servers/x.cc", "n = recv(socket, &byte, 1, 0);", 1),
                                  ("host_backend/daemon/servers/x.cc", "n = ::recvmsg(socket, &m, 0);", 1),
                                  ("host_backend/daemon/servers/x.cc", "n = ReceiveFromStranger(socket, &byte, 1, &all);", 0),
                                  ("host_backend/daemon/loop/worker_fd.cc", "n = recv(socket, &byte, 1, 0);", 0),
                                  ("host_backend/worker/x.cc", "n = recv(socket, &byte, 1, 0);", 0)]:
            report = tidy_test.Report()
            with contextlib.redirect_stdout(io.StringIO()):
                tidy_test.check_receives(name, text, report)
            self.assertEqual(report.count, found, (name, text))


if __name__ == "__main__":
    unittest.main()
