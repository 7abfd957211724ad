#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A VM that mounts this machine's root file system: a CUDA program and Python run there with the guest's library and
# device, and nothing can be written to the host.
# usage: vm_host_root.sh BUILD_DIR
# exit status: 0 all held; 77 QEMU or a guest kernel is missing; else failed
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu region_mib=128
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
start_daemon
mkdir "$work/share"
cp -L "$build/programs/vector_add" "$build/guest_lib/libcuda.so.1" "$work/share/"
python=$(command -v python3)
cat > "$work/commands" <<TEXT
vector_add:root in-host /mnt/vector_add
python:root in-host $python -c 'import ctypes, json; print(ctypes.CDLL("libcuda.so.1").cuInit(0), json.dumps([1, 2]))'
written:root in-host sh -c '! echo x > /mnt/x && ! echo x > /usr/x && echo x > /tmp/x && cat /tmp/x'
TEXT
"$configs/demo_initramfs.sh" --output "$work/initramfs" --host-root
status=0
"$configs/run_vm.sh" --initramfs "$work/initramfs" --region "$region" --commands "$work/commands" --log "$work/console" \
  --memory 1024 --timeout "${VM_TIMEOUT_S:-300}" --program-timeout 120 --host-root / --share "$work/share" || status=$?
if [ "$status" != 0 ]; then
  cat "$work/causewayd.log" >&2
  fail "the VM ended with status $status."
fi
python3 "$here/vm_capture.py" "$work/console" "$work/vm" > /dev/null
grep -q 'sums equal' "$work/vm/vector_add.stdout" || fail "vector_add did not run."
[ "$(cat "$work/vm/python.stdout")" = '0 [1, 2]' ] || fail "Python did not reach the device."
[ "$(cat "$work/vm/written.stdout")" = x ] || fail "the guest's own /tmp cannot be written."
[ ! -e "$work/share/x" ] || fail "the host was written to."
echo "vm_host_root.sh: passed"
