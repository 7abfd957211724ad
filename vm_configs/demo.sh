#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole of Causeway in one command, without a GPU: installs what is missing, builds, boots a VM and runs CUDA programs
# in it on the software GPU of the host.
# usage: demo.sh [BUILD_DIR]     environment: DEMO_PROGRAMS="NAME..." (default: all of tests/programs)
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:-$root/build}
started=$SECONDS
step() { echo "== $* ($((SECONDS - started)) s)"; }

step "installing what is missing"
"$root/vm_configs/install_dependencies.sh"
step "building in $build"
mkdir -p "$build"
cmake -S "$root" -B "$build" -G Ninja > "$build/configure.log" || { cat "$build/configure.log" >&2; exit 1; }
cmake --build "$build"
step "booting a VM and running CUDA programs in it"
status=0
"$root/tests/vm/vm_demo.sh" "$build" ${DEMO_PROGRAMS:+--programs "$DEMO_PROGRAMS"} || status=$?
if [ "$status" = 0 ]; then
  step "DEMO PASSED: unmodified CUDA programs ran in a VM and printed what they print on the host"
else
  step "DEMO FAILED with status $status: the reason is above" >&2
  exit "$status"
fi
