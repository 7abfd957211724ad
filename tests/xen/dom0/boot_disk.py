#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a disk from which an HVM guest boots (../boot_disk.S): boot_disk.py FIRST_SECTOR KERNEL INITRAMFS WORDS DISK"""

import struct
import sys

SECTOR = 512
NUMBERS_AT = 494  # of the first sector
WORDS_BYTES = 4 * SECTOR
MOST_SETUP_BYTES = 0x8000


def padded(data):
    return data + bytes(-len(data) % SECTOR)


def main():
    first, kernel, initramfs, words, disk = sys.argv[1:]
    with open(first, "rb") as file:
        sector = bytearray(file.read())
    with open(kernel, "rb") as file:
        image = file.read()
    with open(initramfs, "rb") as file:
        memory = file.read()
    setup_bytes = ((image[0x1F1] or 4) + 1) * SECTOR
    if len(sector) != SECTOR or image[0x202:0x206] != b"HdrS" or setup_bytes > MOST_SETUP_BYTES or len(words) >= WORDS_BYTES:
        sys.exit("boot_disk.py: no first sector, no kernel, or too many words")
    setup, rest, memory_bytes = image[:setup_bytes], padded(image[setup_bytes:]), len(memory)
    memory = padded(memory)
    struct.pack_into("<HIII", sector, NUMBERS_AT, setup_bytes // SECTOR, len(rest) // SECTOR, len(memory) // SECTOR, memory_bytes)
    with open(disk, "wb") as file:
        for part in sector, words.encode().ljust(WORDS_BYTES, b"\0"), setup, rest, memory:
            file.write(part)
        file.truncate(-(-file.tell() // (1 << 20)) << 20)


main()
