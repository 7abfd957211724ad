#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the demo VM's initramfs: busybox, the kernel module, Causeway's libcuda.so.1, programs, and what they link to.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<TEXT
usage: demo_initramfs.sh --output FILE [--build DIR] [--programs DIR]... [--program FILE]... [--library FILE]
  --build DIR      CMake build folder: takes guest_lib/libcuda.so.1 and programs/ from it, as far as they exist
  --programs DIR   the executables of this folder go to /programs in the guest
  --program FILE   one more executable
  --library FILE   libcuda.so.1 for the guest
  --init FILE      the guest's first process (default: demo_init.sh)
  --host-root      the kernel's modules for run_vm.sh --host-root (9p over virtio)
environment:
  KERNEL=FILE      guest kernel (default: the newest /boot/vmlinuz-* that has headers in /lib/modules)
  MODULE=FILE      causeway.ko for that kernel (default: built now against its headers)
  BUSYBOX=FILE     a statically linked busybox (default: the installed one)
  COMPRESSION=none leaves the image as it is, for who compresses it together with the same programs
TEXT
}
fail() { echo "demo_initramfs.sh: $*" >&2; exit 1; }

output='' library='' host_root='' init=$here/demo_init.sh programs=()
# A folder's executables but for those on NVIDIA's big libraries (600 MB in a guest's memory): name these by --program.
add_programs() {
  local file
  for file in "$1"/*; do
    if [ ! -f "$file" ] || [ ! -x "$file" ]; then continue; fi
    if [[ $(ldd "$file" 2> /dev/null) == *lib@(cublas|cufft|cudnn|curand|cusparse|cusolver)* ]]; then
      echo "demo_initramfs.sh: $(basename "$file") is left out: it needs NVIDIA's libraries; name it by --program to have it." >&2
    else
      programs+=("$file")
    fi
  done
}
while [ $# -gt 0 ]; do
  case "$1" in
    --output) output=$2; shift 2 ;;
    --build)
      [ -e "$2/guest_lib/libcuda.so.1" ] && library=$2/guest_lib/libcuda.so.1
      add_programs "$2/programs"; shift 2 ;;
    --programs) [ -d "$2" ] || fail "$2 is not a folder."; add_programs "$2"; shift 2 ;;
    --program) programs+=("$2"); shift 2 ;;
    --library) library=$2; shift 2 ;;
    --init) init=$2; shift 2 ;;
    --host-root) host_root=yes; shift ;;
    -h|--help) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
  esac
done
[ -n "$output" ] || { usage >&2; exit 2; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
mkdir -p "$root"/{bin,dev,etc,lib,lib64,proc,programs,root,run,sys,tmp,usr/lib/causeway}

busybox=${BUSYBOX:-$(command -v busybox || true)}
[ -n "$busybox" ] || fail "busybox is missing: install the package busybox-static."
[[ $'\n'$("$busybox" --list 2> /dev/null)$'\n' == *$'\n'insmod$'\n'* ]] || fail "$busybox has no insmod: install the package busybox-static."
cp "$busybox" "$root/bin/busybox"
cp "$init" "$root/init"
chmod 0755 "$root/init" "$root/bin/busybox"

if [ -z "${MODULE:-}" ]; then
  kernel=${KERNEL:-$("$here/find_kernel.sh")}
  version=${kernel##*/vmlinuz-}
  [ -d "/lib/modules/$version/build" ] ||
    fail "no headers for kernel $version: install linux-headers-$version or pass MODULE=causeway.ko."
  make -s -C "$here/../kernel_module" KVER="$version" BUILD_DIR="$work/module" > "$work/module.log" 2>&1 ||
    { cat "$work/module.log" >&2; fail "the kernel module does not build for $version."; }
  MODULE=$work/module/causeway.ko
fi
[ -r "$MODULE" ] || fail "MODULE=$MODULE cannot be read."
cp "$MODULE" "$root/lib/causeway.ko"
# Debugging sections are nine tenths of the file.
strip --strip-debug "$root/lib/causeway.ko" 2> /dev/null || true

# In the order in which they are to be loaded; demo_init.sh loads them when the host's root is asked for.
if [ -n "$host_root" ]; then
  kernel=${KERNEL:-$("$here/find_kernel.sh")}
  mkdir -p "$root/host"
  cp "$here/in_host.sh" "$root/bin/in-host"
  chmod 0755 "$root/bin/in-host"
  "$here/copy_modules.sh" "${kernel##*/vmlinuz-}" "$root/lib/host_root" virtio_pci 9pnet_virtio 9p || fail "a module for the host's root is missing."
fi

# What an executable needs from the dynamic loader, at the same paths; libcuda comes from us, never from this machine.
copy_needed() {
  local path
  while read -r path; do
    [ -e "$root$path" ] && continue
    mkdir -p "$root$(dirname "$path")"
    cp -L "$path" "$root$path"
  done < <(ldd "$1" 2> /dev/null | sed -nE 's/^\t(.* => )?(\/[^ ]+) \(0x.*/\2/p' | grep -v '/libcuda\.so')
}
if [ -n "$library" ]; then
  [ -r "$library" ] || fail "$library cannot be read."
  cp -L "$library" "$root/usr/lib/causeway/libcuda.so.1"
  # The management library lies beside it.
  nvml=$(dirname "$library")/libnvidia-ml.so.1
  [ ! -e "$nvml" ] || cp -L "$nvml" "$root/usr/lib/causeway/libnvidia-ml.so.1"
  strip --strip-debug "$root"/usr/lib/causeway/lib*.so.1 2> /dev/null || true
  copy_needed "$library"
fi
for program in "${programs[@]}"; do
  cp -L "$program" "$root/programs/"
  strip --strip-debug "$root/programs/$(basename "$program")" 2> /dev/null || true
  copy_needed "$program"
done

cat > "$root/etc/passwd" <<TEXT
root:x:0:0:root:/root:/bin/sh
gpu1:x:1001:1001::/tmp:/bin/sh
gpu2:x:1002:1002::/tmp:/bin/sh
nobody:x:65534:65534::/:/bin/sh
TEXT
cat > "$root/etc/group" <<TEXT
root:x:0:
render:x:104:gpu1,gpu2
gpu1:x:1001:
gpu2:x:1002:
nogroup:x:65534:
TEXT
(cd "$root" && find . -print0 | sort -z | cpio --null --quiet -o -H newc -R 0:0) > "$work/image"
# A little-compressed image boots faster under emulation than a small one.
if [ "${COMPRESSION:-}" = none ]; then
  mv "$work/image" "$work/image.packed"
elif command -v lz4 > /dev/null; then
  lz4 -q -l -9 "$work/image" "$work/image.packed"
else
  gzip -1 < "$work/image" > "$work/image.packed"
fi
mkdir -p "$(dirname "$output")"
mv "$work/image.packed" "$output"
