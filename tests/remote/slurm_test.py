#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""vm_configs/slurm in front of Debian's Slurm: jobs get the GPUs of hosts that Slurm has given them, and no others.

Usage: slurm_test.py BACKEND_FOLDER GUEST_LIBRARY SOFTWARE_GPU SLURM_ROOT [unittest arguments]. SLURM_ROOT is a folder that holds a Debian with
Slurm (slurm.sh makes it); munged, slurmctld and slurmd run in it, in a mount namespace of their own. Two hosts with TLS and two GPUs each
are told apart by their memory. As root; exit status: 77 where there can be no mount namespace.
"""

import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "unit"))
import remote_hosts_test  # noqa: E402
import sessions  # noqa: E402

CONFIGS = pathlib.Path(__file__).resolve().parents[2] / "vm_configs/slurm"
ROOT = ""
SHARED = "/causeway"  # in the root: the guest's libraries, its key, and the job's program
# Says which GPUs it sees and the memory of the first, or that it sees none.
JOB = """
import ctypes, os, sys, time
cuda = ctypes.CDLL("/causeway/library/libcuda.so.1")
count, total, uuids = ctypes.c_int(), ctypes.c_size_t(), []
if "CAUSEWAY" not in os.environ:
    print("no way")
    sys.exit(0)
assert cuda.cuInit(0) == 0
cuda.cuDeviceGetCount(ctypes.byref(count))
cuda.cuDeviceTotalMem_v2(ctypes.byref(total), 0)
for device in range(count.value):
    uuid = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetUuid_v2(uuid, device)
    uuids.append(bytes(uuid).hex())
print(os.environ["CAUSEWAY"], total.value >> 20, *uuids, flush=True)
if len(sys.argv) > 1:
    open("/causeway/share/" + sys.argv[1], "w").close()
    while not os.path.exists("/causeway/share/go"):
        time.sleep(0.1)
"""
# What runs in the namespace: mounts, then munged and both daemons of Slurm, whose end ends this shell and with it all of them.
BEGIN = """
set -e
root=$1 shared=$2
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o mode=0755 tmpfs "$root/dev"
for each in null zero urandom; do touch "$root/dev/$each"; mount --bind "/dev/$each" "$root/dev/$each"; done
mkdir -p "$root/causeway" "$root/etc/slurm" "$root/etc/munge" "$root/run/munge" "$root/var/log/munge" "$root/var/lib/munge"
mount --bind "$shared" "$root/causeway"
mount --bind "$shared/library" "$root/causeway/library"
mount --bind "$shared/slurm" "$root/etc/slurm"
mount -t tmpfs tmpfs "$root/run"
mkdir "$root/run/munge"
systemd-tmpfiles --create --root="$root" "$root/etc/slurm/nodes.conf"
exec chroot "$root" /bin/sh -ec '
  munged --key-file=/etc/slurm/munge.key --force --socket=/run/munge/munge.socket.2 2> /etc/slurm/munged.log
  slurmctld -D > /etc/slurm/ctld.log 2>&1 &
  slurmd -D > /etc/slurm/d.log 2>&1 &
  read -r line
