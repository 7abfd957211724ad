#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kill -9` at random moments: guest processes, workers, daemons, launchers. Others are unharmed, nothing hangs, nothing is left.

usage: kill_storm.py BUILD [--driver LIBRARY] [--guests N] [--daemons N] [--seed N] [--at-once N] [--batch N]

Guest processes flood a daemon with random work (flood.cc); each, or its worker, is killed at a random moment. Beside them
a victim verifies its bytes all the time. After each batch: no session, account, worker, descriptor of the daemon, memory
file, process on the device or file in /dev/shm more than before. Then daemons, or their launchers, are killed, with
guests, while the victim's daemon goes on: their guests and workers end, and the next daemon serves at the same socket.
Runs as root; `--driver` defaults to the software GPU of BUILD; `--driver nvidia` is the host's own.
"""

import argparse
import collections
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import tenants
from tenants import FIRST_STRANGER, VICTIM, Trouble, alive, wait_for

KINDS = ["launches", "memory", "compile", "copies", "objects", "images", "hold", "once"]
MEMORY_MIB = 64  # that one guest holds at most, so that all have room
LONGEST_S = 0.8
OWN_SHM = "CAUSEWAY_STORM_SHM"
SETTINGS = "spare_workers = 2\nmax_sessions = 64\nlocal_region_mib = 256\n"


def descendants(pid):
    parents = {}
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z":
            parents[int(stat.parent.name)] = int(fields[1])
    found, more = set(), {pid}
    while more:
        found |= more
        more = {child for child, parent in parents.items() if parent in more} - found
    return found - {pid}


def launcher_of(daemon):
    """0: it has none yet."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, fields = stat.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)
        except OSError:
            continue
        if int(fields.split()[1]) == daemon and name.endswith("(causeway-launch"):  # 15 characters, says the kernel
            return int(stat.parent.name)
    return 0


def memory_files(pids):
    """Memory files that hold a session's region or payload: how many different ones these processes have open or mapped.
    Outputs of workers and kept images are not among them: those outlive sessions, and the cache bounds them."""
    found = set()
    for pid in pids:
        for link in pathlib.Path(f"/proc/{pid}/fd").glob("*"):
            try:
                name = os.readlink(link)
                if "memfd:" in name and not any(kept in name for kept in ("causeway-std", *tenants.KEPT_FILES)):
                    found.add(os.stat(link).st_ino)
            except OSError:
                pass
    return len(found)


def take_own_shm():
    """Begins again with a /dev/shm of its own, where this host allows that: others' programs come and go in the common one."""
    if os.environ.get(OWN_SHM) == "wanted":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)
        os.environ[OWN_SHM] = "there"
    elif OWN_SHM not in os.environ and subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode == 0:
        os.environ[OWN_SHM] = "wanted"
        os.execvp("unshare", ["unshare", "-m", sys.executable, *sys.argv])


def shared_files():
    """Names in /dev/shm, where they are this storm's alone."""
    return sorted(name for name in os.listdir("/dev/shm") if "causeway" in name) if os.environ.get(OWN_SHM) == "there" else []


