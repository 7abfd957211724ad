#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages in a Debian 12 that is booted, with a region of this machine's causewayd: DKMS builds the module, udev loads it, programs
# of an ordinary user find the GPU, the service starts, is restarted by an upgrade and stops; then all is purged.
# usage: packages_vm.sh BUILD_DIR      It takes some ten minutes by emulation. environment: as of run_vm.sh
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong
set -euo pipefail
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/packages_begin.sh" "$1"
command -v qemu-system-x86_64 > /dev/null || { echo "$name: qemu-system-x86_64 is not installed."; exit 77; }
base=$build/packages_root/bookworm_vm
VARIANT=essential "$here/fetch_root.sh" bookworm "$base" systemd-sysv udev passwd procps dkms linux-image-amd64 linux-headers-amd64
build_packages
configs=$here/../../vm_configs driver=$build/software_gpu region_mib=256
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/../vm/demo_daemon.sh"

root=$work/root
cp -a "$base" "$root"
mkdir -p "$root/packages"
cp -r "$packages"/. "$here/vm_steps.sh" "$build/old_system/vector_add" "$build/old_system/nvml_query" "$root/packages/"
cp -L "$driver"/lib*.so.1 "$root/packages/"
# shellcheck disable=SC2016  # the other shell's
in_root() {
  unshare --mount sh -c 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" env -i \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' "$root" "$@"
}
# As a builder of images does: DKMS then builds for the kernel of the root and not for the running one.
in_root dpkg -i /packages/causeway-guest_$version-1_amd64.deb /packages/causeway-dkms_$version-1_all.deb > "$work/install" 2>&1 ||
  { cat "$work/install" >&2; fail "the guest's packages do not install"; }
in_root dkms status -m causeway | grep -q installed || { cat "$work/install" >&2; fail "DKMS has not installed the module"; }
in_root useradd --create-home --groups render gpu
cat > "$root/etc/systemd/system/causeway-test.service" <<TEXT
[Unit]
After=systemd-udev-settle.service
[Service]
Type=oneshot
ExecStart=/packages/vm_steps.sh
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
TEXT
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
ln -s ../causeway-test.service "$root/etc/systemd/system/multi-user.target.wants/"
kernel=$(echo "$root"/boot/vmlinuz-*)
cp "$kernel" "$work/kernel"
cp "$root/boot/initrd.img-${kernel##*/vmlinuz-}" "$work/initramfs"
mke2fs -q -t ext4 -d "$root" "$work/disk" 3G
rm -rf "$root"

start_daemon
status=0
"$configs/run_vm.sh" --kernel "$work/kernel" --initramfs "$work/initramfs" --region "$region" --memory 1024 --timeout 2700 --log "$work/console" \
  --append "root=/dev/vda rw systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service" \
  --qemu-option -drive --qemu-option "file=$work/disk,if=virtio,format=raw" || status=$?
[ "$status" = 0 ] || { tail -n 5 "$work/causewayd.log" >&2; fail "the VM ended with status $status"; }
step passed
