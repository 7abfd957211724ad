#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hostile guests beside a victim, and natively the same load beside the same victim, for comparison.

usage: beside.py BUILD OUT [--seconds S] [--native-seconds S | --native-of FILE | --only-native] [--same-load] [--unpaced]
                 [--seed N] [--driver LIBRARY] [--memory-mib N]

A victim (victim.cu) checks every byte that it gets back and times launches; a second program of the same user starts
a session a second. Beside them, as other users: floods of launches, memory, compilations, copies, objects, images and
sessions (flood.cc) that go on to the end, and with Causeway the hostile programs of this folder as well, over and over,
each with another seed. Those speak to the daemon, which is not there natively: there an ordinary program takes each one's
place, which starts sessions over and over as they do. The same load is as many calls a second: natively the programs spend
most of their time in the driver's start, and with Causeway hardly any, so what each flood and each stand-in got through in
the native phase bounds it with Causeway (`--unpaced`: nothing does). Hostile programs are never bounded. Runs as root on any host with an NVIDIA GPU, or with `--driver` on
the software GPU, whose times say nothing. A session's start is the time from its main function to the driver's first
answer, which it has from its worker; the time to its first kernel's result is told beside it: what lies between are calls
of the driver, whose locks all processes share. Natively the attackers take ten seconds to start beside each other, so that
the native phase has to be long as well: `--only-native` runs it alone and writes OUT/beside.json, which `--native-of`
takes instead of a phase of its own; on a host with two GPUs both can run at the same time. Writes OUT/beside.md and
OUT/beside.json; exits 1 if the victim was harmed, something is left over, or a goal is missed.
"""

import argparse
import collections
import datetime
import json
import os
import pathlib
import random
import re
import struct
import sys
import threading
import time

import tenants
from tenants import FIRST_STRANGER, VICTIM, Trouble, wait_for

# Which user floods with what. Natively the same processes run.
FLOODS = [(0, "launches"), (0, "launches"), (0, "memory"), (1, "compile"), (1, "copies"), (1, "images"), (2, "objects"),
          (2, "sessions")]
HOSTILE_USER = FIRST_STRANGER + 3
STAND_IN = "once"  # natively in the place of a hostile program
START_EVERY_S = 1.0
CLEAR_UP_S = 30  # until all is gone when the attackers are
TELL_EVERY_S = 60
ROUND_S = 10  # how long a hostile program goes on before it is started again with another seed; floods go on to the end
SETTINGS = ("spare_workers = 2\nmax_sessions = 128\nlocal_region_mib = 1024\nlog_level = \"info\"\n"
            f"local_device_memory_mib = {{memory_mib}}\n[[user]]\nuid = {VICTIM}\nown_spares = 1\n"
            "[tcp]\nlisten = \"127.0.0.1:0\"\n")


def percentile(values, part):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))] if ordered else float("nan")


class Repeater(threading.Thread):
    """Keeps one attacker there: whenever it has ended, or its round is over, it begins anew with another seed."""

    def __init__(self, run, uid, words_of, program=None, variables=None, round_s=ROUND_S, rate=0):
        super().__init__(daemon=True)
        self.run_, self.uid, self.words_of, self.program, self.variables = run, uid, words_of, program, dict(variables or {})
        self.round_s, self.rate = round_s, rate  # the rate: of calls a second, or of rounds for a stand-in; 0: as many as may be
        self.begun = time.monotonic()
        self.random = random.Random(run.random.random())
        self.rounds = 0
        self.ends = collections.Counter()
        self.trouble = None

    def run(self):
        try:
            while not self.run_.over.is_set():
                self._round()
                if self.rate and "FLOOD_COUNT" not in self.variables:
                    self.run_.over.wait(max(0.0, self.begun + self.rounds / self.rate - time.monotonic()))
        except Exception as trouble:  # told by the main thread
            self.trouble = trouble

    def count_calls(self, file):
        """Of a flood: all of its processes count their calls there, and keep to the rate."""
        file.write_bytes(bytes(4096))
        os.chmod(file, 0o666)
        self.variables["FLOOD_COUNT"] = str(file)
        if self.rate:
            self.variables["FLOOD_RATE"] = str(self.rate)
        return self

    def done(self):
        """Calls of a flood; rounds of another program."""
        file = self.variables.get("FLOOD_COUNT")
        return struct.unpack("Q", pathlib.Path(file).read_bytes()[:8])[0] if file else self.rounds

    def _round(self):
        words = self.words_of(self.random.randrange(1 << 31))
        process = self.run_.tenants.spawn(self.uid, words, self.run_.native, self.program, **self.variables)
        self.rounds += 1
        end = time.monotonic() + 3 * self.round_s
        while process.poll() is None and time.monotonic() < end and not self.run_.over.wait(0.05):
            pass
        self.ends["ended" if process.poll() == 0 else "killed by us" if process.poll() is None else
                  f"exit {process.poll()}"] += 1
        if process.poll() is not None:
            self.run_.over.wait(0.05)  # one that cannot even start
        self.run_.tenants.kill(process)


class Starts(threading.Thread):
    """Starts a session a second and keeps the milliseconds of its stages, from the spawning of its process on.

    With Causeway each start is from the spare worker that is kept for this user: it begins when that one is ready, and how
    long that took is kept as well. A spare takes as long as the driver's own start, which beside this load is seconds. A
    start that is under way when the run ends is ended and does not count.
    """

    STAGES = ("process", "session", "context", "result")  # each of them up to: main, first answer, first memory, the end

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_ = run
        self.stages_ms = {stage: [] for stage in self.STAGES}
        self.ms, self.failures, self.waited_ms = [], [], []
        self.trouble = None

    def await_spare(self):
        """False: the run is over."""
        begin = time.monotonic()
        while self.run_.tenants.status()["workers"]["own_spares"][0]["ready"] == 0:
            if self.run_.over.wait(0.02):
                return False
        self.waited_ms.append((time.monotonic() - begin) * 1e3)
        return True

    def one(self):
        begin = time.clock_gettime_ns(time.CLOCK_MONOTONIC)
        process = self.run_.tenants.spawn(VICTIM, ["startup"], self.run_.native, STARTUP_BEGIN=str(begin))
        end = time.monotonic() + tenants.PATIENCE_S
        while process.poll() is None and not self.run_.over.is_set():
            if time.monotonic() > end:
                raise Trouble(f"a session of the victim's user does not start within {tenants.PATIENCE_S} s")
            time.sleep(0.02)
        if process.poll() is None:
            return self.run_.tenants.kill(process)
        text = self.run_.tenants.result(process)
        if process.returncode != 0 or len(text.split()) != 5:
            return self.failures.append(text.strip()[-300:])
        entered, finished, _, answered, allocated = (int(word) / 1e6 for word in text.split())
        for stage, ms in zip(self.STAGES, (entered, answered - entered, allocated - answered, finished - allocated)):
            self.stages_ms[stage].append(ms)
        self.ms.append(finished - entered)

    def run(self):
        try:
            while not self.run_.over.wait(START_EVERY_S):
                if not self.run_.native and not self.await_spare():
                    break
                self.one()
        except Trouble as trouble:
            self.trouble = trouble


class Watch(threading.Thread):
    """Asks the daemon for its status twice a second: how long that takes, and what it says of its event loop."""

    LOOP = ("loop_late", "loop_busy", "loop_unscheduled")

    def __init__(self, run):
        super().__init__(daemon=True)
        self.run_ = run
        self.answer_ms, self.most_sessions = [], 0
        self.loop_ms = {}  # {figure: (largest, largest 99th percentile of a minute or two)}
        self.work = {}     # {kind of work: its longest piece}
        self.trouble = None

    def run(self):
        try:
            while not self.run_.over.wait(0.5):
                begin = time.monotonic()
                status = self.run_.tenants.status()
                self.answer_ms.append((time.monotonic() - begin) * 1e3)
                self.most_sessions = max(self.most_sessions, len(status["sessions"]))
                self.note(status)
        except Trouble as trouble:
            self.trouble = trouble

    def note(self, status):
        for figure in self.LOOP:
            if figure in status:
                most, p99 = self.loop_ms.get(figure, (0, 0))
                self.loop_ms[figure] = max(most, status[figure]["max_ms"]), max(p99, status[figure]["p99_ms"])
        for work in status.get("loop_work", []):
            if work["max_ms"] >= self.work.get(work["what"], work)["max_ms"]:
                self.work[work["what"]] = work

    def longest_work(self):
        return sorted(self.work.values(), key=lambda work: -work["max_ms"])


class Run:
    """One phase: victim, starts and load, natively or through the daemon."""

    same_load = False  # the native phase's programs also with Causeway
    native_rates = ()  # what each attacker did in a second of the native phase; with Causeway none but hostile programs does more

    def __init__(self, all_tenants, seed, native, memory_mib, seconds):
        self.tenants, self.native, self.seed, self.seconds = all_tenants, native, seed, seconds
        self.random = random.Random(seed)
        self.over = threading.Event()
        self.memory_mib = memory_mib

    def attackers(self):
        rates = iter(() if self.native else self.native_rates)
        found = []
        for user, kind in FLOODS:
            # Natively nobody else bounds it.
            mib = [self.memory_mib // 2] if self.native and kind == "memory" else []
            flood = Repeater(self, FIRST_STRANGER + user, lambda seed, kind=kind, mib=mib:
                             ["flood", kind, self.seconds, seed, *mib], round_s=self.seconds, rate=next(rates, 0))
            found.append(flood.count_calls(self.tenants.folder / f"calls{len(found)}"))
        for uid, program, variables, words in hostile_programs(self.tenants):
            rate = next(rates, 0)
            found.append(Repeater(self, uid, lambda seed: ["flood", STAND_IN, ROUND_S, seed], rate=rate)
                         if self.native or self.same_load else Repeater(self, uid, words, program, variables))
        return found

    def tell(self, seconds, helpers):
        """What is known so far, for a reader of a run that does not come to its end."""
        print(f"{'native' if self.native else 'Causeway'} after {seconds} s: {len(helpers[0].ms)} starts, p99 "
              f"{percentile(helpers[0].ms, 0.99):.1f} ms, {len(helpers[0].failures)} failed" +
              ("" if self.native else f"; loop (most, p99) {helpers[1].loop_ms}"), flush=True)
        for work in [] if self.native else helpers[1].longest_work()[:3]:
            print(f"  {work['what']}: {work['max_ms']:.2f} ms, of which {work['max_processor_ms']:.2f} on a processor", flush=True)

    def go(self):
        """The victim's report, with what the others saw."""
        victim = tenants.Victim(self.tenants, self.seed % 1000 + 1, self.native)
        helpers = [Starts(self)] + ([] if self.native else [Watch(self)])
        attackers = self.attackers()
        for each in helpers + attackers:
            each.start()
        begun, told = time.monotonic(), 0
        try:
            while (time.monotonic() < begun + self.seconds and victim.process.poll() is None and
                   not any(each.trouble for each in helpers)):
                time.sleep(0.2)
                if time.monotonic() > begun + told + TELL_EVERY_S:
                    told += TELL_EVERY_S
                    self.tell(told, helpers)
            report = victim.finish() if not any(each.trouble for each in helpers) else None
        finally:
            self.over.set()
            for each in helpers + attackers:
                each.join(2 * tenants.PATIENCE_S)
        for each in helpers + attackers:
            if each.is_alive():
                raise Trouble(f"{each} does not end")
            if each.trouble:
                raise each.trouble
        report["starts_ms"], report["start_failures"] = helpers[0].ms, helpers[0].failures
        report["spare_waits_ms"], report["stages_ms"] = helpers[0].waited_ms, helpers[0].stages_ms
        report["attackers"] = [{"words": each.words_of(0)[:2], "program": str(each.program or ""), "rounds": each.rounds,
                                "rate": each.done() / self.seconds, "most": each.rate, "ends": dict(each.ends)}
                               for each in attackers]
        if not self.native:
            watch = helpers[1]
            report.update(answer_ms=watch.answer_ms, loop_ms=watch.loop_ms, most_sessions=watch.most_sessions,
                          work=watch.longest_work())
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


