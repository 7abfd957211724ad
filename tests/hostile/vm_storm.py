#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`kill -9` of VMs at random moments: while they boot, while their programs use the GPU, while they end.

usage: vm_storm.py BUILD [--vms N] [--at-once N] [--seed N]

Each VM is a QEMU with a region of its own; three programs of two of its users do random work there (flood.cc). Beside them
a local victim verifies its bytes all the time. After each round: no session, account, worker, slot, slice, descriptor of the
daemon, memory file, process on the device or file in /dev/shm more than before, and no process of the VM's. At the end each
region serves one more VM, and the daemon's memory is as it was after the first round. On the software GPU, as root;
the environment is run_vm.sh's, and MODULE is the kernel module (default: BUILD's).
exit status: 0 all held; 77 QEMU, a guest kernel, the module or root is missing; else failed
"""

import argparse
import collections
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import kill_storm
import tenants
from tenants import Trouble, alive, wait_for

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "vm_configs"
REGION_MIB = 256
WORK_S = 3  # that the programs of a VM go on
BOOT_LIMIT_S = 240
MORE_MEMORY_KIB = 8 << 10  # that the allocator may have kept
PHASES = ["boot", "use", "end"]


class Vm:
    """One VM: run_vm.sh and the QEMU that it has started."""

    def __init__(self, storm, place, commands):
        self.console = storm.folder / f"console{place}"
        self.console.unlink(missing_ok=True)
        words = storm.folder / f"commands{place}"
        words.write_text("".join(line + "\n" for line in commands), encoding="utf-8")
        self.begun = time.monotonic()
        self.name = storm.name(place)
        self.runner = subprocess.Popen(
            [CONFIGS / "run_vm.sh", "--initramfs", storm.initramfs, "--region", storm.region(place), "--commands", words,
             "--log", self.console, "--memory", "512", "--cpus", "1", "--timeout", str(BOOT_LIMIT_S)],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def text(self):
        return self.console.read_text(encoding="utf-8", errors="replace") if self.console.exists() else ""

    def said(self, pattern):
        return re.search(pattern, self.text(), re.MULTILINE)

    def qemu(self):
        """0: it has not begun, or has ended."""
        for pid in kill_storm.descendants(self.runner.pid):
            try:
                if "qemu-system" in os.readlink(f"/proc/{pid}/exe"):
                    return pid
            except OSError:
                pass
        return 0

    def ended(self):
        return self.runner.poll() is not None

    def end(self):
        """The runner ends by itself once its QEMU has."""
        try:
            self.runner.wait(tenants.PATIENCE_S)
        except subprocess.TimeoutExpired as late:
            self.runner.kill()
            raise Trouble("run_vm.sh hangs after its QEMU was killed") from late
        finally:
            self.errors = self.runner.stderr.read()
            self.runner.stderr.close()


class Storm(kill_storm.Storm):
    def __init__(self, given, seed):
        super().__init__(given, seed)
        self.folder = self.tenants.folder
        self.initramfs = self.folder / "initramfs"
        self.boot_s = 0
        self.vms = []
        self.moments = collections.Counter()

    def name(self, place):
        return f"storm{place}"

    def region(self, place):
        return pathlib.Path(f"/dev/shm/causeway-storm-{os.getpid()}-{place}")

    def settings(self):
        return kill_storm.SETTINGS + "".join(
            f'[[vm]]\nname = "{self.name(place)}"\nregion_file = "{self.region(place)}"\nregion_mib = {REGION_MIB}\n'
            for place in range(self.given.at_once))

    def state(self):
        status = self.tenants.status()
        return dict(super().state(), **{"slices in use": [region["slices"] - region["slices_free"] for region in status["regions"]],
                                        "QEMUs": sum(bool(vm.qemu()) for vm in self.vms)})

    def memory_kib(self):
        """What the daemon and its launcher have of anonymous memory."""
        pids = [self.tenants.daemon.pid, kill_storm.launcher_of(self.tenants.daemon.pid)]
        texts = [pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8") for pid in pids]
        return sum(int(re.search(r"^RssAnon:\s+(\d+)", text, re.MULTILINE).group(1)) for text in texts)

    def make_initramfs(self):
        environment = dict(os.environ, MODULE=os.environ.get("MODULE", str(self.given.build / "kernel_module/causeway.ko")))
        subprocess.run([CONFIGS / "demo_initramfs.sh", "--output", self.initramfs, "--library", self.tenants.folder / "guest/libcuda.so.1",
                        "--program", self.tenants.bin / "flood"], env=environment, check=True)

    def commands(self):
        lines = []
        for number in range(3):
            kind = self.random.choice([kind for kind in kill_storm.KINDS if kind not in ("hold", "once")])
            seconds = WORK_S + number  # so that some have ended where others work
            lines.append(f"& p{number}:gpu{number % 2 + 1} /programs/flood {kind} {seconds} {self.random.randrange(1 << 31)} "
                         f"{kill_storm.MEMORY_MIB}")
        return lines + ["wait"]

    def start(self, place, commands):
        vm = Vm(self, place, commands)
        self.vms.append(vm)
        return vm

    def has_session(self, vm):
        return any(session.get("vm") == vm.name for session in self.tenants.status()["sessions"])

    # ---- one VM --------------------------------------------------------------------------------------------------

    def moment(self, vm):
        """When it is to die; None: that cannot be said yet."""
        if vm.phase == "boot":
            return vm.begun + self.boot_s * vm.part
        if vm.ended():
            return time.monotonic()
        if vm.phase == "use":
            return time.monotonic() + WORK_S * vm.part if self.has_session(vm) else None
        return time.monotonic() + 2 * vm.part if vm.said(r"^EXIT ") else None

    def strike(self, vm):
        wait_for("QEMU to begin", lambda: vm.qemu() or vm.ended())
        pid = vm.qemu()
        try:
            if pid:
                os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pid = 0  # it has powered off
        vm.end()
        if pid:
            wait_for("QEMU to die", lambda: not alive(pid))
            self.moments[vm.phase] += 1
            self.killed["VMs"] += 1

    def round(self):
        self.vms = []
        for place in range(self.given.at_once):
            vm = self.start(place, self.commands())
            vm.phase, vm.part, vm.due = self.random.choice(PHASES), self.random.random(), None
        left = list(self.vms)
        while left:
            for vm in list(left):
                vm.due = vm.due or self.moment(vm)
                if vm.due is not None and (time.monotonic() >= vm.due or vm.ended()):
                    self.strike(vm)
                    left.remove(vm)
                elif time.monotonic() > vm.begun + BOOT_LIMIT_S:
                    raise Trouble(f"a VM has not reached its {vm.phase} in {BOOT_LIMIT_S} s:\n{vm.text()[-1500:]}")
            time.sleep(0.05)

    # ---- all of them ---------------------------------------------------------------------------------------------

    def one_more(self):
        """In each region a VM whose programs all work, to the end."""
        self.vms = [self.start(place, ["once /programs/flood once 1 1", "copies /programs/flood copies 1 2 16"])
                    for place in range(self.given.at_once)]
        for vm in self.vms:
            wait_for("a VM to boot", lambda vm=vm: vm.said("^BOOTED ") or vm.ended(), BOOT_LIMIT_S, 0.05)
            self.boot_s = time.monotonic() - vm.begun
            wait_for("a VM to end", vm.ended, BOOT_LIMIT_S, 0.1)
            vm.end()
            if vm.runner.returncode != 0:
                raise Trouble(f"a VM of a region whose VMs were killed ended with {vm.runner.returncode}: {vm.errors}\n"
                              f"{vm.text()[-1500:]}")

    def all(self):
        self.make_initramfs()
        self.tenants.start_daemon(self.settings())
        self.tenants.await_spares()
        victim = tenants.Victim(self.tenants, self.random.randrange(1000), words=4096)
        self.tenants.await_spares()
        before = self.steady_state()
        self.one_more()  # which says how long a boot takes
        self.await_state(before)
        memory = 0
        while self.killed["VMs"] < self.given.vms:
            self.round()
            self.await_state(before)
            memory = memory or self.memory_kib()
            print(f"{self.killed['VMs']} VMs killed {dict(self.moments)}, as before", flush=True)
        self.one_more()
        self.await_state(before)
        if self.memory_kib() > memory + MORE_MEMORY_KIB:
            raise Trouble(f"the daemon and its launcher have {self.memory_kib()} KiB, and had {memory} after the first round")
        self.expect_unharmed(victim)
        self.tenants.stop_daemon()

    def end(self):
        for vm in self.vms:
            pid = vm.qemu()
            if pid:
                os.kill(pid, signal.SIGKILL)
        self.tenants.end()
        for place in range(self.given.at_once):
            self.region(place).unlink(missing_ok=True)


def missing(given):
    """What this machine lacks for it; empty: nothing."""
    if os.geteuid() != 0:
        return "root, to be several users"
    qemu = os.environ.get("QEMU", "qemu-system-x86_64").split()[0]
    if not shutil.which(qemu):
        return qemu
    if subprocess.run([CONFIGS / "find_kernel.sh"], capture_output=True, check=False).returncode != 0 and "KERNEL" not in os.environ:
        return "a guest kernel"
    module = pathlib.Path(os.environ.get("MODULE", given.build / "kernel_module/causeway.ko"))
    return "" if module.exists() else str(module)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--vms", type=int, default=6)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args()
    given.build, given.driver = given.build.resolve(), None
    lacking = missing(given)
    if lacking:
        print(f"vm_storm.py: left out: {lacking} is missing")
        return 77
    kill_storm.take_own_shm()
    storm = Storm(given, tenants.seed_of(given.seed))
    begun = time.monotonic()
    try:
        storm.all()
    except Trouble as trouble:
        print(f"vm_storm.py: after {dict(storm.killed)}: {trouble}")
        return 1
    finally:
        storm.end()
    print(f"vm_storm.py: passed: {dict(storm.moments)} VMs killed in {time.monotonic() - begun:.0f} s, no hang, nothing left")
    return 0


if __name__ == "__main__":
    sys.exit(main())
