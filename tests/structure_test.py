#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""structure.py finds what is wrong in a small tree that is made for it, and nothing in the same tree without that.

Usage: structure_test.py. Needs c++, nm and c++filt. Exits 1 when a figure is not the one that the tree was made with.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

SCRIPT = pathlib.Path(__file__).resolve().parent / "structure.py"

# session/ stands below memory/: memory.cc may call Session(), session.cc may not call Memory(). hook.h is called inline.
GOOD = {
    "guest_lib/session/session.h": "#pragma once\nint Session();\ninline int Twice() {\n  return 2 * Session();\n}\n",
    "guest_lib/session/session.cc": '#include "guest_lib/session/session.h"\nint Session() { return 1; }\n',
    "guest_lib/memory/memory.h": "#pragma once\nint Memory();\n",
    "guest_lib/memory/memory.cc": '#include "guest_lib/memory/memory.h"\n#include "guest_lib/session/session.h"\n'
                                  "// Memory() of a comment is no call.\nint Memory() { return Twice(); }\n",
    "ivshmem_ring/transport/ring.h": "#pragma once\n",
    "host_backend/worker/main.cc": '#include "ivshmem_ring/transport/ring.h"\nint main() {}\n',
}
# Calls without including: only the objects tell.
UPWARD = {"guest_lib/session/session.cc": "int Memory();\nint Session() { return Memory(); }\n"}
CIRCLE = {"guest_lib/session/a.h": '#pragma once\n#include "guest_lib/session/b.h"\n',
          "guest_lib/session/b.h": '#pragma once\n#include "guest_lib/session/a.h"\n'}
MUTUAL = {"host_backend/worker/ping.cc": "int Pong();\nint Ping() { return Pong(); }\n",
          "host_backend/worker/pong.cc": "int Ping();\nint Pong() { return Ping(); }\n"}
# A second source of what ring.h declares.
TWO_SOURCES = {"ivshmem_ring/transport/ring.h": "#pragma once\nint Put();\nint Take();\n",
               "ivshmem_ring/transport/ring.cc": '#include "ivshmem_ring/transport/ring.h"\nint Put() { return Take(); }\n',
               "ivshmem_ring/transport/taking.cc": '#include "ivshmem_ring/transport/ring.h"\n'
                                                   "int Take() { return 1; }\nint Again() { return Put(); }\n"}
ACROSS = {"host_backend/worker/main.cc": '#include "guest_lib/memory/memory.h"\nint main() {}\n'}
CROWDED = {f"guest_lib/memory/kind{number}.h": "#pragma once\n" for number in range(16)}
HOMELESS = {"guest_lib/attic/old.h": "#pragma once\n"}


def measure(files, with_calls=True):
    """The JSON of structure.py for a tree of these files, the exit status of --check, and what that complained of."""
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(text)
            if name.endswith(".cc"):
                tree, _, rest = name.partition("/")
                target = root / "build" / tree / "CMakeFiles/part.dir" / (rest + ".o")
                target.parent.mkdir(parents=True, exist_ok=True)
                subprocess.run(["c++", "-std=c++20", "-I", root, "-c", root / name, "-o", target], check=True)
        command = [sys.executable, SCRIPT, "--root", root, "--json", "--check", "--svg", root / "picture.svg"]
        command += ["--build", root / "build"] if with_calls else []
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        picture = (root / "picture.svg").read_text() if result.stdout else ""
        return json.loads(result.stdout or "{}"), result.returncode, result.stderr, picture


def main():
    wrong = []

    def expect(what, is_so):
        if not is_so:
            wrong.append(what)

    figures, status, complaints, picture = measure(GOOD)
    expect(f"a clean tree passes: {complaints}", status == 0 and not complaints)
    expect("units are counted", figures["trees"]["guest_lib"]["units"] == 2)
    edge = ["guest_lib/memory/memory", "guest_lib/session/session", ["Session()", "guest_lib/session/session.h"]]
    expect("an inline call is an edge", [[a, b, sorted(uses)] for a, b, uses in figures["unit_edges"]
                                         if a.startswith("guest")] == [edge])
    expect("lines of code are counted", figures["folders"]["guest_lib/memory"]["code"] == 5)
    expect("nothing in the picture is red", picture.count('class="up"') == 0 and picture.count("<path") == 1)
    for what, files, sentence in (("an upward call", UPWARD, "stands above it"), ("a circle", CIRCLE, "include each other"),
                                  ("two units that call each other", MUTUAL, "units use each other"),
                                  ("an include across", ACROSS, "stands above it or apart"),
                                  ("a crowded folder", CROWDED, "holds 18 files"),
                                  ("a folder without a floor", HOMELESS, "stands on no floor")):
        figures, status, complaints, picture = measure(GOOD | files)
        expect(f"{what} is found: {complaints}", status == 1 and sentence in complaints)
        if files is UPWARD:
            expect("an upward edge is red", picture.count('class="up"') == 1)
            expect("calls in a circle are found", figures["trees"]["guest_lib"]["cycles_by_uses"] ==
                   [["guest_lib/memory/memory", "guest_lib/session/session"]])
            expect("includes know of no circle", figures["trees"]["guest_lib"]["cycles_by_includes"] == [])
    expect("two sources of one header are no circle", measure(GOOD | TWO_SOURCES)[1] == 0)
    expect("without a build a call is not seen", measure(GOOD | UPWARD, with_calls=False)[1] == 0)
    for line in wrong:
        print(f"not so: {line}")
    print(f"structure: {len(wrong)} of the expectations failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
