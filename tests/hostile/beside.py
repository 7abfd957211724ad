#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile guests beside a victim, and natively the same load beside the same victim, for comparison.

usage: beside.py BUILD OUT [--seconds S] [--native-seconds S] [--seed N] [--driver LIBRARY] [--memory-mib N]

A victim (victim.cu) checks every byte that it gets back and times launches; a second program of the same user starts
a session a second. Beside them, as other users: floods of launches, memory, compilations, copies, objects, images and
sessions (flood.cc), and with Causeway the hostile programs of this folder as well, over and over, each with another
seed. Runs as root on any host with an NVIDIA GPU, or with `--driver` on the software GPU, whose times say nothing.
Writes OUT/beside.md and OUT/beside.json; exits 1 if the victim was harmed, something is left over, or a goal is missed.
"""

import argparse
import collections
import datetime
import json
import pathlib
import random
import re
import sys
import threading
import time

import tenants
from tenants import FIRST_STRANGER, VICTIM, Trouble, wait_for

# Which user floods with what. Natively the same processes run.
FLOODS = [(0, "launches"), (0, "launches"), (0, "memory"), (1, "compile"), (1, "copies"), (1, "images"), (2, "objects"),
          (2, "sessions")]
HOSTILE_USER = FIRST_STRANGER + 3
START_EVERY_S = 1.0
TELL_EVERY_S = 60
ROUND_S = 10  # how long an attacker goes on before it is started again with another seed
SETTINGS = ("spare_workers = 2\nguaranteed_spares = 2\nmax_sessions = 128\nlocal_region_mib = 1024\nlog_level = \"info\"\n"
            "local_device_memory_mib = {memory_mib}\n[tcp]\nlisten = \"127.0.0.1:0\"\n")


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


class Repeater(threading.Thread):
    """Keeps one attacker there: whenever it has ended, or its round is over, it begins anew with another seed."""

    def __init__(self, run, uid, words_of, program=None, variables=None):
        super().__init__(daemon=True)
        self.run_, self.uid, self.words_of, self.program, self.variables = run, uid, words_of, program, variables or {}
        self.random = random.Random(run.random.random())
        self.rounds = 0
        self.ends = collections.Counter()
        self.trouble = None

    def run(self):
        try:
            while not self.run_.over.is_set():
                self._round()
        except Exception as trouble:  # told by the main thread
            self.trouble = trouble

    def _round(self):
        words = self.words_of(self.random.randrange(1 << 31))
        process = self.run_.tenants.spawn(self.uid, words, self.run_.native, self.program, **self.variables)
        self.rounds += 1
        end = time.monotonic() + 3 * ROUND_S
        while process.poll() is None and time.monotonic() < end and not self.run_.over.wait(0.05):
            pass
        self.ends["ended" if process.poll() == 0 else "killed by us" if process.poll() is None else
                  f"exit {process.poll()}"] += 1
        if process.poll() is not None:
            self.run_.over.wait(0.05)  # one that cannot even start
        self.run_.tenants.kill(process)


class Starts(threading.Thread):
    """Starts a session a second and keeps the milliseconds to its first kernel's result.

    With Causeway each start is from a spare worker: it begins when one is ready, and how long that took is kept as well.
    A spare takes as long as the driver's own start, which beside this load is seconds.
    """

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_ = run
        self.ms, self.failures, self.waited_ms = [], [], []
        self.trouble = None

    def await_spare(self):
        """False: the run is over."""
        begin = time.monotonic()
        while self.run_.tenants.status()["workers"]["spare_ready"] == 0:
            if self.run_.over.wait(0.02):
                return False
        self.waited_ms.append((time.monotonic() - begin) * 1e3)
        return True

    def run(self):
        try:
            while not self.run_.over.wait(START_EVERY_S):
                if not self.run_.native and not self.await_spare():
                    break
                begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
                process = self.run_.tenants.spawn(VICTIM, ["startup"], self.run_.native, STARTUP_BEGIN=str(begin))
                text = self.run_.tenants.result(process)
                words = text.split()
                if process.returncode == 0 and len(words) == 3:
                    self.ms.append(int(words[1]) / 1e6)
                else:
                    self.failures.append(text.strip()[-300:])
        except Trouble as trouble:
            self.trouble = trouble


class Watch(threading.Thread):
    """Asks the daemon for its status twice a second: how long that takes, and how late its loop says that it was."""

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_ = run
        self.answer_ms, self.lateness_ms, self.most_sessions = [], None, 0
        self.trouble = None

    def run(self):
        try:
            while not self.run_.over.wait(0.5):
                begin = time.monotonic()
                status = self.run_.tenants.status()
                self.answer_ms.append((time.monotonic() - begin) * 1e3)
                self.most_sessions = max(self.most_sessions, len(status["sessions"]))
                self.lateness_ms = find_lateness(status, self.lateness_ms)
        except Trouble as trouble:
            self.trouble = trouble


def find_lateness(status, before):
    """The largest lateness of the event loop that the status tells, in milliseconds; None where it tells none."""
    late = status.get("loop_late", {}).get("max_ms")
    return before if late is None else max(late, before or 0)


class Run:
    """One phase: victim, starts and load, natively or through the daemon."""

    def __init__(self, all_tenants, seed, native, memory_mib):
        self.tenants, self.native, self.seed = all_tenants, native, seed
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.memory_mib = memory_mib

    def attackers(self):
        found = []
        for user, kind in FLOODS:
            # Natively nobody else bounds it.
            mib = [self.memory_mib // 2] if self.native and kind == "memory" else []
            found.append(Repeater(self, FIRST_STRANGER + user, lambda seed, kind=kind, mib=mib:
                                  ["flood", kind, ROUND_S, seed, *mib]))
        if not self.native:
            for uid, program, variables, words in hostile_programs(self.tenants):
                found.append(Repeater(self, uid, words, program, variables))
        return found

    def tell(self, seconds, helpers):
        """What is known so far, for a reader of a run that does not come to its end."""
        print(f"{'native' if self.native else 'Causeway'} after {seconds} s: {len(helpers[0].ms)} starts, p99 "
              f"{percentile(helpers[0].ms, 0.99):.1f} ms, {len(helpers[0].failures)} failed" +
              ("" if self.native else f"; loop at most {helpers[1].lateness_ms} ms late"), flush=True)

    def go(self, seconds):
        """The victim's report, with what the others saw."""
        victim = tenants.Victim(self.tenants, self.seed % 1000 + 1, self.native)
        helpers = [Starts(self)] + ([] if self.native else [Watch(self)])
        attackers = self.attackers()
        for each in helpers + attackers:
            each.start()
        begun, told = time.monotonic(), 0
        while time.monotonic() < begun + seconds and victim.process.poll() is None:
            time.sleep(0.2)
            if time.monotonic() > begun + told + TELL_EVERY_S:
                told += TELL_EVERY_S
                self.tell(told, helpers)
        report = victim.finish()
        self.over.set()
        for each in helpers + attackers:
            each.join(2 * tenants.PATIENCE_S)
            if each.is_alive():
                raise Trouble(f"{each} does not end")
            if each.trouble:
                raise each.trouble
        report["starts_ms"], report["start_failures"] = helpers[0].ms, helpers[0].failures
        report["spare_waits_ms"] = helpers[0].waited_ms
        report["attackers"] = [{"words": each.words_of(0)[:2], "program": str(each.program or ""), "rounds": each.rounds,
                                "ends": dict(each.ends)} for each in attackers]
        if not self.native:
            watch = helpers[1]
            report.update(answer_ms=watch.answer_ms, lateness_ms=watch.lateness_ms, most_sessions=watch.most_sessions)
        return report


