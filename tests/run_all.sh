#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything in one command, without a GPU: installs what is missing, builds, runs the demo VM, then all tests.
# usage: run_all.sh [--sanitizers] [--within MINUTES] [--build DIR] [--jobs N]
#   --sanitizers  all of it as Release instead of RelWithDebInfo (a new build folder is configured so), and besides the product by clang,
#                 under ASan + UBSan, with the tests of ring, transports, handles and lanes, the soak program, protocol and guided fuzz
#                 tests; and all but the last two under TSan. Tests of VMs, which leave a processor idle for half of their time, run beside these builds.
#   --within M    with --sanitizers, for a machine whose speed nobody knows, so that all is over some minutes after M: the longest tests of
#                 VMs (vm.xen, vm.kill_storm) are left out if they would begin later than half of M minutes after the start, the build by
#                 clang with its tests if it begins later than 60 %, and all under TSan later than 85 %. What is left out is named, and
#                 counted as skipped
#   --long        also what takes more than three minutes by itself (ctest -L long)
#   --jobs N      so many tests at a time (default 3: most of them wait); tests of VMs run one by one
#   --build DIR   the build folder (default: build beside this folder; the others are DIR-clang and DIR-thread)
# What failed is named again at the end, with the last lines that it printed: the log is long.
# The last line is "N passed, N failed, N skipped". Exits 0 only when nothing failed.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build sanitizers=no jobs=3 without='|long' within_s=''
while [ $# -gt 0 ]; do
  case "$1" in
    --sanitizers) sanitizers=yes; shift ;;
    --within) [[ ${2:-} =~ ^[0-9]+$ ]] || { echo "run_all.sh: --within needs minutes" >&2; exit 2; }; within_s=$((60 * $2)); shift 2 ;;
    --long) without=''; shift ;;
    --build) [ $# -ge 2 ] || { echo "run_all.sh: --build needs a folder" >&2; exit 2; }; build=$2; shift 2 ;;
    --jobs) [ $# -ge 2 ] || { echo "run_all.sh: --jobs needs a number" >&2; exit 2; }; jobs=$2; shift 2 ;;
    -h | --help) sed -n '3,/^set -/s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) echo "run_all.sh: unknown option $1; see --help" >&2; exit 2 ;;
  esac
done
mkdir -p "$build"
build=$(cd "$build" && pwd)
started=$SECONDS
passed=0 failed=0 skipped=0
failures=$build/failures.txt
: > "$failures"
step() { echo "==== $* ($((SECONDS - started)) s)"; }

# fail WHAT: one more step that failed, which is no test of ctest's.
fail() {
  failed=$((failed + 1))
  echo "---- failed: $1" >> "$failures"
}

# is_late PERCENT WHAT COUNT: whether more than so much of --within is over; then WHAT is left out, and counts as COUNT tests.
is_late() {
  [ -n "$within_s" ] && [ $((SECONDS - started)) -gt $((within_s * $1 / 100)) ] || return 1
  step "left out: $2, as it would begin too late for --within $((within_s / 60))"
  echo "---- left out: $2, after $((SECONDS - started)) s" >> "$failures"
  skipped=$((skipped + $3))
}

