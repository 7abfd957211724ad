# SPDX-License-Identifier: Apache-2.0
"""From a program that two libraries answer differently to the shortest one that still shows it, as readable lines."""

import re
import time


class Difference:
    """Where two texts of one program part. `key` names it: the same defect has the same one in every program."""

    def __init__(self, native, guest):
        self.calls = [line[2:] for line in native.text.splitlines() if line.startswith("> ")]
        self.key, self.native, self.guest, self.at = None, "", "", len(self.calls)
        first, other = answers(native.text), answers(guest.text)
        for at, (mine, its) in enumerate(zip(first, other)):
            if mine != its:
                self.native, self.guest = mine, its
                self.at = min(at + 1, len(self.calls)) if mine.split(":")[0].isdigit() else len(self.calls)
                self.key = key_of(mine, its)
                return
        if native.end != guest.end or len(first) != len(other):
            end = f"{guest.end or 'went on'}, natively {native.end or 'went on'}"
            self.key, self.guest = f"{guest.row or 'the end'}: {end}", end


def answers(text):
    """What a run printed of each call, without what tells one process from another: addresses in structs, of 32 bits in old ones."""
    lines = [line for line in text.splitlines() if not line.startswith("> ")]
    lines = [re.sub(r"\b(from|to|at) 0x[0-9a-f]+", r"\1 0x...", line) for line in lines if not re.match(r"program \d+ is ", line)]
    return [re.sub(r"0x[0-9a-f]{9,}", "0x...", line) for line in lines]


def key_of(native, guest):
    row = re.match(r"\d+: t\d+ (\w+)\(", native)
    if row is None:
        return "memory: " + re.sub(r" (holds|is) .*", "", native)
    results = [re.search(r"\) = (\d+)|: (left out)$", line) for line in (native, guest)]
    mine, its = (next(filter(None, found.groups())) if found else "?" for found in results)
    if mine != its:
        return f"{row[1]}: {its}, natively {mine}"
    outputs = [re.split(r"\) = \d+", line, maxsplit=1)[-1].split("; ") for line in (native, guest)]
    differing = [a.split(" ")[0] for a, b in zip(*outputs) if a != b]
    return f"{row[1]}: output {differing[0] if differing else '?'}"


class Shrinker:
    """Runs candidates on both sides: `run_both` runs the calls that are in `file`, for that many seconds in all."""

    def __init__(self, run_both, file, most_s):
        self.run_both, self.file, self.end = run_both, file, time.monotonic() + most_s

    def run(self, calls):
        self.file.write_text("\n".join(calls) + "\n")
        return Difference(*self.run_both())

    def shows(self, calls, key):
        return time.monotonic() < self.end and self.run(calls).key == key

    def shrink(self, difference):
        """The shortest list of calls that was found; None if the calls alone do not show it."""
        calls, key = difference.calls, difference.key
        if not self.shows(calls, key):
            return None
        if difference.at < len(calls) and self.shows(calls[:difference.at], key):
            calls = calls[:difference.at]
        piece = max(len(calls) // 2, 1)
        while True:
            start = len(calls)
            while start > 0:
                start = max(start - piece, 0)
                fewer = calls[:start] + calls[start + piece:]
                if len(fewer) < len(calls) and self.shows(fewer, key):
                    calls = fewer
                start = min(start, len(calls))
            if piece == 1:
                break
            piece = max(piece // 2, 1)
        return self.simplify(calls, key)

    def simplify(self, calls, key):
        """Each call on the first thread, and its numbers small, where that shows the same."""
        for at, call in enumerate(calls):
            for simpler in simpler_calls(call):
                candidate = calls[:at] + [simpler] + calls[at + 1:]
                if simpler != calls[at] and self.shows(candidate, key):
                    calls = candidate
        return calls


def simpler_calls(call):
    words = call.split(" ")
    yield " ".join([words[0], "t0", *words[2:]])
    for i, word in enumerate(words[3:], 3):
        if re.fullmatch(r"n\d+", word) and word != "n0":
            yield " ".join(words[:i] + ["n0"] + words[i + 1:])
        if re.fullmatch(r"r\d+\+[1-9]\d*", word):
            yield " ".join(words[:i] + [word.split("+")[0] + "+0"] + words[i + 1:])


def readable(text):
    """Pseudo-C: one line for each call and its native answer."""
    lines = []
    for line in text.splitlines():
        call = re.match(r"\d+: t(\d+) (.*\)) = (\d+)(.*)", line)
        if call:
            thread = f"  // thread {call[1]}" if call[1] != "0" else ""
            lines.append(f"  EXPECT_EQ({call[2]}, {call[3]});{'  // ' + call[4][2:] if call[4] else ''}{thread}")
    return "\n".join(lines)
