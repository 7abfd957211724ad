# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced, after demo_daemon.sh, by tests with several VMs of one daemon. This sets: vm_pids, to which they add the process of each
# run_vm.sh; ends these with the test, and the daemon and the files of the regions with them.
vm_pids=()
end_vms() {
  [ ${#vm_pids[@]} = 0 ] || kill "${vm_pids[@]}" 2> /dev/null || true
  wait "${vm_pids[@]}" 2> /dev/null || true
  vm_pids=()
  stop_daemon
}
trap 'end_vms; clean_up; rm -f "$region"-*' EXIT
head -n 4 "$work/causewayd.toml" > "$work/head.toml"  # without the one VM

# start_vms_daemon MODE COUNT: plain or doorbell, for the VMs vm1, vm2 and so on, whose region files end in their numbers.
start_vms_daemon() {
  local vm
  cp "$work/head.toml" "$work/causewayd.toml"
  for vm in $(seq "$2"); do
    printf '[[vm]]\nname = "vm%s"\nregion_file = "%s"\nregion_mib = %s\n' "$vm" "$region-$vm" "$region_mib" >> "$work/causewayd.toml"
    [ "$1" = plain ] || echo "doorbell_socket = \"$work/doorbell$vm\"" >> "$work/causewayd.toml"
  done
  start_daemon
}
# set_plugged MODE NUMBER: the options by which run_vm.sh gives that VM its region.
set_plugged() {
  plugged=(--region "$region-$2")
  [ "$1" = plain ] || plugged=(--doorbell "$work/doorbell$2")
}
# The workers of all sessions.
workers() { daemon_status | python3 -c 'import json, sys; print(*[each["worker_pid"] for each in json.load(sys.stdin)["sessions"]])'; }
