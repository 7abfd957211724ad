#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a file as a C array.  Usage: embed.py FILE NAME HEADER"""
import pathlib
import sys

source, name, header = sys.argv[1:]
data = pathlib.Path(source).read_bytes()
lines = [",".join(str(byte) for byte in data[at:at + 32]) for at in range(0, len(data), 32)]
pathlib.Path(header).write_text(
    f"alignas(64) inline constexpr unsigned char {name}[] = {{\n" + ",\n".join(lines) + "};\n", encoding="ascii")
