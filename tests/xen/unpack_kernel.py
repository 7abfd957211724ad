#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unpacks a bzImage's kernel (an ELF file), which under emulation would take the hypervisor much of a minute.

usage: unpack_kernel.py VMLINUZ OUTPUT
"""
import gzip
import lzma
import pathlib
import struct
import subprocess
import sys


def main():
    image = pathlib.Path(sys.argv[1]).read_bytes()
    # Documentation/x86/boot.rst: setup_sects, payload_offset, payload_length; the last 4 bytes are the unpacked size.
    begin = (image[0x1f1] + 1) * 512 + struct.unpack_from("<I", image, 0x248)[0]
    payload = image[begin:begin + struct.unpack_from("<I", image, 0x24c)[0] - 4]
    if payload.startswith(b"\xfd7zXZ"):
        kernel = lzma.decompress(payload)
    elif payload.startswith(b"\x1f\x8b"):
        kernel = gzip.decompress(payload)
    elif payload.startswith(b"\x28\xb5\x2f\xfd"):
        kernel = subprocess.run(["zstd", "-dc"], input=payload, stdout=subprocess.PIPE, check=True).stdout
    else:
        sys.exit(f"unpack_kernel.py: {sys.argv[1]} is packed by a method that this does not know.")
    pathlib.Path(sys.argv[2]).write_bytes(kernel)


if __name__ == "__main__":
    main()
