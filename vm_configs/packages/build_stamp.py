#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Release and hash of the rows of a program or library of Causeway, read from the file (ivshmem_ring/release/build_stamp.h).

usage: build_stamp.py FILE                                  prints "RELEASE HASH", the hash as folders and packages are named
       build_stamp.py WORKER --install FOLDER --strip PROGRAM   fills FOLDER with what a worker's package installs
"""

import argparse
import pathlib
import struct
import subprocess
import sys

TAG = b"causeway-stamp-1"
REST = struct.Struct("<Q32s")  # after the tag


def find(image, name):
    at = image.find(TAG)
    while at >= 0:
        api_hash, release = REST.unpack_from(image, at + len(TAG))
        text = release.split(b"\0")[0]
        if api_hash != 0 and text and release == text.ljust(len(release), b"\0"):
            return at + len(TAG), api_hash, text.decode()
        at = image.find(TAG, at + 1)
    sys.exit(f"build_stamp: {name} is no program or library of Causeway 0.1.0 or later")


def read(path):
    """(release, hash)"""
    _, api_hash, release = find(path.read_bytes(), path)
    return release, f"{api_hash:016x}"


def copy_as(path, to, release, api_hash):
    """The same program, which says that it is of another release and of other rows: for tests."""
    image = bytearray(path.read_bytes())
    at, _, _ = find(image, path)
    REST.pack_into(image, at, int(api_hash, 16), release.encode())
    to.write_bytes(image)
    to.chmod(path.stat().st_mode)


def install(worker, folder, strip):
    """workers/HASH with program and release, an empty doc/PACKAGE, and a link for the folder above `workers`."""
    release, api_hash = read(worker)
    home = folder / "workers" / api_hash
    home.mkdir(parents=True)
    (folder / "doc" / f"causeway-worker-{api_hash}").mkdir(parents=True)
    subprocess.run([strip, "--strip-unneeded", "-o", home / "causeway-worker", worker], check=True)
    (home / "release").write_text(release + "\n")
    for path, mode in (folder / "workers", 0o755), (home, 0o755), (home / "causeway-worker", 0o755), (home / "release", 0o644):
        path.chmod(mode)
    (folder / "causeway-worker").symlink_to(f"workers/{api_hash}/causeway-worker")
    (folder / "stamp").write_text(f"{api_hash}\n{release}\n")


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("file", type=pathlib.Path)
    parser.add_argument("--install", type=pathlib.Path)
    parser.add_argument("--strip", default="strip")
    options = parser.parse_args()
    if options.install:
        install(options.file, options.install, options.strip)
    else:
        print(*read(options.file))


if __name__ == "__main__":
    main()
