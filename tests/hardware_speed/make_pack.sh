#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs a VM whose programs run at the processor's speed although the host's processor has no virtualisation that KVM can use: where
# /dev/kvm belongs to kvm_pvm, which executes user code itself and emulates the kernel's. Ordinary kernels do not boot there, so one is
# built from Debian's sources (the package linux-source-6.1), with as little in it as such programs need. Some five minutes on two processors.
# usage: make_pack.sh OUTPUT_DIR --build DIR
# Leaves OUTPUT_DIR/pack, which bench.sh starts, and OUTPUT_DIR/kernel, which a second call uses again.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
fail() { echo "make_pack.sh: $*" >&2; exit 1; }
if [ $# -ne 3 ] || [ "$2" != --build ]; then sed -n '3,8s/^# //p' "$0" >&2; exit 2; fi
[ -x "$3/host_backend/causeway-bench" ] || fail "$3/host_backend/causeway-bench is missing: build the project first."
build=$(cd "$3" && pwd)
mkdir -p "$1"
output=$(cd "$1" && pwd)
kernel=$output/kernel
sources=/usr/src/linux-source-6.1.tar.xz
for tool in flex bison bc; do command -v "$tool" > /dev/null || fail "$tool is missing: install the packages flex, bison and bc."; done

if [ ! -e "$kernel/vmlinux" ]; then
  [ -r "$sources" ] || fail "$sources is missing: install the package linux-source-6.1."
  echo "make_pack.sh: building the kernel in $kernel" >&2
  rm -rf "$kernel"
  mkdir -p "$kernel"
  tar -C "$kernel" --strip-components=1 -xf "$sources"
  python3 "$here/kernel_edits.py" "$kernel"
  make -s -C "$kernel" tinyconfig > "$output/kernel.log" 2>&1
  cat "$here/kernel.config" >> "$kernel/.config"
  make -s -C "$kernel" olddefconfig >> "$output/kernel.log" 2>&1
  make -s -C "$kernel" -j "$(nproc)" vmlinux modules >> "$output/kernel.log" 2>&1 || { tail -n 20 "$output/kernel.log" >&2; fail "the kernel does not build."; }
fi
make -s -C "$root/kernel_module" KDIR="$kernel" BUILD_DIR="$output/module" > "$output/module.log" 2>&1 ||
  { tail -n 20 "$output/module.log" >&2; fail "the kernel module does not build."; }
cc -O2 -Wall -Werror -static -o "$output/init" "$here/init.c"
cc -O2 -Wall -Werror -shared -fPIC -o "$output/processors.so" "$here/processors.c"
rm -rf "$output/pack"
# What is compressed the emulated kernel would have to unpack.
KERNEL=$kernel/vmlinux MODULE=$output/module/causeway.ko COMPRESSION=none ARCHIVE=no "$root/tests/gpu_host/pack_vm.sh" "$output/pack" \
  --init "$output/init" --library "$build/guest_lib/libcuda.so.1" --program "$output/processors.so" \
  --program "$build/host_backend/causeway-bench" --program "$build/host_backend/causeway-bench-probe"
echo "make_pack.sh: $output/pack has $(du -sm "$output/pack" | cut -f1) MiB"
