#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Containers of podman get the GPU by CDI alone, and an image that is hostile reaches nothing outside of itself.

Usage: containers_test.py BUILD_DIR IMAGE_ROOT [SCHEMA_DIR], where IMAGE_ROOT has a C library, ldconfig and busybox in /bin of a Debian. The image is laid
out as CUDA's own, with a compat/libcuda.so.1 that must lose. The daemon is this test's own, with the software GPU. SCHEMA_DIR has the interface's own schema.
It changes nothing of this machine: files in /etc are covered in a mount namespace of the test's own.
Exit status: 77 where this user is not root, or podman is not installed or does not work here.
"""

import json
import os
import pathlib
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time

import jsonschema

BUILD, IMAGE_ROOT = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
PROGRAMS = BUILD / "host_backend"
HOOK = PROGRAMS / "causeway-container-hook"
SOFTWARE_GPU = BUILD / "software_gpu/libcuda.so.1"
SCHEMA = pathlib.Path(__file__).with_name("cdi_schema.json")
OFFICIAL_SCHEMA = pathlib.Path(sys.argv[3]).resolve() if len(sys.argv) > 3 else None
SPECIFICATION = pathlib.Path("/etc/cdi/causeway.json")
LIMIT_S = 180
ROOTLESS_ID = 29977  # a user of the namespace alone
IMAGE = "localhost/causeway-test:1"
BARE_IMAGE = "localhost/causeway-test:bare"
DEVICE = ["--device", "causeway.org/gpu=all"]
# Beside vector_add; what they print in a container is what they print without Causeway.
MORE_PROGRAMS = ["managed_variables", "host_register", "nvml_query"]
COMPAT = ["--env", "LD_LIBRARY_PATH=/usr/local/cuda/compat:/usr/local/nvidia/lib:/usr/local/nvidia/lib64"]
problems = []


def expect(condition, what):
    print(("ok      " if condition else "WRONG   ") + what, flush=True)
    if not condition:
        problems.append(what)


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S, check=False, **options)


def skip(reason):
    print(f"containers_test.py: {reason}")
    sys.exit(77)


def enter_namespace():
    """Becomes this program in a mount namespace where /etc/cdi is empty and one more user exists."""
    if os.geteuid() != 0:
        skip("not root, which a container for every user takes.")
    if not shutil.which("podman") or not shutil.which("crun"):
        skip("podman and crun are not installed: vm_configs/install_dependencies.sh installs them.")
    if os.environ.get("CAUSEWAY_TEST_NAMESPACE") != "1":
        os.environ["CAUSEWAY_TEST_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])
    if os.path.ismount("/sys/fs/cgroup/unified"):  # crun takes version 1 or 2, and not both at once
        subprocess.run(["umount", "/sys/fs/cgroup/unified"], check=False)
    for folder in ("/etc/cdi", "/run/cdi"):
        made = not os.path.isdir(folder)
        os.makedirs(folder, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
        if made and folder == "/run/cdi":
            print("note: /run/cdi was made")


def add_user(folder):
    """The user causeway-rootless, in copies of the files that name users."""
    lines = {"passwd": f"causeway-rootless:x:{ROOTLESS_ID}:{ROOTLESS_ID}::{folder}/rootless:/bin/sh", "group": f"causeway-rootless:x:{ROOTLESS_ID}:",
             "subuid": "causeway-rootless:1200000000:65536", "subgid": "causeway-rootless:1200000000:65536"}
    for name, line in lines.items():
        file = pathlib.Path("/etc") / name
        copy = folder / name
        copy.write_text((file.read_text() if file.exists() else "") + line + "\n")
        copy.chmod(0o644)
        file.touch()
        subprocess.run(["mount", "--bind", copy, file], check=True)
    home = folder / "rootless"
    home.mkdir()
    shutil.chown(home, ROOTLESS_ID, ROOTLESS_ID)


class Daemon:
    def __init__(self, folder):
        self.folder = folder
        self.config = folder / "causewayd.toml"
        self.socket = folder / "run/causeway.sock"
        self.containers = folder / "run/containers/run"
        (folder / "run").mkdir(mode=0o755)
        self.config.write_text(f'socket = "{self.socket}"\nsocket_group = "causeway-rootless"\ncontainer_folder = "{self.containers.parent}"\n'
                               f'driver_library = "{SOFTWARE_GPU}"\nlocal_region_mib = 256\n')
        self.process = None
        self.start()

    def start(self):
        self.process = subprocess.Popen([PROGRAMS / "causewayd", "--config", self.config], stderr=open(self.folder / "causewayd.log", "a"))
        end = time.monotonic() + LIMIT_S
        while not (self.containers / "causeway.sock").exists():
            if self.process.poll() is not None or time.monotonic() > end:
                sys.exit("causewayd did not start:\n" + (self.folder / "causewayd.log").read_text()[-2000:])
            time.sleep(0.05)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(LIMIT_S)


def lay_out_image(folder):
    """As CUDA's images are: /usr/local/cuda leads to the toolkit, whose compat folder has a libcuda.so.1 of another driver."""
    root = folder / "image"
    shutil.copytree(IMAGE_ROOT, root, symlinks=True, ignore=shutil.ignore_patterns("dev", "doc", "locale", "perl*"))
    for name in ("bin", "nvidia/lib", "nvidia/lib64", "cuda-13.0/compat"):
        (root / "usr/local" / name).mkdir(parents=True, exist_ok=True)
    (root / "usr/local/cuda").symlink_to("cuda-13.0")
    compat = root / "usr/local/cuda-13.0/compat"
    subprocess.run(["cc", "-shared", "-nostdlib", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", compat / "libcuda.so.580.65.06"],
                   input="int cuInit(unsigned flags) { return 803 + 0 * flags; }\n", text=True, check=True)
    (compat / "libcuda.so.1").symlink_to("libcuda.so.580.65.06")
    (compat / "libcuda.so").symlink_to("libcuda.so.1")
    (root / "etc/ld.so.conf.d/nvidia.conf").write_text("/usr/local/nvidia/lib\n/usr/local/nvidia/lib64\n")
    for name in ("vector_add", *MORE_PROGRAMS):
        shutil.copy(BUILD / "old_system" / name, root / "usr/local/bin" / name)
    if not (root / "bin/sh").exists():
        (root / "bin/sh").symlink_to("busybox")
    bare = folder / "bare.tar"
    subprocess.run(["tar", "-C", root, "-cf", bare, "."], check=True)
    # A cache that has the toolkit's compat folder before all others.
    (root / "etc/ld.so.conf.d/000-cuda-compat.conf").write_text("/usr/local/cuda/compat\n")
    subprocess.run(["/sbin/ldconfig", "-r", root], check=True)
    full = folder / "image.tar"
    subprocess.run(["tar", "-C", root, "-cf", full, "."], check=True)
    return full, bare


class Podman:
    """Containers of root, or with `user` of another user, which then holds no right."""

    def __init__(self, folder, user=None):
        self.user = user
        store = folder / ("rootless" if user else "podman")
        self.command = ["podman", "--root", store / "root", "--runroot", store / "run", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]
        if user:
            self.command = ["setpriv", "--reuid", str(user), "--regid", str(user), "--init-groups", "--inh-caps=-all", "env", f"HOME={store}",
                            f"XDG_RUNTIME_DIR={store}", *self.command]
        # What a session without CAP_SYS_RESOURCE may set.
        self.limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096", "--network", "none", "--cgroups", "disabled"]

    def call(self, *words):
        return run(*self.command, *words, cwd="/")

    def import_image(self, file, name):
        done = self.call("import", "-q", file, name)
        if done.returncode != 0:
            skip(f"podman cannot import an image here: {done.stderr.strip()}")

    def run(self, *words, image=IMAGE, command=("/usr/local/bin/vector_add",)):
        return self.call("run", "--rm", *self.limits, *words, image, *command)


def computes(done):
    return done.returncode == 0 and "sums equal" in done.stdout


def told(done):
    return f"{done.stdout.strip()[-300:]} {done.stderr.strip()[-500:]}"


def in_guest(folder, *command):
    """On this machine as a guest, whose library is where its package has it."""
    script = [f"mount -t tmpfs none {folder}", f"mkdir {folder}/upper {folder}/work",
              f"mount -t overlay none -o lowerdir=/usr/lib,upperdir={folder}/upper,workdir={folder}/work /usr/lib", "mkdir -p /usr/lib/causeway",
              f"mount --bind {BUILD}/guest_lib /usr/lib/causeway", "exec " + " ".join(str(word) for word in command)]
    return run("unshare", "--mount", "sh", "-ec", "\n".join(script))


def official_schemas():
    """The interface's own schema: of the whole file, and of edits, which it has in devices alone. It allows what it does not know."""
    definitions = json.loads((OFFICIAL_SCHEMA / "defs.json").read_text())["definitions"]
    whole = json.loads((OFFICIAL_SCHEMA / "schema.json").read_text().replace("defs.json#", "#"))
    return {**whole, "definitions": definitions}, {"$ref": "#/definitions/containerEdits", "definitions": definitions}


def try_specification(daemon):
    schema = json.loads(SCHEMA.read_text())
    covering = daemon.folder / "covering"
    covering.mkdir()
    for side in ("host", "guest"):
        command = [PROGRAMS / "causeway", "cdi", "--side", side, "--config", daemon.config]
        done = in_guest(covering, *command) if side == "guest" else run(*command)
        if done.returncode != 0:
            expect(False, f"the specification of the {side} is written: {done.stderr.strip()}")
            continue
        specification = json.loads(done.stdout)
        jsonschema.validate(specification, schema)
        expect(True, f"the specification of the {side} is valid by {SCHEMA.name}")
        if OFFICIAL_SCHEMA:
            whole, edits = official_schemas()
            jsonschema.validate(specification, whole)
            jsonschema.validate(specification["containerEdits"], edits)
            expect(True, f"the specification of the {side} is valid by the interface's own schema")
    if not OFFICIAL_SCHEMA:
        print("note: the interface's own schema is not here")
    done = run(PROGRAMS / "causeway", "cdi", "--side", "guest")
    if done.returncode != 0:  # its library is not installed on a host
        expect("usr/lib/causeway/libcuda.so.1 is missing" in done.stderr, f"a guest without its library is told so: {done.stderr.strip()}")
    broken = json.loads(run(PROGRAMS / "causeway", "cdi", "--side", "host", "--config", daemon.config).stdout)
    broken["devices"][0]["containerEdits"]["mounts"][0].pop("hostPath")
    try:
        jsonschema.validate(broken, schema)
        expect(False, "the schema refuses a mount without a path")
    except jsonschema.ValidationError:
        expect(True, "the schema refuses a mount without a path")
    empty = daemon.folder / "empty.toml"
    empty.write_text("")
    done = run(PROGRAMS / "causeway", "cdi", "--side", "host", "--config", empty, "--output", daemon.folder / "none.json")
    expect(done.returncode == 1 and "has no container_folder" in done.stderr and not (daemon.folder / "none.json").exists(),
           f"a host without a folder for containers is told so: {done.stderr.strip()}")


def try_full_disk(daemon):
    """A file that cannot be written whole leaves the one of before."""
    small = daemon.folder / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8k", "none", small], check=True)
    (small / "causeway.json").write_text("as before")
    (small / "filler").write_bytes(b"x" * 4096)
    done = run(PROGRAMS / "causeway", "cdi", "--side", "host", "--config", daemon.config, "--output", small / "causeway.json")
    expect(done.returncode == 1 and "No space left" in done.stderr and (small / "causeway.json").read_text() == "as before" and
           sorted(os.listdir(small)) == ["causeway.json", "filler"], f"a full disk: {done.stderr.strip()}")
    subprocess.run(["umount", small], check=True)


def doctor(daemon):
    done = run(PROGRAMS / "causeway", "doctor", "--json", "--config", daemon.config)
    return next((link for link in json.loads(done.stdout)["links"] if link["link"] == "containers"), None)


def try_doctor(daemon):
    """No specification, a good one, one of an older installation; what is advised mends the last."""
    def write():
        return run(PROGRAMS / "causeway", "cdi", "--side", "host", "--config", daemon.config, "--output", SPECIFICATION)
    found = doctor(daemon)
    expect(found["state"] == "skipped" and f"causeway cdi --output {SPECIFICATION}" in found["sentence"], f"doctor: {found['sentence']}")
    expect(write().returncode == 0 and doctor(daemon)["state"] == "ok", "doctor: the specification is fine")
    SPECIFICATION.write_text(SPECIFICATION.read_text().replace("libcauseway", "other").replace("ro", "rw", 1))
    found = doctor(daemon)
    expect(found["state"] == "broken" and found["mend"] == f"causeway cdi --output {SPECIFICATION}", f"doctor: {found['sentence']} -> {found['mend']}")
    write()
    socket = daemon.containers / "causeway.sock"
    socket.rename(daemon.containers / "aside")
    found = doctor(daemon)
    expect(found["state"] == "broken" and "socket" in found["sentence"], f"doctor: {found['sentence']} -> {found['mend']}")
    (daemon.containers / "aside").rename(socket)
    expect(doctor(daemon)["state"] == "ok", "doctor: mended")


def try_containers(podman, who):
    plain = podman.run(command=("/bin/busybox", "true"))
    if plain.returncode != 0:
        print(f"note: {who}: podman runs no container here at all: {told(plain)}")
        return False
    driver = podman.call("info", "--format", "{{.Store.GraphDriverName}}").stdout.strip()
    print(f"note: {who}: the storage driver is {driver}")
    for what, words, image in [("an unprivileged user", ["--user", "1234:1234"], IMAGE), ("root", [], IMAGE), ("a root that is read-only", ["--read-only"], IMAGE),
                               ("an image without a loader cache", ["--user", "1234:1234"], BARE_IMAGE),
                               ("such an image, read-only", ["--read-only"], BARE_IMAGE),
                               ("LD_LIBRARY_PATH with compat first", ["--user", "1234:1234", *COMPAT], IMAGE)]:
        done = podman.run(*DEVICE, *words, image=image)
        if "--read-only" in words and driver != "overlay":
            expect(done.returncode != 0 and HOOK.name in done.stderr, f"{who}: {what} is refused by the hook with the storage driver {driver}")
            continue
        expect(computes(done), f"{who}: {what}" + ("" if computes(done) else ": " + told(done)))
    for name in MORE_PROGRAMS:
        directly = run("env", f"LD_LIBRARY_PATH={SOFTWARE_GPU.parent}", BUILD / "old_system" / name)
        done = podman.run(*DEVICE, "--user", "1234:1234", command=(f"/usr/local/bin/{name}",))
        same = directly.returncode == done.returncode == 0 and directly.stdout == done.stdout != ""
        expect(same, f"{who}: {name} prints what it prints directly" + ("" if same else f": {told(done)} and not {told(directly)}"))
    done = podman.run(*COMPAT)
    expect(not computes(done), f"{who}: without the device the other library is found, and there is no GPU")
    return True


def try_restart(podman, daemon):
    """A container that runs finds the next daemon's socket, and one that starts does."""
    started = podman.call("run", "-d", "--name", "lives", *podman.limits, *DEVICE, IMAGE, "/bin/busybox", "sleep", "1000")
    expect(started.returncode == 0, "a container that stays" + ("" if started.returncode == 0 else ": " + told(started)))
    daemon.stop()
    done = podman.call("exec", "--user", "1234", "lives", "/usr/local/bin/vector_add")
    expect(not computes(done), f"without a daemon it is refused: {done.stderr.strip()[-160:]}")
    daemon.start()
    done = podman.call("exec", "--user", "1234", "lives", "/usr/local/bin/vector_add")
    expect(computes(done), "after a restart of the daemon it goes on" + ("" if computes(done) else ": " + told(done)))
    done = podman.call("exec", "lives", "/bin/busybox", "rm", "/run/causeway/causeway.sock")
    expect(done.returncode != 0 and (daemon.containers / "causeway.sock").exists(), "root in it cannot remove the socket")
    podman.call("rm", "-f", "-t", "0", "lives")


# ---- the hook and images that are hostile ----------------------------------------------------------------------
def call_hook(folder, root, environment=(), mounts=(), before=""):
    """The hook as a runtime calls it, in a mount namespace where the libraries are mounted."""
    bundle = folder / "bundle"
    bundle.mkdir(exist_ok=True)
    (bundle / "config.json").write_text(json.dumps({"root": {"path": str(root)}, "process": {"env": list(environment)}}))
    (root / "usr/lib/causeway").mkdir(parents=True, exist_ok=True)
    script = [f"mount --bind {BUILD}/guest_lib {root}/usr/lib/causeway", *mounts, f"exec {before} {HOOK}"]
    return run("unshare", "--mount", "sh", "-ec", "\n".join(script), input=json.dumps({"bundle": str(bundle)}))


def try_hook(folder):
    outside = folder / "outside"
    outside.mkdir()
    (outside / "secret").write_text("untouched")

    def fresh(name):
        root = folder / name
        (root / "etc").mkdir(parents=True)
        return root

    root = fresh("links")
    (root / "etc").rmdir()
    (root / "etc").symlink_to(outside)
    done = call_hook(folder, root)
    expect(done.returncode == 1 and "it has no folder /etc" in done.stderr, f"/etc that leads out: {done.stderr.strip()}")
    root = fresh("files")
    (root / "etc/ld.so.cache").symlink_to(outside / "secret")
    (root / "etc/ld.so.cache~").symlink_to(outside / "secret")
    (root / "var").symlink_to(outside)
    (root / "compat").mkdir()
    (root / "compat/libcuda.so.1").symlink_to(outside / "secret")
    done = call_hook(folder, root, ["LD_LIBRARY_PATH=/compat:../../outside:/../../outside"])
    expect(sorted(os.listdir(outside)) == ["secret"] and (outside / "secret").read_text() == "untouched",
           "links write nothing outside")
    expect(done.returncode == 1 and "Too many levels of symbolic links" in done.stderr, f"a link in the new cache's place: {done.stderr.strip()}")
    (root / "etc/ld.so.cache~").unlink()
    done = call_hook(folder, root, ["LD_LIBRARY_PATH=/compat"])
    expect(done.returncode == 0 and not (root / "etc/ld.so.cache").is_symlink() and (outside / "secret").read_text() == "untouched",
           "a link in the cache's place is replaced")
    root = fresh("volume")
    done = call_hook(folder, root, mounts=[f"mount --bind {outside} {root}/etc"])
    expect(done.returncode == 1 and "/etc is a mount of its own" in done.stderr and sorted(os.listdir(outside)) == ["secret"],
           f"/etc that is a volume: {done.stderr.strip()}")
    root = fresh("no_libraries")
    bundle = folder / "bundle"
    (bundle / "config.json").write_text(json.dumps({"root": {"path": str(root)}}))
    done = run("unshare", "--mount", HOOK, input=json.dumps({"bundle": str(bundle)}))
    expect(done.returncode == 1 and "/usr/lib/causeway is not in it" in done.stderr, f"no libraries: {done.stderr.strip()}")
    for text in ("", "{}", '{"bundle": 1}', '{"bundle": "/nowhere"}'):
        done = run(HOOK, input=text)
        expect(done.returncode == 1 and len(done.stderr.splitlines()) == 1, f"the state {text!r}: {done.stderr.strip()}")


# Writes what it may do to /etc/rights of the image, in place of this system's ldconfig.
OTHER_LDCONFIG = """
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
  int open_files = 0;
  for (int fd = 3; fd < 1024; ++fd) open_files += fcntl(fd, F_GETFD) >= 0;
  struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
  struct __user_cap_data_struct caps[2];
  syscall(SYS_capget, &header, caps);
  unsigned long bounding = 0, ambient = 0;
  for (int cap = 0; prctl(PR_CAPBSET_READ, cap) >= 0; ++cap) {
    bounding |= (unsigned long)prctl(PR_CAPBSET_READ, cap) << cap;
    ambient |= (unsigned long)prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_IS_SET, cap, 0, 0) << cap;
  }
  struct statvfs root;
  statvfs("/", &root);
  FILE* file = fopen("/etc/rights", "w");
  fprintf(file, "{\\"files\\": %d, \\"permitted\\": %u, \\"inheritable\\": %u, \\"high\\": %u, \\"bounding\\": %lu, \\"ambient\\": %lu, \\"mount\\": %lu}",
          open_files, caps[0].permitted, caps[0].inheritable, caps[1].permitted | caps[1].inheritable, bounding, ambient, root.f_flag);
  return fclose(file);
}
"""


def try_rights(folder):
    """What ldconfig may do where the runtime hands its own rights and an open file on."""
    program = folder / "other_ldconfig"
    subprocess.run(["cc", "-static", "-x", "c", "-", "-o", program], input=OTHER_LDCONFIG, text=True, check=True)
    root = folder / "rights"
    (root / "etc").mkdir(parents=True)
    place = next(path for path in ("/sbin/ldconfig.real", "/sbin/ldconfig") if os.path.exists(path))
    done = call_hook(folder, root, mounts=[f"mount --bind {program} {place}", "exec 9< /"], before="setpriv --inh-caps +chown,+fowner --ambient-caps +chown,+fowner")
    found = json.loads((root / "etc/rights").read_text()) if done.returncode == 0 else {"said": done.stderr}
    dac_override = 1 << 1
    flags = os.ST_NODEV | os.ST_NOSUID | os.ST_NOEXEC
    expect(found.get("files") == 0, f"ldconfig inherits no open file: {found}")
    expect(all(found.get(kind) == dac_override for kind in ("permitted", "bounding")), "of rights it has that of writing files alone")
    expect(all(found.get(kind) == 0 for kind in ("inheritable", "high", "ambient")), "and nothing that it could hand on")
    expect(found.get("mount", 0) & flags == flags, "devices, rights of owners and programs of the image are out of its reach")


def try_bounds(folder):
    """A device in the new cache's place, roots that are read-only, long lists of folders."""
    def fresh(name):
        root = folder / name
        (root / "etc").mkdir(parents=True)
        return root
    root = fresh("device")
    node = root / "etc/ld.so.cache~"
    os.mknod(node, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    node.write_text("")  # it can be opened where the mount lets one
    done = call_hook(folder, root)
    expect(done.returncode == 1 and "Permission denied" in done.stderr, f"a device in the new cache's place: {done.stderr.strip()}")
    root = fresh("read_only")
    done = call_hook(folder, root, mounts=[f"mount --rbind {root} {root}", f"mount -o remount,bind,ro {root}"])
    expect(done.returncode == 1 and "its root is read-only" in done.stderr and os.listdir(root / "etc") == [],
           f"a folder of the host that is read-only stays so: {done.stderr.strip()}")
    upper, work, top = fresh("upper"), fresh("work"), fresh("top")
    done = call_hook(folder, top, mounts=[f"mount --rbind {top} {top}", f"mount -t overlay none -o lowerdir={root},upperdir={upper},workdir={work}/etc {top}",
                                          f"mkdir -p {top}/usr/lib/causeway", f"mount --bind {BUILD}/guest_lib {top}/usr/lib/causeway",
                                          f"mount -o remount,bind,ro {top}"])
    expect(done.returncode == 0 and (upper / "etc/ld.so.cache").exists() and os.listdir(root / "etc") == [],
           f"an overlay that is read-only: the cache is in its own layer {done.stderr.strip()}")
    root = fresh("folders")
    many = ":".join(f"/folder{number}" for number in range(64))
    done = call_hook(folder, root, [f"LD_LIBRARY_PATH={many}:{many}:{many}"])
    expect(done.returncode == 0, f"64 folders, each three times {done.stderr.strip()}")
    done = call_hook(folder, root, [f"LD_LIBRARY_PATH={many}:/another"])
    expect(done.returncode == 1 and "more than 64 folders" in done.stderr, f"65 folders: {done.stderr.strip()}")


def try_environment_of_image(daemon, folder):
    """The hook as the specification says, called by runc before 1.3.0: with the image's root as the current folder, and with the image's variables
    where the hook has none of its own. Neither way is anything of the image run."""
    segments = run("readelf", "-lW", HOOK)
    expect(segments.returncode == 0 and "LOAD" in segments.stdout and "INTERP" not in segments.stdout, "the hook is a program without a loader")
    specification = json.loads(run(PROGRAMS / "causeway", "cdi", "--side", "host", "--config", daemon.config).stdout)
    hook = specification["containerEdits"]["hooks"][0]
    root = folder / "environment"
    for name in ("etc", "lib", "usr/lib/causeway"):
        (root / name).mkdir(parents=True)
    marker = root / "marker"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", root / "lib/libmarker.so"], input=f"""
#include <fcntl.h>
unsigned la_version(unsigned version) {{ return version; }}
__attribute__((constructor)) static void Mark(void) {{ open("{marker}", O_CREAT | O_WRONLY, 0600); }}
""", text=True, check=True)
    (folder / "bundle/config.json").write_text(json.dumps({"root": {"path": str(root)}}))
    state = json.dumps({"bundle": str(folder / "bundle")})
    for variable in ("LD_PRELOAD", "LD_AUDIT"):
        of_image = {variable: "libmarker.so", "LD_LIBRARY_PATH": str(root / "lib"), "TZ": ":/marker"}

        def marked(program, environment):
            """Whether the image's code was run, and what the program said."""
            variables = " ".join(f"'{name}={value}'" for name, value in environment.items())
            done = run("unshare", "--mount", "sh", "-ec", f"mount --bind {BUILD}/guest_lib {root}/usr/lib/causeway; exec env -i {variables} {program}",
                       input=state, cwd=root)
            ran = marker.exists()
            marker.unlink(missing_ok=True)
            return ran, done
        expect(marked("/bin/true", of_image)[0], f"{variable}: a program with a loader runs the image's code")
        as_specified = dict(entry.split("=", 1) for entry in hook["env"]) if hook.get("env") else of_image
        for what, environment in (("as specified", as_specified), ("with the image's variables", of_image)):
            ran, done = marked(hook["path"], environment)
            expect(not ran and done.returncode == 0, f"{variable}: the hook {what} does its work and runs no code of the image {done.stderr.strip()}")
        expect(not set(of_image) & set(as_specified), f"{variable}: the specification keeps the image's variables away")


def main():
    enter_namespace()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="causeway-containers-"))
    folder.chmod(0o755)
    daemon = None
    try:
        add_user(folder)
        daemon = Daemon(folder)
        try_hook(folder)
        try_rights(folder)
        try_bounds(folder)
        try_environment_of_image(daemon, folder)
        try_specification(daemon)
        try_full_disk(daemon)
        try_doctor(daemon)
        full, bare = lay_out_image(folder)
        tried = 0
        for who, user in (("podman", None), ("rootless podman", ROOTLESS_ID)):
            podman = Podman(folder, user)
            podman.import_image(full, IMAGE)
            podman.import_image(bare, BARE_IMAGE)
            if try_containers(podman, who):
                tried += 1
                if user is None:
                    try_restart(podman, daemon)
        if tried == 0 and not problems:
            skip("podman runs no container on this machine.")
    finally:
        if daemon:
            daemon.stop()
        for store in ("podman", "rootless"):
            run("umount", folder / store / "root/overlay")
        shutil.rmtree(folder, ignore_errors=True)
    for problem in problems:
        print(f"WRONG: {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
