#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole of Causeway in one command, without a GPU: installs what is missing, builds, boots a VM and runs CUDA programs
# in it on the software GPU of the host.
# usage: demo.sh [BUILD_DIR]
# environment: DEMO_PROGRAMS="NAME..." of tests/programs, or "all" that need no real GPU; default: the ten below
#              DEMO_UNITE=OFF  a new folder's sources are compiled one by one, as later changes want it; tools: all but those of tools/
#                              and of the software GPU, as the tests want it
#              DEMO_TYPE=Release  a new folder's CMAKE_BUILD_TYPE; default: RelWithDebInfo
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build}
started=$SECONDS step_started=$SECONDS
# Each step says how long the one before took, and how long all have.
step() {
  [ "$step_started" = "$started" ] && [ "$SECONDS" = "$started" ] || echo "   took $((SECONDS - step_started)) s"
  step_started=$SECONDS
  echo "== $* ($((SECONDS - started)) s)"
}
# Passes on what a build prints, but of ninja's lines only every tenth part of the way.
progress() {
  local line done last=0
  while IFS= read -r line; do
    if [[ $line =~ ^\[([0-9]+)/([0-9]+)\] ]]; then
      done=$((10 * BASH_REMATCH[1] / BASH_REMATCH[2]))
      [ "$done" -gt "$last" ] || continue
      last=$done
      echo "   ${BASH_REMATCH[1]} of ${BASH_REMATCH[2]} ($((SECONDS - started)) s)"
    else
      printf '%s\n' "$line"
    fi
  done
}

step "1/4 installing what is missing"
"$root/vm_configs/install_dependencies.sh"
step "2/4 configuring $build"
mkdir -p "$build"
# A new folder is built with as much debugging information as names functions and lines (with all of it the compiler takes a third
# longer), and the sources of each folder together (one after the other they take twice as long).
options=()
[ -e "$build/CMakeCache.txt" ] || options+=("-DCMAKE_BUILD_TYPE=${DEMO_TYPE:-RelWithDebInfo}" "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O2 -g1 -DNDEBUG" -DCAUSEWAY_UNITE="${DEMO_UNITE:-ON}")
cmake -S "$root" -B "$build" -G Ninja "${options[@]}" > "$build/configure.log" || { cat "$build/configure.log" >&2; exit 1; }
# One of each kind: the others take as long again to build and to run.
programs=${DEMO_PROGRAMS:-vector_add tiled_matmul reduction streams_threads graph_capture managed_variables host_register device_printf error_codes nvml_query}
if [ "$programs" = all ]; then
  targets=(demo_all) programs=''
else
  targets=(demo)
  for name in $programs; do targets+=("program_$name"); done
fi
step "3/4 building what the demo runs"
cmake --build "$build" --target "${targets[@]}" | progress
step "4/4 booting a VM and running CUDA programs in it"
status=0
"$root/tests/vm/vm_demo.sh" "$build" ${programs:+--programs "$programs"} || status=$?
if [ "$status" = 0 ]; then
  step "DEMO PASSED: unmodified CUDA programs ran in a VM and printed what they print on the host"
else
  step "DEMO FAILED with status $status: the reason is above" >&2
  exit "$status"
fi
