#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Three releases of Causeway, whose rows differ: each as guest of another's host, and a host that is upgraded in two steps under sessions of all.

usage: versions.py BUILD [--older BUILD]

Without --older the two older releases are this build itself, in whose files release and hash are other ones (build_stamp.py): that
shows who is chosen, started and told what. With --older they are a build of another commit, or one of older_build.sh, whose rows
are others indeed, so that a worker of the wrong release would misunderstand its guest; the oldest is that one under another number.

A host has bin/ with causewayd, causeway and causeway-launcher, and bin/workers/HASH/ for each release, as packages install
them. Sessions are upgrade_client (memory, launches, each byte checked) through the local transport and over TCP, and NVML.
"""

import argparse
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "upgrade"), str(HERE.parent.parent / "vm_configs/packages")]
import build_stamp  # noqa: E402
import upgrade  # noqa: E402

PROGRAMS = "causewayd", "causeway", "causeway-launcher"
LIBRARIES = "libcuda.so.1", "libnvidia-ml.so.1"
# Loads the library by its path, and asks what nvidia-smi asks first; then waits until its input ends and asks again.
NVML = """
import ctypes, sys
nvml = ctypes.CDLL(sys.argv[1])
def ask():
    count = ctypes.c_uint()
    text = ctypes.create_string_buffer(96)
    device = ctypes.c_void_p()
    results = [nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)), nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)),
               nvml.nvmlDeviceGetName(device, text, 96)]
    if any(results) or count.value == 0 or not text.value: sys.exit(f"NVML answers {results}")
result = nvml.nvmlInit_v2()
if result: sys.exit(f"nvmlInit {result}")
ask()
print("working", flush=True)
sys.stdin.read()
ask()
"""


def fail(text):
    sys.exit("versions: " + text)


class Release:
    """Files of one release: host/ with programs and worker, guest/ with the libraries."""

    def __init__(self, build):
        self.host, self.guest = build / "host_backend", build / "guest_lib"
        self.name, self.hash = build_stamp.read(self.host / "causeway-worker")
        for file in self.host / "causewayd", *(self.guest / name for name in LIBRARIES):
            if build_stamp.read(file) != (self.name, self.hash):
                fail(f"{file} is of another release than the worker beside it")


def stamped(build, folder, name, flip):
    """That build as another release, in a folder."""
    release, api_hash = build_stamp.read(build / "host_backend/causeway-worker")
    other = f"{int(api_hash, 16) ^ flip:016x}"
    for part, files in ("host_backend", (*PROGRAMS, "causeway-worker")), ("guest_lib", LIBRARIES):
        (folder / part).mkdir(parents=True)
        for file in files:
            if file in ("causeway", "causeway-launcher"):  # they have no stamp, and are the same in both
                shutil.copy(build / part / file, folder / part / file)
            else:
                build_stamp.copy_as(build / part / file, folder / part / file, name, other)
    made = Release(folder)
    if made.hash == api_hash or made.name == release:
        fail("the other release has the same name or rows")
    return made


class Host(upgrade.Host):
    def __init__(self, build, folder, release):
        folder.mkdir()
        self.folder, self.bin = folder, folder / "bin"
        self.bin.mkdir()
        (folder / "state").mkdir()
        self.socket, self.config, self.log = folder / "socket", folder / "config.toml", folder / "log"
        self.config.write_text(
            f'socket = "{self.socket}"\nstate_folder = "{folder}/state"\nlog_level = "debug"\nkeep_sessions_s = 60\n'
            f'driver_library = "{build}/software_gpu/libcuda.so.1"\nlocal_region_mib = 128\nspare_workers = 1\n'
            '[tcp]\nlisten = "127.0.0.1:0"\n')
        self.install_release(release)
        self.start()

    def install_worker(self, release):
        folder = self.bin / "workers" / release.hash
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(release.host / "causeway-worker", folder / "causeway-worker")
        (folder / "release").write_text(release.name + "\n")

    def install_release(self, release):
        """As a package manager does it: another file in each program's place, and a worker beside the others."""
        if not (self.bin / "workers" / release.hash).exists():
            self.install_worker(release)
        for name in PROGRAMS:
            shutil.copy(release.host / name, self.bin / (name + ".new"))
            (self.bin / (name + ".new")).rename(self.bin / name)

    def upgrade_to(self, release):
        self.install_release(release)
        done = self.command("upgrade")
        if done.returncode != 0:
            fail(f"the upgrade to {release.name} failed: {done.stderr}\n{self.log_tail()}")
        self.await_answer()
        if f'"version":"{release.name}"' not in self.status():
            fail(f"the daemon is not {release.name}")

    def restart(self):
        self.daemon.send_signal(signal.SIGUSR1)
        self.daemon.wait(upgrade.LIMIT_S)
        self.start()

    def tcp(self):
        return "tcp://" + self.status().split('"tcp":"')[1].split('"')[0]

    def stop(self):
        self.daemon.terminate()
        if self.daemon.wait(upgrade.LIMIT_S) != 0:
            fail("a daemon did not stop\n" + self.log_tail())
        upgrade.wait_for("all processes to end", lambda: not self.processes())


