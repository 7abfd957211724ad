#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`causeway doctor` in a guest whose programs reach a host: what is wrong behind its library, and who may use a host's socket.

Usage: doctor_guest_test.py PROGRAM_DIR SOFTWARE_GPU GUEST_LIBRARY_DIR. This system becomes a guest in a mount namespace of the test's own, where
/usr and /etc are covered: the library is installed as the package does it, and users and groups are made. Its host is a daemon of this
test's own with the software GPU. What is advised is done, and then everything has to be found healthy (doctor_test.py has the rest).
Exit status: 77 where this user is not root, or has no mount namespaces or overlays.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

GUEST_LIBRARY = pathlib.Path(sys.argv[3]).resolve()
HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "vm_configs/packages"))
import build_stamp  # noqa: E402
from doctor_test import LIMIT_S, PROGRAMS, Host, expect_broken, expect_healthy, problems, run_doctor  # noqa: E402

LIBRARIES = pathlib.Path("/usr/lib/causeway")
ON_THE_HOST = "on the host: causeway doctor"
GROUP, USER = "causeway-doctor", "causeway-doctor-user"


def skip(reason):
    print(f"doctor_guest_test.py: {reason}")
    sys.exit(77)


def enter_namespace():
    """Becomes this program in a mount namespace where what it writes into /usr and /etc is nobody else's."""
    if os.geteuid() != 0:
        skip("not root, which a mount namespace takes.")
    if os.environ.get("CAUSEWAY_TEST_NAMESPACE") != "1":
        if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode != 0:
            skip("this machine allows no mount namespaces.")
        os.environ["CAUSEWAY_TEST_NAMESPACE"] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv])


def cover(folder):
    subprocess.run(["mount", "-t", "tmpfs", "none", folder], check=True)
    for name in ("usr", "etc"):
        for part in ("upper", "work"):
            (folder / name / part).mkdir(parents=True)
        options = f"lowerdir=/{name},upperdir={folder}/{name}/upper,workdir={folder}/{name}/work"
        done = subprocess.run(["mount", "-t", "overlay", "none", "-o", options, f"/{name}"], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            skip(f"this machine allows no overlay: {done.stderr.strip()}")


def install_library():
    """As the package causeway-guest does."""
    LIBRARIES.mkdir(exist_ok=True)
    for name in ("libcuda.so", "libnvidia-ml.so"):
        shutil.copy(GUEST_LIBRARY / f"{name}.1", LIBRARIES / f"{name}.1")
        (LIBRARIES / name).unlink(missing_ok=True)
        (LIBRARIES / name).symlink_to(f"{name}.1")
    pathlib.Path("/etc/ld.so.conf.d/00-causeway.conf").write_text(f"{LIBRARIES}\n")
    subprocess.run(["ldconfig"], check=True)


def guest_doctor(host):
    return run_doctor(PROGRAMS / "causeway-system", "--side", "guest", environment={"CAUSEWAY": f"local:{host.socket}"})


def expect_advice(found, advice):
    if found and found["mend"] != advice:
        problems.append(f"the advice is {found['mend']!r} and not {advice!r}")


def try_gpu(host):
    """No daemon, and one without a GPU: the guest sends one to the host, whose doctor names what is broken there."""
    found = expect_broken("a guest without its daemon", guest_doctor(host), "GPU", "does not reach the GPU; the library says: .*causewayd")
    expect_advice(found, ON_THE_HOST)
    at_host = expect_broken("its host", host.doctor(), "daemon", "causewayd does not run")
    host.start(at_host["mend"] if at_host else None)
    expect_healthy("a host whose daemon was started", host.doctor())
    begin = time.monotonic()
    expect_healthy("its guest", guest_doctor(host))
    print(f"in a guest where nothing is broken it takes {time.monotonic() - begin:.2f} s")
    host.stop()
    host.start(environment={"SOFTWARE_GPU_DEVICES": "0"})
    found = expect_broken("a guest of a host without a GPU", guest_doctor(host), "GPU", "does not reach the GPU; the library says: ")
    expect_advice(found, ON_THE_HOST)
    expect_broken("that host", host.doctor(), "GPU", "sees no GPU|cannot start")
    host.stop()
    host.start()
    expect_healthy("a guest of a host with a GPU", guest_doctor(host))


def try_versions(host):
    """A library of other rows: a worker of its release is installed on the host, or the host's release in the guest."""
    release, api_hash = build_stamp.read(GUEST_LIBRARY / "libcuda.so.1")
    other = f"{int(api_hash, 16) ^ 0x10:016x}"
    build_stamp.copy_as(GUEST_LIBRARY / "libcuda.so.1", LIBRARIES / "libcuda.so.1", "0.0.9", other)
    what = "a guest of another release"
    found = expect_broken(what, guest_doctor(host), "versions", f"release 0.0.9 .*of release {release} .*install causeway-worker-{other} ")
    expect_advice(found, "on the host, install the causeway-worker package that it names; or here, the causeway-guest package of the host's version, "
                         "which `causeway status` shows there")
    worker = host.programs / "workers" / other
    worker.mkdir(parents=True)
    build_stamp.copy_as(PROGRAMS / "causeway-worker", worker / "causeway-worker", "0.0.9", other)
    (worker / "release").write_text("0.0.9\n")
    expect_healthy("a guest of another release, with a worker of it", guest_doctor(host))
    shutil.rmtree(worker)
    expect_broken(what, guest_doctor(host), "versions", f"install causeway-worker-{other} ")
    if host.status()["version"] != release:
        problems.append(f"the status says {host.status()['version']} and not {release}")
    install_library()
    expect_healthy("a guest of the host's release", guest_doctor(host))


def try_permission(host):
    """A user becomes a member of the socket's group, and logs in again."""
    as_user = ["setpriv", "--reuid", USER, "--regid", USER, "--init-groups"]
    found = expect_broken("a user without the group", host.doctor(wrapper=as_user), "permission", f"may not use the socket .* the group {GROUP}")
    expect_advice(found, f'usermod -aG {GROUP} "$USER" as root, then log in again')
    if found:
        subprocess.run(["sh", "-ec", found["mend"].partition(" as root")[0]], check=True, timeout=LIMIT_S, env={**os.environ, "USER": USER})
    expect_healthy("a user with the group", host.doctor(wrapper=as_user))


def try_links(folder):
    install_library()
    subprocess.run(["groupadd", "--system", GROUP], check=True)
    subprocess.run(["useradd", "--system", "--no-create-home", "--user-group", USER], check=True)
    host = Host(folder)
    host.text = f'socket_group = "{GROUP}"\n' + host.text
    host.config.write_text(host.text)
    try:
        try_gpu(host)
        try_versions(host)
        try_permission(host)
    finally:
        host.stop()
        host.region.unlink(missing_ok=True)


def main():
    enter_namespace()
    for variable in ("LD_LIBRARY_PATH", "LD_PRELOAD", "CAUSEWAY"):
        os.environ.pop(variable, None)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as covering:
        folder = pathlib.Path(name)
        folder.chmod(0o755)
        try:
            cover(pathlib.Path(covering))
            try_links(folder)
        finally:
            for mount in ("/etc", "/usr", covering):
                subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
    print("\n".join(problems) or "the guest named what was broken, and what it advised mended it.")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
