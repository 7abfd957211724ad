#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzzers, and counts: each run adds lines to executions.csv beside this script.
# usage: run.sh [--binaries DIR] [--only "NAME..."] [--csv FILE] WORK SECONDS [JOBS]
#        run.sh ... --goals "NAME=EXECUTIONS..." [--results FILE.tar.gz] WORK SECONDS [JOBS]
#        run.sh [--binaries DIR] --package DIR     binaries, corpora and this script, for a machine without a compiler
#        run.sh [--csv FILE] --table               what has been executed in all
#   WORK      corpora grow in WORK/corpus/NAME; what ends a process lies in WORK/findings/NAME
#   SECONDS   for each fuzzer, with JOBS processes at once (default: one for each processor)
#   --goals   SECONDS for all of them together: whichever is furthest from its goal gets the next processor, for three
#             minutes, so that all reach theirs side by side
#   --results counts, findings and the newest inputs, packed at the end
#   --binaries  built with -DCAUSEWAY_FUZZ=ON (default: build-fuzz/tests/fuzz), or a folder that --package has made
# Each process has a seed of its own, which its log names (WORK/logs): -seed=N with the corpus repeats it; a finding is
# repeated by giving its file to the fuzzer. Exits 1 when there are findings. WORK/executions.csv has what is counted so
# far, made anew every 20 s: that is what a run that is cut leaves, CSV gets its lines at the end.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
binaries='' only='' csv=$here/executions.csv package='' table=no goals='' results=''
while [ $# -gt 0 ]; do
  case "$1" in
    --binaries) binaries=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --csv) csv=$2; shift 2 ;;
    --goals) goals=$2; shift 2 ;;
    --results) results=$2; shift 2 ;;
    --package) package=$2; shift 2 ;;
    --table) table=yes; shift ;;
    -h | --help) sed -n '3,18s/^# //p' "$0"; exit 0 ;;
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
  cp "$here/run.sh" "$here/go.sh" "$package/"
  for archive in "$here"/corpus_*.tar.xz; do
    folder=$package/$(basename "$archive" .tar.xz)
    mkdir -p "$folder" && tar xJf "$archive" -C "$folder"
  done
  gpu=$binaries/../../software_gpu/libcuda.so.1
  [ -e "$gpu" ] && strip --strip-unneeded -o "$package/libcuda.so.1" "$gpu"
  ldd "$package"/fuzz_* | awk '/libstdc\+\+|libgcc_s/ { print $3 }' | sort -u | xargs -I{} cp -L {} "$package/"
  # What is missing of the goals; what has reached them goes on as much as a tenth of the others.
  for name in $names; do
    goal=10000000
    [ "$name" = fuzz_dispatch ] && goal=100000000
    awk -F, -v name="$name" -v goal="$goal" '$3 == name { n += $4 } END { print name, (n < goal * 0.9 ? goal - n : goal / 10) }' \
      OFMT=%d CONVFMT=%d "$csv"
  done > "$package/goals"
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
fill() {
  mkdir -p "$2"
  [ -z "$(ls -A "$2")" ] || return 0
  if [ -d "$here/corpus_$1" ]; then cp -r "$here/corpus_$1/." "$2"; fi
  if [ -e "$here/corpus_$1.tar.xz" ]; then tar xJf "$here/corpus_$1.tar.xz" -C "$2"; fi
}
prepare() {
  local name=$1
  mkdir -p "$work/findings/$name"
  fill "${name#fuzz_}" "$work/corpus/$name"
  case "$name" in fuzz_worker | fuzz_dispatch) fill scripts "$work/corpus/$name.deep" ;; esac
  rm -f "$work/logs/$name".* "$work/counts/$name".*
  find "$work/findings/$name" -type f | wc -l > "$work/logs/$name.before"
}

# one_process NAME LABEL END [deep]: until SECONDS is END; started again after a finding and every ten minutes, since
# the software GPU keeps something of each input. Logs of processes that ended well are not kept.
one_process() {
  local name=$1 label=$2 end=$3 deep=${4:-} round=0 left seed limits length corpus=$work/corpus/$1 begin log
  [ -n "$deep" ] && corpus=$corpus.deep
  while left=$((end - SECONDS)) && [ "$left" -gt 0 ]; do
    seed=$((RANDOM * 32768 + RANDOM + 1))
    # README.md says what was measured: short scripts for executions, one process in four with longer ones.
    length=2048
    case "$name" in fuzz_worker | fuzz_dispatch) length=$((RANDOM % 4 == 0 ? 4096 : 1024)) ;; esac
    [ -n "$deep" ] && length=16384
    limits="-timeout=60 -max_len=$length"
    [ "$left" -gt 600 ] && left=600
    log=$work/logs/$name.$label.$round
    begin=$SECONDS
    # What the program itself prints goes nowhere, nor what libFuzzer says of each new input; reports do not.
    echo "-seed=$seed $limits" > "$log"
    # shellcheck disable=SC2086
    CAUSEWAY_FUZZ_COUNT=$work/counts/$name.$label.$round timeout -k 5 $((left + 20)) $runner "$binaries/$name" -seed=$seed \
      -max_total_time=$left -entropic=0 -reload=20 -detect_leaks=0 -rss_limit_mb=4096 -close_fd_mask=2 \
      -verbosity=0 -print_funcs=0 -artifact_prefix="$work/findings/$name/" $limits "$corpus" >> "$log" 2>&1 && rm "$log"
    echo "$name,$label.$round,$seed,$((SECONDS - begin)),$deep" >> "$work/logs/processes.csv"
    round=$((round + 1))
  done
}

