#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Several hosts for one guest: daemons with TLS in front of them and real workers, and programs that choose among them.

Usage: remote_hosts_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU [unittest arguments]. Hosts are told apart by their memory.
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import sessions

MIB = 1 << 20
LOST = 911  # CUDA_ERROR_EXTERNAL_DEVICE
# Says which host CUDA and NVML are on by the device's memory, takes some of it if asked, and stays until its input ends.
PROGRAM = """
import ctypes, os, sys
folder, order, take = sys.argv[1], sys.argv[2], int(sys.argv[3])
def check(result):
    if result != 0:
        print("failed", result, flush=True)
        sys.exit(1)
def by_cuda():
    cuda = ctypes.CDLL(folder + "/libcuda.so.1")
    device, context, total, place = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_size_t(), ctypes.c_uint64()
    check(cuda.cuInit(0))
    check(cuda.cuDeviceGet(ctypes.byref(device), 0))
    check(cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device))
    if take:
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
        check(cuda.cuCtxSetCurrent(context))
        check(cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(take)))
    return total.value >> 20
def by_nvml():
    nvml = ctypes.CDLL(folder + "/libnvidia-ml.so.1")
    handle, memory = ctypes.c_void_p(), (ctypes.c_uint64 * 3)()
    check(nvml.nvmlInit_v2())
    check(nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(handle)))
    check(nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)))
    return memory[0] >> 20
for library in order.split(","):
    if library == "fork":
        if os.fork() == 0:
            continue
        os.wait()
        break
    print(by_cuda() if library == "cuda" else by_nvml(), flush=True)
for line in sys.stdin:
    cuda = ctypes.CDLL(folder + "/libcuda.so.1")
    check(cuda.cuCtxSynchronize() or cuda.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), ctypes.c_size_t(1)))
"""
# Prints the GPUs that it sees by their UUIDs, in one line, and stays until its input ends.
GPUS = """
import ctypes, sys
cuda = ctypes.CDLL(sys.argv[1] + "/libcuda.so.1")
count, device, uuid, seen = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)(), []
result = cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(count))
for ordinal in range(count.value):
    assert cuda.cuDeviceGet(ctypes.byref(device), ordinal) == 0 and cuda.cuDeviceGetUuid_v2(uuid, device) == 0
    text = bytes(uuid).hex()
    seen.append("GPU-" + "-".join([text[:8], text[8:12], text[12:16], text[16:20], text[20:]]))
print(result, *seen, flush=True)
sys.stdin.read()
"""
UUID = "GPU-63617573-6577-6179-2d73-7767707500"  # but for the last byte: the device's number


