# SPDX-License-Identifier: Apache-2.0
"""The private daemon of `causeway run` for many processes: its command only tells where the daemon listens, and waits."""

import subprocess
import sys

PATIENCE_S = 60


class PrivateDaemon:
    """`environment`: what its clients' environment needs; `pid`: the process whose descendants are the daemon and the workers."""

    def __init__(self, build, driver=None, kind="local", bound=()):
        """`kind`: local, tcp or tls; `bound`: words in front of the command, as of taskset."""
        words = [*bound, build / "host_backend/causeway", "run", *([] if kind == "local" else [f"--{kind}"]),
                 *(["--driver", driver] if driver else []), "--", "sh", "-c", "env -0; echo; read line"]
        self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid, self.environment = self.process.pid, {}
        text = ""  # values may have several lines
        for line in iter(self.process.stdout.readline, ""):
            text += line
            if text.endswith("\0\n"):
                break
        for each in text.split("\0"):
            name, _, value = each.partition("=")
            if name.startswith("CAUSEWAY") or name == "LD_LIBRARY_PATH":
                self.environment[name] = value
        if not {"CAUSEWAY", "LD_LIBRARY_PATH"} <= self.environment.keys():
            sys.exit(f"{build} starts no private daemon")

    def end(self):
        self.process.communicate("\n", timeout=PATIENCE_S)
