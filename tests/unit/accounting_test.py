#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What sessions hold, counted and limited: random work in many threads and processes, also killed in the middle.

Usage: accounting_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU CLIENT [unittest arguments]
CAUSEWAY_TEST_ROUNDS and CAUSEWAY_TEST_OPERATIONS make it longer.
"""

import os
import random
import signal
import subprocess
import sys
import threading
import time

import sessions
from sessions import Client, alive

MIB = 1 << 20
LIMIT = 96  # MiB
KINDS = ("device", "managed", "pinned", "staging", "images")
ROUNDS = int(os.environ.get("CAUSEWAY_TEST_ROUNDS", "6"))
UUID = "GPU-63617573-6577-6179-2d73-7767707500"  # but for the last byte: the device's number
OPERATIONS = os.environ.get("CAUSEWAY_TEST_OPERATIONS", "800")


class Accounting(sessions.Sessions):
    def setUp(self):
        super().setUp()
        os.environ["LD_LIBRARY_PATH"] = os.path.dirname(sessions.LIBRARY)

    def client(self, *arguments, address=None):
        # The library is the one that LD_LIBRARY_PATH names: the client is linked to it.
        return Client(self, address or self.address, *arguments[1:], library=arguments[0])

    def client_with(self, **environment):
        os.environ.update(environment)
        try:
            return self.client("devices")
        finally:
            for name in environment:
                del os.environ[name]

    def account(self):
        found = self.status()["accounts"]
        self.assertEqual(len(found), 1, found)
        return found[0]

    def held(self):
        return {kind: self.account()[kind + "_bytes"] for kind in KINDS}

    def idle(self, client):
        """Bytes free and how often memory ran out, once it holds nothing any more."""
        line = client.process.stdout.readline()
        if not line.startswith("idle"):
            out, err, code = client.result()
            self.fail(f"{line} {out} {err} {code}\n{self.log_text()}")
        return [int(word) for word in line.split()[1:]]

    def watch(self, most):
        """Looks until told to stop: never more than the limit."""
        stop = threading.Event()

        def look():
            while not stop.is_set():
                for account in self.status()["accounts"]:
                    most[0] = max(most[0], account["gpu_bytes"])
                time.sleep(0.02)
        watcher = threading.Thread(target=look)
        watcher.start()
        self.addCleanup(watcher.join)
        self.addCleanup(stop.set)
        return stop, watcher

    def random_work(self, mode, address=None, more=""):
        self.start(more=f"local_device_memory_mib = {LIMIT}\n" + more)
        most = [0]
        stop, watcher = self.watch(most)
        clients = [self.client(mode, "4", OPERATIONS, str(seed), address=address) for seed in (1, 2, 3)]
        for client in clients:
            client.started()
        answers = [self.idle(client) for client in clients]
        stop.set()
        watcher.join()
        self.assertGreater(sum(refusals for _, refusals in answers), 0, "the limit was never met")
        self.assertLessEqual(most[0], LIMIT * MIB)
        self.assertGreater(most[0], LIMIT * MIB // 2)
        held = self.held()
        self.assertEqual([self.account()["gpu_bytes"], held["device"], held["images"]], [0, 0, 0], held)
        self.assertEqual(self.account()["sessions"], 3)
        self.assertGreater(self.account()["refused"], 0)
        self.assertIn("would be more than the 96 MiB of device_memory_mib", self.log_text())
        for client in clients:
            out, err, code = client.result()
            self.assertEqual((out, code), ([], 0), err)
        self.wait_idle()
        self.assertEqual(self.status()["accounts"], [])

    def test_random_work_ends_with_zero(self):
        self.random_work("work")

    def test_context_end_returns_everything(self):
        self.random_work("reset")

    def test_limit_over_tcp(self):
        self.start(more=f'[tcp]\nlisten = "127.0.0.1:0"\ndevice_memory_mib = {LIMIT}\n')
        client = self.client("work", "8", OPERATIONS, "5", address="tcp://" + self.status()["tcp"])
        client.started()
        free, refusals = self.idle(client)
        self.assertEqual(free, LIMIT * MIB)
        self.assertGreater(refusals, 0)
        self.assertEqual(self.held()["device"], 0)
        self.assertEqual(self.account()["scope"], f"tcp:127.0.0.1:uid{os.getuid()}")

    def devices(self, **environment):
        out, err, code = self.client_with(**environment).result()
        self.assertEqual((err, code), ([], 0), out)
        self.wait_idle()  # what it held counts for the next one until its worker has ended
        return out

    def test_gpus_and_memory_of_the_limit(self):
        third, first = UUID + "02", UUID + "00"
        self.start(more=f'local_device_memory_mib = {LIMIT}\nlocal_gpus = ["{third}", "{first}"]\n',
                   SOFTWARE_GPU_DEVICES="4")
        cuda = [f"cuda 0 2 {LIMIT} {LIMIT - 10}", f"cuda 1 0 {LIMIT} {LIMIT - 10}"]
        nvml = [f"{uuid} {LIMIT} {LIMIT - 10} 10" for uuid in (first, third)]
        out = self.devices()
        self.assertEqual(out[:2], cuda)
        self.assertEqual(sorted(line.split(" ", 2)[2] for line in out[2:]), nvml)
        # Its own choice is one among these.
        self.assertEqual(self.devices(CUDA_VISIBLE_DEVICES="1")[:-2], [f"cuda 0 0 {LIMIT} {LIMIT - 10}"])
        self.assertEqual(self.devices(CUDA_VISIBLE_DEVICES=third)[:-2], [cuda[0]])
        out, _, code = self.client_with(CUDA_VISIBLE_DEVICES=UUID + "01").result()
        self.assertEqual((out, code), (["cuInit(0): CUDA_ERROR_NO_DEVICE"], 3))

    def test_killed_at_random_moments(self):
        self.start(more=f"local_device_memory_mib = {LIMIT}\n")
        chance = random.Random(4)
        neighbour = self.client("forever", "1", "0", "99")
        neighbour.started()
        self.wait("the spare", lambda: self.status()["workers"]["spare_ready"] == 1)
        descriptors = self.settled_descriptors()
        self.assertEqual(self.status()["images"]["kept"], 1)
        for number in range(ROUNDS):
            client = self.client("forever", "4", "0", str(number))
            client.started()
            worker = self.worker_of(client)
            time.sleep(chance.random() * 0.3)
            os.kill(worker if number % 2 else client.process.pid, signal.SIGKILL)
            self.wait("the worker to end", lambda worker=worker: not alive(worker))
            client.end()
            self.wait("one session", lambda: len(self.status()["sessions"]) == 1)
            self.assertEqual(self.account()["sessions"], 1)
            self.wait("the spare", lambda: self.status()["workers"]["spare_ready"] == 1)
            self.wait("its descriptors to be closed", lambda: self.descriptors() == descriptors)
            self.assertEqual(self.status()["images"]["kept"], 1)
        # What is left is the neighbour's own, by the session's count and by the account's.
        os.kill(neighbour.process.pid, signal.SIGSTOP)
        self.wait("the worker to have nothing to do", self.quiet)
        status = self.status()
        for kind in KINDS:
            self.assertEqual(status["accounts"][0][kind + "_bytes"], status["sessions"][0][kind + "_bytes"])
        neighbour.end()
        self.wait_idle()
        self.assertEqual(self.status()["accounts"], [])

    def guest(self, script):
        """What a guest process prints that has the library as `cuda` and a primary context."""
        begin = ("import ctypes, sys, time\n"
                 "cuda = ctypes.CDLL('libcuda.so.1')\n"
                 "context, handle, address = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_uint64()\n"
                 "MIB = 1 << 20\n"
                 "def say(name, result): print(name, result, flush=True)\n"
                 "say('init', cuda.cuInit(0) or cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)\n"
                 "    or cuda.cuCtxSetCurrent(context))\n")
        process = subprocess.Popen([sys.executable, "-c", begin + script], stdout=subprocess.PIPE, text=True,
                                   env=dict(os.environ, CAUSEWAY=self.address))
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertEqual(process.stdout.readline(), "init 0\n")
        return process

    def test_memory_that_no_size_tells_of(self):
        self.start(more=f"local_device_memory_mib = {LIMIT}\n")
        process = self.guest(f"""
