#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The table of modes: a domain's whole life with a region, in each kind of machine, with a real libvirtd, a real causewayd and emulated
# VMs (private_libvirtd.sh). Each row is a kind, each column a step of its life; a table is printed at the end.
# shellcheck disable=SC2016  # in the guest's commands the guest's shell expands
# usage: modes.sh BUILD_DIR [--only ROW]... [--steps STEP,...] [--list]
#   ROW: MODE-MACHINE-FIRMWARE-PROCESSORS such as plain-q35-ovmf-one, or two_regions; a part of it chooses all that contain it. MODE is
#   plain, doorbell, or chosen: what attach chooses, doorbells where the domain is shut off and plain where it runs
#   STEP: those of the table, which are the default, and silent
#   environment: PAUSE_S=S seconds that a VM is paused for (default 70); KEEP=DIR keeps the logs and consoles
# exit status: 0 all cells passed; 77 it cannot be tried here, and the last line says why; else a cell failed
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
steps="cold detach hot unload refused pause s3 daemon libvirtd reboot panic reset kill save end"
rows=()
for machine in pc q35; do
  for kind in seabios-several seabios-one ovmf-several ovmf-one; do rows+=("plain-$machine-$kind" "doorbell-$machine-$kind"); done
done
rows+=(chosen-pc-seabios-several)
rows+=(two_regions)

chosen=() row=''
arguments=("${@:2}")
set -- "${arguments[@]}"
while [ $# -gt 0 ]; do
  case "$1" in
    --only)
      found=()
      for each in "${rows[@]}"; do [[ $each != *"$2"* ]] || found+=("$each"); done
      [ ${#found[@]} -gt 0 ] || { echo "modes.sh: no row is called $2; see --list" >&2; exit 2; }
      chosen+=("${found[@]}"); shift 2 ;;
    --steps) steps=${2//,/ }; shift 2 ;;
    --row) row=$2; shift 2 ;;  # of this script's own
    --list) printf '%s\n' "${rows[@]}"; exit ;;
    *) sed -n '3,4s/^# //p; 6,12s/^# //p' "$0" >&2; exit 2 ;;
  esac
done

