#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# From a fresh Debian 12 with libvirt to a CUDA program in a libvirt guest, by the commands of vm_configs/README.md: a host that is a VM
# itself, with systemd, libvirtd and AppArmor that enforces; in it a libvirt guest, a Debian 12 with the guest's packages.
# The host is emulated with AMD's virtualization, so that its guest runs by KVM.
# usage: host_vm.sh BUILD_DIR      It takes three to seven minutes once both root folders are made. environment: as of run_vm.sh
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong
set -euo pipefail
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/packages_begin.sh" "$1"
command -v qemu-system-x86_64 > /dev/null || { echo "$name: qemu-system-x86_64 is not installed."; exit 77; }
# shellcheck source=tests/packages/guest_disk.sh
. "$here/guest_disk.sh"
all_commands_are_tried
base=$build/packages_root/bookworm_host
VARIANT=essential "$here/fetch_root.sh" bookworm "$base" systemd-sysv udev passwd procps dbus apt apparmor libvirt-daemon-system \
  libvirt-daemon-driver-qemu libvirt-clients qemu-system-x86 linux-image-amd64
build_packages
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The guest's programs end its first process, and with it the VM.
guest_root "$work/guest"
cp "$build/programs/vector_add" "$work/guest/home/gpu/"
cp "$here/guest_steps.sh" "$work/guest/guest_steps.sh"
{
  echo "readme_dmesg() { $(readme_command 'dmesg '); }"
  echo "readme_slices() { $(readme_command 'cat /sys'); }"
  echo "readme_doctor() { $(readme_command 'causeway doctor'); }"
} > "$work/guest/readme.sh"
mkdir "$work/images"
take_kernel "$work/guest" "$work/images"
rm -rf "$work/guest/usr/src" "$work/guest/packages" "$work/guest/later"
mke2fs -q -t ext4 -d "$work/guest" "$work/images/disk" 2G > /dev/null
rm -rf "$work/guest"

cp -a "$base" "$work/host"
answer_yes "$work/host"
mkdir -p "$work/host/packages"
cp "$packages"/causeway-worker-*_"$version"-1_*.deb "$packages"/causeway-host_"$version"-1_*.deb "$here/host_steps.sh" "$here/run_steps.sh" "$work/host/packages/"
{
  echo "readme_host() { $(readme_command 'apt install ./causeway-worker-'); }"
  echo "readme_doctor() { $(readme_command 'causeway doctor'); }"
  # shellcheck disable=SC2016  # the host's shell expands
  echo "readme_attach() { $(readme_command 'causeway attach' 'guest1=$1' 1G=64M); }"
  echo "readme_list() { $(readme_command 'causeway list'); }"
  # shellcheck disable=SC2016
  echo "readme_detach() { $(readme_command 'causeway detach' 'guest1=$1'); }"
} > "$work/host/packages/readme.sh"
cp -L "$build"/software_gpu/lib*.so.1 "$work/host/packages/"
cp --sparse=always "$work/images"/* "$work/host/var/lib/libvirt/images/"
run_at_boot "$work/host" /packages/host_steps.sh libvirtd.service
take_kernel "$work/host" "$work"
mke2fs -q -t ext4 -d "$work/host" "$work/disk" 6G > /dev/null
rm -rf "$work/host" "$work/images"

run_disk 3072 5400  # an emulated guest, of a host without KVM, takes very long
step passed
