#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The benchmark's kernels are PTX that NVIDIA's assembler takes: the software GPU's interpreter takes more.

Usage: kernels_test.py KERNELS_H NVCC
"""

import pathlib
import re
import subprocess
import sys
import tempfile


def main():
    header, compiler = map(pathlib.Path, sys.argv[1:3])
    text = re.search(r'R"\((.*?)\)"', header.read_text(encoding="utf-8"), re.DOTALL)[1]
    # The oldest GPU that the assembler of CUDA 13 knows; drivers still take the target that is written there.
    assembled = text.replace(".target sm_70", ".target sm_75")
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "kernels.ptx")
        source.write_text(assembled, encoding="utf-8")
        beside = compiler.resolve().parent / "ptxas"
        done = subprocess.run([beside if beside.exists() else "ptxas", "-arch=sm_75", "-v", source, "-o", source.with_suffix(".cubin")],
                              capture_output=True, text=True, timeout=60, check=False)
    print(done.stdout + done.stderr)
    entries = set(re.findall(r"\.entry (\w+)", text))
    compiled = set(re.findall(r"Compiling entry function '(\w+)'", done.stdout + done.stderr))
    if done.returncode != 0 or entries != compiled:
        sys.exit(f"kernels_test.py: {sorted(entries - compiled)} were not assembled")


if __name__ == "__main__":
    main()
