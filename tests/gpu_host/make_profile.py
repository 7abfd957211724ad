#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes a profile of the worker's sandbox (host_backend/sandbox/profiles) from logs of causewayd.

    CAUSEWAY_SANDBOX=learn causeway run --daemon-log LOG -- PROGRAM     (again and again, with all that is to work)
    make_profile.py --driver nvidia --kind cuda --version 580.159.04 LOG... > nvidia-cuda-580.159.04.profile

With CAUSEWAY_SANDBOX=report only what lies outside of the profile that is in use is logged: give that with --add.
Exits 1 where a log names a call that no profile may allow, or names none at all.
"""
import argparse
import re
import sys
from pathlib import Path

LINE = re.compile(r"sandbox report \((cuda|nvml)\): (\w+)((?: 0x[0-9a-f]+)?)( \(no profile may allow it\))?")
ENTRY = re.compile(r"^(\w+)(?:\s+(\w+))?\s*(#.*)?$")


def read_logs(paths, kind):
    """The calls that the logs name, as (name, value or None), and the names that may not be allowed."""
    calls, forbidden = set(), set()
    for path in paths:
        for line in Path(path).read_text(errors="replace").splitlines():
            found = LINE.search(line)
            if found is None or found[1] != kind:
                continue
            if found[4]:
                forbidden.add(found[2])
            else:
                calls.add((found[2], int(found[3], 16) if found[3] else None))
    return calls, forbidden


def read_profile(path):
    """Its calls, with their comments."""
    calls = {}
    for line in Path(path).read_text().splitlines():
        found = ENTRY.match(line)
        if found is not None:
            calls[(found[1], int(found[2], 0) if found[2] else None)] = found[3] or ""
    return calls


def profile_text(title, calls):
    lines = [f"# {title}, after a worker has started: made by tests/gpu_host/make_profile.py."]
    for name, value in sorted(calls, key=lambda call: (call[0], call[1] or 0)):
        entry = name if value is None else f"{name} {value:#x}"
        comment = calls[(name, value)]
        lines.append(f"{entry:<24}{comment}".rstrip())
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--driver", default="nvidia")
    parser.add_argument("--kind", choices=["cuda", "nvml"], required=True)
    parser.add_argument("--version", default="")
    parser.add_argument("--add", metavar="PROFILE", help="whose calls are allowed as well")
    parser.add_argument("--comments", metavar="PROFILE", help="where comments are taken from, and no calls")
    parser.add_argument("logs", nargs="+", metavar="LOG")
    options = parser.parse_args()
    seen, forbidden = read_logs(options.logs, options.kind)
    comments = read_profile(options.comments) if options.comments else {}
    calls = {call: comments.get(call, "") for call in seen}
    if options.add:
        calls.update(read_profile(options.add))
    title = " ".join(filter(None, [options.driver, options.version, options.kind]))
    sys.stdout.write(profile_text(title, calls))
    for name in sorted(forbidden):
        print(f"make_profile.py: the driver calls {name}, which no profile may allow", file=sys.stderr)
    if not seen:
        print(f"make_profile.py: no log has a line of a {options.kind} worker", file=sys.stderr)
    return 1 if forbidden or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
