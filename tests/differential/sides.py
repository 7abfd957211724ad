# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison: how the program `differential` is run natively and through Causeway."""

import contextlib
import os
import pathlib
import select
import shlex
import shutil
import struct
import subprocess
import tempfile
import time

HEADER, OUTCOME, PAIR, STATUS = (struct.Struct(form) for form in ("<IIIIQII", "<QII", "<HHI", "<II1024s"))
LOOK_S = 0.2  # between two looks whether a process gets on


class Batch:
    """What one process came to: `hashes` of the programs that it has finished, and how many `calls` each made. `end` is "" where it ended by
    itself, else how it did, in which call of which program."""

    def __init__(self):
        self.hashes, self.calls, self.pairs, self.broken, self.left_out = [], [], {}, False, 0
        self.end, self.program, self.call, self.row, self.text, self.errors = "", 0, "", "", "", ""
        self.seconds = 0.0  # that it took
        self.is_cut = False  # it was stopped because its time was over, and did nothing wrong

    def take_place(self, place):
        """Where the process is, or was when it ended."""
        if len(place) == STATUS.size:
            self.program, _, call = STATUS.unpack(place)
            self.call = call.split(b"\0")[0].decode(errors="replace")
            words = self.call.split(" ")
            self.row = words[2] if len(words) > 2 else "the end of the program"


class Progress:
    """Whether a process gets on: its file of status says in which call it is."""

    def __init__(self, status, bound_s):
        self.status, self.bound_s, self.last, self.since = status, bound_s, b"", time.monotonic()

    def place(self):
        try:
            return self.status.read_bytes()
        except OSError:
            return b""

    def is_hung(self):
        place = self.place()[:8]
        if place != self.last:
            self.last, self.since = place, time.monotonic()
        return time.monotonic() - self.since > self.bound_s


def end_of(code):
    return "" if code == 0 else f"signal {-code}" if code < 0 else f"exit code {code}"


