#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What goes wrong around a daemon whose sessions are at work: each time they go on, one sentence says what is wrong, and nothing is half done.

usage: bad_world.py BUILD [--sessions N] [--kills N] [--seed N]

  configuration   an error, an unknown key and a missing file at reload, at SIGHUP and at an upgrade: the line is named, nothing changes
  hand-over       the daemon is killed before, in and after the change of programs, each of which has to be met, and at random moments of
                  upgrades and restarts
  absence         no daemon for longer than a guest waits for a sign of life, while a call waits
  disk            no room where state and log are: sessions begin and go on, an upgrade too, and a VM that cannot be written down is not added
  clock           the time of day jumps by a day at each look

The other bad cases have tests of their own: programs that do not start (upgrade.py), VMs that are removed (reload_test), guests newer than
the host (versions.py), images without a loader's cache and roots that are read-only (containers_test.py).
The sessions are those of upgrade.py. `disk` needs root, to mount a small file system, and is left out without.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import socket
import subprocess
import sys
import time

import upgrade
from upgrade import expect

BEFORE, BETWEEN, AFTER = "before it left", "while the next one started, or before", "after the next one had taken over"
ABSENT_S = 18  # a guest's limit for a daemon's beat is 15 s
# Waits in a call for what a thread of its own does after so many seconds.
WAITER = """
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def check(result):
    if result: sys.exit(f"the driver answers {result}")
device, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
check(cuda.cuInit(0))
check(cuda.cuDeviceGet(ctypes.byref(device), 0))
check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
check(cuda.cuCtxSetCurrent(context))
check(cuda.cuStreamCreate(ctypes.byref(stream), 1))
@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def later(_):
    print("working", flush=True)
    time.sleep(float(sys.argv[1]))
check(cuda.cuLaunchHostFunc(stream, later, None))
check(cuda.cuStreamSynchronize(stream))
"""


class Sessions:
    """That are at work, and are asked at their end what they have seen."""

    def __init__(self, options, host):
        self.clients = [upgrade.Client(options.build, options.client, host, seed) for seed in range(options.sessions)]
        for client in self.clients:
            client.working()

    def end(self, host, what):
        results = [client.result() for client in self.clients]
        upgrade.wait_for("all sessions to end", lambda: '"sessions":[]' in host.status())
        print(f"{what:14} {len(results)} sessions, {sum(r['rounds'] for r in results)} rounds, "
              f"{sum(r['wrong'] for r in results)} wrong bytes, longest pause {max(r['longest_ms'] for r in results)} ms", flush=True)


def passes(options, host):
    """A session begins and ends."""
    client = upgrade.Client(options.build, options.client, host, 7)
    client.working()
    client.result()


def configuration(options, host):
    good = host.config.read_text()
    sessions = Sessions(options, host)
    pid = host.daemon.pid
    line = len(good.splitlines()) + 1
    for text, part in ((good + "max_sessions = = 3\n", f"{host.config}:{line}"), (good + "max_sesions = 3\n", "max_sesions"),
                       (good + "max_sessions = -1\n", f"{host.config}:{line}"), (None, str(host.config))):
        if text is None:
            host.config.rename(host.config.with_suffix(".away"))
        else:
            host.config.write_text(text)
        for command in "reload", "upgrade":
            done = host.command(command)
            expect(done.returncode == 1 and part in done.stderr, f"{command} with a bad configuration: {done}", host)
        said = host.log.read_text().count("the configuration stays as it was")
        host.daemon.send_signal(signal.SIGHUP)
        upgrade.wait_for("the log to name it", lambda: host.log.read_text().count("the configuration stays as it was") > said)
        if text is None:
            host.config.with_suffix(".away").rename(host.config)
    host.config.write_text(good)
    passes(options, host)
    done = host.command("reload")
    expect(done.returncode == 0, f"reload with the good configuration: {done}", host)
    expect(host.daemon.pid == pid and host.daemon.poll() is None, "the daemon is another one", host)
    sessions.end(host, "configuration")