executed() { cat "$work/counts/$1".* 2> /dev/null | od -An -v -tu8 -w8 | awk '{ n += $1 } END { printf "%d", n }'; }
found_by() { echo $(($(find "$work/findings/$1" -type f | wc -l) - $(cat "$work/logs/$1.before"))); }
# line NAME: what it has done so far.
line() {
  local spent
  spent=$(awk -F, -v name="$1" '$1 == name { n += $4 } END { printf "%d", n }' "$work/logs/processes.csv")
  echo "$(date -u +%F),$commit,$1,$(executed "$1"),$spent,$(found_by "$1")"
}
count_all() {
  local name
  {
    echo "date,commit,fuzzer,executions,seconds,findings"
    for name in $names; do line "$name"; done
  } > "$work/executions.new"
  mv "$work/executions.new" "$work/executions.csv"
}

# next_name: the one whose executions, with what its running processes will add, are least of its goal.
next_name() {
  local goal name
  for goal in $goals; do
    name=${goal%%=*}
    echo "$name ${goal##*=} $(executed "$name") $(find "$work/counts" -name "$name.*" -newer "$work/logs/begin" | wc -l) \
      $(find "$work/running" -name "$name.*" | wc -l)" | tr -d '\n'
    echo
  done | awk '{
      # Of a process that has not been: as many as the slowest.
      each = $4 > $5 ? $3 / ($4 - $5 / 2) : 90000
      part = ($3 + $5 * each) / $2
      if (NR == 1 || part < least) { least = part; name = $1 }
    }
    END { print name }'
}
take_turns() {
  local end=$1 core=$2 turn=0 name deep until
  while [ "$SECONDS" -lt "$end" ]; do
    name=$(flock "$work/logs/turn" bash -c "$(declare -f executed next_name); work='$work' goals='$goals'
      name=\$(next_name); touch \"\$work/running/\$name.$core\"; echo \"\$name\"")
    turn=$((turn + 1)) deep=""
    [ -d "$work/corpus/$name.deep" ] && [ $(((turn + core) % 16)) = 0 ] && deep=deep
    until=$((SECONDS + 180))
    one_process "$name" "$core.$turn" $((until < end ? until : end)) "$deep"
    rm -f "$work/running/$name.$core"
  done
}

mkdir -p "$work/counts" "$work/running"
rm -f "$work"/running/* "$work/logs/processes.csv"
touch "$work/logs/processes.csv" "$work/logs/begin" "$work/logs/turn"
for name in $names; do prepare "$name"; done
running="" end=$((SECONDS + seconds))
while sleep 20; do count_all; done &
counting=$!
if [ -n "$goals" ]; then
  for core in $(seq "$jobs"); do take_turns "$end" "$core" & running+=" $!"; done
  # shellcheck disable=SC2086
  wait $running
else
  for name in $names; do
    running="" end=$((SECONDS + seconds))
    for number in $(seq "$jobs"); do
      deep=""
      [ -d "$work/corpus/$name.deep" ] && [ $((number % 8)) = 0 ] && deep=deep
      one_process "$name" "$number" "$end" "$deep" & running+=" $!"
    done
    # shellcheck disable=SC2086
    wait $running
  done
fi
kill "$counting"
count_all
tail -n +2 "$work/executions.csv" >> "$csv"
found=0
for name in $names; do
  findings=$(found_by "$name")
  found=$((found + findings))
  [ "$findings" = 0 ] || grep -ahE "^SUMMARY" "$work/logs/$name".* | sort | uniq -c | sort -rn | head -20
done
print_table
if [ -n "$results" ]; then
  # Of what is new the newest: as much as a look can take.
  for name in $names; do
    (cd "$work" && find corpus/"$name" corpus/"$name.deep" -type f -newer logs/begin -printf '%T@ %s %p\n' 2> /dev/null) |
      sort -rn | awk '(n += $2) < 2500000 { print $3 }'
  done > "$work/logs/new"
  tar cf - -C "$work" executions.csv findings logs -T "$work/logs/new" | gzip > "$results"
fi
[ "$found" = 0 ]