def worker_waits(text, begin):
    """Milliseconds until each of the victim's sessions had its worker, as the daemon's log says from that character on."""
    return [float(ms) for ms in re.findall(rf"uid {VICTIM}\) is served by worker \d+ after ([\d.]+) ms", text[begin:])]


def await_idle(all_tenants):
    """Until the daemon has nothing but its spare workers."""
    def idle():
        status = all_tenants.status()
        workers = status["workers"]
        return (not status["sessions"] and not status["accounts"] and workers["starting"] == 0
                and workers["all"] == workers["spare_ready"] == workers["spare_wanted"])
    wait_for("sessions, workers and accounts to be gone", idle, CLEAR_UP_S)


def left_over(all_tenants, before):
    """What the attackers have left: nothing, once the daemon has had time to clear up. `before`: descriptors, when it was idle."""
    try:
        await_idle(all_tenants)
        wait_for("the daemon's descriptors", lambda: all(
            count <= before.get(what, 0) for what, count in all_tenants.descriptors().items()), CLEAR_UP_S)
    except Trouble as trouble:
        now, status = all_tenants.descriptors(), all_tenants.status()
        more = {what: (before.get(what, 0), count) for what, count in now.items() if count > before.get(what, 0)}
        return [str(trouble), f"descriptors before and now: {more}",
                json.dumps({key: status[key] for key in ("workers", "accounts", "sessions")})]
    return []


