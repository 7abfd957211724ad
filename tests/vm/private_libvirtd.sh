# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced, after vm_begin.sh, by tests that need a real libvirtd. It runs as root in a mount namespace of the test's own,
# without systemd, control groups or a security driver, and all that it writes lies in $work: neither a libvirt of this
# host nor its users are touched. QEMU runs as the user libvirt-qemu, who exists there alone; so do two ordinary users,
# alice of the group causeway and bob of the group libvirt, and a /dev/shm of 1 GiB. The tests set: driver (folder of the
# host's libcuda.so.1). Sets: work.
[ "$(id -u)" = 0 ] || { echo "$(basename "$0"): a libvirtd of its own takes root"; exit 77; }
for program in libvirtd virsh unshare; do
  command -v $program > /dev/null || { echo "$(basename "$0"): $program is not installed (libvirt-daemon, libvirt-daemon-driver-qemu, libvirt-clients)"; exit 77; }
done
# The namespace comes first: everything below runs in it, as a child that ends with this shell.
if [ -z "${CAUSEWAY_TEST_NAMESPACE:-}" ]; then
  CAUSEWAY_TEST_NAMESPACE=yes exec unshare --mount --propagation private "$0" "$@"
fi
unset CAUSEWAY_TEST_NAMESPACE

work=$(mktemp -d)
chmod 0755 "$work"
libvirtd_pid=''
build_bin=$build/host_backend

bind() {
  mkdir -p "$work/host$1" "$1"
  mount --bind "$work/host$1" "$1"
}
# The whole of /etc, because a mounted file goes where this host's package manager puts another in its place.
cp -a /etc "$work/etc"
rm -rf "$work/etc/libvirt"
mkdir "$work/etc/libvirt"
mount --bind "$work/etc" /etc
for folder in /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt; do bind $folder; done
# Domains are emulated. With a /dev/kvm that QEMU finds and its user may not open, or that cannot run a VM, libvirt would
# examine QEMU anew at each step.
if [ -e /dev/kvm ]; then
  install -m 0000 /dev/null "$work/kvm"
  mount --bind "$work/kvm" /dev/kvm
fi
mount -t tmpfs -o size=1G,mode=1777 tmpfs /dev/shm
for file in passwd group; do
  sed -i -E '/^(libvirt-qemu|libvirt|causeway|alice|bob):/d' "/etc/$file"
done
echo 'libvirt-qemu:x:64055:64055::/nonexistent:/usr/sbin/nologin' >> /etc/passwd
printf '%s\n' alice:x:3001:3001::/tmp:/bin/sh bob:x:3002:3002::/tmp:/bin/sh >> /etc/passwd
printf '%s\n' libvirt-qemu:x:64055: causeway:x:64056:alice alice:x:3001: bob:x:3002: libvirt:x:64057:bob >> /etc/group

cat > /etc/libvirt/qemu.conf <<'TEXT'
user = "libvirt-qemu"
group = "libvirt-qemu"
security_driver = "none"
cgroup_controllers = []
namespaces = []
stdio_handler = "file"
TEXT
cat > /etc/libvirt/libvirtd.conf <<'TEXT'
auth_unix_ro = "none"
auth_unix_rw = "none"
unix_sock_group = "libvirt"
unix_sock_rw_perms = "0770"
log_outputs = "3:stderr"
TEXT
export LIBVIRT_DEFAULT_URI=qemu:///system

start_libvirtd() {
  libvirtd --config /etc/libvirt/libvirtd.conf --pid-file "$work/libvirtd.pid" > "$work/libvirtd.log" 2>&1 &
  libvirtd_pid=$!
  for _ in $(seq 300); do
    virsh version > /dev/null 2>&1 && return
    kill -0 "$libvirtd_pid" 2> /dev/null || { cat "$work/libvirtd.log" >&2; fail "libvirtd ended."; }
    sleep 0.2
  done
  fail "libvirtd does not answer."
}

stop_libvirtd() {
  [ -n "$libvirtd_pid" ] || return 0
  kill "$libvirtd_pid" 2> /dev/null || true
  wait "$libvirtd_pid" 2> /dev/null || true
  libvirtd_pid=''
}

make_config() {
  cat > "$work/causewayd.toml" <<TEXT
socket = "$work/causeway.sock"
state_folder = "$work/state"
worker = "$build_bin/causeway-worker"
driver_library = "$driver/libcuda.so.1"
spare_workers = 1
${1:-}
TEXT
}
make_config
mkdir "$work/state"

# shellcheck source=tests/vm/own_daemon.sh
. "$(dirname "${BASH_SOURCE[0]}")/own_daemon.sh"

# causeway attach, detach or list, with this daemon's socket.
cw() {
  "$build_bin/causeway" "$@" --control-socket "$work/causeway.sock.control"
}

clean_up() {
  local file
  for file in /run/libvirt/qemu/*.pid "$work"/alice/run/libvirt/qemu/run/*.pid; do
    [ ! -r "$file" ] || [ "$(basename "$file")" = driver.pid ] || kill -9 "$(cat "$file")" 2> /dev/null || true
  done
  stop_libvirtd
  file=$work/alice/run/libvirt/libvirtd.pid
  [ ! -r "$file" ] || kill "$(cat "$file")" 2> /dev/null || true
  stop_daemon
  [ -z "${KEEP:-}" ] || { mkdir -p "$KEEP" && cp -r "$work/." "$KEEP/"; }
  umount -l /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt /dev/shm /etc
  umount -l /dev/kvm 2> /dev/null || true
  rm -rf "$work"
}
trap clean_up EXIT
