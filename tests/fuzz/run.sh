#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzzers, and counts: each run adds lines to executions.csv beside this script.
# usage: run.sh [--binaries DIR] [--only "NAME..."] [--csv FILE] WORK SECONDS [JOBS]
#        run.sh [--binaries DIR] --package DIR     binaries, corpus and this script, for a machine without a compiler
#        run.sh [--csv FILE] --table               what has been executed in all
#   WORK      corpora grow in WORK/corpus/NAME; what ends a process lies in WORK/findings/NAME
#   SECONDS   for each fuzzer, with JOBS processes at once (default: one for each processor)
#   --binaries  built with -DCAUSEWAY_FUZZ=ON (default: build-fuzz/tests/fuzz), or a folder that --package has made
# Each process has a seed of its own, which its log names (WORK/logs): -seed=N with the corpus repeats it; a finding is
# repeated by giving its file to the fuzzer. Exits 1 when there are findings.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binaries= only= csv=$here/executions.csv package= table=no
while [ $# -gt 0 ]; do
  case "$1" in
    --binaries) binaries=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --csv) csv=$2; shift 2 ;;
    --package) package=$2; shift 2 ;;
    --table) table=yes; shift ;;
    -h | --help) sed -n '3,12s/^# //p' "$0"; exit 0 ;;
    *) break ;;
  esac
done

print_table() {
  echo "| fuzzer | executions | hours of one processor | executions/s of one process | findings |"
  echo "|---|---|---|---|---|"
  awk -F, 'NR > 1 { n[$3] += $4; s[$3] += $5; f[$3] += $6 }
    END { for (x in n) printf "| %s | %d | %.1f | %.0f | %d |\n", x, n[x], s[x] / 3600, s[x] ? n[x] / s[x] : 0, f[x] }' \
    "$csv" | sort
}
if [ "$table" = yes ]; then print_table; exit 0; fi

root=$here/../..
[ -n "$binaries" ] || { [ -x "$here/fuzz_ring" ] && binaries=$here || binaries=$root/build-fuzz/tests/fuzz; }
names=$only
if [ -z "$names" ]; then
  for file in "$binaries"/fuzz_*; do [ -x "$file" ] && [ -f "$file" ] && names+=" $(basename "$file")"; done
fi
[ -n "$names" ] || { echo "run.sh: no fuzzers in $binaries: build with -DCAUSEWAY_FUZZ=ON" >&2; exit 2; }

if [ -n "$package" ]; then
  mkdir -p "$package"
  for name in $names; do strip -g -o "$package/$name" "$binaries/$name"; done
  cp "$here/run.sh" "$package/"
  cp "$here"/corpus*.tar.xz "$package/" 2> /dev/null
  gpu=$binaries/../../software_gpu/libcuda.so.1
  [ -e "$gpu" ] && strip -g -o "$package/libcuda.so.1" "$gpu"
  ldd "$package"/fuzz_* | awk '/libstdc\+\+|libgcc_s/ { print $3 }' | sort -u | xargs -I{} cp -L {} "$package/"
  git -C "$root" rev-parse --short HEAD > "$package/commit"
  du -sh "$package"
  exit 0
fi

[ $# -ge 2 ] || { sed -n '4,6s/^# //p' "$0" >&2; exit 2; }
work=$1 seconds=$2 jobs=${3:-$(nproc)}
commit=$(cat "$binaries/commit" 2> /dev/null || git -C "$root" rev-parse --short HEAD)
mkdir -p "$work/logs"
for gpu in "$binaries/libcuda.so.1" "$binaries/../../software_gpu/libcuda.so.1"; do
  [ -e "$gpu" ] && { CAUSEWAY_FUZZ_DRIVER=$(readlink -f "$gpu"); export CAUSEWAY_FUZZ_DRIVER; break; }
done
[ -e "$csv" ] || echo "date,commit,fuzzer,executions,seconds,findings" > "$csv"

# What each fuzzer starts from. Scripts serve three of them.
corpus_of() {
  case "$1" in fuzz_dispatch | fuzz_worker*) echo scripts ;; *) echo "${1#fuzz_}" ;; esac
}

# one_process NAME NUMBER: until the time is up, started again after a finding and every ten minutes, since the software
# GPU keeps something of each input.
one_process() {
  local name=$1 number=$2 end=$((SECONDS + seconds)) round=0 left seed limits=""
  case "$name" in
    fuzz_worker*) limits="-timeout=60 -max_len=16384" ;;
    fuzz_dispatch) limits="-timeout=20 -max_len=4096" ;;
    *) limits="-timeout=60" ;;
  esac
  while left=$((end - SECONDS)) && [ "$left" -gt 0 ]; do
    seed=$((RANDOM * 32768 + RANDOM + 1))
    [ "$left" -gt 600 ] && left=600
    # shellcheck disable=SC2086
    "$binaries/$name" -seed=$seed -max_total_time=$left -entropic=0 -print_final_stats=1 -detect_leaks=0 -rss_limit_mb=4096 \
      -artifact_prefix="$work/findings/$name/" $limits "$work/corpus/$name" > "$work/logs/$name.$number.$round" 2>&1
    round=$((round + 1))
  done
}

found=0
for name in $names; do
  mkdir -p "$work/corpus/$name" "$work/findings/$name"
  archive=$here/corpus_$(corpus_of "$name").tar.xz
  [ -e "$archive" ] && [ -z "$(ls -A "$work/corpus/$name")" ] && tar xJf "$archive" -C "$work/corpus/$name"
  rm -f "$work/logs/$name".*
  before=$(find "$work/findings/$name" -type f | wc -l)
  running=""
  for number in $(seq "$jobs"); do
    one_process "$name" "$number" &
    running+=" $!"
  done
  # shellcheck disable=SC2086
  wait $running
  executed=$(cat "$work/logs/$name".* | awk '/stat::number_of_executed_units/ { n += $2 } END { print n + 0 }')
  findings=$(($(find "$work/findings/$name" -type f | wc -l) - before))
  echo "$(date -u +%F),$commit,$name,$executed,$((seconds * jobs)),$findings" >> "$csv"
  echo "$name: $executed executions, $jobs processes of $seconds s, $findings findings"
  grep -ahE "^SUMMARY" "$work/logs/$name".* | sort | uniq -c | sort -rn | head -20
  found=$((found + findings))
done
print_table
[ "$found" = 0 ]
