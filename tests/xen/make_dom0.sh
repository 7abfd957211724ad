#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what boots Xen with Debian's domain 0: the hypervisor, a disk with Xen's tools, and a first initramfs.
# usage: make_dom0.sh DIR     (DIR keeps what was made; a second call takes no time)
# environment: KERNEL as in vm_configs/demo_initramfs.sh, for domain 0 and for the guests
# exit status: 0 DIR has xen, vmlinux, dom0.initramfs and dom0.ext4; 77 something is missing here, which the last line explains
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dir=$1
skip() { echo "make_dom0.sh: $*"; exit 77; }
for tool in cpio mke2fs busybox; do
  command -v "$tool" > /dev/null || skip "$tool is not installed: vm_configs/install_dependencies.sh installs it."
done
kernel=${KERNEL:-$("$here/../../vm_configs/find_kernel.sh")} || exit 77
version=${kernel##*/vmlinuz-}
mkdir -p "$dir"
"$here/../packages/fetch_root.sh" bookworm "$dir/system" bash coreutils busybox-static procps util-linux mount python3-minimal \
  xen-hypervisor-4.17-amd64 xen-utils-4.17 xenstore-utils qemu-system-xen grep sed libc6 libstdc++6 || exit
made="$(cat "$dir/system.packages") $version $(cat "$0" "$here/../../vm_configs/copy_modules.sh" | sha256sum)"
[ "$(cat "$dir/made" 2> /dev/null)" != "$made" ] || exit 0

python3 "$here/unpack_kernel.py" "$kernel" "$dir/vmlinux"
gzip -dc "$dir"/system/boot/xen-4.17-amd64.gz > "$dir/xen"
mkdir -p "$dir/system"/{proc,sys,dev,run,tmp,causeway,var/lib/xen,var/log/xen}
rm -rf "$dir"/system/usr/share/{doc,man,locale,info}
rm -f "$dir/dom0.ext4"
mke2fs -q -t ext4 -O ^has_journal -d "$dir/system" -E root_owner=0:0 "$dir/dom0.ext4" \
  "$(($(du -sm "$dir/system" | cut -f 1) * 5 / 4 + 64))M" || skip "mke2fs could not make the disk."

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,dev,proc,sys,lib,new}
cp "$(command -v busybox)" "$work/bin/busybox"
"$here/../../vm_configs/copy_modules.sh" "$version" "$work/lib" ahci sd_mod ext4 xen-privcmd xenfs xen-evtchn xen-gntdev \
  xen-gntalloc xen-blkback xen-netback || skip "a module for domain 0 is missing."
cat > "$work/init" <<'TEXT'
#!/bin/busybox sh
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t devtmpfs none /dev
while read -r module; do /bin/busybox insmod "/lib/$module" || echo "$module was not loaded"; done < /lib/order
tries=0
until [ -b /dev/sda ] && [ -b /dev/sdb ] || [ $((tries += 1)) -gt 600 ]; do /bin/busybox sleep 0.1; done
# The kernel finds the disks in any order.
/bin/busybox mount -t ext4 /dev/sda /new
system=/dev/sda payload=/dev/sdb
[ -d /new/causeway ] || { system=/dev/sdb payload=/dev/sda; /bin/busybox umount /new; /bin/busybox mount -t ext4 $system /new; }
/bin/busybox mount -t ext4 $payload /new/causeway
/bin/busybox mount --move /dev /new/dev
/bin/busybox umount /proc
exec /bin/busybox switch_root /new /bin/bash /causeway/dom0_init.sh
TEXT
chmod 0755 "$work/init"
(cd "$work" && find . -print0 | sort -z | cpio --null --quiet -o -H newc -R 0:0) > "$dir/dom0.initramfs"
echo "$made" > "$dir/made"
