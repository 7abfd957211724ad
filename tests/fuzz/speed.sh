#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Executions of mutated inputs for each second of processor time (user and system) of one process, as run.sh starts it:
# libFuzzer from the repository's corpus with -max_len=1024, less the time and the executions of loading that corpus.
# usage: speed.sh [--runs N] [--rounds N] FUZZER...    each a binary that was built with -DCAUSEWAY_FUZZ=ON
#   --runs    mutated inputs of each round (default 30000); --rounds (default 5), each with another seed
# Several FUZZERs take turns in each round, so that two builds can be compared on a machine with other load.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
runs=30000 rounds=5
while [ $# -gt 1 ]; do
  case "$1" in
    --runs) runs=$2; shift 2 ;;
    --rounds) rounds=$2; shift 2 ;;
    *) break ;;
  esac
done
[ $# -ge 1 ] || { sed -n '5,7s/^# //p' "$0" >&2; exit 2; }
work=$(mktemp -d /dev/shm/fuzz-speed-XXXXXX)
trap 'rm -rf "$work"' EXIT
TIMEFORMAT='%U %S'
# spent FUZZER SEED RUNS: its processor seconds. The corpus is copied anew: each run begins with the same.
spent() {
  rm -rf "$work/corpus" && mkdir "$work/corpus"
  cp -r "$work/$(basename "$1")/." "$work/corpus"
  { time CAUSEWAY_FUZZ_COUNT=$work/count $runner "$1" -seed="$2" -runs="$3" -max_len=1024 -entropic=0 -reload=0 -detect_leaks=0 \
    -rss_limit_mb=4096 -timeout=60 -close_fd_mask=2 -verbosity=0 -print_funcs=0 "$work/corpus" > "$work/log" 2>&1; } 2>&1 |
    awk '{ print $1 + $2 }'
}
executed() { od -An -tu8 -N8 "$work/count"; rm "$work/count"; }
runner=""
setarch "$(uname -m)" -R true 2> /dev/null && runner="setarch $(uname -m) -R"
for fuzzer in "$@"; do
  folder=$work/$(basename "$fuzzer")
  [ -d "$folder" ] && continue
  mkdir "$folder" && tar xJf "$here/corpus_$(basename "$fuzzer" | sed s/fuzz_//).tar.xz" -C "$folder"
done
for round in $(seq "$rounds"); do
  for fuzzer in "$@"; do
    loading=$(spent "$fuzzer" "$round" 1) loaded=$(executed)
    all=$(spent "$fuzzer" "$round" $((loaded + runs))) count=$(executed)
    echo "$fuzzer" "$round" "$loading" "$loaded" "$all" "$count" |
      awk '{ printf "%s %d %.0f\n", $1, $2, ($6 - $4) / ($5 - $3) }' | tee -a "$work/rates" |
      awk '{ print $1 " round " $2 ": " $3 "/s" }'
  done
done
for fuzzer in "$@"; do
  awk -v name="$fuzzer" '$1 == name { print $3 }' "$work/rates" | sort -n |
    awk -v name="$fuzzer" '{ n[NR] = $1 } END { print name ": median " n[int((NR + 1) / 2)] ", " n[1] " to " n[NR] }'
done
