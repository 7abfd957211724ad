#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Takes the programs' results out of a demo VM's console: NAME.stdout, NAME.stderr, NAME.code for compare.py.

usage: vm_capture.py CONSOLE DIRECTORY. Prints the names; exits 1 when the console holds no result.
"""
import pathlib
import re
import sys


def main():
    console, directory = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    directory.mkdir(parents=True, exist_ok=True)
    streams, codes = {}, {}
    # The lines as demo_init.sh prints them: "NAME| stdout", "NAME! stderr", "EXIT NAME CODE STARTED ENDED".
    for line in console.read_bytes().split(b"\n"):
        line = line.removesuffix(b"\r")
        ended = re.fullmatch(rb"EXIT (\S+) (\d+) [\d.]+ [\d.]+", line)
        output = re.match(rb"([A-Za-z0-9_.-]+)([|!]) ", line)
        if ended:
            codes[ended[1].decode()] = int(ended[2])
        elif output and not line[output.end():].startswith(b"software GPU: "):  # see quiet_gpu.sh
            streams.setdefault((output[1].decode(), output[2]), []).append(line[output.end():] + b"\n")
    for name, code in codes.items():
        (directory / f"{name}.stdout").write_bytes(b"".join(streams.get((name, b"|"), [])))
        (directory / f"{name}.stderr").write_bytes(b"".join(streams.get((name, b"!"), [])))
        (directory / f"{name}.code").write_text(f"{code}\n")
    print("\n".join(codes))
    return 0 if codes else 1


if __name__ == "__main__":
    sys.exit(main())
