#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the soak program through a daemon of its own and checks how the session ended: no group failed, no sanitizer
# spoke, and of the worker's handles only the primary context's is left.
# usage: soak.sh BUILD_DIR SECONDS [THREADS [SEED]]     (with -DCAUSEWAY_SANITIZE=address or thread in BUILD_DIR, or none)
#   CAUSEWAY_SOAK_DRIVER: the driver library of the worker; default: the software GPU of BUILD_DIR
set -euo pipefail
[ $# -ge 2 ] || { sed -n '3,6s/^# //p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
seconds=$2 threads=${3:-4} seed=${4:-1}
driver=${CAUSEWAY_SOAK_DRIVER:-$build/software_gpu/libcuda.so.1}
log=$(mktemp)
out=$(mktemp)
trap 'rm -f "$log" "$out"' EXIT
export ASAN_OPTIONS=${ASAN_OPTIONS:-detect_leaks=1:halt_on_error=1}
export TSAN_OPTIONS=${TSAN_OPTIONS:-halt_on_error=0:suppressions=$(dirname "$(readlink -f "$0")")/tsan.supp}
status=0
timeout $((seconds + 300)) "$build/host_backend/causeway" run --driver "$driver" --daemon-log "$log" -- \
  "$build/tests/soak/soak" "$seconds" "$threads" "$seed" > "$out" 2>&1 || status=$?
grep -v '^software GPU: cannot load' "$out" | tail -n 60
for _ in {1..100}; do
  ended=$(grep -o 'session ended: .*' "$log" | tail -n 1) && break
  sleep 0.1
done
echo "${ended:-the worker did not say how its session ended}"
if grep -E 'Sanitizer|runtime error' "$out" "$log" > /dev/null; then
  grep -hE -A 40 'Sanitizer|runtime error' "$out" "$log" | head -n 200
  echo "soak: a sanitizer reported something"
  exit 1
fi
left=$(sed -n 's/.*calls, \([0-9]*\) handles left/\1/p' <<< "$ended")
if [ "$status" != 0 ]; then echo "soak: exit $status"; exit 1; fi
if [ "${left:-999}" -gt 1 ]; then echo "soak: handles are left: at most the primary context's is expected"; exit 1; fi
echo "soak: ok"
