#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Whether a QEMU without KVM survives that its ivshmem-doorbell device is unplugged, and another file then gets the number of the
device's eventfd. No guest runs: this program is the ivshmem server, and a reset stands for the guest that lets go.
usage: qemu_unplug.py [QEMU]      exit status: 0 it lives; 1 it has ended, and by which signal; 2 it could not be tried"""
import array
import json
import os
import socket
import subprocess
import sys
import tempfile
import time


class Monitor:
    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        for attempt in range(300):
            try:
                self.socket.connect(path)
                break
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.1)
        self.socket.settimeout(30)
        self.lines = self.socket.makefile()
        self.lines.readline()
        self.ask("qmp_capabilities")

    def ask(self, command, descriptors=(), **arguments):
        """QEMU's answer; None: it has gone."""
        text = json.dumps({"execute": command, "arguments": arguments}).encode() + b"\n"
        try:
            self.socket.sendmsg([text], rights(descriptors))
            while True:
                answer = json.loads(self.lines.readline() or "null")
                if answer is None or "return" in answer or "error" in answer:
                    return answer
        except ConnectionError:
            return None


def rights(descriptors):
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []


def serve(connection, folder):
    """Version, id, memory, two eventfds of the other peer, one of the device's own, as causewayd says them."""
    memory = os.memfd_create("region")
    os.ftruncate(memory, 64 << 20)
    other, own = os.eventfd(0), os.eventfd(0)
    for number, descriptors in ((0, ()), (1, ()), (-1, (memory,)), (0, (other,)), (0, (other,)), (1, (own,))):
        connection.sendmsg([number.to_bytes(8, "little", signed=True)], rights(descriptors))


def eventfds(pid):
    folder = f"/proc/{pid}/fd"
    return {number for number in os.listdir(folder) if "eventfd" in os.readlink(f"{folder}/{number}")}


def main():
    qemu = sys.argv[1] if len(sys.argv) > 1 else "qemu-system-x86_64"
    with tempfile.TemporaryDirectory() as folder:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"{folder}/doorbell")
        listener.listen(1)
        listener.settimeout(30)
        process = subprocess.Popen(
            [qemu, "-M", "pc,accel=tcg", "-m", "64M", "-display", "none", "-nodefaults", "-S",
             "-qmp", f"unix:{folder}/monitor,server=on,wait=off", "-chardev", f"socket,id=server,path={folder}/doorbell",
             "-device", "ivshmem-doorbell,id=region,vectors=2,chardev=server"])
        try:
            connection = listener.accept()[0]
            serve(connection, folder)
            monitor = Monitor(f"{folder}/monitor")
            before = eventfds(process.pid)
            for command, arguments in (("device_del", {"id": "region"}), ("system_reset", {}), ("cont", {})):
                monitor.ask(command, **arguments)
            for attempt in range(100):
                closed = before - eventfds(process.pid)
                if closed:
                    break
                time.sleep(0.1)
            else:
                print("qemu_unplug.py: the device was not unplugged")
                return 2
            # Each that it is given takes the lowest number that is free.
            for index in range(2 * len(before)):
                if monitor.ask("getfd", [os.eventfd(1)], fdname=f"file{index}") is None:
                    break
                time.sleep(0.1)
            version = subprocess.run([qemu, "--version"], capture_output=True, text=True).stdout.split("\n")[0]
            if process.poll() is None and monitor.ask("query-status") is not None:
                print(f"{version}: lives, with {len(closed)} eventfds closed and their numbers in use again")
                return 0
            print(f"{version}: ended by signal {-process.wait(30)}, after its doorbell device was unplugged")
            return 1
        except (OSError, TimeoutError) as error:
            print(f"qemu_unplug.py: {qemu} cannot be tried: {error}")
            return 2
        finally:
            process.kill()
            process.wait()


sys.exit(main())
