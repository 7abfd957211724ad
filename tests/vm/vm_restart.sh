#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# causewayd is restarted while a VM runs: a program of before ends with an error instead of hanging, one of after works.
# In doorbell mode QEMU never connects to the new daemon, which then polls the VM's rings. In mode kept, with doorbells too, the
# daemon is killed and sessions outlive it: the program of before goes on, and so does QEMU's connection.
# usage: vm_restart.sh BUILD_DIR [plain|doorbell|kept]
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu region_mib=128
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
mode=${2:-plain} plugged=(--region "$region")
[ "$mode" != kept ] || sed -i '1i keep_sessions_s = 60' "$work/causewayd.toml"
if [ "$mode" != plain ]; then
  echo "doorbell_socket = \"$work/doorbell\"" >> "$work/causewayd.toml"
  plugged=(--doorbell "$work/doorbell")
fi
start_daemon

# "across" runs the soak program, whose session is open when the daemon stops; a program that only opens one then would
# wait for the next daemon.
cat > "$work/commands" <<'TEXT'
before /programs/vector_add
rings:root cat /sys/class/causeway/causeway/doorbell
& across /programs/soak 8 1 > /tmp/across.out 2>&1; status=$?; grep -q CUDA_ERROR_EXTERNAL_DEVICE /tmp/across.out && echo stopped || echo "ended with $status"
ready sleep 2
pause sleep 8
after /programs/vector_add
wait
again /programs/vector_add
TEXT
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" \
  --program "$build/programs/vector_add" --program "$build/tests/soak/soak"
"$configs/run_vm.sh" --initramfs "$work/initramfs" "${plugged[@]}" --commands "$work/commands" \
  --log "$work/console" --timeout 240 --program-timeout 60 &
vm_pid=$!
for _ in $(seq 600); do
  grep -qa '^EXIT ready' "$work/console" 2> /dev/null && break
  kill -0 "$vm_pid" 2> /dev/null || break
  sleep 0.1
done
[ "$mode" != kept ] || kill -9 "$daemon_pid"
stop_daemon
# Long enough for "across" to meet a host that is not there.
sleep 3
start_daemon
status=0
wait "$vm_pid" || status=$?
[ "$status" = 0 ] || daemon_failed "the VM's programs ended with status $status."
across=stopped
[ "$mode" != kept ] || across='ended with 0'
grep -qa "^across| $across" "$work/console" || daemon_failed "the program of before should have $across: $(grep -a '^across|' "$work/console")"
direct=$(LD_LIBRARY_PATH=$driver "$build/programs/vector_add")
for name in before after again; do
  grep -qaFx "$name| $direct" "$work/console" || fail "$name did not print: $direct"
done
if [ "$mode" != plain ]; then
  grep -qa '^rings| yes' "$work/console" || fail "the VM had no doorbell."
fi
if [ "$mode" = kept ]; then
  grep -q 'has taken over 1 sessions' "$work/causewayd.log" || daemon_failed "the next daemon has not taken over the session."
  ! grep -q 'its rings are polled' "$work/causewayd.log" || daemon_failed "the next daemon polls the VM."
fi
if [ "$mode" = doorbell ]; then
  grep -q 'never connects again: its rings are polled' "$work/causewayd.log" || daemon_failed "the daemon did not say that it polls."
fi
echo "vm_restart.sh: passed"
