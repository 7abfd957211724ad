#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The hand of a hostile guest: writes anything into a region that is granted to a domain, while causewayd uses it.

A guest may write each byte of its region. The pages are domain 0's own and causewayd has those mapped that it reads
(granule 0 and the slots), so that the same bytes are written here through /proc/PID/mem; the guest need not help.

usage: scribble.py PID_OF_CAUSEWAYD [--writes N] [--seed N]
exit status: 0 all was written and causewayd lives; 1 it ended, or has no region mapped
"""
import argparse
import os
import random
import re
import sys
import time

GUEST_PAGE, OWNER_TABLE, GRANULE = 0x2000, 0x10000, 2 << 20
WORDS = [0, 1, 2, 3, 0x7f, 0xff, 0x100, 0xffff, 0x10000, 1 << 20, 1 << 31, (1 << 32) - 1, 1 << 32, (1 << 63), (1 << 64) - 1]


def mappings(process):
    """Addresses and sizes of the region's mappings that can be written."""
    with open(f"/proc/{process}/maps") as lines:
        for line in lines:
            found = re.match(r"([0-9a-f]+)-([0-9a-f]+) (.w..) ([0-9a-f]+) .*gntalloc", line)
            if found:
                start, end = int(found[1], 16), int(found[2], 16)
                yield start, end - start, int(found[4], 16)


def place(chooser, size, offset):
    """Where: the words that the daemon looks at more often than others."""
    kind = chooser.randrange(4)
    if kind == 0 and offset == 0:
        return GUEST_PAGE + 8 * chooser.randrange(512)
    if kind == 1 and offset == 0:
        return OWNER_TABLE + 8 * chooser.randrange(64)
    granule = GRANULE * chooser.randrange(max(size // GRANULE, 1))
    if kind == 2:
        return granule + 8 * chooser.randrange(64)
    return min(granule + 8 * chooser.randrange(GRANULE // 8), size - 8)


def bytes_for(chooser):
    if chooser.randrange(8) == 0:
        return chooser.randbytes(8 * chooser.randrange(1, 512))
    word = chooser.choice(WORDS) if chooser.randrange(2) else chooser.getrandbits(64)
    return word.to_bytes(8, "little")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("process", type=int)
    parser.add_argument("--writes", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=random.getrandbits(32))
    options = parser.parse_args()
    print(f"scribble.py: seed {options.seed}", flush=True)
    chooser = random.Random(options.seed)
    regions = list(mappings(options.process))
    if not regions:
        print("scribble.py: the daemon has no region mapped", flush=True)
        return 1
    memory = os.open(f"/proc/{options.process}/mem", os.O_RDWR)
    written = 0
    for count in range(options.writes):
        start, size, offset = chooser.choice(regions)
        at = place(chooser, size, offset)
        content = bytes_for(chooser)[:size - at]
        written += os.pwrite(memory, content, start + at)
        if count % 50 == 49:
            time.sleep(0.1)  # so that the daemon looks at it
    print(f"scribble.py: {written} bytes in {len(regions)} mappings", flush=True)
    return 0 if written and os.path.exists(f"/proc/{options.process}") else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except OSError as problem:
        print(f"scribble.py: {problem}", flush=True)
        sys.exit(1)
