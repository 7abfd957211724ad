#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Boots Xen and its domain 0 in QEMU's emulation, which needs no support of virtualisation by this machine.
# usage: run_xen.sh --dom0 DIR --payload DIR --log FILE [--timeout S] [--xen-options TEXT] [--memory MIB]     (of these domain 0 has all but 1792)
#   --dom0     what make_dom0.sh made
#   --payload  becomes /causeway in domain 0; its dom0_init.sh is the first process there
# environment: QEMU: the program
# exit status: 0 the steps ended; 124 time is up; 3 it stands still; 1 it ended before its steps, or the kernel complained
set -euo pipefail
fail() { echo "run_xen.sh: $*" >&2; exit 1; }
dom0='' payload='' log='' timeout_s=600 xen_options='' memory=3072
while [ $# -gt 0 ]; do
  case "$1" in
    --dom0) dom0=$2 ;; --payload) payload=$2 ;; --log) log=$2 ;; --timeout) timeout_s=$2 ;;
    --xen-options) xen_options=$2 ;; --memory) memory=$2 ;;
    *) fail "unknown option $1" ;;
  esac
  shift 2
done
work=$(mktemp -d)
qemu_pid=''
stop() {
  [ -z "$qemu_pid" ] || kill "$qemu_pid" 2> /dev/null || true
  rm -rf "$work"
}
trap stop EXIT
mke2fs -q -t ext4 -O ^has_journal -d "$payload" -E root_owner=0:0 "$work/payload" "$(($(du -sm "$payload" | cut -f 1) * 5 / 4 + 64))M"

# What the emulated processor must not have: smap and smep end domain 0 at its entry, monitor faults in Xen's idle loop,
# rdtscp is more than the emulation of SVM can decode for guests.
# Without xsave: with it programs of two domains crashed at random in QEMU 7.2 (python3: "timestamp too large", busybox: SIGSEGV).
cpu=EPYC,+svm,+npt,-smap,-smep,-monitor,-rdtscp,-xsave
read -ra qemu <<< "${QEMU:-qemu-system-x86_64}"
"${qemu[@]}" -accel tcg,thread=multi -M q35 -cpu "$cpu" -m "$memory" -smp 1 -nographic -no-reboot -net none -snapshot \
  -kernel "$dom0/xen" \
  -append "console=com1 com1=115200,8n1 dom0_mem=$((memory - 1792))M,max:$((memory - 1792))M dom0_max_vcpus=1 cpuidle=0 loglvl=warning guest_loglvl=warning noreboot $xen_options" \
  -initrd "$dom0/vmlinux console=hvc0 quiet loglevel=4 panic=-1 oops=panic watchdog_thresh=60 mitigations=off random.trust_cpu=on,$dom0/dom0.initramfs" \
  -drive "file=$dom0/dom0.ext4,format=raw,if=none,id=root" -device ide-hd,drive=root,bus=ide.0 \
  -drive "file=$work/payload,format=raw,if=none,id=payload" -device ide-hd,drive=payload,bus=ide.1 \
  < /dev/null > "$log" 2> "$work/qemu.err" &
qemu_pid=$!
started=$SECONDS used=0 used_at=$SECONDS still_s=60
while kill -0 "$qemu_pid" 2> /dev/null; do
  sleep 0.5
  if [ $((SECONDS - started)) -ge "$timeout_s" ]; then
    echo "run_xen.sh: stopped after $timeout_s s; the last line was: $(tail -n 1 "$log" | tr -d '\r')" >&2
    exit 124
  fi
  # Xen's own timers use some time of an idle machine; one that uses none waits for an interrupt that QEMU has lost, and would until its time is up.
  read -ra figures < "/proc/$qemu_pid/stat" || break
  if [ $((figures[13] + figures[14])) != "$used" ]; then
    used=$((figures[13] + figures[14])) used_at=$SECONDS
  elif [ $((SECONDS - used_at)) -ge "$still_s" ]; then
    echo "run_xen.sh: the emulated machine has stood still for $still_s s: QEMU has lost its timer. The last line was: $(tail -n 1 "$log" | tr -d '\r')" >&2
    exit 3
  fi
  # Domain 0 powered off: the emulated machine does not always follow.
  if grep -qa '^DONE' "$log"; then sleep 2; break; fi
done
kill "$qemu_pid" 2> /dev/null || true
wait "$qemu_pid" 2> /dev/null || true
qemu_pid=''
grep -qa '^DONE' "$log" || { cat "$work/qemu.err" >&2; fail "the machine ended before its steps did."; }
! grep -a '^KERNEL-FAULT' "$log" || fail "the kernel complained."
