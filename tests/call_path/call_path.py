#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints which functions one call enters, in which files, on the guest's side and on the worker's.

Usage: call_path.py FOLDER --software-gpu LIB [--source DIR] [--tools BUILD] [--list CALL] [--no-build]
It builds guest library and worker of DIR (default: this tree) into FOLDER, not optimised and with -finstrument-functions, so that
each function of the tree tells when it begins and ends. Then a program makes each call twenty times and records the next one:
cuMemcpyHtoDAsync of 256 B, 64 KiB and 4 MiB of pageable memory, and cuLaunchKernel. With --tools only the guest library is built,
and BUILD's causeway, causewayd and worker of the same source serve it.

The table counts, for each call and side, the functions entered, the units they are in (x.h and x.cc are one), and the stays: the
functions are put in the order in which each was entered first, which is how a reader follows the call, and a stay is a row of them
in one unit. A call that goes in one straight line has as many stays as units; each more is a return to a unit left before. What
both sides run while nothing is asked of them (waiting) is left out, and so are functions of libraries. --list CALL prints the functions of one call, in the
order in which each was entered first, with the calls that each made to others as indentation.
"""
import argparse
import collections
import pathlib
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CALLS = ["copy_256", "copy_64K", "copy_4M", "launch"]
TREES = ("guest_lib/", "host_backend/", "ivshmem_ring/")
ENTRY = struct.Struct("<QII")
SIDE_BYTES = 8 + (1 << 20) * ENTRY.size


def run(*command, **options):
    return subprocess.run([str(word) for word in command], check=True, **options)


def build(options, record):
    flags = "-O0 -g1 -finstrument-functions -finstrument-functions-exclude-file-list=/usr/,/cuda/include/"
    hooks = {}
    for number, side in enumerate(["guest", "worker"]):
        hooks[side] = options.folder / f"hooks_{side}.o"
        run("cc", "-O2", "-fPIC", "-fvisibility=hidden", f'-DCALL_PATH_FILE="{record}"', f"-DCALL_PATH_SIDE={number}", "-c",
            HERE / "hooks.c", "-o", hooks[side])
    run("cmake", "-S", options.source, "-B", options.folder / "build", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=None",
        f"-DCMAKE_CXX_FLAGS={flags}", f"-DCMAKE_SHARED_LINKER_FLAGS={hooks['guest']}",
        f"-DCMAKE_EXE_LINKER_FLAGS={hooks['worker']}", stdout=subprocess.DEVNULL)
    targets = ["guest_libcuda"] + ([] if options.tools else ["causeway", "causewayd", "causeway-worker"])
    run("cmake", "--build", options.folder / "build", "--target", *targets)
    run("c++", "-std=c++20", "-O1", f"-I{ROOT}", f"-I{options.cuda_include}", HERE / "call_path_program.cc", "-o",
        options.folder / "call_path_program", options.folder / "build/guest_lib/libcuda.so.1", "-pthread")


def record_calls(options, record):
    record.write_bytes(b"")
    with record.open("r+b") as file:
        file.truncate(2 * SIDE_BYTES)
    tools = options.tools or options.folder / "build"
    run(tools / "host_backend/causeway", "run", "--driver", options.software_gpu, "--guest-library",
        options.folder / "build/guest_lib", "--", options.folder / "call_path_program", record, timeout=120)


class Functions:
    """Names and units of the addresses in one file, from its debugging information."""

    def __init__(self, file, source, addresses):
        # [(name, unit, whether its text stands in a source file)]
        lines = run("addr2line", "-C", "-f", "-e", file, input="\n".join(hex(a) for a in addresses), capture_output=True,
                    text=True).stdout.splitlines() if addresses else []
        self.known = {}
        for address, name, place in zip(addresses, lines[0::2], lines[1::2]):
            path = place.rsplit(":", 1)[0]
            path = str(pathlib.Path(path).resolve()).removeprefix(f"{source}/")
            if path.startswith(TREES):
                self.known[address] = (name.replace("(anonymous namespace)::", ""), path.rsplit(".", 1)[0], path.endswith(".cc"))

    def get(self, address):
        return self.known.get(address)


class Path:
    """One side of one call: the functions in the order in which they were entered first, each with its depth."""

    def __init__(self, entries, functions, idle):
        self.order = {}
        stacks = collections.defaultdict(list)
        for address, thread, begins in entries:
            function = functions.get(address)
            if function is None or address in idle:
                continue
            stack = stacks[thread]
            if begins:
                stack.append(function)
                self.order.setdefault(function, len(stack) - 1)
            elif stack:
                stack.pop()

    def numbers(self, sources_only):
        units = [unit for _, unit, in_source in self.order if in_source or not sources_only]
        stays = sum(at == 0 or units[at - 1] != unit for at, unit in enumerate(units))
        return f"{len(units)} functions in {len(set(units))} units, {stays} stays"


def read_entries(record, call, side):
    return list(ENTRY.iter_unpack(pathlib.Path(f"{record}.{call}.{side}").read_bytes()))


def read_paths(options, record):
    files = {"guest": "guest_lib/libcuda.so.1", "worker": "host_backend/causeway-worker"}
    paths = {}
    for side in ["guest"] if options.tools else ["guest", "worker"]:
        entries = {call: read_entries(record, call, side) for call in ["nothing"] + CALLS}
        addresses = sorted({address for all_of_call in entries.values() for address, _, _ in all_of_call})
        functions = Functions(options.folder / "build" / files[side], options.source, addresses)
        idle = {address for address, _, _ in entries["nothing"]}
        for call in CALLS:
            paths[call, side] = Path(entries[call], functions, idle)
    return paths


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--software-gpu", type=pathlib.Path, required=True, help="tests/software_gpu's libcuda.so.1, of any build")
    parser.add_argument("--source", type=pathlib.Path, default=ROOT)
    parser.add_argument("--tools", type=pathlib.Path)
    parser.add_argument("--cuda-include", type=pathlib.Path, default=pathlib.Path("/usr/local/cuda/include"))
    parser.add_argument("--list", choices=CALLS)
    parser.add_argument("--no-build", action="store_true", help="use what FOLDER has")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    options.folder, options.source = options.folder.resolve(), options.source.resolve()
    record = options.folder / "record"
    if not options.no_build:
        build(options, record)
    record_calls(options, record)
    paths = read_paths(options, record)
    for (call, side), path in paths.items():
        if not path.order:
            sys.exit(f"{call} entered nothing on the side of the {side}: the sides do not share {record}")
        print(f"{call} {side}: {path.numbers(True)}; with the functions in headers {path.numbers(False)}")
        for (name, unit, _), depth in path.order.items() if call == options.list else ():
            print(f"  {'  ' * depth}{name.split('(')[0]}  [{unit}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
