# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison: how the program `differential` is run natively and through Causeway."""

import pathlib
import shlex
import struct
import subprocess
import tempfile

HEADER, OUTCOME, PAIR, STATUS = (struct.Struct(form) for form in ("<IIQII", "<QII", "<HHI", "<II56s"))


class Batch:
    """What one process came to. `end` is "" where it ended by itself, else how it did."""

    def __init__(self):
        self.hashes, self.pairs, self.calls, self.broken, self.left_out = [], {}, 0, False, 0
        self.end, self.program, self.call, self.row, self.text = "", 0, 0, "", ""


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

    def start(self, arguments, explain):
        run = tempfile.mkdtemp(dir=self.folder, prefix=self.name)
        command = [self.program, *map(str, arguments), "--out", f"{run}/out", "--status", f"{run}/status"]
        if explain:
            command.append("--explain")
        with open(f"{run}/text", "wb") as text, open(f"{run}/errors", "wb") as errors:
            process = subprocess.Popen(command, env=self.environment, stdin=subprocess.DEVNULL, stdout=text, stderr=errors)
        return process, pathlib.Path(run)

    def finish(self, started, timeout_s):
        """The batch of a started process; it is killed when the time is up."""
        process, run = started
        batch = Batch()
        try:
            code = process.wait(timeout_s)
            batch.end = "" if code == 0 else f"signal {-code}" if code < 0 else f"exit code {code}"
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            batch.end = f"hung for {timeout_s:.0f} s"
        try:
            batch.program, batch.call, row = STATUS.unpack((run / "status").read_bytes())
            batch.row = row.rstrip(b"\0").split(b"\0")[0].decode()
        except (OSError, struct.error):
            pass
        batch.text = (run / "text").read_text(errors="replace")
        batch.errors = (run / "errors").read_text(errors="replace")[-2000:]
        if not batch.end:
            read_outcome(run / "out", batch)
        for file in run.iterdir():
            file.unlink()
        run.rmdir()
        return batch


def read_outcome(path, batch):
    data = path.read_bytes()
    programs, pairs, batch.calls, batch.broken, batch.left_out = HEADER.unpack_from(data)
    at = HEADER.size
    batch.hashes = [OUTCOME.unpack_from(data, at + i * OUTCOME.size)[0] for i in range(programs)]
    at += programs * OUTCOME.size
    for i in range(pairs):
        row, result, count = PAIR.unpack_from(data, at + i * PAIR.size)
        batch.pairs[row, result] = count


def run_both(sides, arguments, timeout_s, explain=False):
    started = [side.start(arguments, explain) for side in sides]
    return [side.finish(one, timeout_s) for side, one in zip(sides, started)]
