#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures calls inside the VM that make_pack.sh has packed, and then on the host, natively and through shared memory. A system call or a page
# fault of that VM's programs takes a quarter of a millisecond or more, because KVM emulates the guest's kernel. So the figures say nothing of
# calls that make one.
# usage: bench.sh BUILD PACK OUTPUT_DIR [--driver FILE] [--only PATTERN] [--rounds N] [--limit S]
# Leaves OUTPUT_DIR/vm.txt, host.txt and console.log. Exit status: 0; 1 nothing could be measured; 77 /dev/kvm cannot be used.
set -euo pipefail
[ $# -ge 3 ] || { sed -n '3,7s/^# //p' "$0" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
fail() { echo "bench.sh: $*" >&2; exit 1; }
build=$(cd "$1" && pwd) pack=$(cd "$2" && pwd)
mkdir -p "$3"
out=$(cd "$3" && pwd)
shift 3
driver='' rounds=5 limit=200
only='empty_call|stream_sync_idle|context_sync_idle|event_query_done|stream_query_done|launch_*|h2d_*|d2h_small|event_record'
while [ $# -gt 0 ]; do
  case "$1" in
    --driver) driver=$2 ;; --only) only=$2 ;; --rounds) rounds=$2 ;; --limit) limit=$2 ;;
    *) echo "bench.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
if [ ! -r /dev/kvm ] || [ ! -w /dev/kvm ]; then echo "bench.sh: /dev/kvm cannot be used: no program of a VM runs at the processor's speed here." >&2; exit 77; fi

work=$(mktemp -d)
region=/dev/shm/causeway-hardware-speed-$$
# shellcheck source=tests/vm/own_daemon.sh
. "$here/../vm/own_daemon.sh"
trap 'stop_daemon; rm -rf "$work" "$region"' EXIT
{
  printf 'socket = "%s"\nworker = "%s"\n' "$work/causeway.sock" "$build/host_backend/causeway-worker"
  [ -z "$driver" ] || printf 'driver_library = "%s"\n' "$(realpath "$driver")"
  printf '[[vm]]\nname = "demo"\nregion_file = "%s"\nregion_mib = 64\n' "$region"
} > "$work/causewayd.toml"
start_daemon

# CPUID is executed by the processor, whatever QEMU says of it, so the kernel itself is told what the emulator lacks: SMAP, SMEP, FSGSBASE,
# INVPCID, PKU, UMIP, CX16, RDPID, PCID and POPCNT, and by noxsave all of XSAVE.
words="clearcpuid=308,295,288,298,515,514,141,534,145,151 noxsave nopti lpj=20000000 tsc=reliable"
printf 'bench /programs/causeway-bench --guest-only --guest-library /usr/lib/causeway --rounds %s --limit %s --only %s\n' \
  "$rounds" "$limit" "$only" > "$work/commands"
ACCEL=kvm CPU=qemu64,cx16=off,svm=off "$pack/run_packed_vm.sh" --region "$region" --commands "$work/commands" --memory 1024 --cpus 1 \
  --machine pc,hpet=off --timeout $((limit + 150)) --append "$words" --log "$out/console.log" > "$out/run_vm.txt" 2>&1 || true
# Without the line that shows the progress, which is written over itself.
tr -d '\r' < "$out/console.log" | sed 's/.*\x1b\[K//' | grep -a . | sed -n '/^BOOTED/,$p' > "$out/vm.txt"
# 3: some figures could not be measured, and the output says which.
grep -qE '^EXIT bench (0|3) ' "$out/vm.txt" || { tail -n 5 "$out/run_vm.txt" >&2; exit 1; }
stop_daemon
"$build/host_backend/causeway" bench --rounds "$rounds" --limit "$limit" --only "$only" ${driver:+--driver "$driver"} > "$out/host.txt" 2>&1 || [ $? = 3 ]
echo "== in the VM"
cat "$out/vm.txt"
echo "== on the host, natively and through shared memory"
cat "$out/host.txt"
