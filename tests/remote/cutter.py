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
    hears any more of the other until it makes another connection. For `down_s` after a cut nobody gets through. For each number of seconds in
    `silences` one of the cuts is none: for so long the relay reads from nobody and accepts nobody, and then passes on what has come meanwhile,
    as a network does that is back. Two connections at a time are served as one is: only the newest counts.
    """

    def __init__(self, target, cuts, most_bytes, seed, silent=0, down_s=(0.0,), silences=()):
        self.target, self.left, self.most_bytes, self.down_s = target, cuts, most_bytes, down_s
        self.random = random.Random(seed)
        special = self.random.sample(range(1, cuts + 1), silent + len(silences)) if silent or silences else []
        self.silent, self.silences = set(special[:silent]), dict(zip(special[silent:], silences))
        self.made = self.cuts = 0
        self.open_at = self.silent_until = 0.0
        self.ended = threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(0.1)
        self.port = self.listener.getsockname()[1]
        self.threads = [threading.Thread(target=self.accept)]
        self.threads[0].start()

    def accept(self):
        while not self.ended.is_set():
            if self.is_silent():
                continue
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

    def is_silent(self):
        """Whether nothing is to pass; after a moment in which nothing does, if so."""
        is_silent = time.monotonic() < self.silent_until
        if is_silent:
            time.sleep(0.02)
        return is_silent

    def limit(self):
        """After how many bytes the next cut is; None: there is none any more."""
        if self.left <= 0:
            return None
        self.left -= 1
        return max(self.random.randint(1, self.most_bytes), OPENING if self.cuts == 0 else 1)

    def relay(self, near, far):
        limit, passed = None, 0
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        other = {near: far, far: near}
        while not self.ended.is_set():
            if limit is None:
                limit, passed = self.limit(), 0
            for end in [] if self.is_silent() else select.select([near, far], [], [], 0.1)[0]:
                most = PIECE if limit is None else min(PIECE, limit - passed)
                try:
                    data = end.recv(most)
                    other[end].settimeout(30)
                    other[end].sendall(data)
                except OSError:
                    data = None
                if not data:
                    # The cut that this connection did not live to see is the next one's.
                    self.left += limit is not None
                    return self.end(near, far, data is not None)
                passed += len(data)
                if passed == limit:
                    if self.cuts + 1 not in self.silences:
                        return self.cut(near, far)
                    self.cuts += 1
                    self.silent_until = time.monotonic() + self.silences[self.cuts]
                    limit = None
                    break
        self.reset(near, far)

    def end(self, near, far, in_order):
        """As one side has ended the connection, the other one's is ended."""
        if not in_order:
            return self.reset(near, far)
        near.close()
        far.close()

    def cut(self, near, far):
        self.cuts += 1
        if self.cuts in self.silent:
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


# What both programs begin with. Where a call fails they say so, and what the next calls answer: with a third argument when they have been told
# to go on. The error has to stay, whatever comes of the link.
GUEST = """
import array, ctypes, os, select, sys
cuda, libc = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1"), ctypes.CDLL(None)
allocated = []
def check(result, what):
    if result == 0:
        return
    print("failed", what, result, flush=True)
    if len(sys.argv) > 3:
        sys.stdin.readline()
    where = ctypes.c_uint64()
    again = [cuda.cuCtxSynchronize(), cuda.cuMemAlloc_v2(pointer(where), ctypes.c_size_t(4)), cuda.cuCtxSynchronize()]
    print("again", *again, *(cuda.cuMemsetD32Async(each, 0, ctypes.c_size_t(1), None) for each in allocated[:1]), flush=True)
    sys.exit(1)
def call(name, *arguments):
    check(getattr(cuda, name)(*arguments), name)
def pointer(value):
    return ctypes.byref(value)
def allocate(size):
    there = ctypes.c_uint64()
    call("cuMemAlloc_v2", pointer(there), ctypes.c_size_t(size))
    allocated.append(there)
    return there
def kernel(name, parameters, body):
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    listed = ", ".join(".param .u64 " + each for each in parameters)
    text = ".version 7.0\\n.target sm_50\\n.address_size 64\\n.visible .entry " + name + "(" + listed + ")\\n{" + body + "}\\n"
    call("cuModuleLoadData", pointer(module), text.encode())
    call("cuModuleGetFunction", pointer(function), module, name.encode())
    return function
def launch(function, blocks, threads, *addresses):
    listed = (ctypes.c_void_p * len(addresses))(*(ctypes.cast(pointer(each), ctypes.c_void_p) for each in addresses))
    call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, 0, None, listed, None)
def told_to_end():
    return bool(select.select([sys.stdin], [], [], 0)[0])
device, context = ctypes.c_int(), ctypes.c_void_p()
call("cuInit", 0)
call("cuDeviceGet", pointer(device), 0)
call("cuDevicePrimaryCtxRetain", pointer(context), device)
call("cuCtxSetCurrent", context)
"""

