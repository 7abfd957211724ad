#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares proc_versions.def and error_names.def with what a loaded CUDA driver answers (NVIDIA's or Causeway's).

Usage: driver_tables_check.py <repository> [<libcuda.so.1>]; exit status 77 when no driver can be loaded.
"""
import ctypes
import pathlib
import re
import sys

VERSION_TOO_LOW, NAME_UNKNOWN = 2, 1


def read_rows(repository):
    rows = []
    for line in (repository / "guest_lib/api/proc_versions.def").read_text().splitlines():
        match = re.match(r"(ENTRY|PER_THREAD)\((.*)\)$", line)
        if match:
            fields = [field.strip() for field in match.group(2).split(",")]
            name, version, symbol = fields[0], int(fields[1]), fields[2]
            rows.append((name, version, symbol, 0))
            if match.group(1) == "PER_THREAD":
                rows.append((name, int(fields[3]), symbol + fields[4], 2))
    return rows


class Driver:
    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.names = {}

    def look_up(self, name, version, flags):
        address, status = ctypes.c_void_p(1), ctypes.c_int(-1)
        result = self.library.cuGetProcAddress_v2(name.encode(), ctypes.byref(address), ctypes.c_int(version),
                                                  ctypes.c_uint64(flags), ctypes.byref(status))
        return result, address.value, status.value

    def address_of(self, symbol):
        return ctypes.cast(getattr(self.library, symbol), ctypes.c_void_p).value


def expected(rows, driver, name, version, flags):
    """The newest row of the name that the version reaches; a per-thread row wins where the flag asks for it."""
    has_per_thread = any(row[0] == name and row[3] for row in rows)
    kind = 2 if flags & 2 and has_per_thread else 0
    fitting = [row for row in rows if row[0] == name and row[3] == kind and row[1] <= version]
    return driver.address_of(max(fitting, key=lambda row: row[1])[2]) if fitting else None


def check_proc_address(rows, driver):
    problems = []
    for name in sorted({row[0] for row in rows}):
        own = [row for row in rows if row[0] == name]
        versions = sorted({v + d for row in own for v in [row[1]] for d in (-1, 0)} | {13000})
        for version in [v for v in versions if v <= 13000]:
            for flags in (0, 1, 2, 3):
                want = expected(own, driver, name, version, flags)
                want_all = (0, want, 0 if want else VERSION_TOO_LOW)
                got = driver.look_up(name, version, flags)
                if got != want_all:
                    problems.append(f"{name} at {version} with flags {flags}: got {got}, the table says {want_all}")
    for unknown in ("cuMemAlloc_v2", "cuMemcpy_ptds", "cuGetProcAddress_v2", "cuNoSuchFunction", ""):
        if driver.look_up(unknown, 12000, 0) != (0, None, NAME_UNKNOWN):
            problems.append(f"'{unknown}' is found: {driver.look_up(unknown, 12000, 0)}")
    return problems


def check_error_texts(repository, driver):
    from_header = (repository / "guest_lib/api/error_names.def").read_text()
    texts = dict(re.findall(r'ERROR_TEXT\((\w+),\s*"(.*)"\)', from_header))
    problems, seen = [], set()
    for code in range(0, 1100):
        name, text = ctypes.c_char_p(b"untouched"), ctypes.c_char_p(b"untouched")
        results = (driver.library.cuGetErrorName(code, ctypes.byref(name)),
                   driver.library.cuGetErrorString(code, ctypes.byref(text)))
        if results == (0, 0):
            seen.add(name.value.decode())
            if texts.get(name.value.decode()) != text.value.decode():
                problems.append(f"{code}: driver has {name.value} {text.value}, the table {texts.get(name.value.decode())}")
        elif results != (1, 1) or name.value is not None or text.value is not None:
            problems.append(f"unknown {code}: {results} {name.value} {text.value}")
    problems += [f"the driver does not know {name}" for name in texts if name not in seen]
    return problems


def main():
    repository = pathlib.Path(sys.argv[1])
    try:
        driver = Driver(sys.argv[2] if len(sys.argv) > 2 else "libcuda.so.1")
    except OSError as error:
        print(f"skipped: no CUDA driver could be loaded: {error}")
        return 77
    rows = read_rows(repository)
    problems = check_proc_address(rows, driver) + check_error_texts(repository, driver)
    print("\n".join(problems) or f"{len(rows)} symbols and all error texts agree with the driver")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
