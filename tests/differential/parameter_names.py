#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the parameters of each driver function as cuda.h declares them, for rows.cc.

usage: parameter_names.py COMPILER CUDA_INCLUDE OUTPUT
Each line of OUTPUT is {"cuMemAlloc_v2", "CUdeviceptr *dptr;size_t bytesize"},. The compiler knows the types, which rows.cc
takes from it; only the header knows what a parameter is called, and that an unsigned long long is an address.
"""

import re
import subprocess
import sys

INCLUDES = "#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <cudaProfiler.h>\n"


def main():
    compiler, include, output = sys.argv[1:]
    text = subprocess.run([compiler, "-E", "-P", "-x", "c++", "-I", include, "-"], input=INCLUDES, check=True,
                          capture_output=True, text=True).stdout
    declaration = re.compile(r"CUresult (?:__attribute__\(\(\w+\)\) )?(cu[A-Z]\w+)\(([^;{]*)\);")
    rows = dict(declaration.findall(re.sub(r"\s+", " ", text)))
    with open(output, "w", encoding="utf-8") as out:
        for name, parameters in sorted(rows.items()):
            parts = [] if parameters.strip() == "void" else [part.strip() for part in parameters.split(",")]
            out.write('{"%s", "%s"},\n' % (name, ";".join(parts)))


if __name__ == "__main__":
    main()
