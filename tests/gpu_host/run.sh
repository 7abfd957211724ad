#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a real GPU, in one run: the referee programs natively, through the local transport, over TCP
# and in a VM; PyTorch natively and through the local transport; `causeway bench` beside native.
# usage: run.sh BUILD_DIR OUTPUT_DIR [VM_PACK]
#   BUILD_DIR   a build of this project made elsewhere (binaries may be stripped)
#   VM_PACK     folder made by pack_vm.sh; without it the VM part is left out
# Writes OUTPUT_DIR/{programs,libraries,tcp}.md, pytorch.txt, bench.{txt,json}, bench.vm.json, vm.log, summary.txt. Exits 1 if anything differs.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n '5,8s/^# //p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
pack=${3:-}
[ -z "$pack" ] || pack=$(cd "$pack" && pwd)
run="$build/host_backend/causeway run"
failed=0
note() { echo "$*" | tee -a "$out/summary.txt"; }
part() { # NAME COMMAND...: runs it, notes how it ended
  local name=$1
  shift
  echo "== $name" >&2
  if "$@"; then note "$name: ok"; else note "$name: FAILED ($?)"; failed=1; fi
}
: > "$out/summary.txt"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -1 | tee -a "$out/summary.txt"

# Programs: natively first, that run is the referee. NVIDIA's libraries are too large for the small VM; mapped host
# memory needs shared memory, so the programs that use it do not run over TCP.
mapfile -t names < <(grep -vE '^(cublas|fft)' "$build/programs/programs.txt")
mapfile -t library_names < <(grep -E '^(cublas|fft)' "$build/programs/programs.txt")
mapfile -t tcp_names < <(grep -vE '^(error_codes|async_pinned|graph_capture|memory_kinds|per_thread_stream)$' "$build/programs/programs.txt")
native=(--way native=)
local=(--way "local=$run --daemon-log $out/local.log --")
tcp=(--way "tcp=$run --tcp --daemon-log $out/tcp.log --")
compare() { # TABLE options...
  python3 "$here/../programs/compare.py" --programs "$build/programs" --markdown "$out/$1.md" "${@:2}"
}
captured=()

vm() {
  local work region status=0
  work=$(mktemp -d)
  region=/dev/shm/causeway-gpu-test-$$
  printf 'socket = "%s"\nworker = "%s"\n[[vm]]\nname = "demo"\nregion_file = "%s"\nregion_mib = 512\n' \
    "$work/causeway.sock" "$build/host_backend/causeway-worker" "$region" > "$work/causewayd.toml"
  "$build/host_backend/causewayd" --config "$work/causewayd.toml" > "$out/causewayd.log" 2>&1 &
  local daemon=$!
  for _ in $(seq 100); do
    "$build/host_backend/causeway" status --json --socket "$work/causeway.sock" > /dev/null 2>&1 && break
    sleep 0.1
  done
  for name in "${names[@]}"; do echo "$name /programs/$name"; done > "$work/commands"
  { echo "& together.1 /programs/${names[0]}"; echo "& together.2:gpu2 /programs/${names[1]}"; echo wait; } >> "$work/commands"
  echo "bench /programs/causeway-bench-probe libcuda.so.1 --calls" >> "$work/commands"
  "$pack/run_packed_vm.sh" --region "$region" --commands "$work/commands" --log "$out/vm.log" --timeout 280 \
    --program-timeout 100 > /dev/null || status=$?
  kill "$daemon"
  wait "$daemon" 2> /dev/null
  rm -f "$region"
  python3 "$here/../vm/vm_capture.py" "$out/vm.log" "$out/vm" > /dev/null
  [ "$status" -le 1 ]
}
if [ -n "$pack" ]; then
  part "VM boots and runs every program" vm
  captured=(--captured "vm=$out/vm")
fi
part "programs agree" compare programs "${native[@]}" "${local[@]}" "${captured[@]}" --only "${names[@]}"
part "programs on NVIDIA's libraries agree" compare libraries "${native[@]}" "${local[@]}" --only "${library_names[@]}"
part "programs agree over TCP" compare tcp "${native[@]}" "${tcp[@]}" --only "${tcp_names[@]}"

pytorch() {
  local script=$here/../frameworks/pytorch_basic.py
  timeout 200 python3 "$script" > "$out/pytorch.native.txt" 2> "$out/pytorch.native.err" || return 1
  # shellcheck disable=SC2086
  timeout 200 $run --daemon-log "$out/pytorch.log" -- python3 "$script" > "$out/pytorch.txt" 2> "$out/pytorch.err" || return 2
  diff "$out/pytorch.native.txt" "$out/pytorch.txt" > "$out/pytorch.diff"
}
part "PyTorch agrees" pytorch

bench() { "$build/host_backend/causeway" bench --daemon-log "$out/bench.log" --json "$out/bench.json" > "$out/bench.txt" 2> "$out/bench.err"; }
part "bench" bench
cp "$out/vm/bench.stdout" "$out/bench.vm.json" 2> /dev/null
rm -rf "$out/vm"
cat "$out/bench.txt"
exit "$failed"
