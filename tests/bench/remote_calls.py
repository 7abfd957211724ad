#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a call costs over the loopback interface, in plain text and over TLS, beside a raw ping-pong of sockets there.

Usage: remote_calls.py BUILD [ROUNDS]. It starts `causeway run` for each way in turns, with the software GPU, and prints the median over
the rounds of each round's figure. Python adds about a microsecond to each call, equal in all ways. "posted" is a memset of four
bytes that nobody waits for; "waiting" asks for the free memory; the ping-pong sends 64 bytes and waits for 64 in a blocking read, and its
other end is a process.
"""
import ctypes
import os
import socket
import statistics
import subprocess
import sys
import time

CALLS = 400
COPY_BYTES = 32 << 20
COPIES = 3


def us_of(function, calls):
    """The median time of one call in microseconds."""
    times = []
    for _ in range(calls):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times) * 1e6


def measure_calls(library):
    cuda = ctypes.CDLL(library)
    context, place = ctypes.c_void_p(), ctypes.c_uint64()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    size = ctypes.c_size_t(COPY_BYTES)
    memory = ctypes.create_string_buffer(os.urandom(COPY_BYTES), COPY_BYTES)
    for result in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context),
                   cuda.cuMemAlloc_v2(ctypes.byref(place), size)):
        if result != 0:
            sys.exit(f"the driver answers {result}")
    waiting = us_of(lambda: cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)), CALLS)
    posted = us_of(lambda: cuda.cuMemsetD8Async(place, 1, ctypes.c_size_t(4), None), CALLS)
    cuda.cuCtxSynchronize()
    to_device = us_of(lambda: cuda.cuMemcpyHtoD_v2(place, memory, size), COPIES)
    to_host = us_of(lambda: cuda.cuMemcpyDtoH_v2(memory, place, size), COPIES)
    print(waiting, posted, COPY_BYTES / to_device / 1e3, COPY_BYTES / to_host / 1e3)


def measure_ping_pong():
    listener = socket.create_server(("127.0.0.1", 0))
    child = os.fork()
    if child == 0:
        peer = listener.accept()[0]
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while data := peer.recv(64):
            peer.sendall(data)
        os._exit(0)
    own = socket.create_connection(listener.getsockname())
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    message = bytes(64)

    def ping():
        own.sendall(message)
        own.recv(64, socket.MSG_WAITALL)

    result = us_of(ping, CALLS)
    own.close()
    os.waitpid(child, 0)
    return result


def main():
    build = os.path.abspath(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 7
    run = [build + "/host_backend/causeway", "run", "--driver", build + "/software_gpu/libcuda.so.1"]
    ways = {"shared memory": [], "tcp": ["--tcp"], "tls": ["--tls"]}
    found = {way: [] for way in ways}
    raw = []
    for _ in range(rounds):
        raw.append(measure_ping_pong())
        for way, options in ways.items():
            text = subprocess.run(run + options + ["--", sys.executable, os.path.abspath(__file__), "--calls",
                                                   build + "/guest_lib/libcuda.so.1"],
                                  check=True, capture_output=True, text=True, timeout=300).stdout
            found[way].append([float(word) for word in text.split()])
    print(f"raw ping-pong, 64 bytes: {statistics.median(raw):.1f} us")
    print("| way | waiting call, us | of the ping-pong | posted call, us | to the device, GB/s | to the host, GB/s |")
    print("|---|---|---|---|---|---|")
    for way, figures in found.items():
        wait, post, there, back = (statistics.median(column) for column in zip(*figures))
        print(f"| {way} | {wait:.1f} | {wait / statistics.median(raw):.2f} | {post:.2f} | {there:.2f} | {back:.2f} |")


if __name__ == "__main__":
    if sys.argv[1] == "--calls":
        measure_calls(sys.argv[2])
    else:
        main()
