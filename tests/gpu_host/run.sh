#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that needs a real GPU, in one call; each part natively first: that run is the referee.
# usage: run.sh BUILD_DIR OUTPUT_DIR [VM_PACK] [--parts A,B,...] [--limit S] [--jobs N] [--only NAME...] [--few-files]
#   BUILD_DIR   a build of this project made elsewhere (binaries may be stripped)
#   VM_PACK     folder made by pack_vm.sh; without it the parts vm and vm-frameworks are left out
#   --parts     programs   the referee programs, natively and through the local transport
#               libraries  programs on NVIDIA's libraries (cuBLAS, cuFFT, ...), likewise
#               tcp        the referee programs over TCP and over TLS
#               driver     the conformance suite (tests/driver) natively, through the local transport, over TCP and over TLS
#               frameworks PyTorch, transformers, Triton, JAX, CuPy, Numba, NCCL, natively and through the local transport
#               frameworks-tls  the same natively and over TLS (only where --parts names it)
#               nvml       nvidia-smi and NVML natively and through Causeway's libnvidia-ml.so.1, where the build has one
#               hostile    guests that attack their worker (tests/hostile), over the local transport and TCP
#               sandbox    the conformance suite and nvidia-smi once more, with workers whose sandbox lets everything pass and
#                          reports it; the profiles of this host's driver made of that, and what the built-in ones lack
#                          (only where --parts names it)
#               vm         the referee programs in a VM (packed)
#               vm-frameworks  PyTorch, CuPy and programs on NVIDIA's libraries in a VM that mounts this host's root
#               bench      `causeway bench`, alone, after everything else: bench.txt, bench.json, copies.svg
#               (default: all)
#               hostile_beside  hostile guests beside a victim, and natively the same load beside it (tests/hostile/beside.py);
#                          as root, alone, only where it is named: --parts hostile_beside [--minutes N] [--seed N]
#               differential  random driver calls natively and through the local transport (tests/differential), only where it is
#                          named, one process at a time: differential.txt says what differs, counts.json adds up
#               answers    questions in 14 states of captures natively and through the local transport (tests/answers), only where it is
#                          named: answers/recorded.txt has the native answers in the form of tests/answers/h200_580_159.txt
#               bursts     36 and 200 starts of a program of one kernel, 1, 6 and 12 at a time, natively and through Causeway
#                          (tests/bench/bursts.py); alone, only where it is named
#               crowded    processes that share a few processors, natively and through Causeway (tests/bench/crowded.py): launches that are waited for,
#                          steps of many launches and, where PyTorch is there, training; by processor sets, and by cpu.max where the cpu controller
#                          can be had (as root); alone, only where it is named: crowded.txt has the tables; --only picks rows and kinds, as 4:4 torch
#               managed    managed memory that both processors use, natively and through Causeway (tests/bench/managed.py): prefetched back and forth, in
#                          turns, sparsely, by kernels alone, with advice; alone, only where it is named: managed.txt has the table; --only picks
#                          modes, as turns or kernel:1G
#               sharing    `causeway bench --sharing`: several users on one GPU natively, by MPS and through Causeway; as root, alone, only
#                          where it is named: sharing.md, sharing.json (which adds up faults and deaths over runs), two pictures
#               upkeep     PyTorch trains while causewayd is upgraded, restarted and killed (tests/upgrade/training.py), and `causeway top`,
#                          the exporter and NVML are compared (tests/system/figures_agree.py); alone, only where it is named
#   --minutes N how long hostile_beside goes on (default 8; the native load takes 4 more), and differential (default 4, before it
#               looks at what differs)    --seed N  of the attackers, or of the first random call
#   --limit S   ends every part so that the whole takes at most S seconds (default 580)
#   --jobs N    programs of the conformance suite, or framework scripts, at a time (default: half of the processors)
#   --only      scripts of `frameworks`, programs of `driver`, rows of `sharing`, rows and kinds of `crowded`, or modes of `managed`, instead of all
#   --few-files writes only summary.txt, results.md, driver_summary.txt and results.tar.gz
# Writes OUTPUT_DIR/summary.txt (one line for each part), driver_summary.txt (what the conformance suite found), results.md
# (all tables), results.tar.gz (everything), and a folder for each part; all of it every ten seconds, so whoever kills this
# script has what was done by then. Exits 1 if anything differs.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '4,/^set -uo/s/^# \{0,1\}//p' "$0" >&2; exit 2; }
places=() parts='' minutes='' seed='' limit_s=580 jobs=$((($(nproc) + 1) / 2)) only=() few_files=''
while [ $# -gt 0 ]; do
  case "$1" in
    --parts) parts=${2:?}; shift 2 ;;
    --minutes) minutes=${2:?}; shift 2 ;;
    --seed) seed=${2:?}; shift 2 ;;
    --limit) limit_s=${2:?}; shift 2 ;;
    --jobs) jobs=${2:?}; shift 2 ;;
    --only) shift; while [ $# -gt 0 ] && [[ $1 != --* ]]; do only+=("$1"); shift; done ;;
    --few-files) few_files=yes; shift ;;
    -*) usage ;;
    *) places+=("$1"); shift ;;
  esac
