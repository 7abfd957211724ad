#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzzers, and counts: each run adds lines to executions.csv beside this script.
# usage: run.sh [--binaries DIR] [--only "NAME..."] [--csv FILE] WORK SECONDS [JOBS]
#        run.sh ... --goals "NAME=EXECUTIONS..." [--results FILE.tar.xz] WORK SECONDS [JOBS]
#        run.sh [--binaries DIR] --package DIR     binaries, corpora and this script, for a machine without a compiler
#        run.sh [--csv FILE] --table               what has been executed in all
#   WORK      corpora grow in WORK/corpus/NAME; what ends a process lies in WORK/findings/NAME
#   SECONDS   for each fuzzer, with JOBS processes at once (default: one for each processor)
#   --goals   SECONDS for all of them together: the work is dealt out so that all reach their goals side by side;
#             what is left of the time after that goes to the first
#   --results counts, findings and corpora, packed at the end
#   --binaries  built with -DCAUSEWAY_FUZZ=ON (default: build-fuzz/tests/fuzz), or a folder that --package has made
# Each process has a seed of its own, which its log names (WORK/logs): -seed=N with the corpus repeats it; a finding is
# repeated by giving its file to the fuzzer. Exits 1 when there are findings.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binaries= only= csv=$here/executions.csv package= table=no goals= results=
while [ $# -gt 0 ]; do
  case "$1" in
    --binaries) binaries=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --csv) csv=$2; shift 2 ;;
    --goals) goals=$2; shift 2 ;;
    --results) results=$2; shift 2 ;;
    --package) package=$2; shift 2 ;;
    --table) table=yes; shift ;;
    -h | --help) sed -n '3,17s/^# //p' "$0"; exit 0 ;;
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
for goal in $goals; do names+=" ${goal%%=*}"; done
if [ -z "$names" ]; then
  for file in "$binaries"/fuzz_*; do [ -x "$file" ] && [ -f "$file" ] && names+=" $(basename "$file")"; done
fi
[ -n "$names" ] || { echo "run.sh: no fuzzers in $binaries: build with -DCAUSEWAY_FUZZ=ON" >&2; exit 2; }

if [ -n "$package" ]; then
  mkdir -p "$package"
  for name in $names; do strip -o "$package/$name" "$binaries/$name"; done
  cp "$here/run.sh" "$here"/corpus_*.tar.xz "$package/"
  gpu=$binaries/../../software_gpu/libcuda.so.1
  [ -e "$gpu" ] && strip --strip-unneeded -o "$package/libcuda.so.1" "$gpu"
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
# Sanitizers of older compilers meet addresses that some kernels choose at random.
runner=""
setarch "$(uname -m)" -R true 2> /dev/null && runner="setarch $(uname -m) -R"
[ -e "$csv" ] || echo "date,commit,fuzzer,executions,seconds,findings" > "$csv"

# prepare NAME: its folders, and what it starts from: short inputs of its own, and in NAME.deep the long scripts.
prepare() {
  local name=$1 archive
  mkdir -p "$work/corpus/$name" "$work/findings/$name"
  archive=$here/corpus_${name#fuzz_}.tar.xz
  [ -e "$archive" ] && [ -z "$(ls -A "$work/corpus/$name")" ] && tar xJf "$archive" -C "$work/corpus/$name"
  case "$name" in
    fuzz_dispatch | fuzz_worker)
      mkdir -p "$work/corpus/$name.deep"
      [ -z "$(ls -A "$work/corpus/$name.deep")" ] && tar xJf "$here/corpus_scripts.tar.xz" -C "$work/corpus/$name.deep"
      ;;
  esac
  rm -f "$work/logs/$name".*
  find "$work/findings/$name" -type f | wc -l > "$work/logs/$name.before"
}

