# SPDX-License-Identifier: Apache-2.0
"""What storms and floods have in common: a daemon, processes of several local users, and what is left when they are gone.

Every wait has a limit: what takes longer is a hang and is reported as one.
"""

import collections
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time

PATIENCE_S = 60
KEPT_FILES = ("causeway-image", "causeway-flight")
VICTIM, FIRST_STRANGER = 64000, 64001  # user ids that no account has


class Trouble(Exception):
    """A promise that was not kept."""


def wait_for(what, done, limit_s=PATIENCE_S, step_s=0.02):
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise Trouble(f"waited {limit_s} s for {what}")
        time.sleep(step_s)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class Tenants:
    """The programs of a build where every user can read them, and a daemon that serves those users.

    `driver`: the library that workers load and that is meant by `native`; None: NVIDIA's, as the loader finds it.
    """

    def __init__(self, build, driver=None):
        if os.geteuid() != 0:
            raise Trouble("run this as root: its processes are those of several users")
        self.build = pathlib.Path(build).resolve()
        self.driver = str(pathlib.Path(driver).resolve()) if driver else None
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway-tenants-"))
        os.chmod(self.folder, 0o755)
        self.bin = self.folder / "bin"
        self.bin.mkdir()
        for name in ("hostile_programs/victim", "hostile_programs/flood", "tests/bench/startup"):
            self._copy(self.build / name, self.bin)
        for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
            self._copy(self.build / "guest_lib" / name, self.folder / "guest")
        if self.driver:  # workers may belong to any user as well
            for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
                if (pathlib.Path(self.driver).parent / name).exists():
                    self._copy(pathlib.Path(self.driver).parent / name, self.folder / "driver")
        self.socket = self.folder / "socket"
        self.log = self.folder / "log"
        self.daemon = None
        self.processes = []

    def copy_program(self, path):
        """Makes a program one that every user can run, in the folder `bin`."""
        self._copy(path, self.bin)

    def output_of(self, *words):
        """What a program that needs no GPU prints."""
        return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=PATIENCE_S,
                              check=True).stdout

    @staticmethod
    def _copy(path, to):
        to.mkdir(exist_ok=True)
        os.chmod(to, 0o755)
        shutil.copy(path, to)
        os.chmod(to / path.name, 0o755)

    # ---- the daemon ----------------------------------------------------------------------------------------------

    def start_daemon(self, more="", **environment):
        self.start_daemon_at_once(more, **environment)
        wait_for("the daemon to serve", self.serves)

    def start_daemon_at_once(self, more="", **environment):
        config = self.folder / "config.toml"
        chosen = f'driver_library = "{self.folder}/driver/libcuda.so.1"\n' if self.driver else ""
        config.write_text(f'socket = "{self.socket}"\nsocket_mode = "0666"\n{chosen}{more}', encoding="utf-8")
        with open(self.log, "a", encoding="utf-8") as log:
            self.daemon = subprocess.Popen([self.build / "host_backend/causewayd", "--config", config], stdout=log,
                                           stderr=log, env=dict(os.environ, **environment), cwd="/")

    def serves(self):
        if self.daemon.poll() is not None:
            raise Trouble(f"the daemon ended with {self.daemon.returncode}:\n{self.log_text()[-2000:]}")
        try:
            return self.status() is not None
        except Trouble:
            return False

    def status(self):
        try:
            answer = subprocess.run([self.build / "host_backend/causeway", "status", "--json", "--socket", self.socket],
                                    capture_output=True, text=True, timeout=PATIENCE_S, check=False)
        except subprocess.TimeoutExpired as late:
            raise Trouble("the daemon does not say its status") from late
        if answer.returncode != 0:
            raise Trouble(f"the daemon does not answer: {answer.stderr.strip()}")
        return json.loads(answer.stdout)

    def await_spares(self):
        """Until all spare workers are ready."""
        def ready():
            workers = self.status()["workers"]
            return workers["spare_ready"] >= workers["spare_wanted"] and workers["starting"] == 0
        wait_for("the spare workers", ready, 2 * PATIENCE_S)

    def stop_daemon(self):
        if self.daemon is None or self.daemon.poll() is not None:
            return
        self.daemon.terminate()
        try:
            self.daemon.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            self.daemon.kill()
            raise Trouble("the daemon does not end") from late

    def log_text(self):
        return self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""

    # ---- processes of users --------------------------------------------------------------------------------------

    def environment(self, native):
        # With a variable of the driver's a session gets a worker that is started for it, and none of the spares.
        own = {key: value for key, value in os.environ.items() if not key.startswith(("CAUSEWAY", "CUDA_"))}
        if native and "CUDA_VISIBLE_DEVICES" in os.environ:
            own["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"]  # the daemon has it, which decides for the others
        own["HOME"] = str(self.folder)  # where no user may write: natively no cache of compiled code is shared or kept
        if not native:
            own.update(LD_LIBRARY_PATH=str(self.folder / "guest"), CAUSEWAY=f"local:{self.socket}", CAUSEWAY_LOG="off")
        elif self.driver:
            own["LD_LIBRARY_PATH"] = str(self.folder / "driver")
        return own

    def spawn(self, uid, words, native=False, program=None, **variables):
        """A process of that user in a group of its own; its output is kept."""
        command = [str(program or self.bin / words[0]), *(str(word) for word in words[1:])]
        output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace", dir=self.folder)
        process = subprocess.Popen(command, env=dict(self.environment(native), **variables), user=uid, group=uid,
                                   extra_groups=[], stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
                                   start_new_session=True, cwd="/")
        process.words, process.output = words, output
        self.processes.append(process)
        return process

    def kill(self, process):
        """Kills the process and all that it started, and waits for its end."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        try:
            process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            raise Trouble(f"{process.words} does not die of SIGKILL") from late
        finally:
            self.forget(process)

    def result(self, process, limit_s=PATIENCE_S):
        """What it printed; it must end by itself within the limit."""
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired as late:
            raise Trouble(f"{process.words} hangs") from late
        text = self.said(process)
        self.forget(process)
        return text

    @staticmethod
    def said(process):
        """What it has printed by now. (pread: the file's place is the process's as well.)"""
        return os.pread(process.output.fileno(), 1 << 20, 0).decode("utf-8", errors="replace")

    def forget(self, process):
        process.output.close()
        self.processes.remove(process)

    def end(self):
        for process in list(self.processes):
            self.kill(process)
        self.stop_daemon()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- what is there -------------------------------------------------------------------------------------------

    def descriptors(self):
        """{what: how many}, of what the daemon has open: without images that it keeps and flight records of sessions that
        have ended, which outlive sessions on purpose and are bounded in number and size."""
        found = collections.Counter()
        for link in pathlib.Path(f"/proc/{self.daemon.pid}/fd").iterdir():
            try:
                name = os.readlink(link)
            except OSError:
                continue  # it was the folder's own
            if not any(kept in name for kept in KEPT_FILES):
                found[re.sub(r"\d+", "N", name)] += 1
        return dict(found)

    def device_processes(self):
        """Processes that have the driver's library of these tests loaded (the software GPU's NVML says the same)."""
        library = str(self.folder / "driver" / "libcuda.so.1")
        found = set()
        for maps in pathlib.Path("/proc").glob("[0-9]*/maps"):
            try:
                if library in maps.read_text(encoding="utf-8", errors="replace"):
                    found.add(int(maps.parent.name))
            except OSError:
                pass
        return found


class Victim:
    """A verifying program beside everything else. `finish` says how it fared."""

    def __init__(self, tenants, seed, native=False, seconds=100_000, words=65536):
        self.tenants = tenants
        self.process = tenants.spawn(VICTIM, ["victim", seconds, seed, words], native)
        wait_for("the victim's first round", self._started, 2 * PATIENCE_S)

    def _started(self):
        if self.process.poll() is not None:
            raise Trouble(f"the victim ended with {self.process.returncode} before it began: "
                          f"{self.tenants.said(self.process)}")
        return "started\n" in self.tenants.said(self.process)

    def finish(self):
        self.process.send_signal(signal.SIGTERM)
        text = self.tenants.result(self.process)
        found = re.search(r"^\{.*\}$", text, re.MULTILINE)
        if not found:
            raise Trouble(f"the victim ended with {self.process.returncode} and says: {text.strip()[-600:]}")
        return json.loads(found.group())


def seed_of(given):
    """The seed that was asked for, or a random one; printed, so that a run can be repeated."""
    seed = given if given is not None else random.SystemRandom().randrange(1 << 31)
    print(f"seed {seed}", flush=True)
    return seed