class Session:
    """A process of a guest: upgrade_client, or Python with NVML."""

    def __init__(self, build, release, way, nvml=False):
        self.release = release
        command = [sys.executable, "-c", NVML, str(release.guest / "libnvidia-ml.so.1")] if nvml else [
            str(build / "tests/upgrade/upgrade_client"), "1"]
        environment = dict(os.environ, CAUSEWAY=way, LD_LIBRARY_PATH=str(release.guest))
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=environment)

    def begin(self):
        line = self.process.stdout.readline()
        if line != "working\n":
            self.process.stdin.close()
            fail(f"a guest of {self.release.name} did not begin: {line}{self.process.stderr.read()}")
        return self

    def refusal(self):
        out, err = self.process.communicate(timeout=upgrade.LIMIT_S)
        if self.process.returncode == 0 or "working" in out:
            fail(f"a guest of {self.release.name} was served")
        return out + err

    def end(self):
        out, err = self.process.communicate(timeout=upgrade.LIMIT_S)
        if self.process.returncode != 0:
            fail(f"a guest of {self.release.name} failed: {out}{err}")


def programs_of_sessions(host):
    """The worker's program of each session, as the folder that it lies in."""
    pids = [int(part.split(",")[0].split("}")[0]) for part in host.status().split('"worker_pid":')[1:]]
    return sorted(pathlib.Path(os.readlink(f"/proc/{pid}/exe")).parent.name for pid in pids if pid)


def ways(host):
    return [(f"local:{host.socket}", False), (f"local:{host.socket}", True), (host.tcp(), False), (host.tcp(), True)]


def serve(build, host, *releases):
    """Sessions of these releases at once, by each way; each has a worker of its own release."""
    sessions = [Session(build, release, way, nvml) for release in releases for way, nvml in ways(host)]
    for session in sessions:
        session.begin()
    expected = sorted(session.release.hash for session in sessions)
    if programs_of_sessions(host) != expected:
        fail(f"the sessions' workers are {programs_of_sessions(host)}, and not {expected}")
    for session in sessions:
        session.end()
    upgrade.wait_for("sessions to end", lambda: '"sessions":[]' in host.status())


def refused(build, host, release, *parts):
    """By each way, in a sentence that has these parts."""
    for way, nvml in ways(host):
        text = Session(build, release, way, nvml).refusal()
        for part in parts:
            if part not in text:
                fail(f"the refusal of {release.name} does not say {part!r}: {text}")