class Side:
    """One way to run the program: its environment is what PREFIX gives to a command, and lasts until close()."""

    def __init__(self, name, prefix, program, folder):
        self.name, self.program, self.folder = name, str(program), pathlib.Path(folder)
        file = self.folder / f"{name}.environment"
        # The shell stays: `causeway run` serves as long as its command runs.
        script = f"env -0 > {shlex.quote(str(file))}; echo ready; read -r end"
        self.holder = subprocess.Popen(shlex.split(prefix) + ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        while True:
            line = self.holder.stdout.readline()
            if line == b"ready\n":
                break
            if not line:
                raise SystemExit(f"differential.py: {prefix!r} ended with {self.holder.wait()} instead of running a command")
        words = [word.split("=", 1) for word in file.read_bytes().decode(errors="surrogateescape").split("\0") if "=" in word]
        self.environment = dict(words)

    def close(self):
        self.holder.stdin.close()
        try:
            self.holder.wait(30)
        except subprocess.TimeoutExpired:
            self.holder.kill()

    def rows(self):
        """{row: (whether the library has it, its parameters' names)}, in the order of the rows' numbers."""
        text = subprocess.run([self.program, "--list-names"], env=self.environment, check=True, capture_output=True, text=True).stdout
        return {words[0]: (words[1] == "1", words[2:]) for words in map(str.split, text.splitlines())}

    def start(self, arguments, stdin, stdout):
        """A process of the program with a folder of its own, in which are its files."""
        run = pathlib.Path(tempfile.mkdtemp(dir=self.folder, prefix=self.name))
        command = [self.program, *map(str, arguments), "--out", f"{run}/out", "--status", f"{run}/status"]
        with open(run / "errors", "wb") as errors, open(run / "text", "wb") as text:
            return subprocess.Popen(command, env=self.environment, stdin=stdin, stdout=stdout or text, stderr=errors), run

    def start_batch(self, arguments, explain):
        begin = time.monotonic()
        return *self.start([*arguments, *(["--explain"] if explain else [])], subprocess.DEVNULL, None), begin

    def finish(self, started, bound_s, deadline=float("inf")):
        """The batch of a started process. It is killed when it has been in one call for that long, and when the deadline has passed."""
        process, run, begin = started
        batch, progress = Batch(), Progress(run / "status", bound_s)
        while True:
            try:
                batch.end = end_of(process.wait(LOOK_S))
                break
            except subprocess.TimeoutExpired:
                batch.is_cut = time.monotonic() > deadline
                if batch.is_cut or progress.is_hung():
                    process.kill()
                    process.wait()
                    batch.end = "" if batch.is_cut else f"hung for {bound_s:.0f} s"
                    break
        batch.seconds = time.monotonic() - begin
        batch.take_place(progress.place())
        batch.text = (run / "text").read_text(errors="replace")
        batch.errors = (run / "errors").read_text(errors="replace")[-2000:]
        read_outcome(run / "out", batch)
        shutil.rmtree(run)
        return batch


class Server:
    """A process of one side that runs one program after the other, which takes milliseconds where a new process takes a second. What a
    program leaves behind is there for the next ones."""

    SERVED, LOST = b"served\n", b"served, and the context is lost\n"

    def __init__(self, side, arguments):
        self.process, self.run = side.start([*arguments, "--serve"], subprocess.PIPE, subprocess.PIPE)
        self.questions, self.answers = self.process.stdin.fileno(), self.process.stdout.fileno()
        os.set_blocking(self.answers, False)

    def ask(self, kind, name):
        with contextlib.suppress(BrokenPipeError):  # answer() says how it ended
            os.write(self.questions, f"{kind} {name}\n".encode())

    def answer(self, bound_s):
        """The text of the program that was asked for; where `end` is not "", or the context is lost, the server serves no more."""
        batch, progress, text = Batch(), Progress(self.run / "status", bound_s), b""
        while not text.endswith((self.SERVED, self.LOST)) and not batch.end:
            select.select([self.answers], [], [], LOOK_S)
            try:
                part = os.read(self.answers, 1 << 16)
            except BlockingIOError:
                part = None
            text += part or b""
            if part == b"":
                batch.end = self.last_words(bound_s)
            elif progress.is_hung():
                batch.end = f"hung for {bound_s:.0f} s"
        batch.take_place(progress.place())
        batch.broken = text.endswith(self.LOST)
        batch.text = text.removesuffix(self.SERVED).removesuffix(self.LOST).decode(errors="replace")
        return batch

    def last_words(self, bound_s):
        try:
            return end_of(self.process.wait(bound_s)) or "ended"
        except subprocess.TimeoutExpired:
            return "closed its output"

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()
        shutil.rmtree(self.run)


class ServedSides:
    """Both sides as servers, made anew where one has ended or lost its context, or the options are others. One thread at a time."""

    def __init__(self, sides, bound_s, in_turns=False):
        self.sides, self.bound_s, self.in_turns, self.options, self.servers = sides, bound_s, in_turns, None, []

    def run(self, options, kind, name):
        if self.options != options:
            self.close()
        if not self.servers:
            self.options, self.servers = options, [Server(side, options) for side in self.sides]
        batches = []
        for server in self.servers:
            server.ask(kind, name)
            if self.in_turns:
                batches.append(server.answer(self.bound_s))
        batches = batches or [server.answer(self.bound_s) for server in self.servers]
        if any(batch.end or batch.broken for batch in batches):
            self.close()
        return batches

    def close(self):
        servers, self.servers = self.servers, []
        for server in servers:
            server.close()


def read_outcome(path, batch):
    """What the process has finished before it ended; nothing where it has not come so far."""
    data = path.read_bytes() if path.exists() else b""
    if len(data) < HEADER.size:
        return
    programs, pairs, room, _, _, batch.broken, batch.left_out = HEADER.unpack_from(data)
    outcomes = [OUTCOME.unpack_from(data, HEADER.size + i * OUTCOME.size) for i in range(programs)]
    batch.hashes, batch.calls = [hash for hash, _, _ in outcomes], [calls for _, calls, _ in outcomes]
    at = HEADER.size + room * OUTCOME.size
    for i in range(pairs):
        row, result, count = PAIR.unpack_from(data, at + i * PAIR.size)
        batch.pairs[row, result] = count


def run_both(sides, arguments, bound_s, explain=False, in_turns=False, deadline=float("inf")):
    if in_turns:
        return [side.finish(side.start_batch(arguments, explain), bound_s, deadline) for side in sides]
    started = [side.start_batch(arguments, explain) for side in sides]
    return [side.finish(one, bound_s, deadline) for side, one in zip(sides, started)]
