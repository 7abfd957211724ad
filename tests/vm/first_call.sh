#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The first call after idle time in a VM, in plain mode and in doorbell mode, and how often the daemon's threads ran while
# the VM had an idle session. Times are the emulator's where there is no KVM.
# usage: first_call.sh BUILD_DIR [MODE...]   (default: plain doorbell)
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
modes=("${@:2}")
[ ${#modes[@]} -gt 0 ] || modes=(plain doorbell)
driver=$build/software_gpu region_mib=128
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
cp "$work/causewayd.toml" "$work/plain.toml"
cat > "$work/commands" <<'TEXT'
10ms /programs/first_call libcuda.so.1 200 10
1s /programs/first_call libcuda.so.1 15 1000
& idle /programs/first_call libcuda.so.1 1 85000
wait
TEXT
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" \
  --program "$build/tests/vm/first_call"

# Of all threads of the daemon's.
switches() { cat "/proc/$daemon_pid/task/"*/status | awk '/ctxt_switches/ { sum += $2 } END { print sum }'; }

for mode in "${modes[@]}"; do
  cp "$work/plain.toml" "$work/causewayd.toml"
  plugged=(--region "$region")
  if [ "$mode" = doorbell ]; then
    echo "doorbell_socket = \"$work/doorbell\"" >> "$work/causewayd.toml"
    plugged=(--doorbell "$work/doorbell")
  fi
  start_daemon
  "$configs/run_vm.sh" --initramfs "$work/initramfs" "${plugged[@]}" --commands "$work/commands" --log "$work/console" \
    --timeout 400 > /dev/null &
  vm_pid=$!
  until grep -qa '^EXIT 1s' "$work/console" 2> /dev/null || ! kill -0 "$vm_pid" 2> /dev/null; do sleep 0.5; done
  sleep 15  # its session opens, and the daemon's work for that ends
  before=$(switches)
  sleep 60
  echo "$mode: $(($(switches) - before)) context switches of causewayd in 60 s with an idle session"
  wait "$vm_pid" || daemon_failed "a program failed in the VM."
  grep -aoE 'idle [0-9]+ ms: .*' "$work/console" | tr -d '\r' | sed "s/^/$mode: /"
  stop_daemon
  rm -f "$work/console"
done
