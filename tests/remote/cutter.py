# SPDX-License-Identifier: Apache-2.0
"""A relay that cuts the connections that it passes on, at random bytes, and a guest program that proves what was executed."""

import random
import select
import socket
import struct
import threading
import time

PIECE = 64 << 10
OPENING = 32 << 10  # more than handshake and opening of a session have: until then there is nothing that could go on


class Cutter:
    """Relays to `target` until a random number of bytes has passed, and then cuts the connection; `cuts` times in all.

    A cut is a reset of both sides, in the middle of whatever passes; of `silent` of them the bytes are swallowed instead, and neither side
    hears any more of the other until it makes another connection. For `down_s` after a cut nobody gets through. Two connections at a time
    are served as one is: only the newest counts.
    """

    def __init__(self, target, cuts, most_bytes, seed, silent=0, down_s=(0.0,)):
        self.target, self.left, self.most_bytes, self.down_s = target, cuts, most_bytes, down_s
        self.random = random.Random(seed)
        self.silent = set(self.random.sample(range(1, cuts + 1), silent)) if silent else set()
        self.made = self.cuts = 0
        self.open_at = 0.0
        self.ended = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(0.1)
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self):
        while not self.ended.is_set():
            try:
                near, _ = self.listener.accept()
            except TimeoutError:
                continue
            if time.monotonic() < self.open_at:
                self.reset(near)
                continue
            try:
                far = socket.create_connection(self.target, 10)
            except OSError:
                self.reset(near)
                continue
            self.made += 1
            thread = threading.Thread(target=self.relay, args=(near, far))
            self.threads.append(thread)
            thread.start()

    def relay(self, near, far):
        until = self.random.randint(1, self.most_bytes) if self.left > 0 else None
        if until is not None and self.cuts == 0:
            until = max(until, OPENING)
        if until is not None:
            self.left -= 1
        number, passed = self.cuts + 1, 0
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        other = {near: far, far: near}
        while not self.ended.is_set():
            for end in select.select([near, far], [], [], 0.1)[0]:
                most = PIECE if until is None else min(PIECE, until - passed)
                try:
                    data = end.recv(most)
                    other[end].settimeout(30)
                    other[end].sendall(data)
                except OSError:
                    data = b""
                if not data:  # in order: as one side has closed, the other is closed to
                    near.close()
                    far.close()
                    return
                passed += len(data)
                if passed == until:
                    return self.cut(near, far, number in self.silent)
        self.reset(near, far)

    def cut(self, near, far, silent):
        self.cuts += 1
        if silent:
            self.swallow(near, far)
        else:
            self.open_at = time.monotonic() + self.random.choice(self.down_s)
        self.reset(near, far)

    def swallow(self, near, far):
        """Until another connection has come, which the host takes in the place of this one."""
        made = self.made
        while not self.ended.is_set() and self.made == made:
            for end in select.select([near, far], [], [], 0.1)[0]:
                try:
                    if not end.recv(PIECE):
                        return
                except OSError:
                    return

    @staticmethod
    def reset(*ends):
        for end in ends:
            try:
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.close()
            except OSError:
                pass

    def stop(self):
        self.ended.set()
        for thread in self.threads:
            thread.join()
        self.listener.close()


# Launches a kernel that counts on the device, copies both ways and compares, until its input ends; then it says what it did.
PROGRAM = """
import ctypes, hashlib, os, select, sys
cuda = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
COPY = int(sys.argv[2])
PTX = b'''
.version 7.0
.target sm_50
.address_size 64
.visible .entry count(.param .u64 where)
{
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [where];
  atom.global.add.u32 %r1, [%rd1], 1;
  ret;
}
'''
def check(result, what):
    if result != 0:
        print("failed", what, result, flush=True)
        sys.exit(1)
def call(name, *arguments):
    check(getattr(cuda, name)(*arguments), name)
def pointer(value):
    return ctypes.byref(value)
device, context, module, count = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
counter, there, elsewhere = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_uint64()
call("cuInit", 0)
call("cuDeviceGet", pointer(device), 0)
call("cuDevicePrimaryCtxRetain", pointer(context), device)
call("cuCtxSetCurrent", context)
call("cuModuleLoadData", pointer(module), PTX)
call("cuModuleGetFunction", pointer(count), module, b"count")
call("cuMemAlloc_v2", pointer(counter), ctypes.c_size_t(4))
call("cuMemAlloc_v2", pointer(there), ctypes.c_size_t(COPY))
call("cuMemAlloc_v2", pointer(elsewhere), ctypes.c_size_t(COPY))
call("cuMemsetD32_v2", counter, 0, ctypes.c_size_t(1))
argument = (ctypes.c_void_p * 1)(ctypes.cast(pointer(counter), ctypes.c_void_p))
launched, copies, counted = 0, 0, ctypes.c_uint32()
print("began", flush=True)
back = ctypes.create_string_buffer(COPY)
ends = False
while not ends:
    ends = bool(select.select([sys.stdin], [], [], 0)[0])
    for _ in range(50):
        call("cuLaunchKernel", count, 1, 1, 1, 1, 1, 1, 0, None, argument, None)
    launched += 50
    call("cuMemcpyDtoH_v2", pointer(counted), counter, ctypes.c_size_t(4))
    if counted.value != launched:
        check(-1, f"counted {counted.value} of {launched} launches")
    sent = os.urandom(1 << 16) * (COPY >> 16)
    call("cuMemcpyHtoD_v2", there, sent, ctypes.c_size_t(COPY))
    call("cuMemcpyDtoD_v2", elsewhere, there, ctypes.c_size_t(COPY))
    call("cuMemcpyDtoH_v2", back, elsewhere, ctypes.c_size_t(COPY))
    if hashlib.sha256(back).digest() != hashlib.sha256(sent).digest():
        check(-1, "bytes that came back")
    copies += 2
call("cuCtxSynchronize")
print("launched", launched, "counted", counted.value, "copies", copies, flush=True)
"""
