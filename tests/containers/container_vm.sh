#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Containers in a guest: a Debian 12 with the guest's packages and podman is booted with a region of this machine's causewayd, and containers of
# podman's, as root and rootless, get the GPU by CDI alone; a container at work goes on while the daemon is restarted. Steps: container_steps.sh.
# usage: container_vm.sh BUILD_DIR [PACKAGES]      It takes some ten minutes by emulation. environment: as of run_vm.sh
#   PACKAGES   a folder with packages instead of what BUILD_DIR makes
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong
set -euo pipefail
of_containers=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=tests/packages/packages_begin.sh
. "$of_containers/../packages/packages_begin.sh" "$1"
command -v qemu-system-x86_64 > /dev/null || { echo "$name: qemu-system-x86_64 is not installed."; exit 77; }
# shellcheck source=tests/packages/guest_disk.sh
. "$here/guest_disk.sh"
if [ $# -gt 1 ]; then packages=$2; else build_packages; fi
driver=$build/software_gpu region_mib=256
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/../vm/demo_daemon.sh"
# What the next daemon goes on with.
sed -i "1i keep_sessions_s = 60" "$work/causewayd.toml"

root=$work/root
GUEST_BASE=bookworm_containers guest_root "$root" dbus podman crun uidmap libstdc++6
cp "$of_containers/container_steps.sh" "$of_containers/make_image.sh" "$here/run_steps.sh" "$build"/old_system/{vector_add,managed_variables,host_register,nvml_query} \
  "$build/tests/upgrade/upgrade_client" "$root/packages/"
# Another driver's library, which must lose.
mkdir "$root/packages/compat"
echo 'int cuInit(unsigned flags) { return 803 + 0 * flags; }' |
  cc -shared -nostdlib -Wl,-soname,libcuda.so.1 -x c - -o "$root/packages/compat/libcuda.so.1"
echo "${STEPS:-}" > "$root/packages/steps"
run_at_boot "$root" /packages/container_steps.sh
take_kernel "$root" "$work"
rm -rf "$root/usr/src"
mke2fs -q -t ext4 -d "$root" "$work/disk" 4G > /dev/null
rm -rf "$root"

start_daemon
"$configs/run_vm.sh" --kernel "$work/kernel" --initramfs "$work/initramfs" --region "$region" --memory 2048 --timeout 2700 --log "$work/console" \
  --append "root=/dev/vda rw systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service" \
  --qemu-option -drive --qemu-option "file=$work/disk,if=virtio,format=raw,cache=unsafe" &
vm=$!
# Each time that the guest asks for it, this daemon leaves its sessions and the next one takes over.
restarts=0
while sleep 1 && kill -0 "$vm" 2> /dev/null; do
  asked=$(grep -ac '^RESTART THE DAEMON' "$work/console" 2> /dev/null) || continue
  [ "$asked" -gt "$restarts" ] || continue
  restarts=$asked
  kill -USR1 "$daemon_pid"
  wait "$daemon_pid" || daemon_failed "causewayd did not leave."
  start_daemon
  step "the daemon was restarted"
done
status=0
wait "$vm" || status=$?
[ "$status" = 0 ] || { tail -n 20 "$work/causewayd.log" >&2; fail "the VM ended with status $status"; }
[ -n "${STEPS:-}" ] || expect "restarts under which sessions went on" "$(grep -c 'has taken over' "$work/causewayd.log")" 1
step passed
