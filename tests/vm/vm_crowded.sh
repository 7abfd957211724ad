#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# VMs that share few processors with each other and with their workers: how many steps their programs make in some seconds, and what
# processor time and sleeps the workers and QEMU take for each. The daemon, its workers and QEMU are bound to the same processors. Every VM has
# to make steps, and the workers have to sleep. Speed under QEMU's emulator is the emulator's.
# usage: vm_crowded.sh BUILD_DIR [MODE...]   (plain, doorbell; default: both)
#   environment: VMS=N (default 2), PROCESSORS=LIST as taskset has it (default 0), CPUS=N of each VM (default 1,maxcpus=2), LOAD=wait|step
#                (../bench/crowded_load.cc; default wait), SECONDS_MEASURED=N (default 10)
# exit status: 0; 77 QEMU or a guest kernel is missing; else a VM made no step, or no worker slept
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
modes=("${@:2}")
[ ${#modes[@]} -gt 0 ] || modes=(plain doorbell)
vms=${VMS:-2} processors=${PROCESSORS:-0} cpus=${CPUS:-1,maxcpus=2} load=${LOAD:-wait} measured_s=${SECONDS_MEASURED:-10}
driver=$build/software_gpu region_mib=64
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
# shellcheck source=tests/vm/several_vms.sh
. "$here/several_vms.sh"
# In the guests, where what a command prints is shown when it has ended.
mkdir "$work/extra"
echo "echo | /programs/crowded_load $load 800 told > /dev/console" > "$work/extra/load.sh"
(cd "$work/extra" && find . | cpio --quiet -o -H newc -R 0:0) > "$work/initramfs"
"$configs/demo_initramfs.sh" --output "$work/base" --library "$build/guest_lib/libcuda.so.1" --program "$build/tests/bench/crowded_load"
cat "$work/base" >> "$work/initramfs"
echo 'load:root sh /load.sh' > "$work/commands"

steps() { [ ! -e "$work/console$1" ] || tr -d '\r' < "$work/console$1" | sed -n 's/.*so far \([0-9]*\)$/\1/p' | tail -n 1; }
all_steps() { for vm in $(seq "$vms"); do steps "$vm"; done | awk '{ sum += $1 } END { print sum + 0 }'; }
# Until each VM has made more steps than it had before, four minutes at most. $1: how many those were, one word for each VM.
until_more() {
  local vm=0 had
  for had in $1; do
    vm=$((vm + 1))
    for _ in $(seq 1200); do
      ! grep -aqs '^EXIT load' "$work/console$vm" || { tail -n 20 "$work/console$vm" >&2; daemon_failed "the program of VM $vm has ended."; }
      now=$(steps "$vm")
      [ "${now:-0}" -le "$had" ] || continue 2
      sleep 0.2
    done
    daemon_failed "VM $vm has made no step in four minutes."
  done
}
each_steps() { for vm in $(seq "$vms"); do steps "$vm"; done | tr '\n' ' '; }
# Of processes with all their threads: microseconds of processor time, and how often they slept.
cost() {
  local pid
  for pid in "$@"; do
    sed 's/^.*) //' "/proc/$pid/stat" | awk '{ print "ticks", $12 + $13 }'
    cat "/proc/$pid/task/"*/status | awk '/^voluntary_ctxt_switches/ { sum += $2 } END { print "sleeps", sum }'
  done | awk -v hz="$(getconf CLK_TCK)" '{ sum[$1] += $2 } END { printf "%d %d\n", sum["ticks"] * 1000000 / hz, sum["sleeps"] }'
}

for mode in "${modes[@]}"; do
  rm -f "$work"/console*
  start_vms_daemon "$mode" "$vms"
  for vm in $(seq "$vms"); do
    set_plugged "$mode" "$vm"
    "$configs/run_vm.sh" --initramfs "$work/initramfs" "${plugged[@]}" --commands "$work/commands" --log "$work/console$vm" --cpus "$cpus" \
      --timeout 900 --program-timeout 890 > /dev/null &
    vm_pids+=($!)
  done
  until_more "$(yes 0 | head -n "$vms" | tr '\n' ' ')"  # they start with all processors
  read -ra worker_pids <<< "$(workers)"
  read -ra qemu_pids <<< "$(for pid in "${vm_pids[@]}"; do pgrep -P "$pid" qemu; done | tr '\n' ' ')"
  for pid in "$daemon_pid" "${worker_pids[@]}" "${qemu_pids[@]}"; do taskset -a -p -c "$processors" "$pid" > /dev/null; done
  until_more "$(each_steps)"
  read -ra before <<< "$(cost "${worker_pids[@]}") $(cost "${qemu_pids[@]}")"
  steps_before=$(all_steps) began_ns=$(date +%s%N) had=$(each_steps)
  sleep "$measured_s"
  steps_after=$(all_steps) took_ns=$(($(date +%s%N) - began_ns))
  read -ra after <<< "$(cost "${worker_pids[@]}") $(cost "${qemu_pids[@]}")"
  echo "${before[*]} ${after[*]} $steps_before $steps_after $took_ns" |
    awk -v what="$mode, $vms VMs of $cpus on processors $processors, $load" '{
      steps = $10 - $9; if (steps < 1) steps = 1
      printf "%s: %.0f steps/s; for each step workers %.1f us and %.2f sleeps, QEMU %.1f us; workers %.2f of a processor\n",
        what, ($10 - $9) / ($11 / 1e9), ($5 - $1) / steps, ($6 - $2) / steps, ($7 - $3) / steps, ($5 - $1) * 1000 / $11 }'
  [ "${after[1]}" -gt "${before[1]}" ] || daemon_failed "no worker has slept."
  until_more "$had"
  end_vms
done
