#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# upgrade.py with its sessions in a VM, over shared memory with doorbells: causewayd is upgraded, restarted and killed while they work.
# usage: vm_upgrade.sh BUILD_DIR [--sessions N] [--upgrades N] [--restarts N] [--kills N] [--plain]
#   --plain  without doorbells
# exit status: 0 no call failed and no byte was wrong; 77 QEMU or a guest kernel is missing; else failed
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/../vm/vm_begin.sh" "$1"
shift
sessions=4 upgrades=20 restarts=5 kills=5 doorbell=yes
while [ $# -gt 0 ]; do
  case "$1" in
    --plain) doorbell=''; shift; continue ;;
    --sessions) sessions=$2 ;; --upgrades) upgrades=$2 ;; --restarts) restarts=$2 ;; --kills) kills=$2 ;;
    *) echo "vm_upgrade.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
driver=$build/software_gpu region_mib=256
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
mkdir -m 0700 "$work/state"
sed -i "1i keep_sessions_s = 60\nstate_folder = \"$work/state\"" "$work/causewayd.toml"
plugged=(--region "$region")
if [ -n "$doorbell" ]; then
  echo "doorbell_socket = \"$work/doorbell\"" >> "$work/causewayd.toml"
  plugged=(--doorbell "$work/doorbell")
fi
start_daemon

# Nobody can tell the sessions to end, so they work for a time that is long enough on a slow machine.
work_s=$((60 + 5 * (upgrades + restarts + kills)))
for ((at = 1; at <= sessions; at++)); do
  echo "& session$at:gpu$((at % 2 + 1)) sleep $work_s | /programs/upgrade_client $at"
done > "$work/commands"
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" --program "$build/tests/upgrade/upgrade_client"
"$configs/run_vm.sh" --initramfs "$work/initramfs" "${plugged[@]}" --commands "$work/commands" \
  --log "$work/console" --timeout $((work_s + 300)) --program-timeout $((work_s + 120)) &
vm_pid=$!

# How many sessions the daemon serves.
serving() { daemon_status | python3 -c 'import json, sys; print(sum(x["state"] == "serving" for x in json.load(sys.stdin)["sessions"]))'; }
wait_for_all() {
  for _ in $(seq 600); do
    [ "$(serving)" != "$sessions" ] || return 0
    kill -0 "$vm_pid" 2> /dev/null || daemon_failed "the VM ended before $1."
    sleep 0.2
  done
  daemon_failed "$(serving) of $sessions sessions are served $1."
}
change() {
  case "$1" in
    upgrade) "$build/host_backend/causeway" upgrade --control-socket "$work/causeway.sock.control" > /dev/null || daemon_failed "causeway upgrade failed." ;;
    restart) kill -USR1 "$daemon_pid"; wait "$daemon_pid" || daemon_failed "causewayd ended with status $? at SIGUSR1."; start_daemon ;;
    kill) kill -9 "$daemon_pid"; wait "$daemon_pid" 2> /dev/null || true; start_daemon ;;
  esac
}
wait_for_all "at first"
begun=$SECONDS
for what in upgrade restart kill; do
  times=${what}s
  for ((at = 1; at <= ${!times}; at++)); do
    change "$what"
    sleep "1.$((RANDOM % 10))"
    wait_for_all "after $what $at"
  done
done
took=$((SECONDS - begun))
status=0
wait "$vm_pid" || status=$?
[ "$status" = 0 ] || { tail -n 60 "$work/console" >&2; daemon_failed "the VM's programs ended with status $status."; }
[ "$(grep -ac '^session[0-9]*| rounds [0-9]* wrong 0 longest_ms' "$work/console")" = "$sessions" ] || fail "not all sessions came to their end."
grep -a '^session[0-9]*| rounds' "$work/console" | awk -v changes="$upgrades upgrades, $restarts restarts, $kills kills in $took s" '
  { rounds += $3; if ($7 > longest) longest = $7 }
  END { print "vm_upgrade.sh: " NR " sessions of a VM, " changes ": " rounds " rounds, 0 wrong, longest pause " longest " ms" }'
for _ in $(seq 300); do
  [ "$(serving)" != 0 ] || break
  sleep 0.1
done
[ "$(serving)" = 0 ] || daemon_failed "sessions are left after the VM."
