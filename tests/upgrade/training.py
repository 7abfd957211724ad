#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch trains while causewayd is upgraded, restarted and killed: every loss and weight is what it is natively, bit for bit.

usage: training.py BUILD [--driver FILE] [--steps N] [--json FILE]

The loop (training_loop.py) runs natively first, then through a daemon that nothing happens to, then while daemons change all
the time. Printed: for each how many changes there were, the median and the longest step. Exit status: 77 without PyTorch or
GPU; CAUSEWAY_DEVICE=cpu tries the script out.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import time

import upgrade
from upgrade import expect, host_of, kill, restart, wait_for

LOOP = pathlib.Path(__file__).with_name("training_loop.py")
LIMIT_S = 400


def library_first(folder):
    return {"LD_LIBRARY_PATH": ":".join(filter(None, [str(folder), os.environ.get("LD_LIBRARY_PATH")]))}


def begin(steps, environment):
    whole = dict(os.environ, **environment)
    if "CAUSEWAY" in environment:
        whole.pop("CUDA_VISIBLE_DEVICES", None)  # the daemon has it, which decides for its guests
    return subprocess.Popen([sys.executable, LOOP, str(steps)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=whole)


def end(loop, first_line):
    """Its last line; ends this program where the loop was skipped or failed."""
    out, err = loop.communicate(timeout=LIMIT_S)
    if loop.returncode == 77:
        print((first_line + out).strip())
        sys.exit(77)
    expect(loop.returncode == 0, f"the loop failed with status {loop.returncode}: {first_line}{out}{err}")
    return json.loads(out.splitlines()[-1])


def train(steps, environment, change=None):
    """The loop's figures and how often `change` was made while it ran."""
    loop, count = begin(steps, environment), 0
    line = loop.stdout.readline()
    if line == "began\n" and change is not None:
        while loop.poll() is None:
            change()
            count += 1
            time.sleep(0.2)
    return end(loop, line), count


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--driver", type=pathlib.Path, help="instead of NVIDIA's")
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    build = options.build.resolve()
    library = {} if options.driver is None else library_first(options.driver.resolve().parent)
    native, _ = train(options.steps, library)
    rows = {"native": dict(native, changes=0)}
    with host_of(build, options.driver or "libcuda.so.1") as host:
        host.start()
        wait_for("a spare", lambda: upgrade.spare_ready(host))
        host.keep_program()
        guest = {"CAUSEWAY": f"local:{host.socket}", **library_first(build / "guest_lib")}
        for name, change in (("no change", None), ("upgrade", lambda: upgrade.upgrade(host)), ("restart", lambda: restart(host)),
                             ("kill -9", lambda: kill(host))):
            figures, count = train(options.steps, guest, change)
            rows[name] = dict(figures, changes=count)
            expect(change is None or count > 0, f"the loop was over before the first {name}")
    print(f"{'training':10} {'changes':>7} {'steps':>6} {'median step':>12} {'longest step':>13}  losses and weights")
    differ = 0
    for name, row in rows.items():
        same = all(row[key] == native[key] for key in ("losses", "weights"))
        differ += not same
        print(f"{name:10} {row['changes']:7} {row['steps']:6} {row['median_ms']:9.2f} ms {row['longest_ms']:10.1f} ms  "
              f"{'as natively' if same else 'DIFFER'}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1))
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
