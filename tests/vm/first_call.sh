#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first call after idle time in a VM, in plain mode and in doorbell mode. In doorbell mode the bare round trip ring, eventfd,
# interrupt, poll() is measured beside each call, through a second device of the same VM (doorbell_echo.cc). Times are the emulator's
# where there is no KVM. What idle VMs cost is idle_vms.sh.
# usage: first_call.sh BUILD_DIR [MODE...]   (default: plain doorbell)
#   environment: MINUTES=N calls after 60 s of idle time (default 3; 0: none)
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
modes=("${@:2}")
[ ${#modes[@]} -gt 0 ] || modes=(plain doorbell)
driver=$build/software_gpu region_mib=128
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
trap 'clean_up; rm -f "$region-bare"' EXIT
cp "$work/causewayd.toml" "$work/plain.toml"
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" \
  --program "$build/tests/vm/first_call"

for mode in "${modes[@]}"; do
  cp "$work/plain.toml" "$work/causewayd.toml"
  plugged=(--region "$region") bare=''
  if [ "$mode" = doorbell ]; then
    cat >> "$work/causewayd.toml" <<TEXT
doorbell_socket = "$work/doorbell"
[[vm]]
name = "bare"
region_file = "$region-bare"
region_mib = 64
doorbell_socket = "$work/bare"
TEXT
    bare=/dev/causeway1
    plugged=(--doorbell "$work/doorbell" --qemu-option -chardev --qemu-option "socket,id=bare,path=$work/echo"
      --qemu-option -device --qemu-option "ivshmem-doorbell,vectors=2,chardev=bare")
  fi
  start_daemon
  if [ "$mode" = doorbell ]; then
    "$build/tests/vm/doorbell_echo" "$work/echo" "$work/bare" &
    until [ -S "$work/echo" ]; do sleep 0.1; done
  fi
  cat > "$work/commands" <<TEXT
10ms /programs/first_call libcuda.so.1 200 10 $bare
1s /programs/first_call libcuda.so.1 15 1000 $bare
TEXT
  [ "${MINUTES:-3}" = 0 ] || echo "60s /programs/first_call libcuda.so.1 ${MINUTES:-3} 60000 $bare" >> "$work/commands"
  "$configs/run_vm.sh" --initramfs "$work/initramfs" "${plugged[@]}" --commands "$work/commands" --log "$work/console" \
    --timeout $((300 + ${MINUTES:-3} * 130)) > /dev/null || daemon_failed "a program failed in the VM: $(tail -n 5 "$work/console")"
  grep -aoE 'idle [0-9]+ ms: .*' "$work/console" | tr -d '\r' | sed "s/^/$mode: /"
  stop_daemon
  rm -f "$work/console"
done
