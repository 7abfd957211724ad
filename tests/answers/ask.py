#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Asks the CUDA driver some 1,400 questions in each of 14 states of captures and contexts, natively and through Causeway, and
compares the answers: each call's result, what has become of the capture, and what else the question noted.

Usage: ask.py --program PROGRAM --guest COMMAND [--native COMMAND | --recorded FILE] [--stand-in COMMAND] [--write FILE] [--jobs N]

A COMMAND comes before the program; "" is none. Without --native the answers of FILE are held to be right: what NVIDIA's library answered on
a GPU host, as --write left it (without what was noted). There is no GPU of NVIDIA's below the guest then, but what --stand-in is: where the guest answers as
the stand-in does by itself, the difference is the stand-in's, and is counted apart. explained.txt has what is known to differ, with
the reason. A question that ends the process on either side is compared with nothing. Exits 1 when anything else differs.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import shlex
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
STATES = "0gac 0gap Bgac Bgxc Bgap Bgxp Btac Brac Brxc Ngac Ngxc Tgac Tgxc Trac".split()
PATIENCE_S, MOST_ENDS = 60, 200
ENDED = ("ended",)


def ask_state(command, program, state):
    """{question: (result, capture)}. A question that ends the process is left out, and the rest asked in a new one."""
    answers, first = {}, 0
    for _ in range(MOST_ENDS):
        try:
            asked = subprocess.run([*command, program, state, str(first)], capture_output=True, text=True, errors="replace",
                                   timeout=PATIENCE_S, check=False)
            out, told = asked.stdout, asked.stderr
        except subprocess.TimeoutExpired as late:
            out, told = ((text or b"").decode(errors="replace") for text in (late.stdout, late.stderr))
        lines = out.splitlines()
        for line in lines:
            words = line.split("|")
            if len(words) == 5 and words[0] == state:
                answers[words[1]] = tuple(words[2:])
        if lines and lines[-1] == "end":
            return answers
        begun = [line.split(" ", 2) for line in told.splitlines() if line.startswith("at ")]
        if not begun:
            sys.exit(f"ask.py: {program} asks nothing in state {state}: {(out + told)[-300:]}")
        answers[begun[-1][2]] = ENDED
        first = int(begun[-1][1]) + 1
    sys.exit(f"ask.py: in state {state} more than {MOST_ENDS} questions ended the process")


def ask_all(command, program, jobs):
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        found = pool.map(lambda state: ask_state(command, program, state), STATES)
        return {(state, question): answer for state, answers in zip(STATES, found) for question, answer in answers.items()}


def write(answers, path):
    """A line for each question: question | result capture: states | ..."""
    of_question = collections.defaultdict(lambda: collections.defaultdict(list))
    for (state, question), answer in answers.items():
        of_question[question][" ".join(answer[:2])].append(state)
    lines = [" | ".join([question, *(f"{answer}: {' '.join(states)}" for answer, states in each.items())])
             for question, each in of_question.items()]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read(path):
    answers = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        question, *parts = line.split(" | ")
        for part in parts:
            words, states = part.split(": ")
            answer = ENDED if words == ENDED[0] else tuple(words.split(" ", 1))
            answers.update({(state, question): answer for state in states.split(" ")})
    return answers


def read_explained():
    """[(how a question begins, the reason)]"""
    lines = (HERE / "explained.txt").read_text(encoding="utf-8").splitlines()
    return [tuple(line.split(" | ")) for line in lines if line and not line.startswith("#")]


def same(one, other):
    """What was noted is compared where both sides have it."""
    return all(a == b for a, b in zip(one, other))


def compare(right, guest, stand_in, explained):
    counts, kinds = collections.Counter(), collections.defaultdict(list)
    for key in sorted(guest.keys() | right.keys()):
        answer, wanted = guest.get(key, ("not asked",)), right.get(key, ("not recorded",))
        if ENDED in (answer, wanted):
            counts["compared with nothing"] += 1
        elif same(answer, wanted):
            counts["the same"] += 1
        elif same(stand_in.get(key, ENDED), answer):
            counts["the stand-in's own"] += 1
        elif any(key[1].startswith(begin) for begin, _ in explained):
            counts["explained"] += 1
        else:
            counts["different"] += 1
            kinds[key[1], wanted, answer].append(key[0])
    return counts, kinds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--guest", type=shlex.split, required=True)
    parser.add_argument("--native", type=shlex.split)
    parser.add_argument("--recorded", type=pathlib.Path, default=HERE / "h200_580_159.txt")
    parser.add_argument("--stand-in", type=shlex.split)
    parser.add_argument("--write", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    given = parser.parse_args()
    guest = ask_all(given.guest, given.program, given.jobs)
    right = read(given.recorded) if given.native is None else ask_all(given.native, given.program, given.jobs)
    stand_in = ask_all(given.stand_in, given.program, given.jobs) if given.stand_in is not None else {}
    if given.write is not None and given.native is not None:
        write(right, given.write)
    counts, kinds = compare(right, guest, stand_in, read_explained())
    for (question, wanted, answer), states in sorted(kinds.items()):
        print(f"{question}: {' '.join(wanted)} natively, {' '.join(answer)} through Causeway, in {' '.join(states)}")
    print(f"{len(guest)} answers: " + ", ".join(f"{count} {what}" for what, count in counts.most_common()))
    if counts["the same"] < len(guest) // 2:
        print("ask.py: fewer than half are the same: these are not the questions that were recorded")
        return 1
    return 1 if kinds else 0


if __name__ == "__main__":
    sys.exit(main())