# ---- the table: one process for each row, with a libvirtd and a causewayd of its own -------------------------------
if [ -z "$row" ]; then
  results=$(mktemp)
  trap 'rm -f "$results"' EXIT
  [ ${#chosen[@]} -gt 0 ] || chosen=("${rows[@]}")
  failed=0
  for row in "${chosen[@]}"; do
    status=0
    KEEP=${KEEP:+$KEEP/$row} "$0" "$build" --steps "${steps// /,}" --row "$row" > "$results.row" 2>&1 || status=$?
    cat "$results.row"
    [ "$status" != 77 ] || exit 77
    [ "$status" = 0 ] || failed=1
    sed -n 's/^CELL //p' "$results.row" >> "$results"
    rm -f "$results.row"
  done
  python3 - "$results" <<'TEXT'
import sys
table, columns = {}, []
for line in open(sys.argv[1]):
    row, step, result, seconds = line.split()
    table.setdefault(row, {})[step] = f"{result} {seconds}s"
    if step not in columns:
        columns.append(step)
print()
print("| row | " + " | ".join(columns) + " |")
print("|---" * (len(columns) + 1) + "|")
for row, cells in table.items():
    print(f"| {row} | " + " | ".join(cells.get(step, "-") for step in columns) + " |")
TEXT
  exit $failed
fi

# ---- one row ------------------------------------------------------------------------------------------------------
command -v qemu-img > /dev/null || { echo "modes.sh: qemu-img is not installed (qemu-utils)"; exit 77; }
set -- "$build" "${arguments[@]}"
driver=$build/software_gpu
# shellcheck source=tests/vm/private_libvirtd.sh
. "$here/private_libvirtd.sh"
prefix=md$$
# shellcheck source=tests/vm/libvirt_guests.sh
. "$here/libvirt_guests.sh"
vm=$prefix-vm mib=128 attach_options=()

say() { echo "modes.sh: $row: $*"; }
attach() { by_readme "$vm" attach "${attach_options[@]}" | tee "$work/said"; }
# mode_is plain|doorbell [POLLED]: what list and status say, and whether the guest has an interrupt. In doorbell mode nobody looks at the
# VM's rings (POLLED: False), unless its QEMU was connected to an earlier causewayd (True).
mode_is() {
  local rings=no
  [ "$1" = plain ] || rings=yes
  guest_says "$vm" "grep -qx $rings /sys/class/causeway/causeway/doorbell" || fail "the guest has another mode than $1."
  for _ in $(seq 300); do
    cw list --json | python3 -c "
import json, sys
row = [each for each in json.load(sys.stdin) if each['domain'] == '$vm'][0]
sys.exit(not (row['mode'] == '$1' and row['polled'] == ${2:-False}))" && return
    sleep 0.2
  done
  fail "the mode is not $1 with polled=${2:-False} within 60 s: $(cw list)"
}
domain_is() {
  for _ in $(seq 300); do
    [ "$(virsh domstate "$vm" 2> /dev/null | head -n 1)" != "$1" ] || return 0
    sleep 0.2
  done
  fail "domain $vm is $(virsh domstate "$vm") and not $1 within 60 s."
}
# What was running goes on: the load has lived since mark.
load_lives() {
  ! lines_since_mark "$vm" | grep -qa '^LOAD-ENDED' || fail "the running program ended: $(lines_since_mark "$vm" | grep -a '^LOAD-ENDED')"
  loaded "$vm"
}
# A program is told what is missing.
program_says() {
  guest_says "$vm" "! su gpu1 -c 'LD_LIBRARY_PATH=/usr/lib/causeway /programs/vector_add'" | grep "$1" ||
    fail "a program is not told \"$1\": $(guest_says "$vm" 'cat /run/answer' || true)"
}
booted_again() {
  await "$vm" 600 '^BOOTED'  # OVMF on a busy machine takes minutes
  works "$vm"
}

# A disk, without which libvirt makes no snapshot of its own, and the port of guest_says.
extra_devices() {
  qemu-img create -q -f qcow2 "$work/sockets/disk" 1M
  chown libvirt-qemu: "$work/sockets/disk"
  echo "<serial type='unix'><source mode='bind' path='$work/sockets/$vm'/><target port='1'/></serial>
    <disk type='file' device='disk'><driver name='qemu' type='qcow2'/><source file='$work/sockets/disk'/><target dev='vda' bus='virtio'/></disk>"
}

step_cold() {
  define "$vm" "$machine" "$(extra_devices)"
  attach
  if [ "$mode" = chosen ]; then
    now=doorbell
    grep -q 'in doorbell mode, when it starts. A call after idle time' "$work/said" || fail "attach does not explain what it chose."
  fi
  check_kept "$vm"
  virsh -q start "$vm" > /dev/null
  works "$vm"
  guest_says "$vm" "test \$(nproc) = $([ "$processors" = one ] && echo 1 || echo 2)" || fail "the guest has not $processors processors."
  [ "$firmware" = seabios ] || guest_says "$vm" 'test -d /sys/firmware/efi' || fail "the guest was not started by OVMF."
  by_readme "$vm" list | grep -E "^$vm +running .* now and next start +$now .* ok$" > /dev/null || fail "list: $(cw list)"
  guest_says "$vm" "$(readme_command 'dmesg ')" | grep -a "region of $mib MiB" || fail "the guest's log does not name its region."
  guest_says "$vm" "$(readme_command 'cat /sys')" | grep '^[1-9]' || fail "the guest has no free slices."
  mode_is "$now"
}

step_detach() {
  loaded "$vm"
  refuses 'programs have a session' by_readme "$vm" detach
  if [ "$now" = doorbell ]; then
    guest_says "$vm" 'touch /run/hold'
    for _ in $(seq 300); do
      [ "$(daemon_status | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["sessions"]))')" != 0 ] || break
      sleep 0.2
    done
    refuses 'runs without KVM and in doorbell mode, and such a QEMU may crash' cw detach "$vm"
    guest_says "$vm" 'rm /run/hold'
    loaded "$vm"
  fi
  mark "$vm"
  by_readme "$vm" detach --force
  await "$vm" 60 '^LOAD-ENDED [1-9]'
  has_none "$vm"
  check_gone "$vm"
  program_says 'this machine has no ivshmem device: run `causeway attach DOMAIN` on its host'
  start_anew
}
# An emulated QEMU whose doorbell region was taken away may crash (docs/attaching.md).
start_anew() {
  [ "$now" = doorbell ] || return 0
  virsh -q destroy "$vm" > /dev/null
  mark "$vm"
  virsh -q start "$vm" > /dev/null
  await "$vm" 600 '^BOOTED'
  has_none "$vm"
}

step_hot() {
  attach
  if [ "$mode" = chosen ]; then
    now=plain
    grep -q 'in plain mode, now and from its next start on. A VM that runs' "$work/said" || fail "attach does not explain what it chose."
  fi
  check_kept "$vm"
  works "$vm"
  mode_is "$now"
  [ "$machine" = pc ] || virsh dumpxml --inactive "$vm" | grep -c pref64-reserve | grep -qx 1 || fail "one prepared port is enough."
}

# The module cannot be unloaded under a program; without one it can, and the loaded one works.
step_unload() {
  loaded "$vm"
  mark "$vm"
  guest_says "$vm" '! rmmod causeway' | grep -i "resource\|in use" || fail "the module was unloaded, or refused without a reason."
  load_lives
  guest_says "$vm" 'touch /run/hold; tries=0; until rmmod causeway; do tries=$((tries + 1)); [ $tries -lt 60 ] || exit 1; sleep 1; done' ||
    fail "the module cannot be unloaded when nothing uses it."
  program_says 'the kernel module is not loaded: run `modprobe causeway` as root'
  guest_says "$vm" 'test ! -e /dev/causeway && insmod /lib/causeway.ko && rm /run/hold' || fail "the module cannot be loaded again."
  works "$vm"
}

# Nothing may copy a VM whose region the GPU writes to. What libvirt says is printed, for the table of docs/attaching.md.
step_refused() {
  loaded "$vm"
  mark "$vm"
  printf '#!/bin/sh\nexec virt-ssh-helper qemu:///system\n' > "$work/ssh"
  chmod 0755 "$work/ssh"
  libvirt_refuses virsh save "$vm" "$work/saved"
  libvirt_refuses virsh managedsave "$vm"
  libvirt_refuses virsh snapshot-create-as "$vm" snapshot --memspec "file=$work/memory,snapshot=external"
  libvirt_refuses virsh snapshot-create-as "$vm" snapshot
  libvirt_refuses virsh migrate --live "$vm" "qemu+ssh://elsewhere/system?command=$work/ssh"
  load_lives
  works "$vm"
}
libvirt_refuses() {
  local status=0
  "$@" > "$work/refusal" 2>&1 || status=$?
  [ "$status" != 0 ] || fail "\"$*\" was not refused."
  say "${*:1:2}: $(grep -v '^$' "$work/refusal" | tr '\n' ' ')"
  grep -qiE 'shmem|ivshmem|peer mode' "$work/refusal" || fail "\"$*\" was refused for another reason: $(cat "$work/refusal")"
  domain_is running
}

# Paused for longer than any wait lasts; then the clock jumps, forth and back.
step_pause() {
  loaded "$vm"
  mark "$vm"
  virsh -q suspend "$vm" > /dev/null
  domain_is paused
  sleep "${PAUSE_S:-70}"
  virsh -q resume "$vm" > /dev/null
  guest_says "$vm" 'date -s @$(($(date +%s) + 86400))'
  load_lives
  lines_since_mark "$vm" | grep -a '^LOAD-ENDED' && fail "a running program ended."
  works_with_load
  guest_says "$vm" 'date -s @$(($(date +%s) - 86400))'
  works_with_load
}
# A program that starts now works, and the one of before goes on.
works_with_load() {
  local before=${marks[$vm]}
  works "$vm"
  marks[$vm]=$before
  load_lives
}

# Suspended to memory by its guest, and woken.
step_s3() {
  loaded "$vm"
  mark "$vm"
  guest_says "$vm" 'grep -q deep /sys/power/mem_sleep || exit 1; (sleep 1; echo deep > /sys/power/mem_sleep; echo mem > /sys/power/state; echo "S3-ENDED $?" > /dev/console) &' ||
    fail "the guest knows no S3."
  domain_is pmsuspended
  sleep 3
  virsh -q dompmwakeup "$vm" > /dev/null
  domain_is running
  await "$vm" 120 '^S3-ENDED 0'
  works_with_load
}

step_daemon() {
  loaded "$vm"
  mark "$vm"
  kill -9 "$daemon_pid"
  wait "$daemon_pid" 2> /dev/null || true
  start_daemon
  await "$vm" 120 '^LOAD-ENDED [1-9]'
  works "$vm"
  loaded "$vm"
  stop_daemon
  start_daemon
  works "$vm"
  # QEMU does not connect to another server.
  [ "$now" = plain ] || mode_is doorbell True
}

# A program that begins while there is no causewayd waits for a moment, in case that it is being restarted, and is then told. Not a column.
step_silent() {
  guest_says "$vm" 'touch /run/hold; sleep 3'
  stop_daemon
  program_says 'is causewayd running? There `systemctl start causewayd` starts it'
  start_daemon
  guest_says "$vm" 'rm /run/hold'
  works "$vm"
}

step_libvirtd() {
  loaded "$vm"
  mark "$vm"
  stop_libvirtd
  start_libvirtd
  works_with_load
}

step_reboot() {
  mark "$vm"
  guest_says "$vm" '(sleep 1; reboot -f) &'
  booted_again
}

step_panic() {
  loaded "$vm"
  mark "$vm"
  guest_says "$vm" '(sleep 1; echo c > /proc/sysrq-trigger) &'
  booted_again
}

step_reset() {
  loaded "$vm"
  mark "$vm"
  virsh -q reset "$vm" > /dev/null
  booted_again
}

# The sessions of a VM that is gone are gone, though nobody has said so.
step_kill() {
  loaded "$vm"
  mark "$vm"
  kill -9 "$(cat "/run/libvirt/qemu/$vm.pid")"
  domain_is 'shut off'
  virsh -q start "$vm" > /dev/null
  booted_again
  loaded "$vm"
  mode_is "$now"
}

# What the sentence of docs/attaching.md says: detached, it is saved, restored and attached again.
step_save() {
  cw detach "$vm" --force
  has_none "$vm"
  start_anew
  install -o libvirt-qemu -m 0600 /dev/null "$work/saved"
  virsh -q save "$vm" "$work/saved" > /dev/null
  virsh -q restore "$work/saved" > /dev/null
  rm -f "$work/saved"
  has_none "$vm"
  attach
  works "$vm"
}

step_end() { end_of "$vm"; }

# A second region, which `attach` gives to no VM: its XML and its [[vm]] table are written by hand.
step_two() {
  local second=$prefix-second
  make_config "[[vm]]
name = \"$second\"
region_file = \"/dev/shm/causeway-$second\"
region_mib = 64
region_group = \"libvirt-qemu\""
  stop_daemon
  start_daemon
  machine=pc
  define "$vm" pc "$(extra_devices)"
  attach
  virsh -q attach-device "$vm" <("$build_bin/causeway" xml "$second" --memory 64M) --config > /dev/null
  virsh -q start "$vm" > /dev/null
  works "$vm" 240 2
  local node bytes total=0
  for node in /dev/causeway /dev/causeway1; do
    guest_says "$vm" "su gpu1 -c 'CAUSEWAY=module:$node LD_LIBRARY_PATH=/usr/lib/causeway /programs/vector_add'" || fail "no program runs by $node."
    bytes=$(guest_says "$vm" "cat /sys/class/causeway/${node#/dev/}/region_bytes")
    total=$((total + bytes))
  done
  [ $total = $(((128 + 64) << 20)) ] || fail "the two regions have $total bytes."
  refuses "has the regions causeway-.* and causeway-.*name one of them" cw detach "$(virsh domuuid "$vm" | head -n 1)"
  say "one of them is detached"
  cw detach "$second" --force
  works "$vm" 240 1
  end_of "$vm"
}

if [ "$row" = two_regions ]; then
  steps=two
else
  IFS=- read -r mode machine firmware processors <<< "$row"
fi
if [ "$firmware" = ovmf ] && [ ! -r /usr/share/ovmf/OVMF.fd ]; then
  echo "modes.sh: OVMF is missing: install the package ovmf"
  exit 77
fi
mode=${mode:-plain} now=$mode
[ "$mode" = chosen ] || attach_options=("--$mode")
make_guest
start_libvirtd
start_daemon
for step in $steps; do
  say "$step"
  began=$SECONDS current=$step
  trap 'echo "CELL $row $current FAILED $((SECONDS - began))"; clean_up' EXIT
  "step_$step"
  ! grep -qa KERNEL-FAULT "$work/$vm.console" || fail "the guest's kernel: $(grep -a KERNEL-FAULT "$work/$vm.console" | head -n 3)"
  trap clean_up EXIT
  echo "CELL $row $step passed $((SECONDS - began))"
done
