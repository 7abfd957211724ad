#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A remote guest whose link is down for a while, or that comes back with another address: two network namespaces, TLS, the software GPU.

Usage: link_down_test.py BACKEND_FOLDER SOFTWARE_GPU GUEST_LIBRARY_FOLDER [--down 1,20] [--grace 60]. Nothing is reset and nothing is told to
anybody: packets are lost, as where a cable is pulled, for so many seconds of --down. After the last time the guest has another address. --grace:
wait_for_guests_s of the host. Exit status 77: this machine has no network namespaces.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import network
from cutter import PROGRAM

LIMIT_S, COPY_BYTES, NOTICED_S, OTHER = 120, 4 << 20, 15, "10.77.0.3"


def await_(what, done, limit_s=LIMIT_S):
    end = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {limit_s} s for {what}")
        time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("backend", "driver", "library"):
        parser.add_argument(name)
    parser.add_argument("--down", type=lambda text: [float(each) for each in text.split(",")], default=[1.0, 20.0])
    parser.add_argument("--grace", type=int, default=60)
    options = parser.parse_args()
    network.skip_unless_possible("link_down_test")
    with network.Network() as net:
        folder = net.folder()
        config, key = folder / "config.toml", folder / "key"
        config.write_text(f'socket = "{folder}/socket"\ndriver_library = "{options.driver}"\nwait_for_guests_s = {options.grace}\n'
                          f'[tls]\nlisten = ["{network.HOST}:7471"]\nkeys = "{folder}/keys"\n[[remote]]\nname = "guest"\n', encoding="utf-8")
        network.run(f"{options.backend}/causeway", "keys", "create", "guest", "--output", key, "--keys", f"{folder}/keys")
        net.start(net.host, folder / "daemon.log", "accepts sessions at ", f"{options.backend}/causewayd", "--config", config)
        net.start(net.host, folder / "tls.log", "TLS sessions are accepted at ", f"{options.backend}/causeway-tls", "--config", config)

        def state():
            answer = subprocess.run([f"{options.backend}/causeway", "status", "--json", "--socket", f"{folder}/socket"],
                                    capture_output=True, text=True, timeout=LIMIT_S, check=True)
            return [session["state"] for session in json.loads(answer.stdout)["sessions"]]

        program = subprocess.Popen([*net.inside(net.guest), sys.executable, "-c", PROGRAM, options.library, str(COPY_BYTES)],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, CAUSEWAY=f"tls://{network.HOST}:7471", CAUSEWAY_KEY=str(key)))
        net.callback(program.kill)
        assert program.stdout.readline() == "began\n", (folder / "daemon.log").read_text(encoding="utf-8")
        for number, seconds in enumerate(options.down):
            begin = time.monotonic()
            network.run("ip", "-n", net.host, "link", "set", "port0", "down")
            if number + 1 == len(options.down):
                network.run("ip", "-n", net.guest, "addr", "del", f"{network.GUEST}/24", "dev", "eth0")
                network.run("ip", "-n", net.guest, "addr", "add", f"{OTHER}/24", "dev", "eth0")
            if seconds > NOTICED_S + 1:
                await_("the host to notice it", lambda: state() == ["waiting"], NOTICED_S)
                print(f"the host noticed after {time.monotonic() - begin:.1f} s that the link was down")
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
            network.run("ip", "-n", net.host, "link", "set", "port0", "up")
            begin = time.monotonic()
            await_("the session to go on", lambda: state() == ["serving"])
            print(f"down for {seconds} s: served again after {time.monotonic() - begin:.1f} s")
            time.sleep(1)  # some launches and copies more
        out, _ = program.communicate("end\n", timeout=LIMIT_S)
        words = out.split()
        assert words[:1] == ["launched"] and words[1] == words[3], out
        print(out.strip())
        await_("the session's end", lambda: not state())


if __name__ == "__main__":
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
    main()
