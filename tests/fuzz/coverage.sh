#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which lines and branches of ivshmem_ring/ and the worker the fuzzers reach with their corpora.
# usage: coverage.sh [--corpus WORK/corpus] [BUILD]   (BUILD: default build-coverage; WORK: of run.sh)
# fuzz_ring, fuzz_tcp and fuzz_nvml have no corpus in the repository: without one they run 20,000 executions.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
corpus=
[ "${1:-}" = --corpus ] && { corpus=$2; shift 2; }
build=${1:-$root/build-coverage}
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCAUSEWAY_COVERAGE=ON \
  > /dev/null
cmake --build "$build" --target fuzzers > "$build/coverage-build.log"
rm -f "$build"/*.profraw "$build/reached"
objects=()
for fuzzer in "$build"/tests/fuzz/fuzz_*; do
  [ -x "$fuzzer" ] && [ -f "$fuzzer" ] || continue
  name=$(basename "$fuzzer")
  inputs="$corpus/$name" executions=0
  [ -d "$inputs" ] || case $name in
    fuzz_dispatch | fuzz_worker) inputs=$build/tests/fuzz/corpus_scripts ;;
    *) inputs= executions=20000 ;;
  esac
  # shellcheck disable=SC2086
  LLVM_PROFILE_FILE="$build/$name.profraw" CAUSEWAY_FUZZ_TABLE="$build/reached" "$fuzzer" $executions $inputs \
    > "$build/$name.log" 2>&1 || echo "coverage.sh: $name failed, see $build/$name.log" >&2
  objects+=(--object "$fuzzer")
done
llvm-profdata merge -o "$build/all.profdata" "$build"/*.profraw
llvm-cov report "${objects[@]:1}" --instr-profile="$build/all.profdata" --show-branch-summary \
  --ignore-filename-regex='/(tests|daemon|bench|command|guest_lib)/|/usr/|worker_main' > "$build/coverage.txt"
awk 'NR == 1 || /^---/ || /^TOTAL/ || /\.(cc|h) / { print }' "$build/coverage.txt"
echo "operations that were answered with success: $(awk '{ n[$1] += $3 } END { for (x in n) c += n[x] > 0; print c }' \
  "$build/reached") of $(awk '{ print $1 }' "$build/reached" | sort -u | wc -l) that were asked"
awk '{ n[$1] += $3 } END { for (x in n) if (n[x] == 0) print "  never with success:", x }' "$build/reached" | sort
