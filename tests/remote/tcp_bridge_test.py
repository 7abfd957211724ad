#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""[tcp] on a bridge: a guest behind the bridge is served, and nobody who comes in at another interface, whatever route it has.

Usage: tcp_bridge_test.py BACKEND_FOLDER SOFTWARE_GPU GUEST_LIBRARY_FOLDER PROGRAM. The program exits with 0 where CUDA works. Exit status
77: this machine has no network namespaces.
"""

import pathlib
import subprocess
import sys

import network

BACKEND, DRIVER, LIBRARY, PROGRAM = sys.argv[1:5]


def config_text(folder, tcp):
    return f'socket = "{folder}/socket"\nsocket_mode = "0600"\ndriver_library = "{DRIVER}"\n[tcp]\nlisten = "{network.HOST}:0"\n{tcp}'


def refused_start(net, folder, tcp):
    """The one line of a daemon that does not start."""
    config = folder / "refused.toml"
    config.write_text(config_text(folder, tcp), encoding="utf-8")
    answer = subprocess.run([*net.inside(net.host), f"{BACKEND}/causewayd", "--config", str(config)], capture_output=True, text=True,
                            timeout=network.LIMIT_S, check=False)
    assert answer.returncode == 1, answer
    return answer.stdout + answer.stderr


def connects(net, namespace, port):
    program = f"import socket; socket.create_connection(('{network.HOST}', {port}), 3)"
    return subprocess.run([*net.inside(namespace), sys.executable, "-c", program], capture_output=True, timeout=network.LIMIT_S,
                          check=False).returncode == 0


def main():
    network.skip_unless_possible("tcp_bridge_test.py")
    with network.Network() as net:
        folder = net.folder()
        said = refused_start(net, folder, "")
        assert "is not a loopback address" in said and "name a bridge" in said, said
        said = refused_start(net, folder, "allow_plaintext_remote = true\n")
        assert "name a bridge" in said, said
        for other in ("other0", "br9", "../br0", "a" * 60):
            said = refused_start(net, folder, f'allow_plaintext_remote = true\nbridge = "{other}"\n')
            assert "this host has no bridge " in said, said
        config = folder / "config.toml"
        config.write_text(config_text(folder, f'allow_plaintext_remote = true\nbridge = "{network.BRIDGE}"\n'), encoding="utf-8")
        where = net.start(net.host, folder / "log", "TCP sessions are accepted at ", f"{BACKEND}/causewayd", "--config", config)
        assert f"of the bridge {network.BRIDGE} alone" in pathlib.Path(folder, "log").read_text(encoding="utf-8")
        port = where.rsplit(":", 1)[1]
        # The way of the stranger exists: what is refused is the connection.
        subprocess.run([*net.inside(net.stranger), "ip", "route", "get", network.HOST], check=True, capture_output=True)
        for namespace, may in ((net.guest, True), (net.stranger, False), (net.guest, True)):
            assert connects(net, namespace, port) == may, f"{namespace}: {'refused' if may else 'let in'}"
        # To the kernel, what the host sends to its own address of the bridge has come in there: its users have their own rule.
        ways = ["env", f"CAUSEWAY=tcp://{network.HOST}:{port}", f"LD_LIBRARY_PATH={LIBRARY}", PROGRAM]
        nobody = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        for namespace, user, served in ((net.guest, [], True), (net.host, [], True), (net.host, nobody, False)):
            done = subprocess.run([*net.inside(namespace), *user, *ways], capture_output=True, text=True, timeout=network.LIMIT_S, check=False)
            assert (done.returncode == 0) == served, done
            assert served or "may not use the host's GPUs" in done.stdout + done.stderr, done
    print("A guest on the bridge is served, and so is the host's root; no stranger with a route to the same address is, and no other user.")


if __name__ == "__main__":
    main()
