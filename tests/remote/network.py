# SPDX-License-Identifier: Apache-2.0
"""A host with a bridge, a guest behind one of its ports, and a stranger on another interface: network namespaces (as root).

The kernel of a CI machine has no netem, so delay and bandwidth come from relay.py. lossy_vm.sh boots a kernel that has it.
"""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

BRIDGE, HOST, GUEST, STRANGER, GATEWAY = "br0", "10.77.0.1", "10.77.0.2", "10.78.0.2", "10.78.0.1"
HOST6, GUEST6 = "fd77::1", "fd77::2"
LIMIT_S = 60


def run(*command):
    subprocess.run([str(word) for word in command], check=True, timeout=LIMIT_S)


def why_not():
    """Why this machine can have no such networks; empty: it can."""
    if os.geteuid() != 0:
        return "not root, which network namespaces take"
    if shutil.which("ip") is None:
        return "the command ip (package iproute2) is missing"
    name = f"cw-try-{os.getpid()}"
    tried = subprocess.run(f"ip netns add {name} && ip -n {name} link add br0 type bridge && ip -n {name} link add v0 type veth peer "
                           f"name v1; result=$?; ip netns del {name}; exit $result", shell=True, capture_output=True, text=True,
                           timeout=LIMIT_S, check=False)
    return "" if tried.returncode == 0 else f"this kernel has no bridges or veth pairs: {tried.stderr.strip()}"


def what_it_says(process, log, words):
    """What follows the words in the log of a process, up to a blank, as soon as it says so."""
    limit = time.monotonic() + LIMIT_S
    while True:
        text = pathlib.Path(log).read_text(encoding="utf-8")
        found = re.search(re.escape(words) + r"(\S+)\s", text)
        if found:
            return found[1].rstrip(",")
        if process.poll() is not None or time.monotonic() > limit:
            raise RuntimeError(f"{process.args} does not say \"{words}\": {text}")
        time.sleep(0.02)


class Network(contextlib.ExitStack):
    """host: 10.77.0.1 on the bridge, 10.78.0.1 on another interface. guest: 10.77.0.2. stranger: 10.78.0.2, with a route to the bridge."""

    def __init__(self):
        super().__init__()
        self.processes = []  # that were started here, in their order
        self.host, self.guest, self.stranger = (f"cw-{name}-{os.getpid()}" for name in ("host", "guest", "stranger"))
        for name in (self.host, self.guest, self.stranger):
            run("ip", "netns", "add", name)
            self.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", self.host, "link", "add", BRIDGE, "type", "bridge")
        for there, port in ((self.guest, "port0"), (self.stranger, "other0")):
            run("ip", "-n", self.host, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", there)
            run("ip", "-n", self.host, "link", "set", port, "up")
            run("ip", "-n", there, "link", "set", "eth0", "up")
        run("ip", "-n", self.host, "link", "set", "port0", "master", BRIDGE)
        run("ip", "-n", self.host, "link", "set", BRIDGE, "up")
        for there, device, address in ((self.host, BRIDGE, HOST), (self.host, "other0", GATEWAY), (self.guest, "eth0", GUEST),
                                       (self.stranger, "eth0", STRANGER)):
            run("ip", "-n", there, "addr", "add", f"{address}/24", "dev", device)
        run("ip", "-n", self.stranger, "route", "add", "10.77.0.0/24", "via", GATEWAY)

    def add_ipv6(self):
        """HOST6 on the bridge and GUEST6 for the guest, usable at once; False: this kernel has no IPv6."""
        for there, device, address in ((self.host, BRIDGE, HOST6), (self.guest, "eth0", GUEST6)):
            added = subprocess.run(["ip", "-n", there, "addr", "add", f"{address}/64", "dev", device, "nodad"], capture_output=True,
                                   timeout=LIMIT_S, check=False)
            if added.returncode != 0:
                return False
        return True

    @staticmethod
    def inside(namespace):
        """The words before a command that is to run there."""
        return ["ip", "netns", "exec", namespace]

    def folder(self):
        folder = tempfile.mkdtemp(prefix="causeway-network-")
        os.chmod(folder, 0o755)  # workers are other users
        self.callback(shutil.rmtree, folder)
        return pathlib.Path(folder)

    def start(self, namespace, log, said, *command):
        """A program that runs until the end; returns what follows the words `said` in its log, up to a blank."""
        with open(log, "w", encoding="utf-8") as output:
            process = subprocess.Popen([*self.inside(namespace), *map(str, command)], stdout=output, stderr=output)
        self.callback(self.end, process)
        self.processes.append(process)
        return what_it_says(process, log, said)

    @staticmethod
    def end(process):
        process.terminate()
        try:
            process.wait(LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def skip_unless_possible(name):
    if why := why_not():
        print(f"{name}: skipped: {why}.")
        sys.exit(77)