def both(values):
    return f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f}"


def start_rows(native, guest):
    answered = percentile(guest["stages_ms"]["session"], 0.99)
    table = []
    for stage, name in zip(Starts.STAGES, ("process, before the session begins", "session start: until the driver's first answer",
                                           "then until the first memory", "then until a kernel's result")):
        goal = "<= 100 at p99" if stage == "session" else ""
        table.append([f"{name}, p50 / p99, ms", both(native["stages_ms"][stage]), both(guest["stages_ms"][stage]), goal,
                      not goal or answered <= 100])
    table.append([f"all of it, p50 / p99, ms, of {len(native['starts_ms'])} and {len(guest['starts_ms'])} starts",
                  both(native["starts_ms"]), both(guest["starts_ms"]), "", True])
    table.append(["in the daemon until it has its worker, p50 / p99, ms", "", both(guest["worker_waits_ms"]), "", True])
    table.append(["its own spare is ready again after, p50 / p99, ms", "", both(guest["spare_waits_ms"]), "", True])
    return table


def loop_rows(guest):
    """How late the daemon's loop was; of that what it did itself, waits included, and what the kernel ran in its place."""
    table = []
    for figure, name, goal in (("loop_late", "most late", 10), ("loop_busy", "longest busy itself", 10),
                               ("loop_unscheduled", "longest not scheduled", None)):
        most, p99 = guest["loop_ms"].get(figure, (None, None))
        said = "not told" if most is None else f"{most:.2f} (p99 {p99:.2f})"
        table.append([f"daemon's loop: {name}, ms", "", said, f"<= {goal}" if goal else "",
                      goal is None or (most is not None and most <= goal)])
    return table


