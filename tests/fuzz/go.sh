#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# From a folder that run.sh --package has made, on any machine: all fuzzers side by side towards what is still missing
# of their goals. Needs no compiler, network or GPU.
# usage: go.sh OUT SECONDS [PROCESSES]   they keep to the processors that the caller has given (taskset); without a number
# there are two for each of these: the threads of fuzz_worker and fuzz_tcp wait for each other much of the time
# OUT/executions.csv: counts, made anew every 20 s; OUT/results.tar.gz at the end: counts, findings with their logs, the
# newest inputs. Ends after SECONDS; an input that hangs then may take 25 more. Exits 1 when there are findings.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1 seconds=$2 processes=${3:-$((2 * $(nproc)))}
mkdir -p "$out"
goals=""
while read -r name goal; do goals="$goals $name=$goal"; done < "$here/goals"
exec bash "$here/run.sh" --binaries "$here" --csv "$out/total.csv" --goals "$goals" --results "$out/results.tar.gz" \
  "$out" "$((seconds - 20))" "$processes"