def hostile_programs(all_tenants):
    """What speaks the ring protocol itself: [(user, program, variables, its words of a seed)]."""
    program = all_tenants.build / "hostile_programs" / "hostile_loop"
    if not program.exists():
        return []
    all_tenants.copy_program(program)
    program = all_tenants.bin / "hostile_loop"
    modes = [word for word in all_tenants.output_of(program, "--list").split() if word]
    return [(HOSTILE_USER + i % 2, program, {},
             lambda seed, mode=mode: ["hostile_loop", mode, str(all_tenants.socket), ROUND_S, seed])
            for i, mode in enumerate(modes)] + hostile_tests(all_tenants)


def hostile_tests(all_tenants):
    """The cases of ctest -L hostile, against the victim's daemon. As root, because they look into workers."""
    return [(0, program, {"CAUSEWAY_TEST_SOCKET": str(all_tenants.socket), "CAUSEWAY_TEST_LOG": str(all_tenants.log)},
             lambda seed, name=program.name: [name, "--gtest_shuffle", "--gtest_repeat=-1", f"--gtest_random_seed={seed % 99999}",
                                              "--gtest_brief=1"])
            for program in sorted((all_tenants.build / "hostile_tests").glob("hostile_*_test"))]


def log_rates(text):
    """{scope: (lines, most in one second)}: by the uid in a line, or by the worker that it names."""
    owner, seconds = {}, collections.defaultdict(collections.Counter)
    for line in text.splitlines():
        found = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\S* \w+: (.*)", line)
        if not found:
            continue
        second, said = found.groups()
        uid, worker = re.search(r"\buid[ :](\d+)", said), re.search(r"\bworker (?:\(pid )?(\d+)", said)
        scope = f"uid {uid.group(1)}" if uid else owner.get(worker.group(1), "nobody's") if worker else "nobody's"
        if uid and worker:
            owner[worker.group(1)] = scope
        seconds[scope][datetime.datetime.fromisoformat(second)] += 1
    return {scope: (sum(counts.values()), max(counts.values())) for scope, counts in seconds.items()}