'
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class SlurmTest(remote_hosts_test.RemoteHostsTest):
    """Its tests are this file's alone (load_tests below)."""

    def setUp(self):
        super().setUp()
        self.own = tempfile.mkdtemp(prefix="causeway-slurm-")
        os.chmod(self.own, 0o755)
        self.addCleanup(shutil.rmtree, self.own)
        self.slurm = pathlib.Path(self.own, "slurm")
        for name, mode in (("slurm", 0o755), ("library", 0o755), ("share", 0o777)):
            os.mkdir(f"{self.own}/{name}")
            os.chmod(f"{self.own}/{name}", mode)
        for file in pathlib.Path(self.library).glob("lib*.so*"):
            shutil.copy(file, f"{self.own}/library")
        pathlib.Path(self.own, "job.py").write_text(JOB)
        os.environ["SOFTWARE_GPU_DEVICES"] = "2"
        self.addCleanup(os.environ.pop, "SOFTWARE_GPU_DEVICES")
        self.first, self.second = self.hosts(1024, 2048)
        shutil.copy(self.key, f"{self.own}/key")
        os.chmod(f"{self.own}/key", 0o644)

    def gres(self, *arguments, given=None):
        return subprocess.run([CONFIGS / "causeway_gres.py", "--output", self.slurm, "--tmpfiles", self.slurm / "nodes.conf", *arguments],
                              input=given or self.pool([self.first, self.second], "--json").stdout, capture_output=True, text=True, check=False,
                              timeout=sessions.LIMIT_S)

    def type_of(self, host):
        return host.text.removeprefix("tls://").replace(".", "_").replace(":", "_")

    def begin_slurm(self):
        made = self.gres()
        self.assertEqual((made.returncode, made.stderr), (0, ""))
        name = socket.gethostname().split(".")[0]
        shutil.copy(CONFIGS / "task_prolog.sh", self.slurm)
        self.slurm.joinpath("cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        self.slurm.joinpath("slurm.conf").write_text(
            f"ClusterName=test\nSlurmctldHost={name}(127.0.0.1)\nSlurmUser=root\nSlurmdUser=root\nSlurmctldPort={free_port()}\n"
            f"SlurmdPort={free_port()}\nStateSaveLocation=/run/state\nSlurmdSpoolDir=/run/spool\nSlurmctldPidFile=/run/ctld.pid\n"
            "SlurmdPidFile=/run/d.pid\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nSelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nMpiDefault=none\n"
            "MailProg=/bin/true\nReturnToService=2\nAuthType=auth/munge\nGresTypes=gpu\nTaskProlog=/etc/slurm/task_prolog.sh\n"
            f"NodeName={name} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} RealMemory=100 {made.stdout.strip()}\n"
            "PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:8\n")
        key = self.slurm / "munge.key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        self.shell = subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", BEGIN, "sh", ROOT, self.own],
                                      stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.addCleanup(self.end_slurm)
        self.await_("Slurm's node to be idle", lambda: self.in_root("sinfo", "-h", "-o", "%t").stdout.strip() == "idle")

    def end_slurm(self):
        self.shell.kill()
        self.shell.communicate()

    def in_root(self, *words):
        if self.shell.poll() is not None:
            self.fail(f"Slurm has ended: {self.shell.stdout.read()} {self.logs()}")
        inner = sorted(sessions.children(self.shell.pid))
        if not inner:
            return subprocess.CompletedProcess(words, 1, "", "")
        return subprocess.run(["nsenter", "-t", str(inner[0]), "-m", "-p", "-r", "-w", *words], capture_output=True, text=True, check=False,
                              timeout=sessions.LIMIT_S, env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "CAUSEWAY_KEY": SHARED + "/key"})

    def logs(self):
        return "".join(file.read_text() for file in self.slurm.glob("*.log"))

    def srun(self, *options, user="65534"):
        return self.in_root("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "srun", "-D", "/", *options, "python3", "/causeway/job.py")

    def test_a_job_has_the_gpus_that_it_was_given(self):
        self.begin_slurm()
        pool = json.loads(self.pool([self.first, self.second], "--json").stdout)
        uuids = [[gpu["uuid"].removeprefix("GPU-").replace("-", "") for gpu in host["gpus"]] for host in pool["hosts"]]
        for host, numbers, memory in ((self.first, uuids[0], "1024"), (self.second, uuids[1], "2048")):
            with self.subTest(host.text):
                one = self.srun(f"--gres=gpu:{self.type_of(host)}:1")
                self.assertEqual(one.stdout.split(), [host.text, memory, numbers[0]], one.stderr + self.logs())
                both = self.srun(f"--gres=gpu:{self.type_of(host)}:2")
                self.assertEqual(both.stdout.split(), [host.text, memory, *numbers], both.stderr)
        # Without a type Slurm fills one host before the next, so that two GPUs are one host's, and three are not.
        two = self.srun("--gres=gpu:2")
        self.assertEqual(two.stdout.split(), [self.first.text, "1024", *uuids[0]], two.stderr)
        three = self.srun("--gres=gpu:3")
        self.assertNotEqual(three.returncode, 0)
        self.assertIn("This task was given GPUs of two hosts", three.stdout)
        self.assertIn("ask for a type", three.stdout)
        none = self.srun()
        self.assertEqual(none.stdout.strip(), "no way", none.stderr)

    def test_jobs_at_the_same_time_have_different_gpus_and_the_third_waits(self):
        self.begin_slurm()
        line = f"--gres=gpu:{self.type_of(self.second)}:1"
        for name in ("one", "two", "three"):
            done = self.in_root("sbatch", "-D", "/", "-o", f"/causeway/share/{name}.out", line, "--wrap", f"srun python3 /causeway/job.py {name}")
            self.assertEqual(done.returncode, 0, done.stderr)
        share = pathlib.Path(self.own, "share")
        self.await_("two jobs to run", lambda: (share / "one").exists() and (share / "two").exists())
        waiting = self.in_root("squeue", "-h", "-t", "PD", "-o", "%r").stdout.split()
        self.assertEqual(waiting, ["Resources"])
        self.assertFalse((share / "three").exists())
        (share / "go").touch()
        self.await_("the third job", lambda: (share / "three").exists())
        self.await_("all jobs to end", lambda: self.in_root("squeue", "-h").stdout == "")
        given = [(share / f"{name}.out").read_text().split() for name in ("one", "two", "three")]
        self.assertEqual([each[:2] for each in given], [[self.second.text, "2048"]] * 3)
        self.assertEqual(len({given[0][2], given[1][2]}), 2)
        self.assertIn(given[2][2], {given[0][2], given[1][2]})

    def test_what_is_wrong_is_said_and_nothing_is_written(self):
        pool = json.loads(self.pool([self.first, self.second], "--json").stdout)
        gpus = []
        for host in pool["hosts"]:  # real GPUs have UUIDs of their own; those of software GPUs are the same on all hosts
            for gpu in host["gpus"]:
                gpu["uuid"] = f"GPU-{len(gpus)}{len(gpus)}"
                gpus.append(gpu["uuid"])
        chosen = self.gres("--gpus", gpus[3], given=json.dumps(pool))
        self.assertEqual(chosen.stdout, f"Gres=gpu:{self.type_of(self.second)}:1\n", chosen.stderr)
        self.assertEqual((self.slurm / "causeway-gpus").read_text(), f"0 {self.second.text} {gpus[3]}\n")
        before = {file: file.read_text() for file in self.slurm.iterdir()}
        self.assertEqual(len(before), 3)
        for arguments, given, sentence in ((("--gpus", "GPU-9"), None, "no host has GPU-9; see causeway pool"),
                                           ((), "no json", "is no answer of causeway pool --json"),
                                           (("--output", self.own + "/none"), None, "cannot be written: No such file")):
            failed = self.gres(*arguments, given=given)
            self.assertEqual(failed.returncode, 1, failed)
            self.assertIn(sentence, failed.stderr)
        self.second.stop()
        failed = self.gres()
        self.assertIn(f"what these hosts have is not known, so nothing was written: {self.second.text}: ", failed.stderr)
        self.assertEqual({file: file.read_text() for file in self.slurm.iterdir()}, before)


def load_tests(_loader, _tests, _pattern):
    """Without those of the class above it."""
    return unittest.TestSuite(SlurmTest(name) for name in vars(SlurmTest) if name.startswith("test_"))


def main():
    global ROOT
    sessions.BACKEND, sessions.LIBRARY, sessions.DRIVER, ROOT = (os.path.abspath(path) for path in sys.argv[1:5])
    if os.getuid() != 0 or subprocess.run(["unshare", "--mount", "--pid", "--fork", "true"], check=False, stderr=subprocess.DEVNULL).returncode != 0:
        print("slurm_test: it takes root and namespaces of mounts and processes")
        sys.exit(77)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    unittest.main(argv=[sys.argv[0], *sys.argv[5:]], verbosity=2)


if __name__ == "__main__":
    main()
