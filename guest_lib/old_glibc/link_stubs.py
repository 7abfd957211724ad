#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes stand-ins of glibc's libraries, as an older release had them, for the linker.

A program that is linked with the C library of this machine asks for the newest version of each symbol, and older
systems refuse to load it. Linked with these stand-ins it asks for versions up to the given one, which every later
release has as well. A function that is newer than that is not in them, so the link fails and names it:
newer_functions.cc is the place for it. The stand-ins have symbols and no code; they are never loaded.

usage: link_stubs.py --version 2.17 --compiler CXX --output DIR
Run by guest_lib/CMakeLists.txt. DIR gets libc.so, libm.so, libpthread.so and libdl.so.
"""
import argparse
import collections
import pathlib
import re
import subprocess
import sys

# Before glibc 2.34 threads and dlopen() had libraries of their own. Their functions are asked for in libc.so.6, where
# newer systems have them; older ones look in all libraries that are loaded, so that these two have to be.
SEPARATE_ONCE = {"libpthread.so": "libpthread.so.0", "libdl.so": "libdl.so.2"}

SYMBOL = re.compile(r"\s*\d+: [0-9a-f]+\s+(\d+) (FUNC|IFUNC|OBJECT)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+(?!UND|ABS)\S+ "
                    r"([^@\s]+)@@?GLIBC_([\d.]+)$")


def release(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("."))


def find(compiler: str, name: str) -> str:
    """The path of a library in the compiler's search path."""
    path = subprocess.run([compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
    if not pathlib.Path(path).is_absolute():
        sys.exit(f"link_stubs.py: {compiler} finds no {name}: install the C library's development package (libc6-dev).")
    return path


def symbols_of(library: str, newest: tuple[int, ...]) -> dict[str, tuple[str, str, int]]:
    """For each symbol that `newest` had: its version by default then, its type, and its size in bytes."""
    listing = subprocess.run(["readelf", "-W", "--dyn-syms", library], check=True, capture_output=True, text=True).stdout
    found: dict[str, tuple[str, str, int]] = {}
    for line in listing.splitlines():
        match = SYMBOL.match(line)
        if match is None:
            continue
        size, kind, name, version = int(match[1]), match[2], match[3], match[4]
        if release(version) > newest:
            continue
        if name not in found or release(found[name][0]) < release(version):
            found[name] = (version, "object" if kind == "OBJECT" else "function", size)
    return found


def write_stub(compiler: str, path: pathlib.Path, soname: str, symbols: dict[str, tuple[str, str, int]]) -> None:
    """One shared library that defines `symbols` in assembly."""
    source, versions = [], collections.defaultdict(list)
    for name, (version, kind, size) in symbols.items():
        versions[version].append(name)
        source.append(f".globl {name}\n.type {name}, @{kind}\n.size {name}, {size}\n{name}: .skip {max(size, 1) if kind == 'object' else 1}")
    source.append('.section .note.GNU-stack, "", @progbits')
    assembly, script = path.with_suffix(".s"), path.with_suffix(".map")
    assembly.write_text("\n".join([".data"] + source) + "\n")
    # Each name stands in one node, so that it gets that node's version as its default.
    script.write_text("".join(f"GLIBC_{version} {{ global: {'; '.join(names)}; }};\n"
                              for version, names in sorted(versions.items(), key=lambda entry: release(entry[0]))))
    command = [compiler, "-shared", "-nostdlib", "-x", "assembler", str(assembly), "-o", str(path), f"-Wl,-soname,{soname}"]
    subprocess.run(command + ([f"-Wl,--version-script={script}"] if symbols else []), check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", required=True)
    parser.add_argument("--compiler", required=True)
    parser.add_argument("--output", required=True, type=pathlib.Path)
    arguments = parser.parse_args()
    newest, output, compiler = release(arguments.version), arguments.output, arguments.compiler
    output.mkdir(parents=True, exist_ok=True)
    for soname, stub in (("libc.so.6", "libc_symbols.so"), ("libm.so.6", "libm.so"), ("ld-linux-x86-64.so.2", "loader.so")):
        symbols = symbols_of(find(compiler, soname), newest)
        if not symbols:
            sys.exit(f"link_stubs.py: {find(compiler, soname)} has no symbol of glibc {arguments.version} or older.")
        write_stub(compiler, output / stub, soname, symbols)
    for stub, soname in SEPARATE_ONCE.items():
        write_stub(compiler, output / stub, soname, {})
    # As glibc's own libc.so: atexit() and pthread_atfork() belong to each library that calls them.
    (output / "libc.so").write_text(f"GROUP ( {output / 'libc_symbols.so'} {find(compiler, 'libc_nonshared.a')} "
                                    f"AS_NEEDED ( {output / 'loader.so'} ) )\n")


if __name__ == "__main__":
    main()
