#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks rules of tidy_test.py: each loop without a bound is found, and each name that sources of a folder may not both have."""
import contextlib
import io
import pathlib
import re
import tempfile
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

SOURCE = """namespace causeway::daemon {
namespace {
constexpr std::chrono::milliseconds kPause{2};
constexpr int kLastPackets = 64, kLastReads = 64;
const char kNames[2][8] = {"a", "b"};
struct Left {
  static constexpr int kInside = 1;
};
struct Declared;  // defined outside
}  // namespace
constexpr int kOutside = 1;
}  // namespace causeway::daemon
"""


class United(unittest.TestCase):
    def found(self, second):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            names = ["tools/cli/a.cc", second[0]]
            for name, text in ((names[0], SOURCE), second):
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            report = tidy_test.Report()
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                tidy_test.check_united(root, names, report)
            return re.findall(r": (\w+) is a name of tools/cli/a.cc too", printed.getvalue())

    def test_names_that_two_sources_give(self):
        self.assertEqual(self.found(("tools/cli/b.cc", SOURCE)), ["kPause", "kLastPackets", "kLastReads", "kNames", "Left"])

    def test_names_that_do_not_meet(self):
        self.assertEqual(self.found(("tools/top/b.cc", SOURCE)), [])
        self.assertEqual(self.found(("tools/cli/b.cc", SOURCE.replace("causeway::daemon", "causeway::other"))), [])


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