finish() {
  cat "$failures"
  echo "$passed passed, $failed failed, $skipped skipped"
  [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
  exit
}

# count_tests FILE: adds the results in ctest's JUnit file and keeps the end of what failing tests printed; a missing
# file counts as a failure.
count_tests() {
  local counts
  counts=$(python3 - "$1" "$failures" <<'TEXT'
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot()
with open(sys.argv[2], "a", errors="replace") as failures:
    for case in suite.iter("testcase"):
        if case.get("status") == "fail":
            lines = (case.findtext("system-out") or "").strip().splitlines()
            print(f"---- failed: {case.get('name')} ({case.get('time')} s), the last lines of {sys.argv[1]}", file=failures)
            print("\n".join(line[:300] for line in lines[-40:]), file=failures)
ran, failed, left_out = (int(suite.get(name, "0")) for name in ("tests", "failures", "skipped"))
left_out += int(suite.get("disabled", "0"))
print(ran - failed - left_out, failed, left_out)
TEXT
  ) || { counts="0 1 0"; echo "---- failed: no results in $1" >> "$failures"; }
  # shellcheck disable=SC2086
  set -- $counts
  passed=$((passed + $1)) failed=$((failed + $2)) skipped=$((skipped + $3))
}

# run_ctest FOLDER ctest-options...
run_ctest() {
  local folder=$1
  shift
  rm -f "$folder/results.xml"
  ctest --test-dir "$folder" --output-on-failure --no-tests=error --output-junit "$folder/results.xml" "$@" < /dev/null
}

# count_run FOLDER STATUS: what that run has left; a ctest that failed without a failing test counts as one.
count_run() {
  local before=$failed
  count_tests "$1/results.xml"
  if [ "$2" != 0 ] && [ "$failed" = "$before" ]; then fail "ctest in $1 exited with $2"; fi
}

# run_tests FOLDER ctest-options...: runs and counts.
run_tests() {
  local status=0
  run_ctest "$@" || status=$?
  count_run "$1" "$status"
}

# Tests of ring and transports. Those with causeway-tls (remote_test and others) cannot run under a sanitizer, whose own memory is more
# than the 64 MiB that the process of a connection may have.
unit="layout|ring|ring_processes|waiter|transport|tcp_transport|tcp_batch|tcp_compression|tcp_resume|tls_session"

# Builds only what tests/CMakeLists.txt lists for TSan and runs the tests that match.
thread_build() {
  ! is_late 85 "everything under TSan" 1 || return 0
  step "building with -DCAUSEWAY_SANITIZE=thread"
  if ! cmake -S "$root" -B "$build-thread" -G Ninja -DCAUSEWAY_SANITIZE=thread -DCAUSEWAY_UNITE=ON > "$build/configure-thread.log" 2>&1 ||
    ! cmake --build "$build-thread" --target tests_under_thread; then
    tail -n 20 "$build/configure-thread.log" >&2
    fail "building with -DCAUSEWAY_SANITIZE=thread"
    return
  fi
  step "testing with -DCAUSEWAY_SANITIZE=thread"
  run_tests "$build-thread" -j "$jobs" -R "^(($unit)_test|handles|lanes|soak)$"
}

product="causewayd causeway causeway-bench causeway-worker guest_libcuda guest_libnvml"

# One build by clang serves three ends: the whole product has to build by it, its fuzzers are guided (each runs a fixed
# number of executions over its corpus, with a seed that the log names), and all of it is under ASan and UBSan. Hardly
# optimised: a fuzzer that runs for hours is (fuzz/run.sh), one that runs for seconds costs more to compile than to run.
clang_build() {
  ! is_late 60 "the build by clang and all under ASan and UBSan" 1 || return 0
  step "building by clang, under ASan and UBSan, with guided fuzzers"
  # shellcheck disable=SC2086
  if cmake -S "$root" -B "$build-clang" -G Ninja -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++ -DCAUSEWAY_FUZZ=ON -DCAUSEWAY_UNITE=ON \
    -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -DNDEBUG" > "$build/configure-clang.log" 2>&1 &&
    cmake --build "$build-clang" --target $product tests_under_address; then
    step "testing under ASan and UBSan"
    run_tests "$build-clang" -j "$jobs" -R "^(($unit)_test|handles|lanes|soak|protocol|fuzz_.*)$"
  else
    tail -n 20 "$build/configure-clang.log" >&2
    fail "building by clang"
  fi
}

step "install, build and demo VM"
type=RelWithDebInfo
[ "$sanitizers" = no ] || type=Release
if DEMO_UNITE=tools DEMO_TYPE=$type DEMO_PROGRAMS=${DEMO_PROGRAMS:-all} "$root/vm_configs/demo.sh" "$build" < /dev/null; then
  passed=$((passed + 1))
else
  fail "the demo"
fi
# The demo has built what it runs. Without a build there is nothing to test.
step "building the tests"
# The structure's test reads the object of each source, which demo.sh by itself does not make.
cmake -S "$root" -B "$build" -DCAUSEWAY_UNITE=tools > "$build/configure.log" && cmake --build "$build" || { fail "building"; finish; }

step "tests without VMs"
run_tests "$build" -j "$jobs" -LE "^(vm$without)\$"

# The demo has just run.
left_out=demo
! is_late 50 "vm.xen and vm.kill_storm" 2 || left_out='(demo|xen|kill_storm)'
vm_tests=(-L '^vm$' -E "^vm\\.$left_out\$" ${without:+-LE '^long$'})
if [ "$sanitizers" = yes ]; then
  step "tests of VMs, whose lines come after the builds"
  run_ctest "$build" "${vm_tests[@]}" > "$build/vm_tests.log" 2>&1 &
  vm_pid=$!
  clang_build
  thread_build
  step "waiting for the tests of VMs"
  vm_status=0
  wait "$vm_pid" || vm_status=$?
  cat "$build/vm_tests.log"
  count_run "$build" "$vm_status"
else
  step "tests of VMs"
  run_tests "$build" "${vm_tests[@]}"
fi
step "done"
finish
