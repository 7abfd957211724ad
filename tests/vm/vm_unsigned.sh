#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A guest whose kernel loads signed modules alone, as one that was started by Secure Boot does: the module, which is not signed, is refused,
# and a program is told what to do.
# usage: vm_unsigned.sh BUILD_DIR      exit status: 0 so it is; 77 it cannot be tried here, and the last line says why; else it is not
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu region_mib=64
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
modinfo -F signer "${MODULE:-$build/kernel_module/causeway.ko}" | grep -q . && { echo "$(basename "$0"): this module is signed"; exit 77; }
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" --program "$build/programs/vector_add"
start_daemon
echo 'vector_add /programs/vector_add' > "$work/commands"
status=0
"$configs/run_vm.sh" --initramfs "$work/initramfs" --region "$region" --commands "$work/commands" --log "$work/console" --timeout 300 \
  --append 'module.sig_enforce=1 loglevel=7' > /dev/null || status=$?
[ "$status" = 1 ] || fail "the program ended the VM with status $status instead of 1: $(tail -n 5 "$work/console")"
# says SENTENCE: the console has it.
says() { grep -aF -- "$1" "$work/console" | head -n 1 || fail "nobody says \"$1\": $(grep -a 'causeway' "$work/console" | tail -n 5)"; }
says 'Loading of unsigned module is rejected'
says 'the kernel module is not loaded: run `modprobe causeway` as root'
says 'with Secure Boot it must be signed'
echo "$(basename "$0"): passed"
