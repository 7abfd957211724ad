#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A relay in user space that delays what it passes on, each way, and bounds how much of it there is in a second.

Usage: relay.py LISTEN_ADDRESS PORT TO_ADDRESS TO_PORT DELAY_MS [MBIT_PER_S]. Prints "relays at ADDRESS:PORT " when it listens (port 0: any). It
keeps the order of bytes and loses none: a longer, thinner wire. At most a megabyte is under way in each direction, as in a network whose
buffers are full; more waits in its sender.
"""

import queue
import socket
import sys
import threading
import time

PIECE = 64 << 10
MOST_PIECES = 16


class Direction:
    """From one socket to the other: a thread that receives and notes when each piece is due, and one that sends it then."""

    def __init__(self, source, target, delay_s, bytes_per_s):
        self.source, self.target, self.delay_s, self.bytes_per_s = source, target, delay_s, bytes_per_s
        self.pieces = queue.Queue(MOST_PIECES)
        for run in (self.receive, self.send):
            threading.Thread(target=run, daemon=True).start()

    def receive(self):
        free_at = 0.0
        while True:
            try:
                data = self.source.recv(PIECE)
            except OSError:
                data = b""
            # The wire is busy with a piece for as long as the bandwidth says.
            free_at = max(free_at, time.monotonic()) + (len(data) / self.bytes_per_s if self.bytes_per_s else 0)
            self.pieces.put((free_at + self.delay_s, data))
            if not data:
                return

    def send(self):
        while True:
            due, data = self.pieces.get()
            if (wait := due - time.monotonic()) > 0:
                time.sleep(wait)
            try:
                if data:
                    self.target.sendall(data)
                    continue
                self.target.shutdown(socket.SHUT_WR)
                return
            except OSError:
                # The target has gone: its sender is to learn it, and what still comes of it is taken and left.
                for end in (self.source, self.target):
                    try:
                        end.shutdown(socket.SHUT_RDWR)
                    except OSError:
                        pass
                while self.pieces.get()[1]:
                    pass
                return


def main():
    address, port, to_address, to_port, delay_ms = sys.argv[1:6]
    bytes_per_s = float(sys.argv[6]) * 1e6 / 8 if len(sys.argv) > 6 else 0
    listener = socket.create_server((address, int(port)))
    print("relays at {}:{} ".format(*listener.getsockname()), flush=True)
    while True:
        near, _ = listener.accept()
        try:
            far = socket.create_connection((to_address, int(to_port)), 10)
        except OSError:
            near.close()
            continue
        far.settimeout(None)
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, target in ((near, far), (far, near)):
            Direction(source, target, float(delay_ms) / 1000, bytes_per_s)


if __name__ == "__main__":
    main()