def module(mib):
    ptx = f'.version 7.0\\n.target sm_70\\n.address_size 64\\n.visible .global .align 8 .b8 big[{{mib * MIB}}];\\n'
    ptx += '.visible .entry k()\\n{{{{\\nret;\\n}}}}\\n'.replace('{{{{', '{{').replace('}}}}', '}}')
    return cuda.cuModuleLoadData(ctypes.byref(handle), ctypes.c_char_p(ptx.encode()))
say('large', module({2 * LIMIT}))
say('half', module({LIMIT // 2}))
say('again', module({LIMIT // 2 + 8}))
say('unload', cuda.cuModuleUnload(handle))
say('all', cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({LIMIT - 8} * MIB)))
say('free', cuda.cuMemFree_v2(address))
stack, heap = 0, 2
say('stack', cuda.cuCtxSetLimit(stack, ctypes.c_size_t(128 << 10)))
say('heap', cuda.cuCtxSetLimit(heap, ctypes.c_size_t({2 * LIMIT} * MIB)))
say('small', cuda.cuCtxSetLimit(heap, ctypes.c_size_t(24 * MIB)))
say('rest', cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({LIMIT - 8} * MIB)))
say('back', cuda.cuCtxSetLimit(heap, ctypes.c_size_t(8 * MIB)))
say('rest', cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t({LIMIT - 8} * MIB)))
""")
        answers = [line.split() for line in process.stdout.read().splitlines()]
        self.assertEqual(answers, [["large", "2"], ["half", "0"], ["again", "2"], ["unload", "0"], ["all", "0"],
                                   ["free", "0"], ["stack", "2"], ["heap", "2"], ["small", "0"], ["rest", "2"],
                                   ["back", "0"], ["rest", "0"]], self.log_text())

    def test_memory_that_only_nvml_sees(self):
        taken = self.folder + "/taken"
        os.mkdir(taken)
        self.start(more=f"local_device_memory_mib = {LIMIT}\n", SOFTWARE_GPU_TAKEN=taken)
        process = self.guest("""
while cuda.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(MIB)) == 0 and cuda.cuMemFree_v2(address) == 0:
    time.sleep(0.02)
say('ended', cuda.cuCtxSynchronize())
""")
        neighbour = self.guest("time.sleep(600)\n")
        sessions_now = self.status()["sessions"]
        worker = [s["worker_pid"] for s in sessions_now if s["pid"] == process.pid][0]
        # As much as the limit and what is forgiven: nothing happens in several rounds.
        with open(f"{taken}/{worker}", "w", encoding="ascii") as file:
            file.write(str((LIMIT + 48) * MIB))
        time.sleep(1.5)
        self.assertTrue(alive(worker), self.log_text())
        with open(f"{taken}/{worker}", "w", encoding="ascii") as file:
            file.write(str(4 * LIMIT * MIB))
        line = process.stdout.readline().split()
        self.assertEqual(line[0], "ended", self.log_text())
        self.assertNotEqual(line[1], "0")
        self.assertIn("more than the 96 MiB of device_memory_mib", self.log_text())
        self.assertEqual([s["pid"] for s in self.status()["sessions"] if s["state"] == "serving"], [neighbour.pid])
        for one in (process, neighbour):
            one.kill()
            one.wait()
        self.wait_idle()

    def settled_descriptors(self):
        """What the daemon has open when nothing happens: what has just ended may take a moment to be closed."""
        samples = [-1, -2, -3]
        while len(set(samples)) != 1:
            time.sleep(0.1)
            samples = samples[1:] + [self.descriptors()]
        return samples[0]

    def quiet(self):
        before = self.held()
        time.sleep(0.2)
        return self.held() == before


if __name__ == "__main__":
    sessions.main()
