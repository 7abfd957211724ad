#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""causewayd is upgraded, restarted and killed under sessions that are at work: no call fails, no byte is wrong, nothing leaks.

usage: upgrade.py BUILD [--sessions N] [--upgrades N] [--restarts N] [--kills N] [--seed N]

The sessions are processes on the software GPU through the local transport (upgrade_client.cc). An upgrade puts another
program in causewayd's place and asks for `causeway upgrade`; before the first, programs that do not start are put there,
and the old daemon has to go on. A restart is what `systemctl restart` does: SIGUSR1, and a new process. A kill is SIGKILL
at a random moment. Beside them, processes begin and end all the time, but not while daemons are killed: what is being
opened then may be refused.
"""

import argparse
import contextlib
import contextlib
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LIMIT_S = 120
NAME = pathlib.Path(sys.argv[0]).stem


def expect(holds, what, host=None):
    if not holds:
        sys.exit(f"{NAME}: {what}" + (f"\n{host.log_tail()}" if host else ""))


def wait_for(what, done):
    end = time.monotonic() + LIMIT_S
    while not done():
        if time.monotonic() > end:
            sys.exit(f"{NAME}: waited {LIMIT_S} s in vain for {what}")
        time.sleep(0.01)


class Host:
    def __init__(self, build, folder, driver):
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in "causewayd", "causeway", "causeway-launcher", "causeway-worker":
            shutil.copy(build / "host_backend" / name, self.bin / name)
        (folder / "state").mkdir()
        self.socket = folder / "socket"
        self.config = folder / "config.toml"
        self.config.write_text(
            f'socket = "{self.socket}"\nstate_folder = "{folder}/state"\nlog_level = "debug"\nkeep_sessions_s = 60\n'
            f'driver_library = "{driver}"\nlocal_region_mib = 128\nspare_workers = 1\n')
        self.log = folder / "log"
        self.daemon = None

    def start(self):
        with self.log.open("ab") as log:
            self.daemon = subprocess.Popen([self.bin / "causewayd", "--config", self.config], stderr=log)
        self.await_answer()

    def command(self, *words):
        return subprocess.run([self.bin / "causeway", *words, "--control-socket", f"{self.socket}.control"],
                              capture_output=True, text=True, check=False, timeout=LIMIT_S)

    def serves(self):
        if self.daemon.poll() is not None:
            sys.exit(f"upgrade: causewayd ended with status {self.daemon.returncode}:\n" + self.log_tail())
        return subprocess.run([self.bin / "causeway", "status", "--json", "--socket", self.socket],
                              capture_output=True, check=False, timeout=LIMIT_S).returncode == 0

    def await_answer(self):
        wait_for("causewayd to answer", self.serves)

    def status(self):
        return subprocess.run([self.bin / "causeway", "status", "--json", "--socket", self.socket],
                              capture_output=True, text=True, check=True, timeout=LIMIT_S).stdout

    def log_tail(self):
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def keep_program(self):
        """Before install: what it puts in the program's place."""
        shutil.copy(self.bin / "causewayd", self.bin / "causewayd.kept")

    def end_processes(self):
        for pids in self.processes().values():
            for pid in pids:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def install(self, text=None):
        """Another file in the program's place, as package managers do it."""
        fresh = self.bin / "causewayd.new"
        if text is None:
            shutil.copy(self.bin / "causewayd.kept", fresh)
        else:
            fresh.write_text(text)
        fresh.chmod(0o755)
        fresh.rename(self.bin / "causewayd")

    def processes(self):
        """Of this host's programs: pid by name."""
        found = {}
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            program = line[0].decode(errors="replace")
            if program.startswith(str(self.bin)):
                found.setdefault(pathlib.Path(program).name, []).append(int(entry.name))
        return found

    def held(self):
        """What must not grow: descriptors and resident memory of daemon and launcher, and the numbers of processes."""
        processes = self.processes()
        figures = {"workers": len(processes.get("causeway-worker", []))}
        for name in "causewayd", "causeway-launcher":
            pids = processes.get(name, [])
            figures[name] = len(pids)
            for pid in pids:
                try:
                    figures[name + " descriptors"] = len(os.listdir(f"/proc/{pid}/fd"))
                    figures[name + " KiB"] = int(pathlib.Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4
                except OSError:
                    pass
        return figures


@contextlib.contextmanager
def host_of(build, driver=None):
    """A host in a folder of its own, on the software GPU if no other driver's library is named, whose daemon is not started yet. In the
    end its daemon has to stop, and all processes with it."""
    with tempfile.TemporaryDirectory(prefix=f"causeway-{NAME}-") as name:
        pathlib.Path(name).chmod(0o755)  # a checkpointer is another user when its program starts
        host = Host(build, pathlib.Path(name), driver or f"{build}/software_gpu/libcuda.so.1")
        try:
            yield host
            host.daemon.terminate()
            expect(host.daemon.wait(LIMIT_S) == 0, "the daemon did not stop")
            wait_for("all processes to end", lambda: not host.processes())
        except SystemExit:
            print(host.log_tail(), file=sys.stderr)
            raise
        finally:
            host.end_processes()


def library_of(host, source):
    """For LD_PRELOAD: made of a source beside this file."""
    library = host.folder / pathlib.Path(source).with_suffix(".so")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, pathlib.Path(__file__).with_name(source)], check=True)
    return library


