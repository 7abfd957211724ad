#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Conformance over TLS between two network namespaces: a veth pair and a bridge, and on them a relay that delays and bounds.

Usage: network_test.py BACKEND_FOLDER SOFTWARE_GPU GUEST_LIBRARY_FOLDER COMPARE_WAYS DRIVER_TESTS [--delays 0,0.1,1,10] [--mbit 1000]
[--only NAME ...] [--tcp] [--ipv6]. Each delay is one of each way, in ms: a round trip takes twice as long. Without a delay there is no relay. The
results are those of the software GPU called directly, test by test (tests/driver/compare_ways.py). Exit status 77: this machine has no network
namespaces.
"""

import argparse
import json
import pathlib
import socket
import subprocess
import sys
import threading
import time

import network

RELAY = pathlib.Path(__file__).with_name("relay.py")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("backend", "driver", "library", "compare_ways", "programs"):
        parser.add_argument(name)
    parser.add_argument("--delays", default="0,0.1,1,10", help="of each way, in ms")
    parser.add_argument("--mbit", default="1000", help="what a relay lets pass, in Mbit/s")
    parser.add_argument("--only", nargs="*", help="names of programs; all without it")
    parser.add_argument("--tcp", action="store_true", help="plain TCP on the bridge as well")
    parser.add_argument("--ipv6", action="store_true", help="TLS over IPv6 as well, where the kernel has it")
    parser.add_argument("--timeout", default="120", help="of one program, in seconds")
    return parser.parse_args()


def check_relay():
    """The relay delays and bounds at least as much as it says; what it does beyond that is the machine's."""
    delay_ms, mbit, size = 20, 80, 1 << 20
    with socket.create_server(("127.0.0.1", 0)) as server:
        relay = subprocess.Popen([sys.executable, str(RELAY), "127.0.0.1", "0", "127.0.0.1", str(server.getsockname()[1]), str(delay_ms),
                                  str(mbit)], stdout=subprocess.PIPE, text=True)
        try:
            port = int(relay.stdout.readline().split(":")[1])
            with socket.create_connection(("127.0.0.1", port), network.LIMIT_S) as near:
                far, _ = server.accept()
                begin = time.monotonic()
                near.sendall(b"x")
                assert far.recv(1) == b"x"
                far.sendall(b"y")
                assert near.recv(1) == b"y"
                took = time.monotonic() - begin
                assert took >= 2 * delay_ms / 1000, f"a round trip took {took} s"
                data, got, begin = bytes(range(256)) * (size // 256), bytearray(), time.monotonic()
                sender = threading.Thread(target=lambda: (near.sendall(data), near.shutdown(socket.SHUT_WR)))
                sender.start()
                while part := far.recv(1 << 16):
                    got += part
                sender.join()
                took = time.monotonic() - begin
                assert got == data, "the relay changes what it passes on"
                assert took >= size * 8 / mbit / 1e6, f"{size} bytes took {took} s"
                far.close()
        finally:
            relay.kill()
            relay.communicate()


def main():
    options = arguments()
    network.skip_unless_possible("network_test.py")
    check_relay()
    with network.Network() as net:
        folder = net.folder()
        listen = [f"{network.HOST}:0"]
        if options.ipv6 and net.add_ipv6():
            listen.append(f"[{network.HOST6}]:0")
        elif options.ipv6:
            print("network_test.py: this kernel has no IPv6, which is left out.")
        key, keys, config = folder / "key", folder / "keys", folder / "config.toml"
        config.write_text(f'socket = "{folder}/socket"\nsocket_mode = "0600"\ndriver_library = "{options.driver}"\n'
                          f'[tcp]\nlisten = "{network.HOST}:0"\nallow_plaintext_remote = true\nbridge = "{network.BRIDGE}"\n'
                          f'[tls]\nlisten = {json.dumps(listen)}\nkeys = "{keys}"\n[[remote]]\nname = "guest"\n', encoding="utf-8")
        network.run(f"{options.backend}/causeway", "keys", "create", "guest", "--output", key, "--keys", keys)
        tcp = net.start(net.host, folder / "log", "TCP sessions are accepted at ", f"{options.backend}/causewayd", "--config", config)
        tls = net.start(net.host, folder / "tls.log", "TLS sessions are accepted at ", f"{options.backend}/causeway-tls", "--config", config)
        ways = {}
        if len(listen) > 1:
            ways["tls_ipv6"] = "tls://[" + network.what_it_says(net.processes[-1], folder / "tls.log", "TLS sessions are accepted at [")
        for delay in options.delays.split(","):
            where = tls
            if float(delay) != 0:
                where = net.start(net.guest, folder / f"relay{delay}.log", "relays at ", sys.executable, RELAY,
                                  "127.0.0.1", 0, *tls.rsplit(":", 1), delay, options.mbit)
            ways[f"tls_{delay}ms"] = f"tls://{where}"
        if options.tcp:
            ways["tcp"] = f"tcp://{tcp}"
        command = [sys.executable, options.compare_ways, "--programs", options.programs, "--timeout", options.timeout, "--way",
                   f"direct=env LD_LIBRARY_PATH={pathlib.Path(options.driver).parent}"]
        for name, way in ways.items():
            inside = " ".join(net.inside(net.guest))
            command += ["--way", f"{name}={inside} env CAUSEWAY={way} CAUSEWAY_KEY={key} LD_LIBRARY_PATH={options.library}"]
        if options.only:
            command += ["--only", *options.only]
        done = subprocess.run(command, check=False)
        if done.returncode != 0:
            for log in ("log", "tls.log"):
                print(f"last lines of {log}:", *(folder / log).read_text(encoding="utf-8").splitlines()[-15:], sep="\n")
        sys.exit(done.returncode)


if __name__ == "__main__":
    main()
