#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/top.svg: what `causeway top` shows of sessions of the software GPU.

Usage: top_picture.py PROGRAM_DIR SOFTWARE_GPU GUEST_LIBRARY_DIR OUT.svg. Starts a daemon and eight programs of three users that copy, each in another
rhythm; as root, for the users. The figures are the software GPU's, so they say nothing of a GPU's speed.
"""

import ctypes
import html
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS, SOFTWARE_GPU, GUEST_LIBRARY = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
LIMIT_S = 60
USERS = [1000, 1000, 1000, 1001, 1001, 1001, 1001, 1002]


def run_program(number):
    cuda = ctypes.CDLL(str(GUEST_LIBRARY / "libcuda.so.1"))
    context, pointer, size = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t((1 << 20) * (number + 1))
    data = ctypes.create_string_buffer(size.value)
    for call in (lambda: cuda.cuInit(0), lambda: cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), lambda: cuda.cuCtxSetCurrent(context),
                 lambda: cuda.cuMemAlloc_v2(ctypes.byref(pointer), size)):
        if result := call():
            sys.exit(f"a call failed: {result}")
    end = time.monotonic() + 6 * LIMIT_S
    while time.monotonic() < end:  # its parent ends it before
        (cuda.cuMemcpyDtoH_v2(data, pointer, size) if number % 3 == 2 else cuda.cuMemcpyHtoD_v2(pointer, data, size))
        time.sleep(0.02 * (number + 1))


def picture(text):
    lines = text.rstrip().splitlines()
    width, height = 8 * max(map(len, lines)) + 24, 18 * len(lines) + 24
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
             f'<rect width="{width}" height="{height}" rx="6" fill="#1d2128"/>']
    for i, line in enumerate(lines):
        y = 18 * i + 26
        is_head = line.startswith("VM OR USER")
        if is_head:
            parts.append(f'<rect x="8" y="{y - 13}" width="{width - 16}" height="18" fill="#d7dce2"/>')
        parts.append(f'<text x="12" y="{y}" font-family="monospace" font-size="13.3" fill="{"#1d2128" if is_head else "#d7dce2"}" '
                     f'xml:space="preserve" textLength="{8 * len(line)}">{html.escape(line)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        sock = folder / "causeway.sock"
        (folder / "causewayd.toml").write_text(f'socket = "{sock}"\nsocket_mode = "0666"\ndriver_library = "{SOFTWARE_GPU}"\nspare_workers = 2\n'
                                               f'log_file = "{folder}/log"\n')
        running = [subprocess.Popen([PROGRAMS / "causewayd", "--config", folder / "causewayd.toml"])]
        ask = lambda *words: subprocess.run([PROGRAMS / "causeway", *words, "--socket", sock], capture_output=True, text=True, timeout=LIMIT_S,
                                            check=False).stdout
        try:
            end = time.monotonic() + LIMIT_S
            while not ask("status", "--json") and time.monotonic() < end:
                time.sleep(0.1)
            # Where every user can read them; the system's interpreter, for root's own may lie in its home.
            shutil.copy(__file__, folder / "program.py")
            shutil.copy(GUEST_LIBRARY / "libcuda.so.1", folder)
            for number, user in enumerate(USERS):
                running.append(subprocess.Popen(["/usr/bin/python3", folder / "program.py", PROGRAMS, SOFTWARE_GPU, folder, f"--program={number}"],
                                                user=user, group=user,
                                                env={**os.environ, "CAUSEWAY": f"local:{sock}"}))
            while time.monotonic() < end:
                sessions = json.loads(ask("status", "--json"))["sessions"]
                if len(sessions) == len(USERS) and all(each["calls"] > 20 for each in sessions):
                    break
                time.sleep(0.5)
            pathlib.Path(sys.argv[4]).write_text(picture(ask("top", "-b", "-n", "1", "-d", "4", "-o", "calls")))
        finally:
            for process in reversed(running):
                process.terminate()
                process.wait(LIMIT_S)


if __name__ == "__main__":
    run_program(int(sys.argv[-1].partition("=")[2])) if sys.argv[-1].startswith("--program=") else main()