def hand_over(options, host):
    host.install()
    begin = time.monotonic()
    expect(host.command("upgrade").returncode == 0, "an upgrade failed", host)
    host.await_answer()
    whole_s = time.monotonic() - begin
    passes(options, host)
    upgrade.wait_for("one spare", lambda: upgrade.spare_ready(host) and host.held()["workers"] == 1)
    before = host.held()
    # What the session had is closed by a thread. The watch of its user's folder, which another process makes, may come later.
    least = "causewayd descriptors"
    for _ in range(20):
        time.sleep(0.1)
        before[least] = min(before[least], host.held()[least])
    before[least] += 1
    moments = {}
    wanted = [BEFORE, BETWEEN, AFTER] * 6  # until each was met; then at random
    for round_ in range(options.kills + 1):
        while wanted and wanted[0] in moments:
            wanted.pop(0)
        until = wanted.pop(0) if wanted else None
        sessions = Sessions(options, host) if round_ % 10 == 0 else sessions
        command = None
        pid = host.daemon.pid
        logged = len(host.log.read_text(errors="replace"))
        if until or round_ % 2 == 0:
            command = subprocess.Popen([host.bin / "causeway", "upgrade", "--control-socket", f"{host.socket}.control"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        else:
            host.daemon.send_signal(signal.SIGUSR1)
        if until is None:
            time.sleep(random.random() * 1.2 * whole_s)
        upgrade.wait_for(f"the moment {until}", lambda: until in (None, BEFORE) or moment(host, logged) in (until, AFTER))
        host.daemon.kill()
        host.daemon.wait()
        met = moment(host, logged)
        moments[met] = moments.get(met, 0) + 1
        host.start()
        if command is not None:
            command.wait(upgrade.LIMIT_S)  # it asks whoever answers next
        expect(host.daemon.pid != pid, "it is the same process")
        if round_ % 10 == 9 or round_ == options.kills:
            sessions.end(host, "hand-over")
    upgrade.wait_for("one spare", lambda: upgrade.spare_ready(host) and host.held()["workers"] == 1)
    for key, value in upgrade.more_than(before, upgrade.settled(host, before)):
        expect(False, f"{key} were {before.get(key, 0)} and are {value}")
    missing = [each for each in (BEFORE, BETWEEN, AFTER) if each not in moments]
    expect(not missing, f"in {options.kills + 1} kills none was {', '.join(missing)}", host)
    print("               killed " + ", ".join(f"{count} times {what}" for what, count in sorted(moments.items())), flush=True)


def moment(host, logged):
    """What the daemon has done of a hand-over, by what its log says since so many letters."""
    lines = host.log.read_text(errors="replace")[logged:].splitlines()
    for at in range(len(lines) - 1, -1, -1):
        if "has taken over" in lines[at]:
            left = any("causewayd leaves" in line for line in lines[:at])
            return AFTER if left else BEFORE
        if "causewayd leaves" in lines[at]:
            return BETWEEN
    return BEFORE


def absence(options, host):
    sessions = Sessions(options, host)
    environment = dict(os.environ, CAUSEWAY=f"local:{host.socket}", LD_LIBRARY_PATH=str(options.build / "guest_lib"))
    with subprocess.Popen([sys.executable, "-c", WAITER, str(ABSENT_S + 4)], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, env=environment) as waiter:
        expect(waiter.stdout.readline() == "working\n", "the waiting session did not begin", host)
        host.daemon.kill()
        host.daemon.wait()
        time.sleep(ABSENT_S)
        host.start()
        out, err = waiter.communicate(timeout=upgrade.LIMIT_S)
        expect(waiter.returncode == 0, f"the waiting session ended with {waiter.returncode}: {out}{err}", host)
    sessions.end(host, "absence")


def ask(host, request):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(upgrade.LIMIT_S)
        connection.connect(f"{host.socket}.control")
        connection.send(json.dumps(request).encode())
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return json.loads(answer)


def disk(options, host):
    full = host.folder / "full"
    full.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "none", full], capture_output=True, check=False).returncode != 0:
        print("disk           not tried: no file system may be mounted here")
        return
    host.daemon.terminate()
    host.daemon.wait(upgrade.LIMIT_S)
    (full / "state").mkdir()
    good = host.config.read_text()
    host.config.write_text(good.replace(f'"{host.folder}/state"', f'"{full}/state"') + f'log_file = "{full}/log"\n')
    host.start()
    sessions = Sessions(options, host)
    with (full / "filler").open("wb", buffering=0) as filler:
        try:
            while True:
                filler.write(b"\0" * 4096)
        except OSError:
            pass
    pid = host.daemon.pid
    expect(host.command("reload").returncode == 0, "a reload failed")
    name = f"bad-world-{os.getpid()}"
    answer = ask(host, {"do": "add", "name": name, "memory_mib": 64})
    expect(not answer["ok"] and "No space left on device" in answer["error"], f"a VM was added: {answer}")
    expect(ask(host, {"do": "list"})["vms"] == [], "the VM that was not added is listed")
    expect(not pathlib.Path(f"/dev/shm/causeway-{name}").exists(), "its region is left")
    expect(not list((full / "state").rglob("*.toml*")), "a part of its file is left")
    passes(options, host)
    host.install()
    done = host.command("upgrade")
    expect(done.returncode == 0, f"an upgrade failed: {done.stderr}")
    host.await_answer()
    expect(host.daemon.pid == pid and host.daemon.poll() is None, "the upgrade has not kept the process")
    upgrade.restart(host)
    passes(options, host)
    (full / "filler").unlink()
    answer = ask(host, {"do": "add", "name": name, "memory_mib": 64})
    expect(answer["ok"], f"with room a VM is added: {answer}")
    expect(ask(host, {"do": "remove", "name": name})["ok"], "it is not removed")
    sessions.end(host, "disk")
    host.daemon.terminate()
    host.daemon.wait(upgrade.LIMIT_S)
    host.config.write_text(good)
    subprocess.run(["umount", "-l", full], check=True)
    host.start()


def clock(options, host):
    library = upgrade.library_of(host, "clock_jumps.c")
    host.daemon.terminate()
    host.daemon.wait(upgrade.LIMIT_S)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        host.start()
        expect(str(library) in pathlib.Path(f"/proc/{host.daemon.pid}/maps").read_text(), "the daemon has the host's clock")
        sessions = Sessions(options, host)
        for change in upgrade.upgrade, upgrade.restart, upgrade.kill:
            change(host)
            passes(options, host)
            time.sleep(1)
    finally:
        del os.environ["LD_PRELOAD"]
    sessions.end(host, "clock")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    for name, usual in ("sessions", 4), ("kills", 60), ("seed", 1):
        parser.add_argument(f"--{name}", type=int, default=usual)
    options = parser.parse_args()
    random.seed(options.seed)
    options.build = options.build.resolve()
    options.client = options.build / "tests/upgrade/upgrade_client"
    with upgrade.host_of(options.build) as host:
        host.start()
        host.keep_program()
        for part in configuration, hand_over, absence, disk, clock:
            part(options, host)
    print("bad_world: sessions went on each time, and nothing was half done")


if __name__ == "__main__":
    # The small file system is nobody else's, and ends with this program.
    if os.geteuid() == 0 and "BAD_WORLD_APART" not in os.environ:
        os.environ["BAD_WORLD_APART"] = "1"
        os.execvp("unshare", ["unshare", "-m", sys.executable, *sys.argv])
    main()
