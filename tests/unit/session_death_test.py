#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Deaths and refusals of whole sessions: causewayd, real workers on the software GPU, real guest processes.

Usage: session_death_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU CLIENT [unittest arguments]
"""

import json
import os
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import time

import sessions
from sessions import LIMIT_S, Client, alive, children, workers_of

OWNER_TABLE, SLICE_BYTES, ARENA_SLICES = 0x10000, 2 << 20, 16  # ivshmem_ring/transport/layout.h, guest_lib/addresses/region_memory.cc
LOST = 911  # CUDA_ERROR_EXTERNAL_DEVICE
LATE_MS = 15_000  # well above what a busy machine takes, well below a hang


class Deaths(sessions.Sessions):
    def expect_lost(self, client, text=""):
        out, err, code = client.result(text)
        self.assertEqual(code, 0, (out, err))
        words = out[-1].split()
        self.assertEqual(words[:3], ["lost", str(LOST), str(LOST)], (out, err))
        self.assertLess(int(words[3]), LATE_MS, "the error comes late")
        self.assertEqual(len(err), 1, err)
        self.assertIn("the session is lost", err[0])

    def expect_working(self):
        client = Client(self, self.address, "compute")
        client.started()
        out, err, code = client.result()
        self.assertEqual((code, err), (0, []), out)

    def expect_refused(self, sentence, error=100, user=None, address=None):
        out, err, _ = Client(self, address or self.address, "init", user=user).result()
        self.assertEqual(out, [f"init {error}"], err)
        self.assertEqual(len(err), 1, err)
        self.assertIn(sentence, err[0])

    # ---- the guest dies ----------------------------------------------------------------------------------------

    def kill_guest(self, client, after_s):
        worker = self.worker_of(client)
        time.sleep(after_s)
        client.process.kill()
        client.process.wait()
        self.wait("the worker to end with its guest", lambda: not alive(worker))

    def kill_copying_guests(self, kind):
        os.environ["CAUSEWAY_COPY_THREADS"] = "4"
        self.addCleanup(os.environ.pop, "CAUSEWAY_COPY_THREADS")
        self.start()
        neighbour = Client(self, self.address, "compute")
        neighbour.started()
        for round_number in range(4):
            client = Client(self, self.address, "copy", kind)
            client.started()
            self.kill_guest(client, 0.01 + 0.013 * round_number)
        out, err, code = neighbour.result()
        self.assertEqual((code, err), (0, []), out)
        self.wait_idle()

    def test_guest_killed_in_pageable_copy(self):
        self.kill_copying_guests("pageable")

    def test_guest_killed_in_pinned_copy(self):
        self.kill_copying_guests("pinned")

    def test_guest_killed_in_a_callback(self):
        self.start()
        for form, where in ("word", "forever"), ("host", "forever"), ("word", "graph"), ("host", "graph"):
            with self.subTest(form=form, where=where):
                neighbour = Client(self, self.address, "compute")
                neighbour.started()
                client = Client(self, self.address, "callbacks", where, CAUSEWAY_CALLBACKS=form)
                client.started()
                self.kill_guest(client, 0.2)  # the host's queue fills behind the function
                out, err, code = neighbour.result()
                self.assertEqual((code, err), (0, []), out)
                self.wait_idle()

    def test_guest_leaves_without_a_word(self):
        self.start()
        for how, last in (("exit", None), ("fork", "parent 0"), ("exec", "init 0"), ("dlclose", "closed 0"),
                          ("threads", None)):
            with self.subTest(how):
                out, err, code = Client(self, self.address, "leave", how).result()
                self.assertEqual((code, err), (0, []), out)
                if last is not None:
                    self.assertEqual(out[-1], last)
                if how == "fork":
                    self.assertEqual(out[0], "child 0")
                self.wait_idle()

    def slices(self, client):
        """How many slices of its region the guest has, by the owner table, and how many bytes the region keeps."""
        for link in pathlib.Path(f"/proc/{client.process.pid}/fd").iterdir():
            name = os.readlink(link)
            # A memory file, or a file without a name where the daemon may mount.
            if name.startswith(("/memfd:causeway-region", "/#")):
                with open(link, "rb") as region:
                    region.seek(OWNER_TABLE)
                    owners = struct.unpack("<128H", region.read(256))
                    return sum(owner == 1 for owner in owners), os.fstat(region.fileno()).st_blocks * 512
        return self.fail("the client has no region")

    def test_pinned_memory_goes_back_to_the_region(self):
        self.start()
        client = Client(self, self.address, "register")
        client.started()
        before, _ = self.slices(client)
        for _ in range(2):
            client.process.stdin.write("go\n")
            client.process.stdin.flush()
            line = client.process.stdout.readline()
            if not line.startswith("idle"):
                self.fail(f"the client says {line!r}, then {client.result()}; the daemon's log:\n{self.log_text()}")
            # At most half a second later, and the pages too: what stays is the arena that small blocks share.
            self.wait("the slices", lambda: self.slices(client)[0] <= before + ARENA_SLICES)
            self.wait("the pages", lambda: self.slices(client)[1] <= (before + ARENA_SLICES + 2) * SLICE_BYTES)
        out, err, code = client.result()
        self.assertEqual((out, err, code), ([], [], 0))
        self.wait_idle()

    def kill_guests_that(self, what, rounds=4, **environment):
        for round_number in range(rounds):
            client = Client(self, self.address, "lose", what, **environment)
            client.started()
            self.kill_guest(client, 0.05 + 0.03 * round_number)
        self.wait_idle()

    def test_killed_while_registering(self):
        self.start()
        self.kill_guests_that("register")

    def test_killed_while_managed_pages_come(self):
        self.start()
        for form, faults in ("migrating", "userfaultfd"), ("migrating", "signals"), ("coherent", "signals"):
            with self.subTest(form, faults=faults):
                self.kill_guests_that("managed", CAUSEWAY_MANAGED=form, CAUSEWAY_MANAGED_FAULTS=faults)

    def images(self):
        """How many images the daemon says that it keeps, and how many it has: more while it hashes what it has got."""
        def count():
            counts = self.count_images()
            return counts[0] == counts[1]
        self.wait("the daemon to have hashed all images", count)
        return self.count_images()

    def count_images(self):
        files = [os.readlink(link) for link in pathlib.Path(f"/proc/{self.daemon.pid}/fd").iterdir() if os.path.lexists(link)]
        return self.status()["images"]["kept"], sum("causeway-image" in file for file in files)

    def test_killed_while_images_travel(self):
        self.start(more="image_cache_mib = 16\n")
        self.kill_guests_that("images", rounds=6)
        kept, there = self.images()
        self.assertEqual(kept, there, "images that nobody counts")
        self.assertLessEqual(kept, 5, "more than the 16 MiB have room for")
        self.assertGreater(kept, 0)
        self.expect_working()

    def test_worker_killed_while_images_travel(self):
        self.lose_worker("images")
        kept, there = self.images()
        self.assertEqual(kept, there, "images that nobody counts")
        self.expect_working()

    def test_worker_killed_while_registering(self):
        self.lose_worker("register")  # the client compares its memory
        self.expect_working()

    def test_worker_killed_while_managed_pages_come(self):
        self.start()
        for faults in "userfaultfd", "signals":
            for round_number in range(3):
                with self.subTest(faults, round=round_number):
                    client = Client(self, self.address, "lose", "managed", CAUSEWAY_MANAGED="migrating",
                                    CAUSEWAY_MANAGED_FAULTS=faults)
                    client.started()
                    worker = self.worker_of(client)
                    time.sleep(0.05 + 0.03 * round_number)
                    os.kill(worker, signal.SIGKILL)
                    out, err, code = client.result()  # with the bytes that it has, until a call answers
                    self.assertEqual((code, out[-1].split()[:2]), (0, ["lost", str(LOST)]), (out, err))
                    self.assertLess(int(out[-1].split()[3]), LATE_MS, "the error comes late")
                    self.assertTrue(any("the session is lost" in line for line in err), err)
                    self.wait_idle()
        self.expect_working()

    def test_many_sessions_leave_nothing(self):
        self.start()
        self.expect_working()
        self.wait_idle()
        before = self.descriptors()
        for _ in range(int(os.environ.get("CAUSEWAY_TEST_SESSIONS", "12"))):
            clients = [Client(self, self.address, "leave", "exit") for _ in range(5)]
            for client in clients:
                out, err, code = client.result()
                self.assertEqual((code, err), (0, []), out)
        self.wait_idle()
        self.assertEqual(self.descriptors(), before)
        self.assertEqual(self.status()["counters"]["worker_deaths"], 0)

    # ---- the worker dies ---------------------------------------------------------------------------------------

    def lose_worker(self, how, text="", by=signal.SIGKILL, **environment):
        self.start(**environment)
        client = Client(self, self.address, "lose", how)
        client.started()
        worker = self.worker_of(client)
        time.sleep(0.1)
        os.kill(worker, by)
        if text:
            self.wait("the worker's death", lambda: not alive(worker))
            time.sleep(0.1)
        self.expect_lost(client, text)
        self.wait_idle()
        self.assertEqual(self.status()["counters"]["worker_deaths"], 1)
        return client

    # ---- what the dead leave ------------------------------------------------------------------------------------

    def test_trace_outlives_its_session(self):
        self.start()
        client = Client(self, self.address, "copy", "pageable")
        client.started()
        worker = self.worker_of(client)
        os.kill(worker, signal.SIGKILL)
        self.wait("the session to end", lambda: "signal 9" in self.trace("--list"))
        client.end()
        self.expect_working()
        self.wait_idle()
        listed = self.trace("--list").splitlines()
        self.assertEqual(len(listed), 2, listed)
        self.assertIn(f"worker {worker}", listed[0])
        self.assertIn("ended: its worker", listed[0])
        killed, last = json.loads(self.trace("--session", "1")), json.loads(self.trace("--last"))
        for trace in (killed, last):
            names = {event["name"] for event in trace["traceEvents"]}
            self.assertIn("on the host", names)
            self.assertGreater(trace["otherData"]["guest_messages"], 5)
            self.assertGreater(trace["otherData"]["host_messages"], 5)
            self.assertEqual(trace["otherData"]["dropped_records"], 0)
        self.assertIn("signal 9", killed["otherData"]["end"])
        self.assertIn("cuLaunchKernel", {event["name"] for event in last["traceEvents"]})

    def test_round_trips_are_counted_for_each_step(self):
        # Each step sets memory, which waits for nothing, and reads a value, for which it has to wait.
        program = '''
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1])
device, context, place, value = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_uint32()
cuda.cuInit(0)
cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)
cuda.cuCtxSetCurrent(context)
cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(4096))
for step in range(12):
    cuda.cuMemsetD32Async(place, step, ctypes.c_size_t(1024), None)
    cuda.cuMemcpyDtoH_v2(ctypes.byref(value), place, ctypes.c_size_t(4))
    assert value.value == step
'''
        for way in ("local", "tcp"):
            self.start(more='[tcp]\nlisten = "127.0.0.1:0"\n')
            address = self.address if way == "local" else "tcp://" + self.status()["tcp"]
            subprocess.run([sys.executable, "-c", program, sessions.LIBRARY], env=dict(os.environ, CAUSEWAY=address), check=True,
                           timeout=LIMIT_S)
            self.wait("the session to end", lambda: not self.status()["sessions"])
            text = self.trace("--round-trips", "--last")
            if way == "local":
                # The GPU's own word in shared memory says when a value is there, so that the copy is no call that waits.
                # Where the machine is busy the word comes late, and the guest then sleeps in a call that waits for it.
                self.assertNotIn("copy to the host", text)
                self.assertRegex(text, r"^local, process \d+ \(session \d+\): \d+ round trips are recorded whole, and "
                                       r"beside them \d+ calls that waited for nothing\.\n")
                self.assertIn("Times are those that the program waited.", text)
            else:
                self.assertRegex(text, r"1\.00 a step, in \d+ steps that each end with copy to the host:")
                self.assertRegex(text, r"\n +1\.00  copy to the host +[\d.]+ us each\n")
                self.assertIn("the guest's side was not recorded", text)
            self.stop()

    def test_each_session_of_a_command_has_its_trace(self):
        client = f"{sessions.CLIENT} {sessions.LIBRARY} compute"
        done = subprocess.run([sessions.BACKEND + "/causeway", "run", "--driver", sessions.DRIVER, "--trace",
                               self.folder + "/trace.json", "--", "sh", "-c", f"{client} && {client}"],
                              capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for name in ("trace.json", "trace.2.json"):
            trace = json.loads(pathlib.Path(self.folder, name).read_text())
            self.assertGreater(trace["otherData"]["guest_messages"], 5)

    def test_a_command_has_the_devices_that_its_environment_names(self):
        variables = dict(os.environ, SOFTWARE_GPU_DEVICES="2", CUDA_VISIBLE_DEVICES="1")
        done = subprocess.run([sessions.BACKEND + "/causeway", "run", "--driver", sessions.DRIVER, "--", sessions.CLIENT,
                               sessions.LIBRARY, "compute"],
                              env=variables, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_a_worker_that_crashes_says_where(self):
        self.lose_worker("idle", "go\n", by=signal.SIGABRT)
        line = next(line for line in self.log_text().splitlines() if "ends by signal 6 in " in line)
        self.assertRegex(line, r" libc\.so\.6\+0x[0-9a-f]+ ")
        self.assertRegex(line, r" (worker|causeway-worker)\+0x[0-9a-f]+")
        self.assertNotRegex(line, r"0x[0-9a-f]{9}")  # no address

    def test_worker_killed_idle(self):
        self.lose_worker("idle", "go\n")
        self.expect_working()

    def test_worker_killed_in_burst(self):
        self.lose_worker("burst")
        self.expect_working()

    def test_worker_killed_in_waiting_call(self):
        self.lose_worker("waiting", SOFTWARE_GPU_LAUNCH_DELAY_US="8000000")

    def test_worker_killed_in_pageable_copies(self):
        os.environ["CAUSEWAY_COPY_THREADS"] = "4"
        self.addCleanup(os.environ.pop, "CAUSEWAY_COPY_THREADS")
        self.lose_worker("copy")

    def test_worker_killed_before_a_callback(self):
        for form in "word", "host":
            with self.subTest(form):
                self.start()
                client = Client(self, self.address, "callbacks", "lost", CAUSEWAY_CALLBACKS=form)
                client.started()
                os.kill(self.worker_of(client), signal.SIGKILL)
                out, _, code = client.result()
                self.assertEqual((out[:1], out[-1].split()[:3], code), ([f"status {LOST}"], ["lost", str(LOST), str(LOST)], 0))
                self.wait_idle()
                self.stop()

    def run_callbacks(self, count, **environment):
        self.start(**environment)
        out, err, code = Client(self, self.address, "callbacks", str(count)).result()
        self.assertEqual((out, err, code), ([f"count {count}"], [], 0))
        self.wait_idle()

    def test_gpu_waits_for_callbacks(self):
        self.run_callbacks(100, SOFTWARE_GPU_FAIL="cuLaunchHostFunc:1:1")  # which nobody calls

    def test_gpu_cannot_wait(self):
        refused = ",".join(f"cuStreamBatchMemOp_v2:{n}:801" for n in (1, 2, 10, 100))
        self.run_callbacks(500, SOFTWARE_GPU_FAIL=refused)

    def run_host_nodes(self, launches, **environment):
        self.start(**environment)
        out, err, code = Client(self, self.address, "callbacks", f"graph:{launches}").result()
        self.assertEqual((out, err, code), ([f"count {2 * launches}"], [], 0))
        self.wait_idle()

    def test_gpu_waits_for_host_nodes(self):
        self.run_host_nodes(100, SOFTWARE_GPU_FAIL="cuGraphAddHostNode:1:1,cuLaunchHostFunc:1:1")  # which nobody calls

    def test_gpu_cannot_wait_in_graphs(self):
        self.run_host_nodes(100, SOFTWARE_GPU_FAIL="cuGraphAddBatchMemOpNode:1:801,cuGraphAddBatchMemOpNode:2:801")

    def test_driver_aborts(self):
        self.start(SOFTWARE_GPU_ABORT_AT_LAUNCH="3")
        self.expect_lost(Client(self, self.address, "launch"))
        self.wait_idle()

    def test_device_is_lost(self):
        self.start(SOFTWARE_GPU_LOSE_AFTER_LAUNCHES="3")
        out, _, code = Client(self, self.address, "launch").result()
        self.assertEqual((out[-1].split()[:3], code), (["lost", "719", "719"], 0))
        self.wait_idle()
        self.assertEqual(self.status()["counters"]["worker_deaths"], 0)

    # ---- the daemon dies ---------------------------------------------------------------------------------------

    def test_daemon_killed_and_restarted(self):
        self.start()
        client = Client(self, self.address, "lose", "idle")
        client.started()
        self.wait("the spare", lambda: self.status()["workers"]["spare_ready"] == 1)
        workers = workers_of(self.daemon.pid)
        self.assertEqual(len(workers), 2)
        launchers = children(self.daemon.pid)
        self.daemon.kill()
        self.daemon.wait()
        self.wait("the dead daemon's processes to end", lambda: not any(alive(each) for each in workers | launchers))
        self.start()
        time.sleep(0.1)  # what is known to be done is answered for some 20 ms without asking
        self.expect_lost(client, "go\n")
        self.expect_working()
        self.wait_idle()

    def test_folders_of_dead_daemons(self):
        """In /dev/shm: the next daemon removes those of the dead, whatever their sockets were, and no other's."""
        def folder():
            number = 0xcbf29ce484222325
            for byte in self.socket.encode():
                number = (number ^ byte) * 0x100000001b3 % (1 << 64)
            return pathlib.Path(f"/dev/shm/causeway-workers-{number:016x}")
        self.start()
        dead = folder()
        (dead / "left").write_text("by a worker", encoding="utf-8")
        self.daemon.kill()  # which removes nothing; but another test's daemon may, from now on
        self.daemon.wait()
        self.socket = self.folder + "/living"
        self.start()
        living, first = folder(), self.daemon
        self.addCleanup(first.wait)
        self.addCleanup(first.terminate)
        self.assertFalse(dead.exists())
        self.assertTrue(living.exists())
        self.socket = self.folder + "/third"
        self.start()
        self.assertTrue(living.exists() and folder().exists())
        self.stop()
        self.assertFalse(folder().exists())
        self.assertTrue(living.exists())

    def test_daemon_has_no_rights(self):
        """No capability in any thread, and no way to get one: only the launcher has some."""
        self.start()
        client = Client(self, self.address, "lose", "idle")
        client.started()
        for task in pathlib.Path(f"/proc/{self.daemon.pid}/task").iterdir():
            status = dict(line.split(":", 1) for line in (task / "status").read_text().splitlines())
            for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
                self.assertEqual(int(status[name], 16), 0, name)
            self.assertEqual(status["NoNewPrivs"].strip(), "1")
        if os.geteuid() == 0:
            # CHOWN, KILL, SETGID, SETUID, SETPCAP, SYS_PTRACE, SYS_ADMIN
            kept = 1 << 0 | 1 << 5 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 19 | 1 << 21
            (launcher,) = children(self.daemon.pid)
            status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{launcher}/status").read_text().splitlines())
            for name in ("CapPrm", "CapEff", "CapBnd"):
                self.assertEqual(int(status[name], 16), kept, name)
            self.assertEqual(int(status["Seccomp"]), 2)
            # As the daemon's next program would have it, which root's would otherwise be given all.
            bounding = dict(line.split(":", 1) for line in
                            pathlib.Path(f"/proc/{self.daemon.pid}/status").read_text().splitlines())["CapBnd"]
            self.assertEqual(int(bounding, 16), 0)

    def test_regions_have_huge_pages(self):
        """A daemon that may mount keeps its regions where the kernel gives pages of 2 MiB, though it has no rights later."""
        own = dict(line.split(":", 1) for line in pathlib.Path("/proc/self/status").read_text(encoding="utf-8").splitlines())
        if int(own["CapEff"], 16) >> 21 & 1 == 0:
            self.skipTest("needs the right to mount (CAP_SYS_ADMIN)")
        self.start()
        client = Client(self, self.address, "lose", "idle")
        client.started()
        maps = pathlib.Path(f"/proc/{self.worker_of(client)}/maps").read_text(encoding="utf-8")
        self.assertNotIn("memfd:causeway-region", maps)  # what a session has that may have ordinary pages alone
        self.assertRegex(maps, r"rw-s .*/#\d+ \(deleted\)")

    def test_spare_is_as_far_as_it_can_be(self):
        """What takes long beside busy neighbours is behind a spare: the scope's user, where it is kept for one, and the table
        for the region's descriptor (4095), for which the kernel has a process of many threads wait."""
        def spare():
            own = self.status()["workers"]["own_spares"][0]["ready"] == 1
            workers = list(workers_of(self.daemon.pid))
            return dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{workers[0]}/status").read_text().splitlines()
                        ) if own and len(workers) == 1 else None

        def users_of(status):
            return set(status["Uid"].split())
        uid = os.geteuid()
        self.start(more=f"spare_workers = 0\n[[user]]\nuid = {uid}\nown_spares = 1\n")
        self.wait("the kept spare", lambda: spare() is not None)
        self.assertGreaterEqual(int(spare()["FDSize"]), 4096)
        if uid == 0:  # only then workers become others
            self.wait("the spare to be its scope's user", lambda: users_of(spare()) != {"0"})
            self.assertEqual(spare()["Groups"].split(), [])
            user = users_of(spare())
            client = Client(self, self.address, "lose", "idle")
            client.started()
            worker = self.worker_of(client)
            status = dict(line.split(":", 1) for line in pathlib.Path(f"/proc/{worker}/status").read_text().splitlines())
            self.assertEqual(users_of(status), user)

    def test_launcher_killed(self):
        """The daemon says so, ends and leaves nothing: who started it starts it again, as systemd does."""
        for _ in range(3):
            self.start()
            client = Client(self, self.address, "lose", "idle")
            client.started()
            self.wait("the spare", lambda: self.status()["workers"]["spare_ready"] == 1)
            workers, (launcher,) = workers_of(self.daemon.pid), children(self.daemon.pid)
            self.assertEqual(len(workers), 2)
            os.kill(launcher, signal.SIGKILL)
            self.assertEqual(self.daemon.wait(timeout=LIMIT_S), 1)
            self.wait("the dead launcher's workers to end", lambda: not any(alive(worker) for worker in workers))
            self.assertIn("the launcher was killed by signal 9; all workers end with it, and so does causewayd", self.log_text())
            time.sleep(0.1)  # what is known to be done is answered for some 20 ms without asking
            self.expect_lost(client, "go\n")
        self.start()
        self.expect_working()
        self.wait_idle()

    def test_launcher_stopped(self):
        """A daemon that is asked to end does so, though its launcher does not answer."""
        self.start()
        self.wait("the spare", lambda: self.status()["workers"]["spare_ready"] == 1)
        (launcher,) = children(self.daemon.pid)
        os.kill(launcher, signal.SIGSTOP)
        self.daemon.terminate()
        self.daemon.wait(timeout=LIMIT_S)
        self.assertFalse(alive(launcher))

    def test_launcher_killed_at_any_moment(self):
        """While it starts workers, while they start, while sessions begin and end: never a hang, never a worker left."""
        for delay_ms in (0, 1, 2, 3, 5, 8, 13, 21, 34):
            self.start(serving=False)
            self.wait("the launcher", lambda: children(self.daemon.pid) or self.daemon.poll() is not None)
            launcher = min(children(self.daemon.pid), default=None)
            time.sleep(delay_ms / 1000)
            workers = workers_of(self.daemon.pid)
            os.kill(launcher, signal.SIGKILL)
            self.assertEqual(self.daemon.wait(timeout=LIMIT_S), 1)
            self.wait("its workers to end", lambda: not any(alive(worker) for worker in workers))

    # ---- no way in ---------------------------------------------------------------------------------------------

    def test_no_daemon(self):
        self.expect_refused("is causewayd running?")

    def test_daemon_gone_but_socket_left(self):
        self.start()
        self.daemon.kill()
        self.daemon.wait()
        self.expect_refused("is causewayd running?")

    def test_permission_denied(self):
        if os.getuid() != 0:
            self.skipTest("needs root to become another user")
        for path in (sessions.CLIENT, sessions.LIBRARY):
            if not os.stat(path).st_mode & 0o005:
                self.skipTest(f"other users cannot read {path}")
        self.start()
        self.expect_refused("is this user in the socket's group?", user=65534)

    def test_value_that_means_nothing(self):
        self.expect_refused("is none of local:/path, module, tls://host:port, tcp://host:port", address="carrier-pigeon")

    def test_driver_library_missing(self):
        self.start(driver="/nonexistent/libcuda.so.1")
        self.expect_refused("cannot open the driver library '/nonexistent/libcuda.so.1'")

    def test_driver_without_a_gpu(self):
        self.start(SOFTWARE_GPU_DEVICES="0")
        self.expect_refused("finds no GPU")

    def test_other_versions_are_refused(self):
        self.start()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as link:
            link.settimeout(LIMIT_S)
            link.connect(self.socket)
            link.send(struct.pack("<QHHI", 0x314C595745534143, 999, 0, 1))
            reply = link.recv(512)
        accepted = struct.unpack_from("<QI", reply)[1]
        self.assertEqual(accepted, 0)
        self.assertIn(b"version", reply)
        self.expect_working()

    # ---- too little memory -------------------------------------------------------------------------------------

    def test_region_too_small_for_an_allocation(self):
        self.start(region_mib=64)
        out, err, code = Client(self, self.address, "pinned", "60", "8", "100", "4").result()
        self.assertEqual(out, ["pinned 2", "pinned 0", "pinned 2", "pinned 0", "synchronize 0"], err)
        self.assertEqual(code, 0)
        self.assertTrue(err, "a refused allocation needs its sentence")
        self.assertIn("no room for 62914560 bytes of pinned memory", err[0])
        self.assertIn("no room for 104857600 bytes of pinned memory", err[1])
        self.wait_idle()

    def test_full_region_refuses_only_what_needs_more(self):
        self.start(region_mib=64)
        out, err, code = Client(self, self.address, "full").result()
        self.assertEqual((out, code), (["full 2", "pooled 2", "register 2", "ordinary 1", "copied 1", "again 0", "kept 1"], 0), err)
        setting = "in the shared region of 64 MiB: raise region_mib (or local_region_mib) in causewayd's configuration"
        refused = (8 << 20, "pinned"), (16 << 20, "pinned"), (8 << 20, "registered")
        self.assertEqual([line[line.index("no room"):] for line in err],
                         [f"no room for {bytes_} bytes of {kind} memory {setting}" for bytes_, kind in refused])
        self.wait_idle()


if __name__ == "__main__":
    sessions.main()