done
[ ${#places[@]} -ge 2 ] && [ ${#places[@]} -le 3 ] || usage
build=$(cd "${places[0]}" && pwd)
mkdir -p "${places[1]}"
final=$(cd "${places[1]}" && pwd)
# Its last write may be at any moment: only whole files are moved to where the caller looks.
if [ -n "$few_files" ]; then out=$(mktemp -d); else out=$final; fi
pack=${places[2]:-}
[ -z "$pack" ] || pack=$(cd "$pack" && pwd)
all=programs,libraries,tcp,driver,frameworks,nvml,hostile,vm,vm-frameworks,bench
parts=${parts:-$all}
all+=,hostile_beside
all+=,frameworks-tls,sandbox,differential,answers,bursts,crowded,managed,sharing,upkeep
for part in ${parts//,/ }; do
  [[ ",$all," == *,$part,* ]] || { echo "run.sh: unknown part $part" >&2; exit 2; }
done
chosen() { [[ ",$parts," == *,$1,* ]]; }
# CAUSEWAY_TEST_DRIVER names another driver library than NVIDIA's, to try this script out where there is no GPU.
run="$build/host_backend/causeway run${CAUSEWAY_TEST_DRIVER:+ --driver $CAUSEWAY_TEST_DRIVER}"
# There its programs run "natively" with the library of the same folder.
native=${CAUSEWAY_TEST_DRIVER:+env LD_LIBRARY_PATH=$(dirname "$CAUSEWAY_TEST_DRIVER")}
left() { local s=$((limit_s - SECONDS)); echo $((s > 5 ? s : 5)); }
at_most() { local s; s=$(left); echo $((s < $1 ? s : $1)); }

# note PART STATUS: one line of the summary.
note() {
  local word=FAILED
  case "$2" in 0) word=ok ;; 77) word="left out" ;; 124 | 137) word="FAILED: time was up" ;; esac
  echo "$1: $word (at $SECONDS s)" | tee -a "$out/summary.txt"
  case "$2" in 0 | 77) ;; *) echo "$1" >> "$out/failed" ;; esac
}
# part NAME: runs the function of its name with a folder of its own; its output is kept and its tables end in results.md.
part() {
  local status=0
  chosen "$1" || return 0
  mkdir -p "$out/$1"
  echo "== $1 begins at $SECONDS s" >&2
  "part_${1//-/_}" "$out/$1" > "$out/$1/output.txt" 2>&1 || status=$?
  note "$1" "$status"
}

list() { cat "$build/programs/$1" 2> /dev/null; }
all_programs() { list programs.txt; }
library_programs() { if [ -e "$build/programs/library_programs.txt" ]; then list library_programs.txt; else all_programs | grep -E '^(cublas|fft)'; fi; }
plain_programs() { all_programs | grep -vxF -f <(library_programs; echo -); }