def await_idle(all_tenants):
    """Until the daemon has nothing but its spare workers."""
    def idle():
        status = all_tenants.status()
        workers = status["workers"]
        return (not status["sessions"] and not status["accounts"] and workers["starting"] == 0
                and workers["all"] == workers["spare_ready"] == workers["spare_wanted"])
    wait_for("sessions, workers and accounts to be gone", idle)


def left_over(all_tenants, before):
    """What the attackers have left: nothing, once the daemon has had time to clear up. `before`: descriptors, when it was idle."""
    try:
        await_idle(all_tenants)
        wait_for("the daemon's descriptors", lambda: all(
            count <= before.get(what, 0) for what, count in all_tenants.descriptors().items()))
    except Trouble as trouble:
        now, status = all_tenants.descriptors(), all_tenants.status()
        more = {what: (before.get(what, 0), count) for what, count in now.items() if count > before.get(what, 0)}
        return [str(trouble), f"descriptors before and now: {more}",
                json.dumps({key: status[key] for key in ("workers", "accounts", "sessions")})]
    return []


def rows(native, guest, log, seconds):
    """[figure, native, Causeway, goal, kept]"""
    ratio = {key: guest["launch_us"][key] / max(native["launch_us"][key], 1e-9) for key in ("p50", "p99")}
    start_p99 = percentile(guest["starts_ms"], 0.99)
    table = [["victim: rounds", native["rounds"], guest["rounds"], "", True],
             ["victim: errors", native["errors"], guest["errors"], "0", guest["errors"] == 0],
             ["victim: wrong bytes", native["wrong_bytes"], guest["wrong_bytes"], "0", guest["wrong_bytes"] == 0]]
    for key in ("p50", "p99"):
        table.append([f"launch and wait, {key}, µs", round(native["launch_us"][key], 1),
                      f"{guest['launch_us'][key]:.1f} ({ratio[key]:.2f} x)", "<= 2 x native", ratio[key] <= 2])
    table.append(["session start, p50, ms", round(percentile(native["starts_ms"], 0.5), 1),
                  round(percentile(guest["starts_ms"], 0.5), 1), "", True])
    table.append([f"session start, p99 of {len(guest['starts_ms'])}, ms", round(percentile(native["starts_ms"], 0.99), 1),
                  round(start_p99, 1), "<= 100", start_p99 <= 100])
    table.append(["a spare is ready after, p50 / p99, ms", "", f"{percentile(guest['spare_waits_ms'], 0.5):.0f} / "
                  f"{percentile(guest['spare_waits_ms'], 0.99):.0f}", "", True])
    table.append(["sessions that did not start", len(native["start_failures"]), len(guest["start_failures"]), "0",
                  not guest["start_failures"]])
    for scope, (lines, most) in sorted(log.items()):
        table.append([f"log lines a second, {scope}", "", f"{lines / seconds:.1f} (busiest second {most})", "<= 20",
                      lines / seconds <= 20])
    late = guest["lateness_ms"]
    table.append(["daemon's loop, most late, ms", "", "not told" if late is None else round(late, 2), "<= 10",
                  late is None or late <= 10])
    table.append(["`causeway status` answers, p50 / p99, ms", "",
                  f"{percentile(guest['answer_ms'], 0.5):.1f} / {percentile(guest['answer_ms'], 0.99):.1f}", "", True])
    table.append(["sessions at once, most", "", guest["most_sessions"], "", True])
    return table