def rows(native, guest, log, seconds):
    """[figure, native, Causeway, goal, kept]"""
    ratio = {key: guest["launch_us"][key] / max(native["launch_us"][key], 1e-9) for key in ("p50", "p99")}
    table = [["victim: rounds", native["rounds"], guest["rounds"], "", True],
             ["victim: errors", native["errors"], guest["errors"], "0", guest["errors"] == 0],
             ["victim: wrong bytes", native["wrong_bytes"], guest["wrong_bytes"], "0", guest["wrong_bytes"] == 0]]
    for key in ("p50", "p99"):
        table.append([f"launch and wait, {key}, µs", round(native["launch_us"][key], 1),
                      f"{guest['launch_us'][key]:.1f} ({ratio[key]:.2f} x)", "<= 2 x native", ratio[key] <= 2])
    table += start_rows(native, guest)
    table.append(["sessions that did not start", len(native["start_failures"]), len(guest["start_failures"]), "0",
                  not guest["start_failures"]])
    for scope, (lines, most) in sorted(log.items()):
        # What is nobody's has no limit of its own, and a second of ours may hold parts of two of the daemon's.
        table.append([f"log lines a second, {scope}", "", f"{lines / seconds:.1f} (busiest second {most})", "<= 20",
                      (lines / seconds if scope == "nobody's" else most) <= 20])
    table += loop_rows(guest)
    table.append(["`causeway status` answers, p50 / p99, ms", "",
                  f"{percentile(guest['answer_ms'], 0.5):.1f} / {percentile(guest['answer_ms'], 0.99):.1f}", "", True])
    table.append(["sessions at once, most", "", guest["most_sessions"], "", True])
    return table


