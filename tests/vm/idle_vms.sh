#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What VMs cost whose programs have sessions and call nothing: processor time of host and guests, and context switches (voluntary and
# not, of all threads) of the daemon, its launcher, its workers, QEMU, and of the programs in the guests, in plain mode and in doorbell
# mode. In doorbell mode the daemon must have none.
# usage: idle_vms.sh BUILD_DIR [MODE...]   (default: plain doorbell)
#   environment: VMS=N (default 4), SESSIONS=N of all VMs together (default 50), SECONDS_IDLE=N that are measured (default 60)
# exit status: 1 the daemon ran in doorbell mode, and the lines above name the threads
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
modes=("${@:2}")
[ ${#modes[@]} -gt 0 ] || modes=(plain doorbell)
vms=${VMS:-4} sessions=${SESSIONS:-50} idle_s=${SECONDS_IDLE:-60}
driver=$build/software_gpu region_mib=512
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
# shellcheck source=tests/vm/several_vms.sh
. "$here/several_vms.sh"
"$configs/demo_initramfs.sh" --output "$work/base" --library "$build/guest_lib/libcuda.so.1" \
  --program "$build/tests/vm/first_call"
# In the guest: how often the programs' threads ran in so many seconds, once all of them have begun.
mkdir "$work/extra"
cat > "$work/extra/idle.sh" <<'TEXT'
switches() {
  for pid in $(pidof first_call); do cat /proc/$pid/task/*/status; done | awk '/ctxt_switches/ { sum += $2 } END { print sum + 0 }'
}
until [ "$(pidof first_call | wc -w)" -ge "$1" ]; do sleep 1; done
sleep 60
before=$(switches)
sleep "$2"
echo "GUEST-IDLE $(($(switches) - before)) context switches of $1 programs in $2 s"
TEXT
(cd "$work/extra" && find . | cpio --quiet -o -H newc -R 0:0) > "$work/initramfs"
cat "$work/base" >> "$work/initramfs"
status=0

# cost PID...: processor time in ticks, that of their ended children included, and context switches, of all threads of these processes.
cost() {
  local pid
  for pid in "$@"; do
    sed 's/^.*) //' "/proc/$pid/stat" 2> /dev/null | awk '{ print "ticks", $12 + $13 + $14 + $15 }'
    cat "/proc/$pid/task/"*/status 2> /dev/null | awk '/ctxt_switches/ { sum += $2 } END { print "switches", sum }'
  done | awk '{ sum[$1] += $2 } END { print sum["ticks"] + 0, sum["switches"] + 0 }'
}
# of_threads PID: context switches of each thread, named.
of_threads() {
  local task
  for task in /proc/"$1"/task/*; do
    echo "$(basename "$task") $(tr ' ' _ < "$task/comm") $(awk '/ctxt_switches/ { sum += $2 } END { print sum }' "$task/status")"
  done
}
calls() { daemon_status | python3 -c 'import json, sys; print(sum(each["calls"] for each in json.load(sys.stdin)["sessions"]))'; }
serving() { daemon_status | python3 -c 'import json, sys; print(sum(each["state"] == "serving" for each in json.load(sys.stdin)["sessions"]))'; }

for mode in "${modes[@]}"; do
  start_vms_daemon "$mode" "$vms"
  for vm in $(seq "$vms"); do
    count=$((sessions * vm / vms - sessions * (vm - 1) / vms))
    echo "& idle:root sh /idle.sh $count $idle_s" > "$work/commands$vm"
    for each in $(seq $count); do echo "& s$each /programs/first_call libcuda.so.1 1 1000000"; done >> "$work/commands$vm"
    echo wait >> "$work/commands$vm"
    set_plugged "$mode" "$vm"
    "$configs/run_vm.sh" --initramfs "$work/initramfs" "${plugged[@]}" --commands "$work/commands$vm" --log "$work/console$vm" \
      --timeout 1200 > /dev/null &
    vm_pids+=($!)
    # One after the other: an emulated machine takes both processors while it starts.
    for _ in $(seq 600); do [ "$(serving)" -lt $((sessions * vm / vms)) ] || break; sleep 1; done
    [ "$(serving)" -ge $((sessions * vm / vms)) ] || daemon_failed "VM $vm has too few sessions: $(serving) in all."
  done
  # Until what their start has left to do is done: no call for half a minute.
  for _ in $(seq 20); do
    calls_before=$(calls)
    sleep 30
    [ "$(calls)" != "$calls_before" ] || break
  done
  qemu_pids=$(for pid in "${vm_pids[@]}"; do pgrep -P "$pid" qemu; done)
  worker_pids=$(workers) launcher_pid=$(pgrep -P "$daemon_pid" causeway-launch)
  sleep 5  # until the daemon, which has just been asked, sleeps again
  threads_before=$(of_threads "$daemon_pid")
  # shellcheck disable=SC2086  # lists of words
  before=("$(cost "$daemon_pid")" "$(cost "$launcher_pid")" "$(cost $worker_pids)" "$(cost $qemu_pids)")
  sleep "$idle_s"
  # shellcheck disable=SC2086
  after=("$(cost "$daemon_pid")" "$(cost "$launcher_pid")" "$(cost $worker_pids)" "$(cost $qemu_pids)")
  names=("causewayd" "causeway-launcher" "workers" "VMs (QEMU, guests included)")
  for i in 0 1 2 3; do
    echo "${before[i]} ${after[i]}" | awk -v what="$mode, $sessions idle sessions in $vms VMs: ${names[i]}" -v hz="$(getconf CLK_TCK)" -v s="$idle_s" \
      '{ printf "%s: %.2f s of processor time and %d context switches in %d s\n", what, ($3 - $1) / hz, $4 - $2, s }'
  done
  daemon_ran=$((${after[0]#* } - ${before[0]#* }))
  if [ "$mode" = doorbell ] && [ $daemon_ran != 0 ]; then
    diff <(echo "$threads_before") <(of_threads "$daemon_pid") | sed -n 's/^[<>]/  thread (number, name, switches):/p' || true
    status=1
  fi
  # The last VM's guest began last.
  for _ in $(seq $((idle_s + 120))); do [ "$(cat "$work"/console* | grep -ac 'GUEST-IDLE [0-9]')" -lt "$vms" ] || break; sleep 1; done
  cat "$work"/console* | grep -ao 'GUEST-IDLE [0-9].*' | tr -d '\r' | sed "s/^GUEST-IDLE/$mode, in one guest:/" || true
  [ "$(serving)" = "$sessions" ] || daemon_failed "sessions ended meanwhile."
  end_vms
  rm -f "$work"/console*
done
exit $status
