#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Boots the demo VM with a Causeway region, runs a list of commands in it, prints their output and EXIT lines.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

usage() {
  cat <<TEXT
usage: run_vm.sh --initramfs FILE [options]
  --region FILE        the VM's region, formatted by causewayd (without it: no ivshmem device)
  --doorbell SOCKET    instead of --region: where causewayd gives the region in doorbell mode (doorbell_socket)
  --commands FILE      one line each: NAME[:USER] COMMAND..., run in turn as USER (default gpu1; gpu2 and root exist);
                       a line that begins with "& " runs beside the next ones; "wait" waits for those
  --kernel FILE        guest kernel (default: the newest installed Debian kernel)
  --memory MIB         guest memory (default 512)       --cpus N        (default 2)
  --machine pc|q35     (default pc)                     --firmware seabios|ovmf   (default seabios)
  --timeout S          for the whole run (default 300)  --program-timeout S       for each command (default: the same)
  --module-options A=1,B=2   parameters of the kernel module      --append WORDS   more kernel command line
  --log FILE           keeps the console's output       --qemu-option OPT   handed to QEMU (repeatable)
  --host-root DIR      mounts this folder read-only, as the root in which the guest's /bin/in-host COMMAND... runs;
                       the initramfs needs demo_initramfs.sh --host-root
  --share DIR          with --host-root: the folder that COMMAND sees as /mnt
environment: QEMU=command (default qemu-system-x86_64), ACCEL=auto|kvm|tcg, CPU=QEMU's -cpu for KVM (default host),
             QEMU_MODULE_DIR as QEMU knows it
exit status: 0 all commands succeeded; 1 one failed; 3 the guest kernel reported a fault; 124 timed out; 125 could not start
TEXT
}
fail() { echo "run_vm.sh: $*" >&2; exit 125; }

initramfs='' region='' doorbell='' commands='' kernel=${KERNEL:-} memory=512 cpus=2 machine=pc firmware=seabios
timeout_s=300 program_timeout_s='' module_options='' append='' log='' host_root='' share='' extra=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h|--help) usage; exit 0 ;;
    --initramfs) initramfs=$2 ;; --region) region=$2 ;; --doorbell) doorbell=$2 ;; --commands) commands=$2 ;; --kernel) kernel=$2 ;;
    --memory) memory=$2 ;; --cpus) cpus=$2 ;; --machine) machine=$2 ;; --firmware) firmware=$2 ;;
    --timeout) timeout_s=$2 ;; --program-timeout) program_timeout_s=$2 ;;
    --module-options) module_options=$2 ;; --append) append=$2 ;; --log) log=$2 ;; --qemu-option) extra+=("$2") ;;
    --host-root) host_root=$2 ;; --share) share=$2 ;;
    *) usage >&2; exit 2 ;;
  esac
  shift 2
done
[ -n "$initramfs" ] || { usage >&2; exit 2; }
[ -r "$initramfs" ] || fail "initramfs $initramfs cannot be read: build it with demo_initramfs.sh."
[ -n "$kernel" ] || kernel=$("$here/find_kernel.sh") || exit 125
[ -r "$kernel" ] || fail "kernel $kernel cannot be read."
read -ra qemu <<< "${QEMU:-qemu-system-x86_64}"
command -v "${qemu[0]}" > /dev/null || fail "${qemu[0]} is missing: install the package qemu-system-x86."

arguments=(-M "$machine" -m "${memory}M" -display none -no-reboot -nodefaults -net none -serial stdio -monitor none -vga none)
if [ -n "$region" ]; then
  # QEMU aborts on sizes that are no power of two; here they get a sentence.
  [ -f "$region" ] || fail "region $region does not exist: start causewayd first, it creates and formats the file."
  bytes=$(stat -L -c %s "$region")
  if [ "$bytes" -lt $((64 << 20)) ] || [ $((bytes & (bytes - 1))) -ne 0 ]; then
    fail "region $region has $bytes bytes; a region is a power of two and at least 64 MiB."
  fi
  [ "$(head -c 8 "$region")" = CAUSEWAY ] || fail "region $region is not formatted: start causewayd first."
  [ -w "$region" ] || fail "region $region is not writable for $(id -un)."
  arguments+=(-object "memory-backend-file,id=causeway0,mem-path=$region,size=$bytes,share=on"
    -device "ivshmem-plain,memdev=causeway0,master=off")
fi
if [ -n "$doorbell" ]; then
  [ -z "$region" ] || fail "a region comes by --region or by --doorbell, not by both."
  [ -S "$doorbell" ] || fail "$doorbell is no socket: start causewayd with that doorbell_socket first."
  arguments+=(-chardev "socket,id=causeway0,path=$doorbell" -device "ivshmem-doorbell,vectors=2,chardev=causeway0")
fi
# share_folder TAG DIR: for the guest to mount by 9p; several file systems below DIR keep their inodes apart.
share_folder() {
  [ -d "$2" ] || fail "$2 is not a folder."
  arguments+=(-virtfs "local,path=$2,mount_tag=$1,security_model=none,readonly=on,multidevs=remap")
}
if [ -n "$host_root" ]; then
  share_folder hostroot "$host_root"
  share_folder share "${share:-$host_root/mnt}"
  append+="${append:+ }causeway.host_root=1"