# Launches a kernel that counts on the device, copies both ways and compares, until its input ends; then it says what it did.
PROGRAM = GUEST + """
COPY = int(sys.argv[2])
count = kernel("count", ["where"], '''
  .reg .b64 %rd<2>;
  .reg .b32 %r<2>;
  ld.param.u64 %rd1, [where];
  atom.global.add.u32 %r1, [%rd1], 1;
  ret;
''')
counter, there, elsewhere = allocate(4), allocate(COPY), allocate(COPY)
call("cuMemsetD32_v2", counter, 0, ctypes.c_size_t(1))
launched, copies, counted = 0, 0, ctypes.c_uint32()
print("began", flush=True)
back = ctypes.create_string_buffer(COPY)
ends = False
while not ends:
    ends = told_to_end()
    for _ in range(50):
        launch(count, 1, 1, counter)
    launched += 50
    call("cuMemcpyDtoH_v2", pointer(counted), counter, ctypes.c_size_t(4))
    if counted.value != launched:
        check(-1, f"counted {counted.value} of {launched} launches")
    sent = os.urandom(COPY)  # no part is like another one, so that a piece in the wrong place is found
    call("cuMemcpyHtoD_v2", there, sent, ctypes.c_size_t(COPY))
    call("cuMemcpyDtoD_v2", elsewhere, there, ctypes.c_size_t(COPY))
    call("cuMemcpyDtoH_v2", back, elsewhere, ctypes.c_size_t(COPY))
    if libc.memcmp(back, sent, ctypes.c_size_t(COPY)) != 0:
        check(-1, "bytes that came back")
    copies += 2
call("cuCtxSynchronize")
print("launched", launched, "counted", counted.value, "copies", copies, flush=True)
"""

# What a training does: each step copies a batch to the device and has a kernel change weights and momenta by it, and after some steps a loss is
# read. The processor computes the same. In whole numbers, of which each step can be undone: a step that is missing, comes twice or has another
# one's batch changes all that follow, where a training that converges would forget it.
TRAINING = GUEST + """
BLOCKS, THREADS, STEPS, MASK = 4, 64, 4, (1 << 32) - 1
WORDS = BLOCKS * THREADS
step = kernel("step", ["state", "batch"], '''
  .reg .b64 %rd<8>;
  .reg .b32 %r<10>;
  ld.param.u64 %rd1, [state];
  ld.param.u64 %rd2, [batch];
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mov.u32 %r3, %tid.x;
  mad.lo.u32 %r4, %r1, %r2, %r3;
  mul.wide.u32 %rd3, %r4, 4;
  add.u64 %rd4, %rd1, %rd3;
  add.u64 %rd5, %rd2, %rd3;
  ld.global.u32 %r5, [%rd4];
  ld.global.u32 %r6, [%rd4+1024];
  ld.global.u32 %r7, [%rd5];
  mad.lo.u32 %r8, %r5, %r7, %r4;
  add.u32 %r8, %r8, 1;
  mad.lo.u32 %r6, %r6, 3, %r8;
  sub.u32 %r5, %r5, %r6;
  st.global.u32 [%rd4], %r5;
  st.global.u32 [%rd4+1024], %r6;
  atom.global.add.u32 %r9, [%rd1+2048], %r5;
  atom.global.add.u32 %r9, [%rd1+2052], 1;
  ret;
''')
state, batch = allocate(8 * WORDS + 8), allocate(4 * WORDS)  # weights, momenta, the sum of all losses, and how many threads have run
call("cuMemsetD32_v2", state, 0, ctypes.c_size_t(2 * WORDS + 2))
weights, momenta, loss, steps = [0] * WORDS, [0] * WORDS, 0, 0
there = (ctypes.c_uint32 * (2 * WORDS + 2))()
sums = (ctypes.c_uint32 * 2)()
print("began", flush=True)
ends = False
while not ends:
    ends = told_to_end()
    for _ in range(STEPS):
        sent = os.urandom(4 * WORDS)
        call("cuMemcpyHtoDAsync_v2", batch, sent, ctypes.c_size_t(4 * WORDS), None)
        launch(step, BLOCKS, THREADS, state, batch)
        for i, value in enumerate(array.array("I", sent)):
            momenta[i] = (3 * momenta[i] + weights[i] * value + i + 1) & MASK
            weights[i] = (weights[i] - momenta[i]) & MASK
        loss = (loss + sum(weights)) & MASK
        steps += 1
    call("cuMemcpyDtoH_v2", sums, ctypes.c_uint64(state.value + 8 * WORDS), ctypes.c_size_t(8))
    if list(sums) != [loss, steps * WORDS & MASK]:
        check(-1, f"the loss, or {sums[1] // WORDS} of {steps} steps")
call("cuMemcpyDtoH_v2", there, state, ctypes.c_size_t(ctypes.sizeof(there)))
if list(there) != [*weights, *momenta, *sums]:
    check(-1, "weights and momenta")
print("launched", steps, "trained", there[-1] // WORDS, "steps", flush=True)
"""
