#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes packages of an older release out of this release's: the same programs, which say that they are release 0.0.9 with other rows.

usage: older_packages.py HASH FOLDER PACKAGE...     HASH: of the older rows, 16 hexadecimal digits

FOLDER, which must exist, gets a package for each one given, named as Debian names them. What is shown with these is who is chosen,
started and handed over; that rows which differ understand each other takes a build that has other rows (tests/versions).
"""

import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "vm_configs/packages"))
import build_stamp  # noqa: E402

RELEASE = "0.0.9"


def restamp(root, api_hash):
    """Each program and library that says its release says the older one; the hash that they had, or None."""
    had = None
    for file in root.rglob("*"):
        if file.is_symlink() or not file.is_file() or build_stamp.TAG not in file.read_bytes():
            continue
        had = build_stamp.read(file)[1]
        build_stamp.copy_as(file, file, RELEASE, api_hash)
    return had


def rename(root, before, after):
    """The folders of a worker, which have its hash in their names, the link to it, and its release."""
    workers = root / "usr/libexec/causeway/workers"
    if (workers / before).is_dir():
        (workers / before).rename(workers / after)
        (workers / after / "release").write_text(RELEASE + "\n")
        documents = root / "usr/share/doc"
        (documents / f"causeway-worker-{before}").rename(documents / f"causeway-worker-{after}")
    link = root / "usr/libexec/causeway/causeway-worker"
    if link.is_symlink():
        link.unlink()
        link.symlink_to(f"workers/{after}/causeway-worker")


def repack(package, folder, api_hash):
    with tempfile.TemporaryDirectory(prefix="causeway-older-") as name:
        root = pathlib.Path(name) / "root"
        subprocess.run(["dpkg-deb", "-R", package, root], check=True)
        before = restamp(root, api_hash)
        if before is None:
            sys.exit(f"older_packages: {package} holds no program that says its release")
        rename(root, before, api_hash)
        control = root / "DEBIAN/control"
        text = control.read_text().replace(before, api_hash)
        text = re.sub(r"(?m)^Version: .*", f"Version: {RELEASE}-1", text)
        control.write_text(re.sub(rf"(causeway-worker-{api_hash}) \(>= [^)]*\)", r"\1", text))
        (root / "DEBIAN/md5sums").unlink(missing_ok=True)
        subprocess.run(["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "-b", root, folder], check=True, stdout=subprocess.DEVNULL)


def main():
    if len(sys.argv) < 4 or not re.fullmatch(r"[0-9a-f]{16}", sys.argv[1]):
        sys.exit(__doc__)
    for package in sys.argv[3:]:
        repack(package, pathlib.Path(sys.argv[2]), sys.argv[1])


if __name__ == "__main__":
    main()