fi
case "$firmware" in
  seabios) ;;
  ovmf)
    for file in "${OVMF:-}" /usr/share/ovmf/OVMF.fd /usr/share/qemu/OVMF.fd; do
      [ -n "$file" ] && [ -r "$file" ] && { arguments+=(-bios "$file"); firmware=; break; }
    done
    [ -z "$firmware" ] || fail "OVMF is missing: install the package ovmf or pass OVMF=OVMF.fd." ;;
  *) fail "unknown firmware $firmware: use seabios or ovmf." ;;
esac

# One entry of a cpio archive ("newc"), so that a host without cpio can boot a packed VM. $1: name, $2: mode, $3: file.
archive_entry() {
  local bytes=0 padding
  [ -z "$3" ] || bytes=$(stat -L -c %s "$3")
  printf '070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\0' \
    0 "$(($2))" 0 0 1 0 "$bytes" 0 0 0 0 $((${#1} + 1)) 0 "$1"
  padding=$(((4 - (110 + ${#1} + 1) % 4) % 4))
  [ "$padding" = 0 ] || head -c "$padding" /dev/zero
  [ -z "$3" ] || cat "$3"
  padding=$(((4 - bytes % 4) % 4))
  [ "$padding" = 0 ] || head -c "$padding" /dev/zero
}

work=$(mktemp -d)
qemu_pid=''
stop() {
  [ -z "$qemu_pid" ] || kill "$qemu_pid" 2> /dev/null || true
  rm -rf "$work"
}
trap stop EXIT
if [ -n "$commands" ]; then
  [ -r "$commands" ] || fail "commands $commands cannot be read."
  # The kernel unpacks archives one after the other, so the commands need no new initramfs.
  {
    archive_entry etc 040755 ''
    archive_entry etc/causeway_commands 0100644 "$commands"
    archive_entry 'TRAILER!!!' 0 ''
  } > "$work/initramfs"
fi
cat "$initramfs" >> "$work/initramfs"
# no_timer_check: on a busy host an emulated timer may be late, which the kernel takes for a broken one and panics.
words="console=ttyS0 no_timer_check quiet loglevel=3 panic=-1 oops=panic nokaslr mitigations=off random.trust_cpu=on"
words+=" causeway.timeout_s=${program_timeout_s:-$timeout_s}"
[ -z "$append" ] || words+=" $append"
[ -z "$module_options" ] || words+=" causeway.module_options=$module_options"
arguments+=(-kernel "$kernel" -initrd "$work/initramfs" -append "$words" "${extra[@]}")
log=${log:-$work/console}

# Runs QEMU until it ends or time is up. $1: accelerator; $2: seconds within which user space must be reached.
run_qemu() {
  local started=$SECONDS processor=(-accel "tcg,thread=multi" -cpu max)
  [ "$1" = kvm ] && processor=(-accel kvm -cpu "${CPU:-host}")
  : > "$log"
  "${qemu[@]}" "${processor[@]}" -smp "$cpus" "${arguments[@]}" < /dev/null > "$log" 2> "$work/qemu.err" &
  qemu_pid=$!
  tail -n +1 -f --pid=$qemu_pid -s 0.2 "$log" 2> /dev/null |
    stdbuf -oL tr -d '\r' | grep -a --line-buffered -v -e '^$' -e 'SeaBIOS' -e 'Booting from ROM' -e 'reboot: Power down' &
  local printer=$! state=ended
  while kill -0 "$qemu_pid" 2> /dev/null; do
    sleep 0.2
    if [ $((SECONDS - started)) -ge "$timeout_s" ]; then state=timeout; break; fi
    if [ $((SECONDS - started)) -ge "$2" ] && ! grep -qa '^BOOTED' "$log"; then state=not_booted; break; fi
  done
  kill "$qemu_pid" 2> /dev/null || true
  wait "$qemu_pid" 2> /dev/null || true
  qemu_pid=''
  wait "$printer" 2> /dev/null || true
  if [ $state = ended ] && ! grep -qa '^BOOTED' "$log"; then state=not_booted; fi
  outcome=$state
}

accelerator=${ACCEL:-auto}
if [ "$accelerator" = auto ]; then
  accelerator=tcg
  # A /dev/kvm without the processor's extension belongs to a hypervisor that ordinary kernels cannot use.
  if [ -r /dev/kvm ] && [ -w /dev/kvm ] && grep -qwE 'vmx|svm' /proc/cpuinfo; then
    accelerator=kvm
    run_qemu kvm 20
    if [ "$outcome" = not_booted ]; then
      echo "run_vm.sh: KVM did not boot the guest within 20 s ($(tail -n 1 "$work/qemu.err")): using emulation." >&2
      accelerator=tcg
      run_qemu tcg "$timeout_s"
    fi
  else
    run_qemu tcg "$timeout_s"
  fi
else
  run_qemu "$accelerator" "$timeout_s"
fi

case "$outcome" in
  timeout) echo "run_vm.sh: stopped after $timeout_s s ($accelerator); the last line was: $(tail -n 1 "$log" | tr -d '\r')" >&2; exit 124 ;;
  not_booted) cat "$work/qemu.err" >&2; echo "run_vm.sh: the guest did not reach user space ($accelerator)." >&2; exit 125 ;;
esac
grep -qa '^DONE' "$log" || { echo "run_vm.sh: the guest ended before its commands did." >&2; exit 1; }
if grep -qa '^KERNEL-FAULT' "$log"; then exit 3; fi
if grep -aE '^EXIT ' "$log" | tr -d '\r' | awk '$3 != 0 { bad = 1 } END { exit !bad }'; then exit 1; fi