# one_process NAME LABEL RUNS END [deep]: RUNS executions (0: any number) or until SECONDS is END; started again after
# a finding and every ten minutes, since the software GPU keeps something of each input.
one_process() {
  local name=$1 label=$2 runs=$3 end=$4 deep=${5:-} round=0 left seed limits="" corpus=$work/corpus/$1 begin log
  case "$name" in
    fuzz_worker | fuzz_dispatch) limits="-timeout=60 -max_len=1024" ;;
    *) limits="-timeout=60 -max_len=2048" ;;
  esac
  [ -n "$deep" ] && limits="-timeout=60 -max_len=16384" corpus=$corpus.deep
  while left=$((end - SECONDS)) && [ "$left" -gt 0 ]; do
    seed=$((RANDOM * 32768 + RANDOM + 1))
    [ "$left" -gt 600 ] && left=600
    log=$work/logs/$name.$label.$round
    begin=$SECONDS
    # What the program itself prints goes nowhere; reports do not.
    # shellcheck disable=SC2086
    $runner "$binaries/$name" -seed=$seed -max_total_time=$left -runs=$([ "$runs" = 0 ] && echo -1 || echo "$runs") -entropic=0 \
      -print_final_stats=1 -detect_leaks=0 -rss_limit_mb=4096 -close_fd_mask=2 \
      -artifact_prefix="$work/findings/$name/" $limits "$corpus" > "$log" 2>&1
    echo "seconds: $((SECONDS - begin))" >> "$log"
    round=$((round + 1))
    [ "$runs" = 0 ] && continue
    runs=$((runs - $(awk '/stat::number_of_executed_units/ { print $2 }' "$log")))
    [ "$runs" -gt 0 ] || break
  done
}

# sum NAME: its line of the table.
sum() {
  local name=$1 executed spent findings
  executed=$(cat "$work/logs/$name".* | awk '/stat::number_of_executed_units/ { n += $2 } END { printf "%d", n }')
  spent=$(cat "$work/logs/$name".* | awk '/^seconds: / { n += $2 } END { printf "%d", n }')
  findings=$(($(find "$work/findings/$name" -type f | wc -l) - $(cat "$work/logs/$name.before")))
  echo "$(date -u +%F),$commit,$name,$executed,$spent,$findings" >> "$csv"
  echo "$name: $executed executions in $spent s of one process, $findings findings"
  grep -ahE "^SUMMARY" "$work/logs/$name".* | sort | uniq -c | sort -rn | head -20
  found=$((found + findings))
}

# Pieces of the goals, a part of each in turn; processes take the next one.
pieces=()
deal_out() {
  local part goal parts=48
  for part in $(seq "$parts"); do
    for goal in $goals; do pieces+=("${goal%%=*} $((${goal##*=} / parts + 1)) $([ $((part % 8)) = 0 ] && echo deep)"); done
  done
  echo 0 > "$work/logs/next"
}
take_pieces() {
  local end=$1 next name runs deep
  while [ "$SECONDS" -lt "$end" ]; do
    next=$(flock "$work/logs/next" sh -c 'n=$(cat "$0"); echo $((n + 1)) > "$0"; echo "$n"' "$work/logs/next")
    read -r name runs deep <<< "${pieces[$next]:-${pieces[0]%% *} 0}"
    [ -d "$work/corpus/$name.deep" ] || deep=""
    one_process "$name" "$next" "$runs" "$end" "$deep"
  done
}

found=0
if [ -n "$goals" ]; then
  for name in $names; do prepare "$name"; done
  deal_out
  running="" end=$((SECONDS + seconds))
  for _ in $(seq "$jobs"); do take_pieces "$end" & running+=" $!"; done
  # shellcheck disable=SC2086
  wait $running
  for name in $names; do sum "$name"; done
else
  for name in $names; do
    prepare "$name"
    running="" end=$((SECONDS + seconds))
    for number in $(seq "$jobs"); do
      deep=""
      [ -d "$work/corpus/$name.deep" ] && [ $((number % 8)) = 0 ] && deep=deep
      one_process "$name" "$number" 0 "$end" "$deep" & running+=" $!"
    done
    # shellcheck disable=SC2086
    wait $running
    sum "$name"
  done
fi
print_table
if [ -n "$results" ]; then
  cp "$csv" "$work/executions.csv"
  tar cf - -C "$work" executions.csv findings corpus | xz -T0 -3 > "$results"
fi
[ "$found" = 0 ]