class Storm:
    def __init__(self, given, seed):
        self.given = given
        self.random = random.Random(seed)
        driver = None if given.driver == "nvidia" else given.driver or given.build / "software_gpu/libcuda.so.1"
        self.tenants = tenants.Tenants(given.build, driver)
        self.killed = collections.Counter()

    # ---- what is there -------------------------------------------------------------------------------------------

    def state(self):
        """What must be the same before and after a batch."""
        status = self.tenants.status()
        ours = descendants(self.tenants.daemon.pid)
        return {"sessions": sorted(session["uid"] for session in status["sessions"]),
                "accounts": sorted(account["scope"] for account in status["accounts"]),
                "workers": (status["workers"]["all"], status["workers"]["spare_ready"], status["workers"]["starting"]),
                "slots in use": [region["slots_in_use"] for region in status["regions"]],
                "processes of the daemon": len(ours),
                "descriptors of the daemon": self.tenants.descriptors(),
                "memory files": memory_files(ours | {self.tenants.daemon.pid}),
                "processes on the device": len(self.tenants.device_processes()),
                "files in /dev/shm": shared_files()}

    def await_state(self, wanted):
        now = {}

        def same():
            now.clear()
            now.update(self.state())
            return now == wanted
        try:
            wait_for("what the dead had to be gone", same, step_s=0.1)
        except Trouble as trouble:
            different = {key: (wanted[key], now[key]) for key in wanted if now.get(key) != wanted[key]}
            raise Trouble(f"{trouble}; before and now: {different}\n{self.tenants.log_text()[-3000:]}") from trouble

    def steady_state(self):
        """The state with nobody but the victim, once it has stopped changing."""
        seen = []

        def steady():
            seen.append(self.state())
            return len(seen) > 5 and all(each == seen[-1] for each in seen[-5:])
        wait_for("the daemon to be steady", steady, step_s=0.1)
        return seen[-1]

    # ---- guests and workers --------------------------------------------------------------------------------------

    def spawn(self, number):
        kind = self.random.choice(KINDS)
        guest = self.tenants.spawn(FIRST_STRANGER + number % 3, ["flood", kind, 300, self.random.randrange(1 << 31), MEMORY_MIB])
        # Most die early, while the session is made; some in the middle of their work.
        guest.due = time.monotonic() + LONGEST_S * self.random.random() ** 2
        guest.kills_worker = self.random.random() < 0.5
        return guest

    def worker_of(self, guest):
        return next((session["worker_pid"] for session in self.tenants.status()["sessions"]
                     if session["pid"] == guest.pid and session["worker_pid"] > 0), 0)

    def strike(self, guest):
        """Kills the guest, or its worker, where it has one; then the guest has to end by itself."""
        worker = self.worker_of(guest) if guest.kills_worker else 0
        if worker:
            try:
                os.kill(worker, signal.SIGKILL)
                self.killed["workers"] += 1
            except ProcessLookupError:
                worker = 0
        if not worker:
            self.killed["guests"] += guest.poll() is None
            self.tenants.kill(guest)
            return
        self.tenants.result(guest)

    def batch(self, count):
        there = []
        for number in range(count):
            there.append(self.spawn(number))
            while len(there) >= self.given.at_once or (there and number == count - 1):
                first = min(there, key=lambda guest: guest.due)
                time.sleep(max(0, first.due - time.monotonic()))
                there.remove(first)
                self.strike(first)

    def guests(self):
        tenants_ = self.tenants
        tenants_.start_daemon(SETTINGS)
        tenants_.await_spares()
        victim = tenants.Victim(tenants_, self.random.randrange(1000), words=4096)
        tenants_.await_spares()
        before = self.steady_state()
        while sum(self.killed.values()) < self.given.guests:
            count = min(self.given.batch, self.given.guests - sum(self.killed.values()))
            self.batch(count)
            self.await_state(before)
            print(f"{dict(self.killed)} killed, as before", flush=True)
        self.expect_unharmed(victim)
        tenants_.stop_daemon()

    @staticmethod
    def expect_unharmed(victim):
        report = victim.finish()
        print(f"victim: {report['rounds']} rounds, {report['errors']} errors, {report['wrong_bytes']} wrong bytes", flush=True)
        if report["errors"] or report["wrong_bytes"]:
            raise Trouble(f"the victim was harmed: {report}")

    # ---- daemons -------------------------------------------------------------------------------------------------

    def daemons(self):
        """The victim has a daemon of its own, which goes on."""
        others = tenants.Tenants(self.given.build, self.tenants.driver)
        try:
            others.start_daemon(SETTINGS)
            victim = tenants.Victim(others, self.random.randrange(1000), words=4096)
            shared = shared_files()
            for number in range(self.given.daemons):
                self.one_daemon(number)
                if (number + 1) % 50 == 0:
                    print(f"{number + 1} daemons killed", flush=True)
            # And who comes after them finds a host that works.
            self.tenants.start_daemon(SETTINGS)
            last = self.tenants.spawn(VICTIM, ["startup"])
            text = self.tenants.result(last)
            if last.returncode != 0:
                raise Trouble(f"a program after {self.given.daemons} killed daemons: {text}")
            self.tenants.stop_daemon()  # which clears up after those before it
            left = [name for name in shared_files() if name not in shared]
            if left:
                raise Trouble(f"killed daemons have left in /dev/shm: {left}")
            self.expect_unharmed(victim)
        finally:
            others.end()

    def one_daemon(self, number):
        tenants_ = self.tenants
        if self.random.random() < 0.2:
            tenants_.start_daemon_at_once(SETTINGS)  # killed while it starts
        else:
            tenants_.start_daemon(SETTINGS)
        guests = [self.spawn(number + i) for i in range(self.random.randrange(4))]
        time.sleep(LONGEST_S * self.random.random() ** 2)
        theirs = descendants(tenants_.daemon.pid)
        launcher = launcher_of(tenants_.daemon.pid) if self.random.random() < 0.3 else 0
        if launcher:
            os.kill(launcher, signal.SIGKILL)  # the daemon cannot go on without it, and says so
            self.killed["launchers"] += 1
            wait_for("the daemon to end after its launcher", lambda: tenants_.daemon.poll() is not None)
            if tenants_.daemon.returncode != 1:
                raise Trouble(f"the daemon ended with {tenants_.daemon.returncode} after its launcher:\n{tenants_.log_text()[-3000:]}")
        else:
            tenants_.daemon.kill()
            tenants_.daemon.wait()
            self.killed["daemons"] += 1
        wait_for("the dead daemon's processes to end", lambda: not any(alive(pid) for pid in theirs))
        for guest in guests:
            tenants_.result(guest)  # with an error, not by our hand
        wait_for("the device to be free", lambda: not tenants_.device_processes())


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--driver")
    parser.add_argument("--guests", type=int, default=24, help="guest processes and workers, together")
    parser.add_argument("--daemons", type=int, default=4)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--at-once", type=int, default=6)
    parser.add_argument("--batch", type=int, default=100)
    return parser.parse_args()


def main():
    given = arguments()
    if os.geteuid() != 0:
        print("kill_storm.py: left out: it needs root, to be several users")
        return 77
    take_own_shm()
    storm = Storm(given, tenants.seed_of(given.seed))
    begun = time.monotonic()
    try:
        if given.guests:
            storm.guests()
        if given.daemons:
            storm.daemons()
    except Trouble as trouble:
        print(f"kill_storm.py: after {dict(storm.killed)}: {trouble}")
        return 1
    finally:
        storm.tenants.end()
    print(f"kill_storm.py: passed: {dict(storm.killed)} killed in {time.monotonic() - begun:.0f} s, no hang, nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
