#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two VMs at once on one GPU, whose programs launch and wait all the time: the daemon divides the GPU's time by turns, a weight set
# meanwhile is in force, a VM that is paused makes no progress while the other one does, and goes on when it is resumed.
# usage: vm_sharing.sh BUILD_DIR
# exit status: 0 passed; 77 QEMU or a guest kernel is missing; else failed
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu region_mib=64
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
# shellcheck source=tests/vm/several_vms.sh
. "$here/several_vms.sh"
cat "$work/head.toml" - > "$work/causewayd.toml" <<TEXT
state_folder = "$work/state"
[[vm]]
name = "one"
region_file = "$region-one"
region_mib = $region_mib
[[vm]]
name = "two"
region_file = "$region-two"
region_mib = $region_mib
TEXT
mkdir "$work/state" "$work/extra"
start_daemon

# In the guests: runs of a second, one after the other, until the VM is ended from outside.
cat > "$work/extra/runs.sh" <<'TEXT'
while echo | /programs/crowded_load wait 1 > /tmp/run; do
  grep -q '^[0-9]' /tmp/run || break
  echo RUN-OK > /dev/console
done
echo RUN-FAILED > /dev/console
TEXT
"$configs/demo_initramfs.sh" --output "$work/base" --library "$build/guest_lib/libcuda.so.1" --program "$build/tests/bench/crowded_load"
(cd "$work/extra" && find . | cpio --quiet -o -H newc -R 0:0) > "$work/initramfs"
cat "$work/base" >> "$work/initramfs"
echo 'runs:root sh /runs.sh' > "$work/commands"
for vm in one two; do
  "$configs/run_vm.sh" --initramfs "$work/initramfs" --region "$region-$vm" --commands "$work/commands" --log "$work/console-$vm" \
    --timeout 500 --program-timeout 490 > /dev/null &
  vm_pids+=($!)
done

control() { "$build/host_backend/causeway" "$@" --control-socket "$work/causeway.sock.control" > "$work/said" 2>&1 || daemon_failed "$*: $(cat "$work/said")"; }
runs() { cat "$work/console-$1" 2> /dev/null | grep -ac RUN-OK || true; }
# until_ WHAT COMMAND...: at most two minutes.
until_() {
  local what=$1
  shift
  for _ in $(seq 600); do
    ! grep -aqs RUN-FAILED "$work"/console-* || { tail -n 20 "$work"/console-* >&2; daemon_failed "a run failed."; }
    if "$@"; then return; fi
    sleep 0.2
  done
  daemon_status >&2
  daemon_failed "waited in vain for $what."
}
more_than() { [ "$(runs "$1")" -gt "$2" ]; }
in_turns() {
  daemon_status | python3 -c '
import json, sys
status = json.load(sys.stdin)
turns = {share["scope"]: share["turns"] or 0 for share in status["shares"]}
sys.exit(0 if min(turns.get("vm:one", 0), turns.get("vm:two", 0)) > 0 and status["gpus"][0]["enforced_by"] == "turns" else 1)'
}
weighs() { daemon_status | python3 -c 'import json, sys; sys.exit(0 if {"vm:one": 300} == {s["scope"]: s["weight"] for s in json.load(sys.stdin)["scopes"] if s["scope"] == "vm:one"} else 1)'; }

until_ "runs in both VMs" more_than one 0
until_ "runs in the second VM" more_than two 0
until_ "turns of both VMs" in_turns
control set one weight=300
until_ "the weight" weighs
control pause one
paused=$(runs one)
for i in 1 2 3; do until_ "runs beside a VM that is paused" more_than two $(($(runs two))); echo "two ran, $i"; done
# One run may have been over when the pause came, and its line on its way.
[ "$(runs one)" -le $((paused + 1)) ] || daemon_failed "a VM that is paused has gone on."
paused=$(runs one)
until_ "one more run beside it" more_than two "$(runs two)"
[ "$(runs one)" = "$paused" ] || daemon_failed "a VM that is paused has gone on."
control resume one
until_ "runs after the pause" more_than one $((paused + 1))
echo "vm_sharing.sh: one $(runs one) runs, two $(runs two)"