class Client:
    def __init__(self, build, client, host, seed):
        environment = dict(os.environ, CAUSEWAY=f"local:{host.socket}", LD_LIBRARY_PATH=str(build / "guest_lib"))
        environment.pop("CUDA_VISIBLE_DEVICES", None)  # the daemon has it, which decides for its guests
        self.process = subprocess.Popen([client, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True, env=environment)

    def working(self):
        line = self.process.stdout.readline()
        if line != "working\n":
            sys.exit(f"upgrade: a session did not begin: {line}{self.process.stderr.read()}")

    def result(self):
        self.process.stdin.close()
        self.process.stdin = None
        out, err = self.process.communicate(timeout=LIMIT_S)
        if self.process.returncode != 0:
            sys.exit(f"upgrade: a session failed: {out}{err}")
        words = out.split()
        return {words[at]: int(words[at + 1]) for at in range(0, len(words), 2)}


def check_failing_upgrades(host):
    host.keep_program()
    pid = host.daemon.pid
    for text, part in (("#!/bin/sh\necho it is broken >&2\nexit 3\n", "it is broken"), ("no program", "cannot be executed")):
        host.install(text)
        failed = host.command("upgrade")
        if failed.returncode != 1 or part not in failed.stderr:
            sys.exit(f"upgrade: a program that does not start: {failed}")
        host.await_answer()
    host.install()
    if host.daemon.pid != pid or host.daemon.poll() is not None:
        sys.exit("upgrade: the old daemon has not gone on")


def upgrade(host):
    host.install()
    done = host.command("upgrade")
    if done.returncode != 0:
        sys.exit(f"upgrade: it failed: {done.stderr}\n{host.log_tail()}")


def restart(host):
    host.daemon.send_signal(signal.SIGUSR1)
    try:
        left = host.daemon.wait(LIMIT_S) == 0
    except subprocess.TimeoutExpired:
        left = False
        for name in "status", "wchan", "stack":
            with contextlib.suppress(OSError):
                print(f"upgrade: {name} of the daemon:", pathlib.Path(f"/proc/{host.daemon.pid}/{name}").read_text(), file=sys.stderr)
    if not left:
        sys.exit("upgrade: a daemon did not leave\n" + host.log_tail())
    host.start()


def kill(host):
    time.sleep(random.random() * 0.1)
    host.daemon.kill()
    host.daemon.wait()
    host.start()


class Passers:
    """Sessions that begin and end while others go on."""

    def __init__(self, build, client, host):
        self.make = lambda seed: Client(build, client, host, seed)
        self.live = []
        self.seen = 0

    def step(self):
        if self.live and (len(self.live) > 1 or random.random() < 0.5):
            passer = self.live.pop(0)
            passer.working()
            passer.result()
            self.seen += 1
        self.live.append(self.make(random.randrange(1 << 30)))

    def finish(self):
        while self.live:
            passer = self.live.pop(0)
            passer.working()
            passer.result()
            self.seen += 1


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    for name, usual in ("sessions", 8), ("upgrades", 100), ("restarts", 100), ("kills", 30), ("seed", 1):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    random.seed(options.seed)
    build = options.build.resolve()
    client = build / "tests/upgrade/upgrade_client"
    with host_of(build) as host:
        run(options, build, client, host)
    print("upgrade: no call was lost, no byte was wrong, nothing is left")


def spare_ready(host):
    return host.held()["workers"] >= 1 and '"spare_ready":1' in host.status()


def more_than(first, held):
    """(what, how much) of what is held now beyond what was held first; memory may grow by 8 MiB."""
    return [(key, value) for key, value in held.items()
            if first and value > first.get(key, 0) + (8192 if key.endswith("KiB") else 0)]


def settled(host, first):
    """What is held when nothing is held beyond the first any more, or after the limit: descriptors are closed by a thread."""
    end = time.monotonic() + LIMIT_S
    while more_than(first, host.held()) and time.monotonic() < end:
        time.sleep(0.05)
    return host.held()


def run(options, build, client, host):
    host.start()
    wait_for("a spare", lambda: spare_ready(host))
    check_failing_upgrades(host)
    print(f"{'change':10} {'times':>6} {'rounds':>9} {'wrong':>6} {'longest pause':>14} {'passers':>8}")
    first = None
    for what, change, times in (("none", lambda _: time.sleep(0.5), 2), ("upgrade", upgrade, options.upgrades),
                                ("restart", restart, options.restarts), ("kill -9", kill, options.kills)):
        clients = [Client(build, client, host, seed) for seed in range(options.sessions)]
        for each in clients:
            each.working()
        passers = Passers(build, client, host)
        for _ in range(times):
            if what != "kill -9":
                passers.step()
            change(host)
        passers.step()
        passers.finish()
        results = [each.result() for each in clients]
        print(f"{what:10} {times:6} {sum(r['rounds'] for r in results):9} {sum(r['wrong'] for r in results):6} "
              f"{max(r['longest_ms'] for r in results):11} ms {passers.seen:8}", flush=True)
        images = json.loads(host.status())["images"]
        expect(what == "none" or (images["kept"], images["not_found"]) == (1, 0) and images["found"] > 0,
               f"after the last {what} the module's image was sent again: {images}", host)
        wait_for("all sessions to end", lambda: '"sessions":[]' in host.status())
        wait_for("the usual number of spares", lambda: spare_ready(host) and host.held()["workers"] == 1)
        held = settled(host, first)
        print("           " + ", ".join(f"{key} {value}" for key, value in held.items()), flush=True)
        first = first or held
        for key, value in more_than(first, held):
            sys.exit(f"upgrade: {key} were {first.get(key, 0)} and are {value}")


if __name__ == "__main__":
    main()
