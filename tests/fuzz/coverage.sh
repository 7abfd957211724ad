#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which lines and branches of ivshmem_ring/ and the worker, and of the daemon's part that others speak to, the fuzzers
# reach with their corpora, each input run once.
# usage: coverage.sh [--corpus WORK/corpus] [BUILD]   (BUILD: default build-coverage; WORK: of run.sh)
# BUILD/coverage.txt has every file, BUILD/coverage.lcov every line; README.md lists what is left out and why.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
corpus=
[ "${1:-}" = --corpus ] && { corpus=$2; shift 2; }
build=${1:-$root/build-coverage}
mkdir -p "$build"
cmake -S "$root" -B "$build" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCAUSEWAY_COVERAGE=ON \
  > "$build/coverage-configure.log"
cmake --build "$build" --target fuzzers -j "$(nproc)" > "$build/coverage-build.log"
rm -f "$build"/*.profraw "$build/reached"
objects=()
for fuzzer in "$build"/tests/fuzz/fuzz_*; do
  [ -x "$fuzzer" ] && [ -f "$fuzzer" ] || continue
  name=$(basename "$fuzzer")
  inputs=("$build/tests/fuzz/corpus_${name#fuzz_}")
  case $name in fuzz_dispatch | fuzz_worker) inputs+=("$build/tests/fuzz/corpus_scripts") ;; esac
  [ -n "$corpus" ] && for folder in "$corpus/$name" "$corpus/$name.deep"; do [ -d "$folder" ] && inputs+=("$folder"); done
  LLVM_PROFILE_FILE="$build/$name.profraw" CAUSEWAY_FUZZ_TABLE="$build/reached" "$fuzzer" 0 "${inputs[@]}" \
    > "$build/$name.log" 2>&1 || echo "coverage.sh: $name failed, see $build/$name.log" >&2
  objects+=(--object "$fuzzer")
done
llvm-profdata merge -o "$build/all.profdata" "$build"/*.profraw
# What is not fuzzed: README.md says why.
left_out='/(tests|bench|command/(main|run|status|daemon)|guest_lib|launcher|sandbox)|/usr/|worker/main\.cc|nvml_worker'
left_out+='|worker_assignment|daemon_link|confinement|output\.cc|host_backend/daemon/([a-z]+/)?(main|daemon\.|cgroups|accounts|worker_|image_cache'
left_out+='|memory_watch|sandbox_watch|scope_users|shared_objects|vm_process|file_lock|log|trusted|idle_watch|sigbus|api_hash'
left_out+='|lateness|image_hashing|flight_store|pace|tcp_peer|local_peer|region_file|zeroing|worker_)'
left_out+='|ivshmem_ring/[a-z]+/(address_windows|waiter|huge_pages)|host_backend/([a-z]+/)*(nvml_memory|call_counter|driver|dispatch|populate|packet'
left_out+='|pageable_access|checkpoint|memory_watch|daemon_link)\.'
llvm-cov report "${objects[@]:1}" --instr-profile="$build/all.profdata" --show-branch-summary \
  --ignore-filename-regex="$left_out" > "$build/coverage.txt"
llvm-cov export "${objects[@]:1}" --instr-profile="$build/all.profdata" --format=lcov \
  --ignore-filename-regex="$left_out" > "$build/coverage.lcov"
# Columns of llvm-cov: file, regions (3), functions (3), lines (3), branches (3).
awk '/\.(cc|h|def) / {
    folder = $1 ~ /daemon\// ? "daemon" : $1 ~ /command\// ? "command" : $1 ~ /ivshmem_ring\// ? "ivshmem_ring" : "worker"
    lines[folder] += $8; missed[folder] += $9; branches[folder] += $11; untaken[folder] += $12
  }
  END {
    for (f in lines) printf "%-13s lines %5d of %5d, %5.1f %%; branches %5d of %5d, %5.1f %%\n", f, lines[f] - missed[f], lines[f],
      100 - 100 * missed[f] / lines[f], branches[f] - untaken[f], branches[f], 100 - 100 * untaken[f] / (branches[f] + !branches[f])
  }' "$build/coverage.txt" | sort
# Lines "name answered succeeded"; names may have blanks.
awk '{ count = $NF; $NF = ""; $(NF - 1) = ""; n[$0] += count }
  END { for (x in n) { all++; if (n[x]) good++; else print "  never with success:", x }
    print "operations that were answered with success:", good, "of", all, "that were asked" }' "$build/reached" | sort