def markdown(table, title, attackers):
    lines = [title, "", "| figure | native | Causeway | goal | |", "|---|---:|---:|---|---|"]
    for name, native, guest, goal, kept in table:
        lines.append(f"| {name} | {native} | {guest} | {goal} | {'' if not goal else 'ok' if kept else 'MISSED'} |")
    lines += ["", "| attacker | rounds | ends |", "|---|---:|---|"]
    for each in attackers:
        ends = ", ".join(f"{count} {how}" for how, count in sorted(each["ends"].items()))
        lines.append(f"| {' '.join(str(word) for word in each['words'])} | {each['rounds']} | {ends} |")
    return "\n".join(lines) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--native-seconds", type=float, default=45)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--driver")
    parser.add_argument("--memory-mib", type=int, default=0, help="of the device for each user; default 8192, or 512")
    return parser.parse_args()


def main():
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    seed = tenants.seed_of(given.seed)
    memory_mib = given.memory_mib or (512 if given.driver else 8192)
    everyone = tenants.Tenants(given.build, given.driver)
    try:
        native = Run(everyone, seed, True, memory_mib).go(given.native_seconds)
        print(f"native: {json.dumps(native['launch_us'])}", flush=True)
        everyone.start_daemon(SETTINGS.format(memory_mib=memory_mib))
        everyone.await_spares()
        everyone.result(everyone.spawn(VICTIM, ["startup"]))  # what the daemon opens once
        await_idle(everyone)
        before = everyone.descriptors()
        guest = Run(everyone, seed, False, memory_mib).go(given.seconds)
        left = left_over(everyone, before)
        everyone.stop_daemon()
        table = rows(native, guest, log_rates(everyone.log_text()), given.seconds)
        table.append(["left when all are gone", "", "; ".join(left) or "nothing", "nothing", not left])
    except Trouble as trouble:
        print(f"beside.py: {trouble}")
        return 1
    finally:
        (given.out / "causewayd.log").write_text(everyone.log_text(), encoding="utf-8")
        everyone.end()
    text = markdown(table, f"Seed {seed}, {given.seconds:.0f} s, natively {given.native_seconds:.0f} s.", guest["attackers"])
    (given.out / "beside.md").write_text(text, encoding="utf-8")
    (given.out / "beside.json").write_text(json.dumps({"seed": seed, "native": native, "causeway": guest}), encoding="utf-8")
    print(text)
    for what, report in (("natively", native), ("with Causeway", guest)):
        if report["errors"] or report["start_failures"]:
            print(f"{what}: first error '{report['first_error']}', sessions that did not start: {report['start_failures'][:3]}")
    return 0 if all(kept for *_, kept in table) else 1


if __name__ == "__main__":
    sys.exit(main())
