#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A VM is powered off while its programs run: their sessions end, nothing is leaked, and the next VM works.
# usage: vm_poweroff.sh BUILD_DIR [TIMES [SEED]]
#   TIMES  as often (default 2), from the second time on at any moment from the boot until four seconds after the programs
#          have begun; with the default both times two seconds into their work
set -euo pipefail
times=${2:-2}
RANDOM=${3:-1}
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu region_mib=128
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
start_daemon

# Prints "sessions workers slots-in-use slices-in-use" of the daemon; workers as the kernel counts its launcher's children.
usage() {
  local workers
  workers=$(pgrep -c -P "$(pgrep -P "$daemon_pid")" || true)
  daemon_status | python3 -c '
import json, sys
status = json.load(sys.stdin)
region = status["regions"][0]
print(len(status["sessions"]), sys.argv[1], region["slots_in_use"], region["slices"] - region["slices_free"])' "$workers"
}
idle=$(usage)

cat > "$work/commands" <<'TEXT'
& forever while /programs/two_at_once > /dev/null; do :; done
& forever2:gpu2 while /programs/two_at_once > /dev/null; do :; done
ready sleep 3
wait
TEXT
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" \
  --program "$build/programs/two_at_once" --program "$build/programs/vector_add"
# wait_ready: until the programs have worked for a while.
wait_ready() {
  for _ in $(seq 900); do
    grep -qa '^EXIT ready' "$work/console" 2> /dev/null && break
    kill -0 "$vm_pid" 2> /dev/null || break
    sleep 0.1
  done
  grep -qa '^EXIT ready' "$work/console" || fail "the VM did not come up (attempt $attempt)."
}
ready_ms=0
for attempt in $(seq "$times"); do
  begun_ms=$(date +%s%3N)
  "$configs/run_vm.sh" --initramfs "$work/initramfs" --region "$region" --commands "$work/commands" \
    --log "$work/console" --timeout 240 > /dev/null 2>&1 &
  vm_pid=$!
  if [ "$attempt" = 1 ] || [ "$times" = 2 ]; then
    wait_ready
    ready_ms=$(($(date +%s%3N) - begun_ms))
  else
    moment=$RANDOM  # here: a subshell's would always be the same
    sleep "$(awk "BEGIN { print ($ready_ms + 1000) * $moment / 32768 / 1000 }")"
  fi
  # Only this VM: the QEMU that maps our region file.
  qemu_pid=''
  for _ in $(seq 100); do
    qemu_pid=$(pgrep -f "mem-path=$region" | head -n 1) && break
    sleep 0.05
  done
  kill -KILL "$qemu_pid"
  wait "$vm_pid" 2> /dev/null || true
  for _ in $(seq 50); do
    now=$(usage)
    [ "$now" = "$idle" ] && break
    sleep 0.1
  done
  [ "$now" = "$idle" ] || fail "5 s after power-off $attempt: $now (sessions workers slots slices), idle: $idle"
  rm -f "$work/console"
done

echo "vector_add /programs/vector_add" > "$work/commands"
"$configs/run_vm.sh" --initramfs "$work/initramfs" --region "$region" --commands "$work/commands" \
  --log "$work/console" --timeout 240 > /dev/null || daemon_failed "the VM after the power-offs failed."
kill -0 "$daemon_pid" || daemon_failed "causewayd did not survive."
echo "vm_poweroff.sh: passed: $times VMs powered off"
