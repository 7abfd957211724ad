#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tells Slurm of the GPUs that a node reaches through Causeway.

usage: causeway pool --json | causeway_gres.py [--gpus UUID,...] [--output FOLDER]

Writes into FOLDER (default: /etc/slurm):
  gres.conf              a line for each host, whose name is the type of its GPUs
  causeway-gpus          for task_prolog.sh: number, host and UUID of each GPU, a line each
and into /etc/tmpfiles.d (--tmpfiles FILE):
  causeway-slurm.conf    device nodes /dev/causeway-slurm/gpuN, by which Slurm counts and numbers GPUs; nothing opens them. Their
                         major number 60 is one that Linux keeps for local use, so that no driver answers there
Prints what belongs into this node's line of slurm.conf.

A GPU that several nodes name is given to a job on each of them at once, and Causeway then divides its time among their VMs. Where
that is not wanted, --gpus says which GPUs are this node's.
"""

import argparse
import json
import pathlib
import re
import sys

DEVICES = "/dev/causeway-slurm"
MAJOR = 60  # "LOCAL/EXPERIMENTAL USE" of the kernel's admin-guide/devices.txt


def type_of(host):
    """Slurm's types are words: the host's name without way and usual port, other characters as underscores."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", re.sub(r":7471$", "", host.removeprefix("tls://")))


def gpus_of(answer, chosen):
    """(host, UUID) of each GPU that this node may give to jobs, by host."""
    unreachable = [f"{host['host']}: {host['reason'] or host['state']}" for host in answer["hosts"] if not host["gpus"]]
    if unreachable:
        sys.exit("causeway_gres.py: what these hosts have is not known, so nothing was written: " + "; ".join(unreachable))
    found = [(host["host"], gpu["uuid"]) for host in answer["hosts"] for gpu in host["gpus"]]
    unknown = set(chosen or []) - {uuid for _, uuid in found}
    if unknown:
        sys.exit(f"causeway_gres.py: no host has {', '.join(sorted(unknown))}; see causeway pool")
    return [each for each in found if not chosen or each[1] in chosen]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", help="only these, by UUID")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("/etc/slurm"), metavar="FOLDER")
    parser.add_argument("--tmpfiles", type=pathlib.Path, default=pathlib.Path("/etc/tmpfiles.d/causeway-slurm.conf"), metavar="FILE")
    options = parser.parse_args()
    try:
        answer = json.load(sys.stdin)
    except json.JSONDecodeError:
        sys.exit("causeway_gres.py: standard input is no answer of causeway pool --json")
    gpus = gpus_of(answer, options.gpus.split(",") if options.gpus else None)
    hosts = list(dict.fromkeys(host for host, _ in gpus))
    lines, counts = ["# Made by causeway_gres.py.", "AutoDetect=off"], []
    for host in hosts:
        numbers = [number for number, (each, _) in enumerate(gpus) if each == host]
        span = f"[{numbers[0]}-{numbers[-1]}]" if len(numbers) > 1 else str(numbers[0])
        lines.append(f"Name=gpu Type={type_of(host)} File={DEVICES}/gpu{span}")
        counts.append(f"gpu:{type_of(host)}:{len(numbers)}")
    nodes = [f"d {DEVICES} 0755 root root -"] + [f"c {DEVICES}/gpu{number} 0600 root root - {MAJOR}:{number}" for number in range(len(gpus))]
    for path, text in ((options.output / "gres.conf", lines), (options.tmpfiles, nodes),
                       (options.output / "causeway-gpus", [f"{number} {host} {uuid}" for number, (host, uuid) in enumerate(gpus)])):
        try:
            path.write_text("\n".join(text) + "\n")
        except OSError as error:
            sys.exit(f"causeway_gres.py: {path} cannot be written: {error.strerror}")
    print("Gres=" + ",".join(counts))


if __name__ == "__main__":
    main()