def markdown(table, title, guest):
    lines = [title, "", "| figure | native | Causeway | goal | |", "|---|---:|---:|---|---|"]
    for name, native, causeway, goal, kept in table:
        lines.append(f"| {name} | {native} | {causeway} | {goal} | {'' if not goal else 'ok' if kept else 'MISSED'} |")
    lines += ["", "| longest work of the daemon's loop | times | ms | of which on a processor |", "|---|---:|---:|---:|"]
    for work in guest["work"][:12]:
        lines.append(f"| {work['what']} | {work['times']} | {work['max_ms']:.2f} | {work['max_processor_ms']:.2f} |")
    lines += ["", "| attacker | calls or rounds a second | at most | rounds | ends |", "|---|---:|---:|---:|---|"]
    for each in guest["attackers"]:
        ends = ", ".join(f"{count} {how}" for how, count in sorted(each["ends"].items()))
        lines.append(f"| {' '.join(str(word) for word in each['words'])} | {each['rate']:.1f} | "
                     f"{format(each['most'], '.1f') if each['most'] else ''} | {each['rounds']} | {ends} |")
    return "\n".join(lines) + "\n"


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--seconds", type=float, default=480)
    parser.add_argument("--native-seconds", type=float, default=240)
    parser.add_argument("--native-of", type=pathlib.Path, help="beside.json of a run with a native phase")
    parser.add_argument("--only-native", action="store_true")
    parser.add_argument("--same-load", action="store_true", help="with Causeway the programs of the native phase, no hostile "
                        "ones: what the victim's launches wait beside equal programs")
    parser.add_argument("--unpaced", action="store_true", help="floods make as many calls with Causeway as they can")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--driver")
    parser.add_argument("--memory-mib", type=int, default=0, help="of the device for each user; default 8192, or 512")
    return parser.parse_args()


def write_reports(given, native, guest):
    (given.out / "beside.json").write_text(json.dumps({"native": native, "causeway": guest}), encoding="utf-8")


def native_report(given, everyone, seed, memory_mib):
    """The native phase of this run, or the one of another."""
    if given.native_of:
        return json.loads(given.native_of.read_text(encoding="utf-8"))["native"]
    report = Run(everyone, seed, True, memory_mib, given.native_seconds).go()
    report.update(seconds=given.native_seconds, seed=seed)
    write_reports(given, report, None)
    return report


def main():
    given = arguments()
    given.out.mkdir(parents=True, exist_ok=True)
    Run.same_load = given.same_load
    seed = tenants.seed_of(given.seed)
    memory_mib = given.memory_mib or (512 if given.driver else 8192)
    everyone = tenants.Tenants(given.build, given.driver)
    try:
        native = native_report(given, everyone, seed, memory_mib)
        print(f"native: {json.dumps(native['launch_us'])}", flush=True)
        if given.only_native:
            return 0
        everyone.start_daemon(SETTINGS.format(memory_mib=memory_mib))
        everyone.await_spares()
        everyone.result(everyone.spawn(VICTIM, ["startup"]))  # what the daemon opens once
        await_idle(everyone)
        before, logged = everyone.descriptors(), len(everyone.log_text())
        if not given.unpaced:
            Run.native_rates = [each["rate"] for each in native["attackers"]]
        guest = Run(everyone, seed, False, memory_mib, given.seconds).go()
        left = left_over(everyone, before)
        everyone.stop_daemon()
        guest["worker_waits_ms"] = worker_waits(everyone.log_text(), logged)
        table = rows(native, guest, log_rates(everyone.log_text()), given.seconds)
        table.append(["left when all are gone", "", "; ".join(left) or "nothing", "nothing", not left])
    except Trouble as trouble:
        print(f"beside.py: {trouble}")
        return 1
    finally:
        (given.out / "causewayd.log").write_text(everyone.log_text(), encoding="utf-8")
        everyone.end()
    text = markdown(table, f"Seed {seed}, {given.seconds:.0f} s, natively {native['seconds']:.0f} s with seed {native['seed']}.",
                    guest)
    (given.out / "beside.md").write_text(text, encoding="utf-8")
    write_reports(given, native, guest)
    print(text)
    for what, report in (("natively", native), ("with Causeway", guest)):
        if report["errors"] or report["start_failures"]:
            print(f"{what}: first error '{report['first_error']}', sessions that did not start: {report['start_failures'][:3]}")
    return 0 if all(kept for *_, kept in table) else 1


if __name__ == "__main__":
    sys.exit(main())
