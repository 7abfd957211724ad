#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs nvidia-smi in several ways and compares what it says; the first way is the referee.

Example: compare_smi.py --output OUT --way native= --way "local=build/host_backend/causeway run --"
Lines of "key : value" must be equal, but for keys whose figures change from second to second (temperatures, clocks,
power, use): these must have a value of the same form. Tables must have the same form and words. Exits 1 on a difference.
OUTPUT holds COMMAND.WAY.txt and nvml.md.
"""

import argparse
import pathlib
import re
import shlex
import subprocess
import sys

COMMANDS = {
    "summary": "nvidia-smi",
    "list": "nvidia-smi -L",
    "everything": "nvidia-smi -q",
    "xml": "nvidia-smi -q -x",
    "query": "nvidia-smi --format=csv --query-gpu=index,name,uuid,serial,driver_version,vbios_version,pci.bus_id,"
             "memory.total,compute_cap,compute_mode,persistence_mode,power.max_limit,clocks.max.sm,mig.mode.current,"
             "pcie.link.gen.max,pcie.link.width.max,ecc.mode.current",
    "query_changing": "nvidia-smi --format=csv --query-gpu=memory.used,memory.free,utilization.gpu,temperature.gpu,"
                      "power.draw,clocks.sm,clocks.mem,pstate",
    "query_processes": "nvidia-smi --format=csv --query-compute-apps=pid,used_memory",
    "topology": "nvidia-smi topo -m",
    "no_such_gpu": "nvidia-smi -i 99",
    "no_such_option": "nvidia-smi --nonsense",
}
CHANGING = re.compile(r"timestamp|used|free|temp|power|draw|clock|graphics|^sm$|^memory$|video|gpu$|util|encoder|"
                      r"decoder|jpeg|ofa|pstate|performance state|fan|throughput|replay|idle|slowdown|thermal|energy|"
                      r"average|latency|fps|sample|process|pid|counter|session|duration|available|margin|bar1|utc",
                      re.IGNORECASE)
FORM = re.compile(r"\d+(\.\d+)?")


def form(text):
    """What stays when figures change: digits become one sign, blanks and borders collapse."""
    return re.sub(r"[\s=+|-]+", " ", FORM.sub("#", text)).strip()


def form_of_value(text):
    """Active or not, a figure or none: these change as well."""
    return re.sub(r"\b(Active|Not Active|N/A|None|P#)\b", "#", form(text))


def key_of(line):
    match = re.match(r"\s*([^:]+?)\s*:\s", line + " ") or re.match(r"\s*<(\w+)>", line)
    return match[1] if match else None


def lines_of(text, command):
    """The lines that must agree: those of processes, of which another may have just begun, are left out."""
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if command == "summary":
        ends = [number for number, line in enumerate(lines) if "Processes" in line]
        lines = lines[1:ends[0]] if ends else lines[1:]  # the first is the date
    if command in ("everything", "xml"):
        ends = [number for number, line in enumerate(lines) if re.match(r"\s*(Processes|<processes>)", line)]
        lines = lines[:ends[0]] if ends else lines
    return lines[:1] if command == "query_processes" else lines


def differences(command, first, other):
    if first[1] != other[1]:
        return [f"exit {other[1]}, not {first[1]}"]
    mine, its = lines_of(first[0], command), lines_of(other[0], command)
    found = []
    for number in range(max(len(mine), len(its))):
        left = mine[number] if number < len(mine) else "(end)"
        right = its[number] if number < len(its) else "(end)"
        key = key_of(left) if command in ("everything", "xml") else None
        if command in ("summary", "query_changing"):
            same = form_of_value(left) == form_of_value(right)
        elif key and CHANGING.search(key):
            same = key == key_of(right) and form_of_value(left) == form_of_value(right)
        else:
            same = left == right
        if not same:
            found.append(f"line {number + 1}: {right.strip()!r}, not {left.strip()!r}")
    return found


def run(prefix, command, timeout_s):
    try:
        done = subprocess.run(shlex.split(prefix) + shlex.split(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=timeout_s, check=False)
        return done.stdout.decode(errors="replace"), done.returncode
    except subprocess.TimeoutExpired as expired:
        return (expired.stdout or b"").decode(errors="replace"), f"none within {timeout_s} s"
    except OSError as error:
        return str(error), "none: could not be started"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=pathlib.Path, required=True)
    parser.add_argument("--way", action="append", required=True, metavar="NAME=PREFIX")
    parser.add_argument("--timeout", type=float, default=30)
    parser.add_argument("--lines", type=int, default=15, help="different lines to print of each command")
    options = parser.parse_args()
    ways = [tuple(way.split("=", 1)) for way in options.way]
    options.output.mkdir(parents=True, exist_ok=True)
    table = ["| command | " + " | ".join(name for name, _ in ways) + " |", "|" + " --- |" * (len(ways) + 1)]
    failures = 0
    for name, command in COMMANDS.items():
        runs = [run(prefix, command, options.timeout) for _, prefix in ways]
        for (way, _), (text, _) in zip(ways, runs):
            (options.output / f"{name}.{way}.txt").write_text(text)
        cells = [f"exit {runs[0][1]}, {len(runs[0][0].splitlines())} lines"]
        for (way, _), other in zip(ways[1:], runs[1:]):
            found = differences(name, runs[0], other)
            failures += bool(found)
            cells.append(f"{len(found)} lines differ" if found else "same")
            for text in found[:options.lines]:
                print(f"{name} {way}: {text}")
        table.append(f"| {command.split(' --query-gpu')[0] if name.startswith('query') else command} ({name}) | "
                     + " | ".join(cells) + " |")
        print(table[-1], flush=True)
    (options.output / "nvml.md").write_text("\n".join(table) + "\n")
    print(f"{len(COMMANDS)} commands, {failures} differ")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
