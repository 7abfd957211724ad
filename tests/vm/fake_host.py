#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Plays the host for tests of the kernel module: formats a region file, acknowledges resets, serves and closes slots.

It also watches the module: every transition of a guest's slot word must be a legal one, else the program fails.
The guest's test steers it by words that the real layout leaves unused (see CONTROL and HOLD below).
"""
import argparse
import mmap
import os
import random
import select
import signal
import socket
import struct
import sys
import time
import zlib

GRANULE = 2 << 20
HOST_PAGE, GUEST_PAGE, OWNER_TABLE = 0x1000, 0x2000, 0x10000
SLOT_WORDS = 128
MAX_SLOTS = 256
FREE, OPEN, DYING = 0, 1, 2
CLOSED, SERVING = 0, 1
CONTROL = 0x3000  # u32: 1 = do not acknowledge resets
# Of doorbell mode, in words of a slot that the real layout has for rings. The guest asks by REQUEST: the number of
# interrupts in the high half, any number in the low half. The host answers by writing the request to ANSWER, and interrupts.
REQUEST, ANSWER = 0x0, 0x10000 + 0x80
RINGS = 0x3008  # u64: how often the guest has rung for work
HOLD = 0x60000  # u32 in a slot's granule: milliseconds between its DYING and our CLOSED


def superblock(region_bytes):
    slots = min(region_bytes // (16 << 20), MAX_SLOTS)
    head = struct.pack("<QHHIQQQQIIIIQ16s", 0x5941574553554143, 1, 0, 96, region_bytes, 0, random.getrandbits(63) | 1,
                       0x1234, slots, GRANULE, region_bytes // GRANULE, 64, 0x400000000000, os.urandom(16))
    return head + struct.pack("<II", zlib.crc32(head), 0)


class Doorbell:
    """The ivshmem server of one VM (protocol version 0), and what the VM rings."""

    def __init__(self, path, file):
        self.file = file
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen(1)
        flags = os.EFD_NONBLOCK | os.EFD_CLOEXEC
        self.work, self.control, self.guest = (os.eventfd(0, flags) for _ in range(3))
        self.client = None

    def wait(self, seconds):
        """Until a ring or a connection. Returns how often the guest has rung for work."""
        ready, _, _ = select.select([self.listener, self.work, self.control], [], [], seconds)
        if self.listener in ready:
            self.client, _ = self.listener.accept()
            for number, descriptor in ((0, None), (1, None), (-1, self.file.fileno()), (0, self.work), (0, self.control),
                                       (1, self.guest)):
                socket.send_fds(self.client, [struct.pack("<q", number)], [] if descriptor is None else [descriptor])
        if self.control in ready:
            os.eventfd_read(self.control)
        return os.eventfd_read(self.work) if self.work in ready else 0


class Host:
    def __init__(self, size, memory):
        self.map = memory
        block = superblock(size)
        self.map[0:len(block)] = block
        self.slots, self.granules = min(size // (16 << 20), MAX_SLOTS), size // GRANULE
        self.words = memoryview(self.map).cast("I")  # one store each
        self.longs = memoryview(self.map).cast("Q")
        self.owners = memoryview(self.map).cast("H")
        self.seen = [0] * self.slots
        self.close_at = {}
        self.errors = []
        self.counts = {"resets": 0, "opened": 0, "closed": 0}

    def fail(self, text):
        print("fake_host: " + text, file=sys.stderr, flush=True)
        self.errors.append(text)

    def owned(self, slot):
        base = OWNER_TABLE // 2
        return [g for g in range(1 + self.slots, self.granules) if self.owners[base + g] == slot + 1]

    def answer(self, doorbell, rings):
        self.longs[RINGS // 8] += rings
        for slot in range(self.slots):
            request = self.words[((1 + slot) * GRANULE + REQUEST) // 4]
            if request == self.words[((1 + slot) * GRANULE + ANSWER) // 4]:
                continue
            self.words[((1 + slot) * GRANULE + ANSWER) // 4] = request
            for _ in range(request >> 16):
                os.eventfd_write(doorbell.guest, 1)

    def host_word(self, slot, session, state):
        self.words[(HOST_PAGE + SLOT_WORDS) // 4 + slot] = session << 8 | state

    def reset(self, epoch):
        for slot in range(self.slots):
            session = self.words[(HOST_PAGE + SLOT_WORDS) // 4 + slot] >> 8
            self.host_word(slot, session, CLOSED)
            self.seen[slot] = self.words[(GUEST_PAGE + SLOT_WORDS) // 4 + slot]
            if self.seen[slot] & 0xff != FREE:
                self.fail(f"slot {slot} is not free at a new epoch")
        self.close_at.clear()
        self.counts["resets"] += 1
        self.longs[(HOST_PAGE + 16) // 8] = epoch

    def transition(self, slot, old, new):
        session, state = new >> 8, new & 0xff
        # Between two looks a slot may be freed, or even open and die: what counts is that the earlier session was over.
        over = old & 0xff == FREE or self.words[(HOST_PAGE + SLOT_WORDS) // 4 + slot] == old >> 8 << 8 | CLOSED
        if state == OPEN:
            if not over or session <= old >> 8:
                self.fail(f"slot {slot}: {old:#x} -> {new:#x} is no opening")
            if not self.words[(GUEST_PAGE + SLOT_WORDS) // 4 + MAX_SLOTS + slot]:
                self.fail(f"slot {slot} opened without a pid")
            self.counts["opened"] += 1
            self.host_word(slot, session, SERVING)
        elif state == DYING:
            if session < old >> 8 or (session > old >> 8 and not over):
                self.fail(f"slot {slot}: {old:#x} -> {new:#x} is no end")
            hold_ms = self.words[((1 + slot) * GRANULE + HOLD) // 4]
            self.close_at[slot] = (time.monotonic() + min(hold_ms, 10000) / 1000, session)
        elif state != FREE or session < old >> 8:
            self.fail(f"slot {slot}: {old:#x} -> {new:#x} is unknown")
        elif old & 0xff != FREE and slot in self.close_at:
            time.sleep(0.1)
            if self.longs[GUEST_PAGE // 8] != self.longs[(HOST_PAGE + 16) // 8]:
                return  # the module was bound anew meanwhile: reset() answers
            self.fail(f"slot {slot}: freed before it was closed")

    def step(self):
        self.longs[HOST_PAGE // 8] += 1
        self.words[(HOST_PAGE + 8) // 4] = 1
        epoch = self.longs[GUEST_PAGE // 8]
        if epoch != self.longs[(HOST_PAGE + 16) // 8]:
            if not self.words[CONTROL // 4]:
                self.reset(epoch)
            return
        for slot in range(self.slots):
            word = self.words[(GUEST_PAGE + SLOT_WORDS) // 4 + slot]
            if word != self.seen[slot] and self.longs[GUEST_PAGE // 8] == epoch:
                self.transition(slot, self.seen[slot], word)
                self.seen[slot] = word
        for slot, (when, session) in list(self.close_at.items()):
            if time.monotonic() >= when:
                for granule in self.owned(slot) + [1 + slot]:
                    self.map[granule * GRANULE:(granule + 1) * GRANULE] = bytes(GRANULE)
                self.host_word(slot, session, CLOSED)
                del self.close_at[slot]
                self.counts["closed"] += 1


def region_file(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
    return open(path, "r+b")


def serve(host, doorbell=None):
    running = [True]
    signal.signal(signal.SIGTERM, lambda *_: running.clear())
    while running:
        host.step()
        if doorbell:
            host.answer(doorbell, doorbell.wait(0.01))
        else:
            time.sleep(0.001)
    print(f"fake_host: {host.counts}, {len(host.errors)} errors", flush=True)
    # A slot that opens and ends between two looks of a starved host is seen ending only.
    return 1 if host.errors or not (host.counts["opened"] or host.counts["closed"]) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("region")
    parser.add_argument("--mib", type=int, default=128)
    parser.add_argument("--doorbell", help="gives the region to a VM in doorbell mode, by this socket")
    parser.add_argument("--format-only", action="store_true")
    options = parser.parse_args()
    file = region_file(options.region, options.mib << 20)
    host = Host(options.mib << 20, mmap.mmap(file.fileno(), options.mib << 20))
    doorbell = Doorbell(options.doorbell, file) if options.doorbell else None
    print("formatted", flush=True)
    if options.format_only:
        return 0
    return serve(host, doorbell)


if __name__ == "__main__":
    sys.exit(main())
