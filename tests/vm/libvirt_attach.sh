#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `causeway attach`, `detach` and `list` with a real libvirtd, a real causewayd and emulated VMs (private_libvirtd.sh).
# usage: libvirt_attach.sh BUILD_DIR [MODE...]      modes: refusals pc q35 two restart session all (default: refusals pc)
#   environment: KEEP=DIR keeps the logs and consoles
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu
# shellcheck source=tests/vm/private_libvirtd.sh
. "$here/private_libvirtd.sh"
shift
modes="${*:-refusals pc}"
[ "$modes" != all ] || modes="refusals pc q35 two restart session"
prefix=lv$$

# ---- guests: as soon as there is a device, they run a program as an ordinary user, again and again -----------------
make_guest() {
  mkdir "$work/extra" "$work/extra/etc"
  echo 'agent:root sh /agent.sh' > "$work/extra/etc/causeway_commands"
  cat > "$work/extra/agent.sh" <<'TEXT'
round=0
while true; do
  round=$((round + 1)) nodes=0 exit=none
  for node in /dev/causeway*; do
    [ -c "$node" ] || continue
    nodes=$((nodes + 1))
    chown root:render "$node"
    chmod 0660 "$node"
  done
  if [ $nodes != 0 ]; then
    timeout -s KILL 60 su gpu1 -c 'LD_LIBRARY_PATH=/usr/lib/causeway /programs/vector_add' > /run/vector_add 2>&1
    exit=$?
    if ! kill -0 "$(cat /run/load.pid 2> /dev/null)" 2> /dev/null; then
      (su gpu2 -c 'LD_LIBRARY_PATH=/usr/lib/causeway exec /programs/soak 100000 1' > /dev/null 2>&1;
       echo "LOAD-ENDED $?" > /dev/console) &
      echo $! > /run/load.pid
    fi
  fi
  echo "ROUND $round nodes=$nodes exit=$exit $(tail -n 1 /run/vector_add 2> /dev/null)" > /dev/console
  dmesg | grep -E 'WARNING:|BUG[: ]|Oops|general protection' | sed 's/^/KERNEL-FAULT /' > /dev/console
  sleep 1
done
TEXT
  (cd "$work/extra" && find . | cpio --quiet -o -H newc -R 0:0) > "$work/initramfs"
  "$configs/demo_initramfs.sh" --output "$work/base" --library "$build/guest_lib/libcuda.so.1" \
    --program "$build/programs/vector_add" --program "$build/tests/soak/soak"
  cat "$work/base" >> "$work/initramfs"
  cp "$KERNEL" "$work/kernel"
  chmod 0644 "$work/kernel" "$work/initramfs"
}

# domain_xml NAME MACHINE CONSOLE [EXTRA_DEVICES]
domain_xml() {
  cat <<TEXT
<domain type='qemu'>
  <name>$1</name>
  <memory unit='MiB'>448</memory>
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='$2'>hvm</type>
    <kernel>$work/kernel</kernel>
    <initrd>$work/initramfs</initrd>
    <cmdline>console=ttyS0 no_timer_check quiet loglevel=3 panic=-1 oops=panic nokaslr mitigations=off random.trust_cpu=on causeway.timeout_s=100000</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum'/>
  <devices>
    <serial type='file'><source path='$3' append='on'/><target port='0'/></serial>
    <memballoon model='none'/>
    ${4:-}
  </devices>
</domain>
TEXT
}

define() {
  domain_xml "$1" "$2" "$work/$1.console" > "$work/$1.xml"
  virsh -q define "$work/$1.xml" > /dev/null
}

# await NAME SECONDS PATTERN: a new line of the console, since the last such call that marked the place (mark NAME).
mark() { marks[$1]=$(wc -l < "$work/$1.console" 2> /dev/null || echo 0); }
declare -A marks
await() {
  local end=$((SECONDS + $2))
  while [ $SECONDS -lt $end ]; do
    tail -n "+$((${marks[$1]:-0} + 1))" "$work/$1.console" 2> /dev/null | tr -d '\r' | grep -qaE "$3" && return
    sleep 0.3
  done
  tail -n 20 "$work/$1.console" >&2 || true
  tail -n 20 "$work/causewayd.log" >&2
  fail "$1: no line \"$3\" within $2 s."
}
works() { mark "$1"; await "$1" "${2:-240}" '^ROUND [0-9]+ nodes=1 exit=0 '; }
has_none() { mark "$1"; await "$1" "${2:-120}" '^ROUND [0-9]+ nodes=0 exit=none'; }

step() { echo "libvirt_attach.sh: $* ($SECONDS s)"; }

# refuses PATTERN COMMAND...: exits 1 with that sentence, and changes nothing that libvirt or causewayd know.
state_of_all() {
  local domain
  for domain in $(virsh -q list --all --name 2> /dev/null); do virsh dumpxml --inactive "$domain"; virsh dumpxml "$domain"; done
  cw list --json 2>&1 || true
  ls "$work/state/vms.d" 2> /dev/null || true
  find /dev/shm -name "causeway-$prefix*" | sort
}
refuses() {
  local pattern=$1 status=0 before
  shift
  before=$(state_of_all)
  "$@" > "$work/refusal" 2>&1 || status=$?
  [ "$status" = 1 ] || fail "\"$*\" exited with $status instead of 1: $(cat "$work/refusal")"
  grep -qE "$pattern" "$work/refusal" || fail "\"$*\" does not say \"$pattern\": $(cat "$work/refusal")"
  [ "$(wc -l < "$work/refusal")" = 1 ] || fail "\"$*\" says more than one sentence: $(cat "$work/refusal")"
  [ "$before" = "$(state_of_all)" ] || fail "\"$*\" was refused, and changed something."
}

mode_pc() {
  local name=$prefix-pc
  step "pc: attached cold"
  define "$name" pc
  cw attach "$name" --memory 128M
  [ -f "$work/state/vms.d/$name.toml" ] || fail "the VM was not kept for the next start of causewayd."
  [ "$(stat -c '%a %G %s' "/dev/shm/causeway-$name")" = "660 libvirt-qemu $((128 << 20))" ] || fail "the region has another owner, mode or size."
  virsh -q start "$name" > /dev/null
  works "$name"
}

make_guest
start_libvirtd
start_daemon
for mode in $modes; do "mode_$mode"; done
step "passed: $modes"
