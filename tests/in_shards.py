#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a GoogleTest program as several processes at once, each with a part of its tests.

Usage: in_shards.py COUNT PROGRAM [ARGUMENT...]

For programs whose tests wait most of the time (for limits of seconds, and for processes that start) and share nothing: beside
each other they take the time of the slowest part. Prints what each process printed, one after the other, and exits 0 when
all of them did. A count of 1 in the environment variable CAUSEWAY_TEST_SHARDS runs everything in one process.
"""

import os
import subprocess
import sys
import tempfile


def main():
    count, command = int(os.environ.get("CAUSEWAY_TEST_SHARDS", sys.argv[1])), sys.argv[2:]
    shards = []
    for index in range(count):
        variables = dict(os.environ, GTEST_TOTAL_SHARDS=str(count), GTEST_SHARD_INDEX=str(index))
        # Into a file: a process that outlives its parent would keep a pipe open.
        output = tempfile.TemporaryFile()
        shards.append((subprocess.Popen(command, env=variables, stdout=output, stderr=subprocess.STDOUT), output))
    codes = []
    for process, output in shards:
        codes.append(process.wait())
        output.seek(0)
        sys.stdout.buffer.write(output.read())
        sys.stdout.buffer.flush()
    print(f"in_shards.py: {count} processes ended with {codes}")
    return 0 if not any(codes) else 1


if __name__ == "__main__":
    sys.exit(main())
