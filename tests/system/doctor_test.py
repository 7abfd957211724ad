#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`causeway doctor`: each link of the chain is broken in turn, the doctor names it, and doing what it advises makes it healthy.

Usage: doctor_test.py PROGRAM_DIR SOFTWARE_GPU. A host is tried with a daemon of this test's own and the software GPU; a guest, and what of a
host needs hardware, in a root folder that looks like one; a guest whose programs reach a host, by doctor_guest_test.py. What is advised is run by a shell as it was printed; commands that this
machine must not run (apt-get, modprobe, ...) are stand-ins that do to the root folder what the real ones do to a system.
Exit status: 77 where this user is not root.
"""

import grp
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time

PROGRAMS, SOFTWARE_GPU = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
LIMIT_S = 60
problems = []
tried = 0


def run_doctor(program, *options, environment=None, wrapper=()):
    command = [*wrapper, program, "doctor", "--json", *options]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S, check=False,
                          env={**os.environ, **(environment or {})})
    report = json.loads(done.stdout)
    if done.returncode != (0 if report["healthy"] else 1):
        problems.append(f"exit status {done.returncode} where healthy is {report['healthy']}")
    return report


def broken_links(report):
    return [link for link in report["links"] if link["state"] == "broken"]


def expect_healthy(what, report):
    for link in broken_links(report):
        problems.append(f"{what}: {link['link']} is called broken: {link['sentence']}")


def expect_broken(what, report, link, sentence):
    """The finding of the link that has to be named first."""
    global tried
    tried += 1
    if report["broken"] != link:
        problems.append(f"{what}: the first broken link is '{report['broken']}' and not '{link}': {broken_links(report)}")
        return None
    found = next(each for each in broken_links(report) if each["link"] == link)
    if not re.search(sentence, found["sentence"]):
        problems.append(f"{what}: the sentence is: {found['sentence']}")
    print(f"{what}: {found['sentence']} -> {found['mend']}", flush=True)
    return found


# ---- in a root folder --------------------------------------------------------------------------------------------
def put(root, path, text, mode=0o644):
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    file.chmod(mode)


def compile_library(path, name):
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["cc", "-shared", "-nostdlib", f"-Wl,-soname,{name}", "-x", "c", "-", "-o", path], input="int cuInit(void) { return 0; }\n",
                   text=True, check=True)


def ldconfig(root):
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)


def put_guest_package(root):
    for name in ("libcuda.so", "libnvidia-ml.so"):
        compile_library(root / f"usr/lib/causeway/{name}.1", f"{name}.1")
        link = root / f"usr/lib/causeway/{name}"
        link.unlink(missing_ok=True)
        link.symlink_to(f"{name}.1")
    put(root, "etc/ld.so.conf.d/00-causeway.conf", "/usr/lib/causeway\n")
    put(root, "usr/lib/udev/rules.d/70-causeway.rules", "SUBSYSTEM\n")
    ldconfig(root)


def put_device(root):
    device = root / "sys/bus/pci/devices/0000:00:05.0"
    put(device, "vendor", "0x1af4\n")
    put(device, "device", "0x1110\n")
    put(device, "resource", "0x00000000febf1000 0x00000000febf10ff 0x0000000000040200\n" + "0x0000000000000000 " * 3 +
        "\n0x0000000080000000 0x00000000bfffffff 0x000000000014220c\n")
    return device


def put_node(root):
    put(root, "dev/causeway", "", 0o660)
    shutil.chown(root / "dev/causeway", group=os.getgid())


def put_module(root):
    put(root, "sys/module/causeway/refcnt", "0\n")
    bind(root)


def bind(root):
    driver = root / "sys/bus/pci/devices/0000:00:05.0/driver"
    driver.unlink(missing_ok=True)
    driver.symlink_to("../../../../bus/pci/drivers/causeway")
    for name, value in [("region_bytes", "1073741824"), ("cache_mode", "WB"), ("slots_total", "64"), ("slots_used", "1"),
                        ("slices_free", "400")]:
        put(root, f"sys/class/causeway/causeway/{name}", value + "\n")
    put_node(root)


def put_xen_device(root):
    """In the place of the ivshmem device."""
    shutil.rmtree(root / "sys/bus/pci/devices")
    put(root, "sys/hypervisor/type", "xen\n")
    (root / "sys/bus/xen/devices/causeway-0").mkdir(parents=True)
    (root / "sys/bus/xen/devices/causeway-0/driver").symlink_to("../../drivers/causeway")


def make_guest(root):
    put(root, "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
    put(root, "etc/group", f"root:x:0:\nrender:x:{os.getgid()}:\n")
    put(root, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    put(root, "lib/modules/6.1.0-18-amd64/updates/dkms/causeway.ko", "")
    put(root, "lib/modules/6.1.0-18-amd64/build/Makefile", "")
    put_device(root)
    put_module(root)
    put_guest_package(root)


# What the stand-ins do; each is called as "NAME ARGUMENTS".
def stand_in(root, words):
    line = " ".join(words)
    if re.match(r"apt-get install --reinstall causeway-(guest|dkms)", line):
        put_guest_package(root)
        put(root, "lib/modules/6.1.0-18-amd64/updates/dkms/causeway.ko", "")
    elif line.startswith("apt-get install linux-headers-"):
        put(root, "lib/modules/6.1.0-18-amd64/build/Makefile", "")
    elif line.startswith("apt-get install linux-image"):
        put(root, "proc/sys/kernel/osrelease", "6.1.0-18-amd64\n")
    elif line.startswith("dkms autoinstall"):
        if (root / "lib/modules/6.1.0-18-amd64/build").exists():
            put(root, "lib/modules/6.1.0-18-amd64/updates/dkms/causeway.ko", "")
    elif line == "modprobe causeway":
        blocked = any("causeway" in file.read_text() for file in (root / "etc/modprobe.d").glob("*.conf"))
        if not blocked and (root / "lib/modules/6.1.0-18-amd64/updates/dkms/causeway.ko").exists():
            put_module(root)
    elif line.startswith("rmmod causeway"):
        shutil.rmtree(root / "sys/module/causeway")
    elif line.startswith("udevadm trigger"):
        put_node(root)
    elif line.startswith("groupadd --system render"):
        put(root, "etc/group", f"root:x:0:\nrender:x:{os.getgid()}:\n")
    elif line.startswith("causeway attach") and (root / "sys/hypervisor/type").exists():
        put_xen_device(root)
    elif line.startswith("causeway attach"):
        put_device(root)
        put_module(root)
    elif line.startswith(("causeway detach", "systemctl start causewayd")):
        pass
    elif line.startswith("apt-get install --reinstall") and line.endswith("causeway-host"):
        # The package's files in their places; of its configuration one that is missing only if that is asked for.
        for file in (file for file in (root / "package").rglob("*") if file.is_file()):
            if file.suffix != ".toml" or "--force-confmiss" in line:
                shutil.copy(file, root / file.relative_to(root / "package"))
    elif line.startswith("nvidia-modprobe"):
        for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
            put(root, f"dev/{name}", "")
    elif line == "dpkg -r causeway-guest":
        shutil.rmtree(root / "usr/lib/causeway")
        (root / "etc/ld.so.conf.d/00-causeway.conf").unlink()
    elif line in ("ldconfig", f"ldconfig -r {root}"):
        ldconfig(root)
    elif line == "apt-get install nvidia-driver":
        compile_library(root / "usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.1")
        ldconfig(root)
    else:
        sys.exit(f"no stand-in for: {line}")


STAND_INS = ["apt-get", "dkms", "modprobe", "rmmod", "udevadm", "groupadd", "causeway", "systemctl", "nvidia-modprobe", "dpkg", "ldconfig"]


def shell_lines(root, mend):
    """The advice as a shell takes it: what is between the commands in words, and what stands for a choice of the reader, is replaced."""
    text = mend.replace("on the host: ", "").replace("in domain 0: ", "").replace("then here: ", "").replace(", then ", "; ").replace("DOMAIN", "guest1")
    text = re.sub(r" with a (smaller|larger) size$", "", text).replace("SIZE", "256M").replace("; start this machine again", "")
    text = re.sub(r", or (remove what|ldconfig if).*$", "", text)
    text = text.replace("chgrp render", f"chgrp {os.getgid()}")  # that group of the root folder
    return text.replace("/sys/bus", f"{root}/sys/bus")


def do_advice(folder, root, mend):
    commands = folder / "bin"
    if not commands.exists():
        commands.mkdir()
        for name in STAND_INS:
            put(commands, name, f"#!/bin/sh\nexec {sys.executable} {os.path.abspath(__file__)} --stand-in {root} {name} \"$@\"\n", 0o755)
    before = (root / "sys/bus/pci/drivers/causeway/bind")
    before.parent.mkdir(parents=True, exist_ok=True)
    before.unlink(missing_ok=True)
    other = root / "sys/bus/pci/drivers/uio/unbind"
    other.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["sh", "-ec", shell_lines(root, mend)], check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL,
                   env={**os.environ, "PATH": f"{commands}:{os.environ['PATH']}"})
    if before.exists():  # the kernel's part of a write to `bind`
        bind(root)


def remove(path):
    return lambda root: (root / path).unlink()


def write(path, text):
    return lambda root: put(root, path, text)


def unload(root, *, built=True, headers=True, blocked=False):
    shutil.rmtree(root / "sys/module/causeway")
    if not built:
        (root / "lib/modules/6.1.0-18-amd64/updates/dkms/causeway.ko").unlink()
    if not headers:
        shutil.rmtree(root / "lib/modules/6.1.0-18-amd64/build")
    if blocked:
        put(root, "etc/modprobe.d/local.conf", "blacklist causeway\n")


def other_driver(root, name):
    driver = root / "sys/bus/pci/devices/0000:00:05.0/driver"
    driver.unlink()
    if name:
        driver.symlink_to(f"../../../../bus/pci/drivers/{name}")


def other_library(root, file):
    compile_library(root / "opt/nvidia/lib/libcuda.so.1", "libcuda.so.1")
    put(root, f"etc/ld.so.conf.d/{file}", "/opt/nvidia/lib\n")
    ldconfig(root)


def forget_cache(root):
    """As after an installation without ldconfig: the cache is older than the package."""
    own = root / "etc/ld.so.conf.d/00-causeway.conf"
    own.unlink()
    ldconfig(root)
    put(root, "etc/ld.so.conf.d/00-causeway.conf", "/usr/lib/causeway\n")


GUEST = [
    ("an old kernel", write("proc/sys/kernel/osrelease", "4.19.0-20-amd64\n"), "kernel", "4.19.0.*5.10 or later"),
    ("no ivshmem device", lambda root: shutil.rmtree(root / "sys/bus/pci/devices/0000:00:05.0"), "device", "no ivshmem device"),
    ("a device without room for its memory", write("sys/bus/pci/devices/0000:00:05.0/resource", "0x0 0x0 0x0\n" + "0x0000000000000000 " * 3 + "\n" +
                                                   "0x0000000000000000 " * 3 + "\n"), "device", "has no memory"),
    ("a domain of Xen without its device", lambda root: (put_xen_device(root), shutil.rmtree(root / "sys/bus/xen"),
                                                         put(root, "sys/bus/pci/devices/none", "")), "device", "domain of Xen has no device"),
    ("a module that is not loaded", unload, "module", "built and is not loaded"),
    ("a module that is not built", lambda root: unload(root, built=False), "module", "not built for the running kernel 6.1.0-18-amd64"),
    ("no headers", lambda root: unload(root, built=False, headers=False), "module", "whose headers are missing"),
    ("a module on the black list", lambda root: unload(root, blocked=True), "module", "/etc/modprobe.d/local.conf keeps"),
    ("a region that no daemon made", lambda root: other_driver(root, None), "region", "did not take the device"),
    ("another driver's device", lambda root: other_driver(root, "uio"), "region", "belongs to the driver uio"),
    ("no node", remove("dev/causeway"), "node", "/dev/causeway is missing"),
    ("a node that only root may use", lambda root: (root / "dev/causeway").chmod(0o600), "permission", "not readable and writable for the group"),
    ("no udev rule", lambda root: ((root / "dev/causeway").chmod(0o600), remove("usr/lib/udev/rules.d/70-causeway.rules")(root)), "permission",
     "because the rule 70-causeway.rules"),
    ("no group render", write("etc/group", "root:x:0:\n"), "permission", "no group render"),
    ("an uncached region", write("sys/class/causeway/causeway/cache_mode", "UC-\n"), "cache mode", "mapped UC- instead of write-back"),
    ("no libcuda", remove("usr/lib/causeway/libcuda.so.1"), "library", "libcuda.so.1 is missing"),
    ("a damaged libcuda", write("usr/lib/causeway/libcuda.so.1", "half"), "library", "damaged"),
    ("no libnvidia-ml", remove("usr/lib/causeway/libnvidia-ml.so.1"), "library", "libnvidia-ml.so.1 is missing"),
    ("no link libcuda.so", remove("usr/lib/causeway/libcuda.so"), "library", "libcuda.so does not lead to libcuda.so.1"),
    ("ld.so.conf without its folder", write("etc/ld.so.conf", "# nothing\n"), "loader", "does not include ld.so.conf.d"),
    ("no file for the loader", remove("etc/ld.so.conf.d/00-causeway.conf"), "loader", "00-causeway.conf is missing"),
    ("an old cache", forget_cache, "loader", "cache does not have /usr/lib/causeway/libcuda.so.1"),
    ("another libcuda first", lambda root: other_library(root, "00-a-driver.conf"), "loader", "finds /opt/nvidia/lib/libcuda.so.1 before"),
]


def fill(root):
    """A /dev/shm that is nearly full: a file system of one MiB."""
    (root / "dev/shm").mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", root / "dev/shm"], check=True)


def without_apparmor_rule(root):
    put(root, "sys/module/apparmor/parameters/enabled", "Y\n")
    put(root, "etc/apparmor.d/abstractions/libvirt-qemu", "\n")


def small_limit_of_grants(root):
    put(root, "proc/xen/capabilities", "control_d\n")
    put(root, "dev/xen/gntalloc", "")
    put(root, "sys/module/xen_gntalloc/parameters/limit", "1024\n")


def guest_package_on_host(root):
    put(root, "etc/ld.so.conf.d/00-causeway.conf", "/usr/lib/causeway\n")
    compile_library(root / "usr/lib/causeway/libcuda.so.1", "libcuda.so.1")
    ldconfig(root)


HOST_ROOT = [
    ("no driver", lambda root: (remove("usr/lib/x86_64-linux-gnu/libcuda.so.1")(root), ldconfig(root)), "driver", "driver is not installed"),
    ("the guest's library on a host", guest_package_on_host, "driver", "is the guest's library"),
    ("no device node", remove("dev/nvidia-uvm"), "device nodes", "/dev/nvidia-uvm is missing"),
    ("AppArmor without a rule", without_apparmor_rule, "AppArmor", "does not let VMs open"),
    ("a small limit of grants", small_limit_of_grants, "Xen", "grants 1024 pages in all"),
    ("a full /dev/shm", fill, "shared memory", "/dev/shm is full"),
]


def make_host_root(root):
    for name in ("causewayd", "causeway-launcher", "causeway-worker"):
        (root / "usr/libexec/causeway").mkdir(parents=True, exist_ok=True)
        shutil.copy(PROGRAMS / name, root / "usr/libexec/causeway")
    put(root, "etc/ld.so.conf", "include /etc/ld.so.conf.d/*.conf\n")
    (root / "etc/ld.so.conf.d").mkdir()
    put(root, "etc/causeway/causewayd.toml", "spare_workers = 1\n")
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        put(root, f"dev/{name}", "")
    (root / "dev/shm").mkdir()
    compile_library(root / "usr/lib/x86_64-linux-gnu/libcuda.so.1", "libcuda.so.1")
    ldconfig(root)


def try_in_root(folder, side, make, cases):
    pristine = folder / f"{side}.pristine"
    make(pristine)
    for what, break_it, link, sentence in cases:
        root = folder / side
        shutil.copytree(pristine, root, symlinks=True)
        try:
            expect_healthy(f"before {what}", run_doctor(PROGRAMS / "causeway-system", "--side", side, "--root", root))
            break_it(root)
            found = expect_broken(what, run_doctor(PROGRAMS / "causeway-system", "--side", side, "--root", root), link, sentence)
            if found:
                do_advice(folder, root, found["mend"])
                expect_healthy(f"after mending {what}", run_doctor(PROGRAMS / "causeway-system", "--side", side, "--root", root))
        finally:
            if os.path.ismount(root / "dev/shm"):
                subprocess.run(["umount", root / "dev/shm"], check=True)
            shutil.rmtree(root)
            shutil.rmtree(folder / "bin", ignore_errors=True)


def try_environment(folder):
    root = folder / "environment"
    make_guest(root)
    (root / "usr/local/nvidia").mkdir(parents=True)
    compile_library(root / "usr/local/nvidia/libcuda.so.1", "libcuda.so.1")
    for variable, value, sentence in [("CAUSEWAY", "modul", "none of local:/path, module"), ("LD_LIBRARY_PATH", "/usr/local/nvidia", "leads programs to"),
                                      ("LD_PRELOAD", str(root / "usr/local/nvidia/libcuda.so.1"), "before Causeway's library")]:
        report = run_doctor(PROGRAMS / "causeway-system", "--side", "guest", "--root", root, environment={variable: value})
        found = expect_broken(f"the variable {variable}", report, "environment", sentence)
        if found and found["mend"] != f"unset {variable}":
            problems.append(f"{variable}: the advice is {found['mend']}")
        expect_healthy(f"without {variable}", run_doctor(PROGRAMS / "causeway-system", "--side", "guest", "--root", root))


def try_remote(folder):
    """A guest of another host: TLS and its key stand where device and module stand else."""
    root = folder / "remote"
    make_guest(root)
    (root / "dev/causeway").unlink()

    def look():
        return run_doctor(PROGRAMS / "causeway-system", "--side", "guest", "--root", root, environment={"CAUSEWAY": "tls://host:7471"})
    expect_broken("a remote guest without the library of TLS", look(), "key", "libcauseway-tls.so.1 is missing")
    put(root, "usr/lib/causeway/libcauseway-tls.so.1", "")
    expect_broken("a remote guest without a key", look(), "key", "/etc/causeway/key is missing")
    put(root, "etc/causeway/key", "secret\n", 0o640)
    expect_healthy("a remote guest with its key", look())

    def look_at_file():
        return run_doctor(PROGRAMS / "causeway-system", "--side", "guest", "--root", root, environment={"CAUSEWAY": ""})
    put(root, "etc/causeway/hosts", "tls://a\nb\n")
    expect_broken("a list of hosts with a mistake", look_at_file(), "hosts", "line 2: 'b' is neither")
    put(root, "etc/causeway/hosts", "tls://a\ntls://b  # the other\n")
    expect_healthy("a guest of several hosts, by the variable", run_doctor(PROGRAMS / "causeway-system", "--side", "guest", "--root", root, environment={
        "CAUSEWAY": f"hosts:{root}/etc/causeway/hosts"}))
    report = look_at_file()
    expect_healthy("a guest of several hosts", report)
    for link, sentence in (("device", "programs use the hosts of /etc/causeway/hosts"), ("hosts", "does not run asks none")):
        if not any(found["link"] == link and sentence in found["sentence"] for found in report["links"]):
            problems.append(f"a guest of several hosts: {link} is not explained: {report['links']}")


# ---- a host with a daemon ----------------------------------------------------------------------------------------
class Host:
    def __init__(self, folder):
        self.folder = folder
        self.programs = folder / "programs"
        self.programs.mkdir()
        for name in ("causeway", "causeway-system", "causewayd", "causeway-launcher", "causeway-worker"):
            os.link(PROGRAMS / name, self.programs / name) if PROGRAMS.stat().st_dev == folder.stat().st_dev else \
                shutil.copy(PROGRAMS / name, self.programs / name)
        self.config = folder / "causewayd.toml"
        self.socket = folder / "causeway.sock"
        self.region = pathlib.Path(f"/dev/shm/causeway-doctor-{os.getpid()}")
        self.text = (f'socket = "{self.socket}"\nsocket_mode = "0660"\ndriver_library = "{SOFTWARE_GPU}"\nlog_file = "{folder}/log"\n'
                     f'[[vm]]\nname = "doctor"\nregion_file = "{self.region}"\nregion_mib = 64\n')
        self.config.write_text(self.text)

    def doctor(self, **more):
        return run_doctor(self.programs / "causeway", "--config", self.config, **more)

    def status(self):
        done = subprocess.run([self.programs / "causeway", "status", "--json", "--socket", self.socket], capture_output=True, text=True,
                              timeout=LIMIT_S, check=False)
        return json.loads(done.stdout) if done.returncode == 0 else {}

    def start(self, command=None, environment=None):
        command = command or f"{self.programs}/causewayd --config {self.config} &"
        subprocess.run(["sh", "-ec", command], check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                       env={**os.environ, **(environment or {})})
        self.wait(lambda status: status and (status["workers"]["spare_ready"] or status["workers"]["problem"]), "the daemon's start")

    def stop(self):
        status = self.status()
        if status:
            os.kill(status["pid"], signal.SIGTERM)
            self.wait(lambda found: not found, "the daemon's end")

    def wait(self, reached, what):
        end = time.monotonic() + LIMIT_S
        while not reached(self.status()):
            if time.monotonic() > end:
                sys.exit(f"{what} was waited for in vain: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.1)

    def restart(self, advice):
        """An advice of two parts: the first is done by name, the second by the shell."""
        self.stop()
        self.start(advice.partition("then: ")[2] or advice)


def try_host(folder):
    host = Host(folder)
    found = expect_broken("no daemon", host.doctor(), "daemon", "causewayd does not run")
    host.start(found["mend"] if found else None)
    try:
        begin = time.monotonic()
        expect_healthy("a host", host.doctor())
        print(f"on a host where nothing is broken it takes {time.monotonic() - begin:.2f} s")
        try_host_links(host)
        expect_healthy("the host in the end", host.doctor())
    finally:
        host.stop()
        host.region.unlink(missing_ok=True)


def try_host_links(host):
    package = host.folder / "package"
    (package / "programs").mkdir(parents=True)
    shutil.copy(host.programs / "causeway-worker", package / "programs")
    shutil.copy(host.config, package)
    for what, file, link in [("no worker", host.programs / "causeway-worker", "programs"), ("no configuration", host.config, "configuration")]:
        file.unlink()
        found = expect_broken(what, host.doctor(), link, f"{file.name} is missing")
        if found:
            do_advice(host.folder, host.folder, found["mend"])
        expect_healthy(f"after {what}", host.doctor())

    for what, text, sentence in [("an unknown key", host.text.replace("socket_mode", "socket_mod"), r":2: socket_mod is not a known key"),
                                 ("no TOML", host.text.replace("[[vm]]", "[[vm"), r"causewayd.toml:5: not valid TOML")]:
        host.config.write_text(text)
        found = expect_broken(what, host.doctor(), "configuration", sentence)
        host.config.write_text(host.text)
        if found:
            subprocess.run(["sh", "-ec", found["mend"].partition("then: ")[2]], check=True, timeout=LIMIT_S, stdout=subprocess.DEVNULL)
        expect_healthy(f"after {what}", host.doctor())

    nowhere = host.folder / "nowhere/libcuda.so.1"
    host.config.write_text(host.text.replace(str(SOFTWARE_GPU), str(nowhere)))
    found = expect_broken("a driver that is not there", host.doctor(), "driver", "nowhere/libcuda.so.1 is missing")
    if found and found["mend"] != "install it there, or name another one as driver_library":
        problems.append(f"a missing driver: the advice is {found['mend']}")
    nowhere.parent.mkdir()
    nowhere.symlink_to(SOFTWARE_GPU)
    expect_healthy("with a driver installed there", host.doctor())
    nowhere.unlink()
    host.config.write_text(host.text)
    expect_healthy("with another driver named", host.doctor())

    expect_broken("a user without the group", host.doctor(wrapper=["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"]), "permission",
                  f"may not use the socket .*the group {grp.getgrgid(host.socket.stat().st_gid).gr_name}\\.")
    member = ["setpriv", "--reuid", "65534", "--regid", str(host.socket.stat().st_gid), "--clear-groups"]
    expect_healthy("a member of the group", host.doctor(wrapper=member))

    for what, break_it, sentence in [("a region that is gone", host.region.unlink, "is gone"),
                                     ("a region of another size", lambda: os.truncate(host.region, 4096), "4096 bytes instead of"),
                                     ("a region that nobody may open", lambda: host.region.chmod(0), "opened by nobody")]:
        break_it()
        found = expect_broken(what, host.doctor(), "region", sentence)
        if found:
            if found["mend"].startswith("end causewayd"):
                host.restart(found["mend"])
            else:
                subprocess.run(["sh", "-ec", found["mend"]], check=True, timeout=LIMIT_S)
            expect_healthy(f"after {what}", host.doctor())

    host.stop()
    host.start(environment={"SOFTWARE_GPU_DEVICES": "0"})
    expect_broken("no GPU", host.doctor(), "GPU", "sees no GPU|cannot start")
    host.stop()
    try_other_daemon(host)


def try_other_daemon(host):
    """A socket that nobody listens at, and a daemon of another version."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(str(host.socket))
    found = expect_broken("a socket that nobody serves", host.doctor(), "daemon", "does not answer")
    listener.listen()
    magic = 0x314c595745534143
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        client, _ = listener.accept()
        client.recv(64)
        client.send(struct.pack("<QIIQ488s", magic, 1, 0, 0, b""))
        client.send(json.dumps({"version": "0.0.9", "workers": {}, "driver": {}, "regions": []}).encode())
        os._exit(0)
    listener.close()
    old = expect_broken("a daemon of another version", host.doctor(), "versions", "runs is 0.0.9, and what is installed is")
    os.waitpid(child, 0)
    if old:
        host.restart(old["mend"])
    elif found:
        host.start(found["mend"])
    expect_healthy("after another daemon", host.doctor())


def main():
    if os.geteuid() != 0:
        print("doctor_test.py: not root, which ldconfig -r takes.")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        try_in_root(folder, "guest", make_guest, GUEST)
        try_in_root(folder, "host", make_host_root, HOST_ROOT)
        try_environment(folder)
        try_remote(folder)
        (folder / "live").mkdir()
        try_host(folder / "live")
    print("\n".join(problems) or f"{tried} links were broken, named, and mended.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    if len(sys.argv) > 3 and sys.argv[1] == "--stand-in":
        stand_in(pathlib.Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