# compare FOLDER TABLE "NAMES" ways...
compare() {
  local names
  mapfile -t names <<< "$3"
  timeout -k 5 "$(at_most 240)" python3 "$here/../programs/compare.py" --programs "$build/programs" \
    ${CAUSEWAY_TEST_DRIVER:+--drop-stderr "software GPU:"} --markdown "$1/$2.md" --timeout 60 "${@:4}" --only "${names[@]}"
}
part_programs() {
  compare "$1" programs "$(plain_programs)" --way "native=$native" --way "local=$run --daemon-log $1/daemon.log --"
}
part_libraries() { compare "$1" libraries "$(library_programs)" --way "native=$native" --way "local=$run --daemon-log $1/daemon.log --"; }
part_tcp() { compare "$1" tcp "$(plain_programs)" --way "native=$native" \
  --way "tcp=$run --tcp --daemon-log $1/tcp.log --" --way "tls=$run --tls --daemon-log $1/tls.log --"; }

part_driver() {
  local name programs=() limit
  for name in "${only[@]}"; do [ ! -x "$build/driver_tests/$name" ] || programs+=("$name"); done
  [ ${#only[@]} -eq ${#programs[@]} ] || [ ${#programs[@]} -gt 0 ] || { echo "--only names no program"; return 77; }
  limit=$(at_most 330)
  DRIVER_TEST_HOLD_MS=${DRIVER_TEST_HOLD_MS:-400} timeout -k 5 "$limit" python3 "$here/../driver/compare_ways.py" --programs "$build/driver_tests" \
    ${programs[@]:+--only "${programs[@]}"} --jobs "$jobs" --timeout 90 --limit "$limit" --way "native=$native" \
    --way "local=$run --daemon-log $1/local.log --" --way "tcp=$run --tcp --daemon-log $1/tcp.log --" \
    --way "tls=$run --tls --daemon-log $1/tls.log --" --markdown "$1/driver.md" --json "$1/driver.json" --summary "$1/driver_summary.txt"
}

part_frameworks() { run_frameworks "$1" "local=$run --daemon-log $1/daemon.log --"; }
part_frameworks_tls() { run_frameworks "$1" "tls=$run --tls --daemon-log $1/daemon.log --"; }
run_frameworks() { # FOLDER WAY
  local name scripts=()
  for name in "${only[@]}"; do [ ! -e "$here/../frameworks/$name.py" ] || scripts+=("$name"); done
  [ ${#only[@]} -eq ${#scripts[@]} ] || [ ${#scripts[@]} -gt 0 ] || { echo "--only names no script"; return 77; }
  python3 "$here/../frameworks/compare.py" --output "$1" --way "native=$native" --way "$2" \
    --jobs "$jobs" --timeout 150 --limit "$(left)" ${scripts[@]:+--only "${scripts[@]}"}
}

part_nvml() {
  [ -e "$build/guest_lib/libnvidia-ml.so.1" ] || { echo "this build has no libnvidia-ml.so.1"; return 77; }
  timeout -k 5 "$(at_most 100)" python3 "$here/compare_smi.py" --output "$1" --way "native=$native" --way "local=$run --"
}

part_hostile() {
  local test name failed=0
  ls "$build"/hostile_tests/hostile_*_test > /dev/null 2>&1 || { echo "this build has no hostile_tests"; return 77; }
  for test in "$build"/hostile_tests/hostile_*_test; do
    name=${test##*/}
    CAUSEWAY_TEST_DRIVER=${CAUSEWAY_TEST_DRIVER:-libcuda.so.1} timeout -k 5 "$(at_most 200)" "$test" > "$1/$name.txt" 2>&1 ||
      { failed=1; echo "$name failed:"; grep -B 4 -A 12 -e 'Failure' "$1/$name.txt" | head -n 60; }
    echo "$name: $(grep -c '^\[       OK' "$1/$name.txt") ok, $(grep -c '^\[  FAILED  \].*ms)$' "$1/$name.txt") failed"
  done
  return "$failed"
}

# Two runs: one with no profile at all, of which a profile is made, and one that reports what the built-in profile lacks.
part_sandbox() {
  local mode kind version status=0
  version=$(cat /sys/module/nvidia/version 2> /dev/null || echo unknown)
  for mode in learn report; do
    CAUSEWAY_SANDBOX=$mode timeout -k 5 "$(at_most 240)" python3 "$here/../driver/compare_ways.py" --programs "$build/driver_tests" \
      ${only[@]:+--only "${only[@]}"} --jobs "$jobs" --timeout 120 --limit "$(at_most 230)" \
      --way "local=$run --daemon-log $1/$mode.log --" --markdown "$1/$mode.driver" || true
    [ ! -e "$build/guest_lib/libnvidia-ml.so.1" ] || CAUSEWAY_SANDBOX=$mode timeout -k 5 "$(at_most 60)" python3 \
      "$here/compare_smi.py" --output "$1" --way "native=$native" --way "local=$run --daemon-log $1/$mode.log --" > "$1/$mode.smi" || true
  done
  for kind in cuda nvml; do
    python3 "$here/make_profile.py" --driver nvidia --kind "$kind" --version "$version" "$1/learn.log" \
      > "$1/nvidia-$kind-$version.profile" || status=1
    { echo "What the built-in $kind profile lacks here:"; echo '```'
      grep -ho "sandbox report ($kind): .*" "$1/report.log" | sort -u; echo '```'; } >> "$1/sandbox.md"
  done
  grep -h "workers are confined" "$1/report.log" | sed 's/.*workers/workers/' | sort -u | head -3 >> "$1/sandbox.md"
  cat "$1/sandbox.md"
  cp "$1"/*.profile "$final"
  return "$status"
}

# shellcheck source=tests/gpu_host/vm_parts.sh
. "$here/vm_parts.sh"

part_bench() {
  local limit status
  limit=$(at_most 240)
  timeout -k 5 "$((limit + 60))" "$build/host_backend/causeway" bench ${CAUSEWAY_TEST_DRIVER:+--driver "$CAUSEWAY_TEST_DRIVER" --quick} \
    --limit "$limit" --daemon-log "$1/daemon.log" --json "$1/bench.json" --plot "$1/copies.svg" > "$1/bench.txt" 2> "$1/bench.stderr"
  status=$?
  cat "$1/bench.stderr" >> "$1/daemon.log"
  [ "$status" -ne 3 ] || status=0  # figures that could not be measured are named in the table
  { echo '```'; cat "$1/bench.txt"; echo '```'; } > "$1/bench.md"
  cp "$out/vm/captured/bench.stdout" "$1/bench.vm.json" 2> /dev/null
  return "$status"
}

part_hostile_beside() {
  python3 "$here/../hostile/beside.py" "$build" "$1" --seconds "$(awk "BEGIN { print 60 * ${minutes:-8} }")" ${seed:+--seed "$seed"} \
    ${CAUSEWAY_TEST_DRIVER:+--driver "$CAUSEWAY_TEST_DRIVER"}
}

# A quarter of the time, or a minute at most, is for looking at what differs; its last step may take some seconds more.
part_differential() {
  local all look status
  all=$(left)
  look=$((all / 4 < 60 ? all / 4 : 60))
  all=$(awk "BEGIN { a = $all - $look - 25; m = int(60 * ${minutes:-4}); print (a < m ? a : m) }")
  cp "$final/counts.json" "$1/counts.json" 2> /dev/null
  timeout -k 5 -s INT "$(left)" python3 "$here/../differential/differential.py" --program "$build/tests/differential/differential" \
    --native "$native" --guest "$run --daemon-log $1/daemon.log --" --seconds "$all" --processes 1 --in-turns --bound 20 \
    --look-seconds "$look" ${seed:+--seed "$seed"} ${CAUSEWAY_TEST_DRIVER:+--also-left-out "$here/../differential/software_gpu.txt"} \
    --count "$1/counts.json" --report "$1/differential.txt"
  status=$?
  cp "$1/counts.json" "$1/differential.txt" "$final" 2> /dev/null
  { echo '```'; head -n 1 "$1/differential.txt"; grep '^== ' "$1/differential.txt"; echo '```'; } > "$1/differential.md"
  return "$status"
}

part_answers() {
  { echo '```'; timeout -k 5 "$(left)" python3 "$here/../answers/ask.py" --program "$build/tests/answers/answers" --jobs "$jobs" \
    --native "$native" --guest "$run --daemon-log $1/daemon.log --" --write "$1/recorded.txt"; local status=$?; echo '```'; } > "$1/answers.md"
  cat "$1/answers.md"
  return "$status"
}

part_bursts() {
  [ -x "$build/tests/bench/startup" ] || { echo "this build has no tests/bench/startup"; return 77; }
  { echo '```'; python3 "$here/../bench/bursts.py" --build "$build" ${CAUSEWAY_TEST_DRIVER:+--driver "$CAUSEWAY_TEST_DRIVER"} \
    --limit "$(left)" --json "$1/bursts.json"; local status=$?; echo '```'; } > "$1/bursts.md"
  cat "$1/bursts.md"
  return "$status"
}

# The processor sets get half of the time. The software GPU works in its callers' threads, or its own would be most of the crowd, and
# executes nothing of PyTorch's.
part_crowded() {
  local bound word kinds=() rows=() limit status=0
  [ -x "$build/tests/bench/crowded_load" ] || { echo "this build has no tests/bench/crowded_load"; return 77; }
  for word in "${only[@]}"; do
    case "$word" in *:*) rows+=("$word") ;; wait | step | torch) kinds+=("$word") ;; esac
  done
  if [ ${#kinds[@]} -eq 0 ]; then
    kinds=(wait step)
    [ -n "${CAUSEWAY_TEST_DRIVER:-}" ] || ! python3 -c 'import torch' || kinds+=(torch)
  fi
  for bound in set max; do
    limit=$(left)
    [ "$bound" = max ] || limit=$((limit / 2))
    if [ "$bound" = set ]; then printf 'Bound to processors:\n\n'; else printf '\nBound by cpu.max:\n\n'; fi
    env ${CAUSEWAY_TEST_DRIVER:+SOFTWARE_GPU_WORK_IN_CALLS=1} timeout -k 5 "$limit" python3 "$here/../bench/crowded.py" "$build" \
      "$build/tests/bench/crowded_load" --bound "$bound" --kinds "$(IFS=,; echo "${kinds[*]}")" ${rows[@]:+--rows "$(IFS=,; echo "${rows[*]}")"} \
      --rounds 30 --seconds 1 --limit "$((limit * 3 / 4))" --json "$1/crowded_$bound.json" ${CAUSEWAY_TEST_DRIVER:+--driver "$CAUSEWAY_TEST_DRIVER"} 2>&1
    case $? in 0) ;; 77) [ "$bound" = max ] || status=1 ;; 124 | 137) echo "Time was up."; status=124 ;; *) status=1 ;; esac
  done > "$1/crowded.txt"
  cat "$1/crowded.txt"
  cp "$1/crowded.txt" "$1/crowded.md"
  cp "$1/crowded.txt" "$final"
  return "$status"
}

# The software GPU interprets kernels, which therefore touch one place of each page, and no row of a gibibyte.
part_managed() {
  local word modes=() status
  [ -x "$build/tests/bench/managed_load" ] || { echo "this build has no tests/bench/managed_load"; return 77; }
  for word in "${only[@]}"; do
    case "$word" in prefetch* | turns* | sparse* | kernel* | advise*) modes+=("$word") ;; esac
  done
  [ -z "${CAUSEWAY_TEST_DRIVER:-}" ] || [ ${#modes[@]} -gt 0 ] || modes=(prefetch turns sparse kernel:64M advise)
  timeout -k 5 "$(left)" python3 "$here/../bench/managed.py" "$build" "$build/tests/bench/managed_load" \
    ${modes[@]:+--modes "$(IFS=,; echo "${modes[*]}")"} --limit "$(($(left) * 3 / 4))" --json "$1/managed.json" \
    ${CAUSEWAY_TEST_DRIVER:+--driver "$CAUSEWAY_TEST_DRIVER" --step 4096} > "$1/managed.txt" 2> "$1/stderr.txt"
  status=$?
  cat "$1/managed.txt" "$1/stderr.txt"
  cp "$1/managed.txt" "$1/managed.md"
  cp "$1/managed.txt" "$final"
  return "$status"
}

part_sharing() {
  local status rows
  rows=$(IFS=,; echo "${only[*]}")
  cp "$final/sharing.json" "$1/sharing.json" 2> /dev/null
  { echo '```'; timeout -k 5 "$(($(left) + 5))" "$build/host_backend/causeway" bench --sharing ${CAUSEWAY_TEST_DRIVER:+--driver "$CAUSEWAY_TEST_DRIVER" --quick} \
    --limit "$(($(left) - 20))" ${rows:+--rows "$rows"} --daemon-log "$1/daemon.log" --json "$1/sharing.json" --pictures "$1"
    status=$?; echo '```'; } > "$1/sharing.md"
  cat "$1/sharing.md"
  cp "$1/sharing.json" "$final" 2> /dev/null
  [ "$status" -ne 3 ] || status=0  # figures that could not be measured, and pictures, are named in the table
  return "$status"
}

part_upkeep() {
  local driver=("${CAUSEWAY_TEST_DRIVER:+--driver}" "${CAUSEWAY_TEST_DRIVER:-}") status=0
  [ -n "${CAUSEWAY_TEST_DRIVER:-}" ] || driver=()
  { echo '```'
    timeout -k 5 "$(at_most 120)" python3 "$here/../system/figures_agree.py" "$build" "${driver[@]}" || [ $? = 77 ] || status=1
    timeout -k 5 "$(at_most 300)" python3 "$here/../upgrade/training.py" "$build" "${driver[@]}" --json "$1/training.json" || [ $? = 77 ] || status=1
    echo '```'; } > "$1/upkeep.md"
  cat "$1/upkeep.md"
  return "$status"
}

# publish: what there is by now; each file appears whole.
publish() {
  local part file
  for part in ${all//,/ }; do
    [ -d "$out/$part" ] || continue
    printf '\n## %s\n\n' "$part"
    cat "$out/$part"/*.md 2> /dev/null
  done > "$out/results.md"
  tar -C "$out" --exclude='results.tar.gz*' --warning=none -czf "$final/results.tar.gz.new" .
  mv "$final/results.tar.gz.new" "$final/results.tar.gz"
  for file in "$out"/{summary.txt,results.md,driver/driver_summary.txt}; do
    [ "${file%/*}" != "$final" ] && [ -e "$file" ] || continue
    cp "$file" "$final/${file##*/}.new" && mv "$final/${file##*/}.new" "$final/${file##*/}"
  done
}

rm -rf "$out/failed" "$final"/{summary.txt,results.md,driver_summary.txt,results.tar.gz}
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | head -1 | tee "$out/summary.txt"
while sleep 10 && kill -0 $$ 2> /dev/null; do publish; done &
publisher=$!
# What is quick and tells much comes first. The VMs are slow and leave the GPU idle most of the time: they run beside the
# rest. What finds out whether a call waits comes before what keeps the GPU busy, and bench comes when nothing else runs.
part programs
part nvml
part hostile
part vm-frameworks &
vm_frameworks_job=$!
part vm &
vm_job=$!
part driver
part frameworks &
frameworks_job=$!
part tcp
part libraries
part frameworks-tls
part sandbox
wait "$vm_job" "$vm_frameworks_job" "$frameworks_job"
part bench
part hostile_beside
part differential
part answers
part bursts
part crowded
part managed
part sharing
part upkeep
kill "$publisher"
wait "$publisher" 2> /dev/null
publish

# The beginning of what failed, for a reader who sees only the end of this output.
for part in ${all//,/ }; do
  grep -qsx "$part" "$out/failed" || continue
  echo "== $part:"
  awk '!/\| same|, 0 differ(;|$)/ || /, not |[1-9][0-9]* (lines )?differ/' "$out/$part/output.txt" | cut -c1-240 | head -n 40
done
cat "$out/summary.txt"
[ ! -e "$out/failed" ]