def check_pairs(build, folder, oldest, older, newer, newest):
    print(f"newer host ({newer.name}), older guest ({older.name})")
    host = Host(build, folder / "newer", newer)
    both = f"of release {older.name} (rows {older.hash})", f"of release {newer.name} (rows {newer.hash})"
    refused(build, host, older, *both, f"install causeway-worker-{older.hash} ")
    host.install_worker(older)
    serve(build, host, older, newer)
    print(f"guests of three releases at once, of which one is two before the host's ({oldest.name})")
    host.install_worker(oldest)
    serve(build, host, oldest, older, newer)
    print(f"a guest newer than anything the host has ({newest.name})")
    refused(build, host, newest, f"of release {newest.name} ", both[1], f"in the guest: {newer.name}, {older.name}, {oldest.name}.")
    host.stop()

    print(f"older host ({older.name}), newer guest ({newer.name})")
    host = Host(build, folder / "older", older)
    refused(build, host, newer, f"of release {newer.name} (rows {newer.hash})", f"of release {older.name} (rows {older.hash})")
    host.install_worker(newer)
    serve(build, host, newer, older)
    host.stop()


def check_launcher_version(host):
    """What `causeway upgrade` asks of the installed program: it does not take over from a launcher that it does not understand."""
    asked = subprocess.run([host.bin / "causewayd", "--config", host.config, "--check", "--launcher-version", "99"],
                           capture_output=True, text=True, check=False, timeout=upgrade.LIMIT_S)
    if asked.returncode != 1 or "the launcher that runs speaks version 99 of its protocol, and causewayd" not in asked.stderr:
        fail(f"a launcher of another version: {asked}")


def check_upgrade(build, folder, releases):
    """`releases`: the oldest first."""
    oldest, older, newer = releases
    print(f"host upgraded from {oldest.name} to {older.name} and {newer.name}, and back to {older.name}, under sessions of all")
    host = Host(build, folder / "upgraded", oldest)
    for release in older, newer:
        host.install_worker(release)
    check_launcher_version(host)
    way = f"local:{host.socket}"
    sessions = [Session(build, release, way, nvml).begin() for release in releases for nvml in (False, True)]
    expected = programs_of_sessions(host)
    if expected != sorted([release.hash for release in releases] * 2):
        fail(f"the sessions' workers are {expected}")
    for what, change in (("first upgrade", lambda: host.upgrade_to(older)), ("second upgrade", lambda: host.upgrade_to(newer)), ("restart", host.restart),
                         ("downgrade", lambda: host.upgrade_to(older)), ("restart", host.restart)):
        change()
        if programs_of_sessions(host) != expected:
            fail(f"after the {what} the sessions' workers are {programs_of_sessions(host)}, and not {expected}")
        passing = [Session(build, release, way).begin() for release in releases]
        for each in passing:
            each.end()
    for each in sessions:
        each.end()
    upgrade.wait_for("sessions to end", lambda: '"sessions":[]' in host.status())
    host.stop()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--older", type=pathlib.Path)
    options = parser.parse_args()
    build = options.build.resolve()
    with tempfile.TemporaryDirectory(prefix="causeway-versions-") as name:
        folder = pathlib.Path(name)
        newer = Release(build)
        older = Release(options.older.resolve()) if options.older else stamped(build, folder / "other", "0.0.9", 0x10)
        oldest = stamped(options.older.resolve() if options.older else build, folder / "oldest", "0.0.8", 0x20)
        newest = stamped(build, folder / "newest", "99.0.0", 0x100)
        try:
            check_pairs(build, folder, oldest, older, newer, newest)
            check_upgrade(build, folder, (oldest, older, newer))
        except SystemExit:
            for log in sorted(folder.glob("*/log")):
                print(f"the end of {log}:", *log.read_text(encoding="utf-8", errors="replace").splitlines()[-25:], sep="\n", file=sys.stderr)
            raise
        finally:
            end_processes_below(folder)
    print("versions: each guest was served by the worker of its release, or told why not")


def end_processes_below(folder):
    """What a failed check has left running."""
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if os.readlink(entry / "exe").startswith(str(folder)):
                os.kill(int(entry.name), signal.SIGKILL)
        except OSError:
            pass


if __name__ == "__main__":
    main()
