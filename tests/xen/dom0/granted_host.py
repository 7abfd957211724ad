#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fake_host.py in Xen's domain 0: its region is granted to a domain and offered by xenstore, as causewayd does it.

usage: granted_host.py DOMAIN_ID [--mib N] [--folder FOLDER_OF_FAKE_HOST] [--number N] [--ports WORK CONTROL INTERRUPT]
With --number 1 the region is the domain's second device. --ports are those of channel_echo.
"""
import argparse
import fcntl
import mmap
import os
import random
import struct
import subprocess
import sys

PAGE, PER_REQUEST = 4096, 512
ALLOCATE = ord("G") << 8 | 5 | 24 << 16  # _IOC(_IOC_NONE, 'G', 5, sizeof(struct ioctl_gntalloc_alloc_gref))


def allocate(device, domain, count, writable):
    references = []
    while count:
        part = min(count, PER_REQUEST)
        request = bytearray(struct.pack("=HHIQ", domain, 1 if writable else 0, part, 0) + bytes(4 * part + 8))
        fcntl.ioctl(device, ALLOCATE, request)
        references += struct.unpack_from(f"={part}I", request, 16)
        count -= part
    return references


def grant(domain, size):
    """The region's memory, and the reference of its directory's root page."""
    device = os.open("/dev/xen/gntalloc", os.O_RDWR)
    pages = size // PAGE
    references = allocate(device, domain, pages, True)
    directory = allocate(device, domain, 1 + (pages + 1023) // 1024, False)
    with mmap.mmap(device, len(directory) * PAGE, offset=size) as listed:
        listed[0:4 * (len(directory) - 1)] = struct.pack(f"={len(directory) - 1}I", *directory[1:])
        listed[PAGE:PAGE + 4 * pages] = struct.pack(f"={pages}I", *references)
    return mmap.mmap(device, size), directory[0]


def offer(domain, size, directory, number, ports):
    ours, guests = f"/local/domain/0/backend/causeway/{domain}/{number}", f"/local/domain/{domain}/device/causeway/{number}"
    keys = {"frontend": guests, "frontend-id": domain, "version": 1, "bytes": size, "directory": directory,
            "epoch": random.getrandbits(60) | 1, **dict(zip(("port-work", "port-control", "port-interrupt"), ports)), "state": 4}
    for key, value in keys.items():
        subprocess.run(["xenstore-write", f"{ours}/{key}", str(value)], check=True)
    subprocess.run(["xenstore-chmod", "-r", ours, "n0", f"r{domain}"], check=True)
    for key, value in {"backend": ours, "backend-id": 0, "state": 1}.items():
        subprocess.run(["xenstore-write", f"{guests}/{key}", str(value)], check=True)
    subprocess.run(["xenstore-chmod", "-r", guests, f"n{domain}", "r0"], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("domain", type=int)
    parser.add_argument("--mib", type=int, default=64)
    parser.add_argument("--folder", default="/causeway")
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--ports", type=int, nargs=3, default=[])
    options = parser.parse_args()
    sys.path.insert(0, options.folder)
    import fake_host
    size = options.mib << 20
    memory, directory = grant(options.domain, size)
    host = fake_host.Host(size, memory)
    offer(options.domain, size, directory, options.number, options.ports)
    print("offered", flush=True)
    return fake_host.serve(host)


if __name__ == "__main__":
    sys.exit(main())
