#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages in a Debian 12 that is booted, with a region of this machine's causewayd: DKMS builds the module, also for a kernel that is
# installed after it, with which the VM is booted; udev loads it, programs
# of an ordinary user find the GPU, the service starts, is restarted by an upgrade and stops; then all is purged.
# usage: packages_vm.sh BUILD_DIR      It takes some eight minutes by emulation. environment: as of run_vm.sh
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong
set -euo pipefail
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/packages_begin.sh" "$1"
command -v qemu-system-x86_64 > /dev/null || { echo "$name: qemu-system-x86_64 is not installed."; exit 77; }
# shellcheck source=tests/packages/guest_disk.sh
. "$here/guest_disk.sh"
build_packages
configs=$here/../../vm_configs driver=$build/software_gpu region_mib=256
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/../vm/demo_daemon.sh"

root=$work/root
guest_root "$root"
upgrade_kernel "$root"
rm -rf "$root/later"
cp "$here/vm_steps.sh" "$here/run_steps.sh" "$build/old_system/vector_add" "$build/old_system/nvml_query" "$root/packages/"
cp -L "$driver"/lib*.so.1 "$root/packages/"
run_at_boot "$root" /packages/vm_steps.sh
take_kernel "$root" "$work"
mke2fs -q -t ext4 -d "$root" "$work/disk" 4G > /dev/null
rm -rf "$root"

start_daemon
status=0
"$configs/run_vm.sh" --kernel "$work/kernel" --initramfs "$work/initramfs" --region "$region" --memory 1024 --timeout 2700 --log "$work/console" \
  --append "root=/dev/vda rw systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service" \
  --qemu-option -drive --qemu-option "file=$work/disk,if=virtio,format=raw" || status=$?
[ "$status" = 0 ] || { tail -n 5 "$work/causewayd.log" >&2; fail "the VM ended with status $status"; }
step passed
