#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Says what compiling costs, in seconds of processor time, whatever else the machine does.

Usage: build_cost.py BUILD [--every N] [--only PATTERN] [--most N]. It runs the compile commands of BUILD (compile_commands.json) one by
one, without ccache and with their objects thrown away, and prints the dearest sources, the sum of each folder, and the sum of all.
--every N takes each Nth command of the sorted list and multiplies the sums by N. What is no compilation (linking, programs by nvcc)
is not in it: `time CCACHE_DISABLE=1 ninja -C BUILD` in an empty folder has everything.
"""
import argparse
import collections
import fnmatch
import json
import pathlib
import re
import resource
import shlex
import subprocess
import sys
import tempfile


def processor_s():
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def compile_once(entry, scratch):
    words = [word for word in shlex.split(entry["command"]) if not word.endswith("ccache")]
    words[words.index("-o") + 1] = str(scratch / "object.o")
    for option in ("-MF", "-MT"):
        if option in words:
            words[words.index(option) + 1] = str(scratch / "dependencies")
    before = processor_s()
    subprocess.run(words, cwd=entry["directory"], check=True)
    return processor_s() - before


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--only", default="*", metavar="PATTERN")
    parser.add_argument("--most", type=int, default=5, help="dearest sources to show")
    options = parser.parse_args()
    root = pathlib.Path(__file__).resolve().parent.parent
    entries = {}
    for entry in json.loads((options.build / "compile_commands.json").read_text(encoding="utf-8")):
        name = entry["file"].removeprefix(f"{root}/")
        if fnmatch.fnmatch(name, options.only):
            entries[name, re.search(r"-o (\S+)", entry["command"])[1]] = entry
    costs, folders = {}, collections.Counter()
    with tempfile.TemporaryDirectory() as scratch:
        for key in sorted(entries)[::options.every]:
            costs[key[0]] = compile_once(entries[key], pathlib.Path(scratch))
            folders["/".join(key[0].split("/")[:2])] += costs[key[0]] * options.every
    for name, cost in sorted(costs.items(), key=lambda item: -item[1])[:options.most]:
        print(f"{cost:6.1f} s  {name}")
    for folder, cost in folders.most_common():
        print(f"{cost:6.0f} s  {folder}/")
    print(f"{sum(folders.values()):6.0f} s  of processor time for {len(entries)} compilations"
          + (f", from each {options.every}th" if options.every > 1 else ""))
    return 0 if costs else 1


if __name__ == "__main__":
    sys.exit(main())
