#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run_vm.sh refuses what QEMU would abort on or hang with, each with one sentence and status 125; and it keeps its time.
set -euo pipefail
run_vm=$(cd "$(dirname "$0")/../../vm_configs" && pwd)/run_vm.sh
command -v qemu-system-x86_64 > /dev/null || { echo "qemu-system-x86_64 is not installed"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
: > "$work/initramfs"
[ -n "${KERNEL:-}" ] || export KERNEL=$work/initramfs

# $1: status, $2: part of the sentence, rest: options
expect() {
  local status=0 wanted=$1 sentence=$2
  shift 2
  "$run_vm" "$@" > "$work/out" 2>&1 || status=$?
  if [ "$status" != "$wanted" ] || ! grep -qF -- "$sentence" "$work/out"; then
    echo "run_vm.sh $*: status $status, wanted $wanted and \"$sentence\"; it said:" >&2
    cat "$work/out" >&2
    exit 1
  fi
}
expect 2 'usage:'
expect 2 'usage:' --bogus x
expect 125 'cannot be read' --initramfs "$work/none"
expect 125 'cannot be read' --initramfs "$work/initramfs" --kernel "$work/none"
expect 125 'does not exist' --initramfs "$work/initramfs" --region "$work/none"
expect 125 'unknown firmware' --initramfs "$work/initramfs" --firmware coreboot
truncate -s 3M "$work/region"
expect 125 'power of two' --initramfs "$work/initramfs" --region "$work/region"
truncate -s 96M "$work/region"
expect 125 'power of two' --initramfs "$work/initramfs" --region "$work/region"
truncate -s 64M "$work/region"
expect 125 'not formatted' --initramfs "$work/initramfs" --region "$work/region"
QEMU="$work/no-qemu" expect 125 'is missing' --initramfs "$work/initramfs"
# A guest that never reaches user space: here QEMU itself does nothing but sleep.
printf '#!/bin/sh\nexec sleep 60\n' > "$work/sleeper"
chmod +x "$work/sleeper"
QEMU="$work/sleeper" ACCEL=tcg expect 124 'stopped after 2 s' --initramfs "$work/initramfs" --timeout 2
echo "run_vm_errors_test.sh: passed"