class Host:
    """A daemon, its causeway-tls, and its folder of keys."""

    def __init__(self, test, memory_mib, address="127.0.0.1", more="", top="", **environment):
        self.test = test
        self.folder = tempfile.mkdtemp(prefix="causeway-host-")
        os.chmod(self.folder, 0o755)
        test.addCleanup(shutil.rmtree, self.folder)
        self.keys = self.folder + "/keys"
        self.config = pathlib.Path(self.folder, "config.toml")
        self.address, self.port = address, 0
        self.memory_mib, self.more, self.top, self.environment = memory_mib, more, top, environment
        self.processes = []
        test.addCleanup(self.stop)

    def keys_command(self, *arguments):
        answer = subprocess.run([sessions.BACKEND + "/causeway", "keys", *arguments, "--keys", self.keys], capture_output=True,
                                text=True, timeout=sessions.LIMIT_S, check=False)
        self.test.assertEqual(answer.returncode, 0, answer.stderr)
        return answer.stdout

    def start(self):
        self.config.write_text(
            f'socket = "{self.folder}/socket"\nsocket_mode = "0600"\ndriver_library = "{sessions.DRIVER}"\n{self.top}'
            f'[tls]\nlisten = ["{self.address}:{self.port}"]\nkeys = "{self.keys}"\n'
            f'[[remote]]\nname = "guest"\ndevice_memory_mib = {self.memory_mib}\n{self.more}', encoding="utf-8")
        for program, said in (("causewayd", "accepts sessions at"), ("causeway-tls", "TLS sessions are accepted at")):
            log = open(f"{self.folder}/{program}.log", "w+", encoding="utf-8")
            self.test.addCleanup(log.close)
            self.processes.append(subprocess.Popen([f"{sessions.BACKEND}/{program}", "--config", str(self.config)],
                                                   stdout=log, stderr=log, env=dict(os.environ, **self.environment)))
            self.test.await_(f"{program} to serve", lambda: said in self.log(program))
        self.port = int(re.search(r"TLS sessions are accepted at \S+:(\d+)", self.log("causeway-tls"))[1])
        return self

    def log(self, program):
        return pathlib.Path(self.folder, program + ".log").read_text(encoding="utf-8")

    def status(self):
        answer = subprocess.run([sessions.BACKEND + "/causeway", "status", "--json", "--socket", self.folder + "/socket"],
                                capture_output=True, text=True, timeout=sessions.LIMIT_S, check=True)
        return json.loads(answer.stdout)

    def await_sessions(self, count):
        self.test.await_(f"{count} sessions", lambda: len(self.status()["sessions"]) == count)

    def stop(self):
        for process in reversed(self.processes):
            process.terminate()
            process.wait(sessions.LIMIT_S)
        self.processes = []

    @property
    def text(self):
        return f"tls://{self.address}:{self.port}"


class RemoteHostsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(prefix="causeway-guest-")
        self.addCleanup(shutil.rmtree, self.folder)
        self.key = self.folder + "/key"
        self.library = str(pathlib.Path(sessions.LIBRARY).parent)

    def await_(self, what, done):
        end = time.monotonic() + sessions.LIMIT_S
        while not done():
            self.assertLess(time.monotonic(), end, f"waited {sessions.LIMIT_S} s for {what}")
            time.sleep(0.02)

    def hosts(self, *memory_mib, more="", top=""):
        """Hosts that all know the guest's one key, as an administrator makes it: on the first, and from the file on the others."""
        hosts = [Host(self, mib, more=more, top=top) for mib in memory_mib]
        hosts[0].keys_command("create", "guest", "--output", self.key)
        for host in hosts[1:]:
            host.keys_command("create", "guest", "--from", self.key)
        for host in hosts:
            host.start()
        self.await_("all hosts to have figures", lambda: not re.search(r"unknown|down", self.pool(hosts).stdout))
        return hosts

    def environment(self, way, **variables):
        return dict(os.environ, CAUSEWAY=way, CAUSEWAY_KEY=self.key, LD_LIBRARY_PATH=self.library, **variables)

    def begin(self, hosts, order="cuda", take=0, text=PROGRAM, **variables):
        way = hosts if isinstance(hosts, str) else ",".join(host.text for host in hosts)
        program = subprocess.Popen([sys.executable, "-c", text, self.library, order, str(take)],
                                   env=self.environment(way, **variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (program.kill(), program.communicate()))
        return program

    def run_program(self, hosts, order="cuda", **variables):
        """The numbers that it printed, and its lines on stderr."""
        program = self.begin(hosts, order, **variables)
        out, err = program.communicate("", timeout=sessions.LIMIT_S)
        return out.split(), err.splitlines()

    def pool(self, hosts, *arguments):
        way = hosts if isinstance(hosts, str) else ",".join(host.text for host in hosts)
        answer = subprocess.run([sessions.BACKEND + "/causeway", "pool", *arguments], env=self.environment(way),
                                capture_output=True, text=True, timeout=sessions.LIMIT_S, check=False)
        return answer

    def test_the_host_with_more_free_memory_is_chosen_and_the_choice_follows_what_is_taken(self):
        small, large = self.hosts(1024, 2048)
        self.assertEqual(self.run_program([small, large]), (["2048"], []))
        large.await_sessions(0)
        holder = self.begin([small, large], take=1500 * MIB)
        self.assertEqual(holder.stdout.readline().strip(), "2048")
        self.assertEqual(self.run_program([small, large]), (["1024"], []))
        small.await_sessions(0)
        answer = json.loads(self.pool([small, large], "--json").stdout)
        self.assertEqual(answer["chosen"], small.text)
        self.assertEqual([host["state"] for host in answer["hosts"]], ["up", "up"])
        self.assertEqual([host["sessions"] for host in answer["hosts"]], [0, 1])
        gpus = [host["gpus"][0] for host in answer["hosts"]]
        self.assertEqual([gpu["memory_bytes"] // MIB for gpu in gpus], [1024, 2048])
        self.assertEqual(gpus[1]["free_bytes"] // MIB, 2048 - 1500)
        self.assertEqual(gpus[0]["load_percent"], 7)  # as the software GPU always says
        text = self.pool([small, large]).stdout
        self.assertIn(f"A program that begins now would use {small.text}.", text)
        self.assertRegex(text, r"GPU-[0-9a-f-]{36}  load   7 %  free +1\.00 of +1\.00 GiB")

    def test_of_hosts_that_are_alike_the_first_is_chosen_and_processes_spread(self):
        first, second = self.hosts(1000, 1024)
        one = self.begin([first, second])
        self.assertEqual(one.stdout.readline().strip(), "1000")
        other = self.begin([first, second])
        self.assertEqual(other.stdout.readline().strip(), "1024")

    def test_a_process_uses_one_host_by_all_libraries_and_in_forked_children(self):
        small, large = self.hosts(1024, 2048)
        for order in ("cuda,nvml", "nvml,cuda", "nvml,fork,cuda"):
            with self.subTest(order):
                self.assertEqual(self.run_program([small, large], order), (["2048", "2048"], []))
                large.await_sessions(0)
        # What the first library has chosen holds, however loaded that host is when the second begins.
        holder = self.begin([small, large], take=1900 * MIB)
        self.assertEqual(holder.stdout.readline().strip(), "2048")
        self.assertEqual(self.run_program([small, large], "nvml,cuda"), (["1024", "1024"], []))

    def test_hosts_that_are_down_or_full_are_passed_over_with_a_line_each(self):
        full, good = self.hosts(4096, 1024, more="max_sessions = 1\n")
        taken = self.begin([full])
        self.assertEqual(taken.stdout.readline().strip(), "4096")
        with socket.socket() as unused, socket.socket() as silent:
            unused.bind(("127.0.0.1", 0))
            silent.bind(("127.0.0.1", 0))
            silent.listen(1)
            gone, mute = (f"tls://127.0.0.1:{end.getsockname()[1]}" for end in (unused, silent))
            way = ",".join([gone, full.text, mute, good.text])
            numbers, lines = self.run_program(way)
            self.assertEqual(numbers, ["1024"])
            self.assertEqual(len(lines), 3, lines)
            self.assertRegex(lines[0], f"causeway: {gone} is passed over: cannot reach causewayd at .*: Connection refused")
            self.assertRegex(lines[1], f"causeway: {full.text} is passed over: .*VM guest has 1 sessions, as many as")
            self.assertRegex(lines[2], f"causeway: {mute} is passed over: .*did not answer in time")
            good.await_sessions(0)  # it has room for one
            answer = json.loads(self.pool(way, "--json").stdout)
            self.assertEqual([host["state"] for host in answer["hosts"]], ["down", "full", "down", "up"])
            none = self.pool(f"{gone},{full.text}")
            self.assertEqual(none.returncode, 1)
            self.assertIn("A program would find no host now.", none.stdout)
            numbers, lines = self.run_program(f"{gone},{full.text}")
            self.assertEqual(numbers, ["failed", "100"])
            self.assertIn("causeway: no host can be used: ", lines[-1])

    def test_a_file_names_hosts_and_each_host_may_have_a_key_of_its_own(self):
        one, other = Host(self, 1024, "127.0.0.1"), Host(self, 2048, "127.0.0.2")
        one.keys_command("create", "guest", "--output", self.key)
        other.keys_command("create", "guest", "--output", self.key + ".127.0.0.2")
        one.start(), other.start()
        file = pathlib.Path(self.folder, "hosts")
        file.write_text(f"# in order of preference\n{one.text}\n\n  {other.text}  # the larger one\n", encoding="utf-8")
        self.assertEqual(self.run_program(f"hosts:{file}"), (["2048"], []))
        file.write_text("tls://a\ntls://a:7471\n", encoding="utf-8")
        numbers, lines = self.run_program(f"hosts:{file}")
        self.assertEqual(numbers, ["failed", "100"])
        self.assertIn("line 2: tls://a:7471 is named twice", lines[-1])

    def test_when_its_host_ends_the_process_gets_an_error_and_goes_nowhere_else(self):
        small, large = self.hosts(1024, 2048, top="wait_for_guests_s = 1\n")
        program = self.begin([small, large], take=MIB)
        self.assertEqual(program.stdout.readline().strip(), "2048")
        large.stop()
        program.stdin.write("copy\n")
        program.stdin.flush()
        self.assertEqual(program.stdout.readline().strip(), f"failed {LOST}")
        self.assertEqual(self.run_program([small, large])[0], ["1024"])

    def test_a_key_gives_its_guest_the_gpus_and_the_weight_of_its_vm(self):
        first, second = UUID + "00", UUID + "01"
        host = Host(self, 1024, more=f'gpus = ["{second}"]\nweight = 300\n[[remote]]\nname = "other"\ngpus = ["{first}"]\n'
                    '[[remote]]\nname = "all"\nweight = 7\n', SOFTWARE_GPU_DEVICES="2")
        keys = {name: f"{self.folder}/{name}.key" for name in ("guest", "other", "all")}
        for name, file in keys.items():
            host.keys_command("create", name, "--output", file)
        host.start()
        weights = {"guest": 300, "other": 100, "all": 7}
        for name, seen in (("guest", [second]), ("other", [first]), ("all", [first, second])):
            with self.subTest(name):
                self.key = keys[name]
                program = self.begin([host], text=GPUS)
                self.assertEqual(program.stdout.readline().split(), ["0", *seen])
                scope, = (each for each in host.status()["scopes"] if each["scope"] == f"vm:{name}")
                self.assertEqual((scope["sessions"], scope["weight"]), (1, weights[name]))
                pool = lambda: [gpu["uuid"] for gpu in json.loads(self.pool([host], "--json").stdout)["hosts"][0]["gpus"]]
                self.await_("the host's figures of these GPUs", lambda pool=pool, seen=seen: sorted(pool()) == seen)
                program.communicate("", timeout=sessions.LIMIT_S)
                # No number and no name gets a guest what is another's.
                hidden, = {first, second}.difference(seen) or [None]
                if hidden:
                    for wanted in (hidden, "1"):
                        program = self.begin([host], text=GPUS, CUDA_VISIBLE_DEVICES=wanted)
                        self.assertEqual(program.stdout.readline().split(), ["100"], wanted)  # CUDA_ERROR_NO_DEVICE
                host.await_sessions(0)

    def test_questions_leave_nothing_behind_and_cost_no_worker(self):
        host, = self.hosts(1024)
        before = sessions.workers_of(host.processes[0].pid)
        for _ in range(10):
            self.assertEqual(self.pool(host.text).returncode, 0)
        status = host.status()
        self.assertEqual(status["counters"]["sessions"], 0)
        self.assertEqual(status["sessions"], [])
        self.await_("the processes of the connections to end", lambda: not sessions.children(host.processes[1].pid))
        # One more process, which reads NVML for all who ask.
        self.assertLessEqual(len(sessions.workers_of(host.processes[0].pid)), len(before) + 2)


def main():
    sessions.BACKEND, sessions.LIBRARY, sessions.DRIVER = sys.argv[1:4]
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]], testLoader=sessions.Shard())


if __name__ == "__main__":
    main()
