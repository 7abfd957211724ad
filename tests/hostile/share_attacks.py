#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Users that try to have more of a GPU than their share, each beside a modest one, with real workers and the daemon.

usage: share_attacks.py BUILD [--driver LIBRARY] [--only KIND...]

For each kind of share_attack.cc one user does that, and as soon as it is going another user launches a kernel and waits for it,
a fixed number of times. It must get through, with no error, while the attack goes on; the daemon must serve as before; and
what is left must go when the attack is killed. Nothing here measures time: limits are those of a hang. What shares come of it is
proven under a virtual clock (arbiter_test, link_test). Copies of two users at once are compared and counted, and the GPU of one is
lost while it is in use. Runs as root.
"""

import argparse
import sys

import tenants
from tenants import FIRST_STRANGER, Trouble, wait_for

LAUNCHES = 200
ROUNDS, ROUND_BYTES, CAP_MIB_PER_S = 6, 16 << 20, 32  # of copies
ATTACKER, MODEST = FIRST_STRANGER, FIRST_STRANGER + 1
KINDS = ["flood", "greedy", "endless", "spin", "streams", "capture", "forks", "dies"]
LIMIT_S = 150
# Those that must get through themselves: what they do is allowed, and nothing of it may be held back for ever.
GET_ON = {"spin": "round 3", "streams": "round 1"}


class Attack:
    def __init__(self, options):
        self.tenants = tenants.Tenants(options.build, options.driver)
        self.tenants.copy_program(self.tenants.build / "hostile_programs/share_attack")

    def share_of(self, uid):
        for share in self.tenants.status().get("shares", []):
            if share["scope"] == f"uid:{uid}":
                return share
        return None

    def run(self, kind):
        begun = len(self.tenants.status()["sessions"])
        attack = self.tenants.spawn(ATTACKER, ["share_attack", kind])
        wait_for(f"{kind} to begin", lambda: "going" in self.tenants.said(attack) or attack.poll() is not None, LIMIT_S)
        modest = self.tenants.spawn(MODEST, ["share_attack", "modest", LAUNCHES])
        wait_for(f"the modest user beside {kind}", lambda: modest.poll() is not None, LIMIT_S)
        text = self.tenants.said(modest)
        if modest.returncode != 0 or f"done {LAUNCHES}" not in text:
            raise Trouble(f"beside {kind} the modest user ended with {modest.returncode}: {text.strip()[-300:]}")
        self.tenants.forget(modest)
        if kind in GET_ON:
            wait_for(f"{kind} to get on", lambda: GET_ON[kind] in self.tenants.said(attack) or attack.poll() is not None, LIMIT_S)
        if attack.poll() is not None:
            raise Trouble(f"{kind} ended with {attack.returncode}: {self.tenants.said(attack).strip()[-300:]}")
        share = self.share_of(ATTACKER)
        self.tenants.kill(attack)
        wait_for(f"what {kind} leaves to go", lambda: len(self.tenants.status()["sessions"]) <= begun, LIMIT_S)
        if kind not in ("dies", "forks") and share is None:
            raise Trouble(f"the daemon knows of no share of {kind}")
        print(f"{kind}: {LAUNCHES} launches of another user got through", flush=True)

    def copies(self):
        """Two users copy at once, one of them with a cap: all bytes are right, all are counted, and the cap is kept to."""
        both = [self.tenants.spawn(uid, ["share_attack", "copies", ROUNDS]) for uid in (ATTACKER, MODEST)]
        for process in both:
            wait_for("copies", lambda: f"done {ROUNDS}" in self.tenants.said(process) or process.poll() is not None, LIMIT_S)
            if process.poll() is not None:
                raise Trouble(f"copies ended with {process.returncode}: {self.tenants.said(process).strip()[-300:]}")
        for uid, capped in ((ATTACKER, True), (MODEST, False)):
            share = self.share_of(uid)
            for way in ("to_device_bytes", "to_host_bytes"):
                if share is None or share[way] < ROUNDS * ROUND_BYTES:
                    raise Trouble(f"{way} of {ROUNDS * ROUND_BYTES} are counted as {share}")
            if (share["link_throttled_s"] > 0) != capped:
                raise Trouble(f"a cap is kept to where there is none, or not where there is one: {share}")
        for process in both:
            self.tenants.kill(process)
        print("copies: right beside each other, counted, and capped", flush=True)

    def lost_gpu(self):
        """One worker's GPU is lost while it is in use: its session gets errors, and the other user goes on."""
        attack = self.tenants.spawn(ATTACKER, ["share_attack", "greedy"])
        wait_for("the loss of the GPU", lambda: attack.poll() is not None, LIMIT_S)
        text = self.tenants.said(attack)
        if attack.returncode != 3 or "error" not in text:
            raise Trouble(f"a lost GPU ended its program with {attack.returncode}: {text.strip()[-300:]}")
        self.tenants.forget(attack)
        modest = self.tenants.spawn(MODEST, ["share_attack", "modest", 20])
        text = self.tenants.result(modest, LIMIT_S)
        if modest.returncode != 0:
            raise Trouble(f"after another's GPU was lost: {text.strip()[-300:]}")
        print("lost: another user's session goes on", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--driver")
    parser.add_argument("--only", nargs="+", choices=[*KINDS, "copies", "lost"])
    options = parser.parse_args()
    if tenants.os.geteuid() != 0:
        print("skipped: needs root, for processes of several users")
        return 77
    attack = Attack(options)
    settings = ("spare_workers = 1\nmax_sessions = 128\nlocal_region_mib = 1024\nlocal_max_sessions = 80\n")
    try:
        kinds = options.only or [*KINDS, "copies", "lost"]
        if kinds != ["lost"]:
            attack.tenants.start_daemon(settings + f"[[user]]\nuid = {ATTACKER}\npcie_mib_per_s = {CAP_MIB_PER_S}\n")
            for kind in kinds:
                if kind in KINDS:
                    attack.run(kind)
            if "copies" in kinds:
                attack.copies()
            attack.tenants.stop_daemon()
        if "lost" in kinds and options.driver:
            attack.tenants.start_daemon(settings, SOFTWARE_GPU_LOSE_AFTER_LAUNCHES="100")
            attack.lost_gpu()
        return 0
    except Trouble as trouble:
        print(f"share_attacks: {trouble}\n{attack.tenants.log_text()[-3000:]}", file=sys.stderr)
        return 1
    finally:
        attack.tenants.end()


if __name__ == "__main__":
    sys.exit(main())
