#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Host memory in a VM: the conformance tests of pinned, registered, pooled, managed and ordinary memory pass there, and
# programs killed in the middle of such work leave nothing. A process may end while its threads are inside calls.
# usage: vm_data.sh BUILD_DIR
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu region_mib=1024
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
start_daemon

tests="host_memory host_register registered_kinds registered_pages mempool pointer memcpy memcpy_box memcpy_batch unified_memory"
options=(--program "$build/programs/vector_add")
for name in $tests; do options+=(--program "$build/driver_tests/driver_${name}_test"); done
# A program of its own for the kills: it says what it was doing.
options+=(--program "$build/tests/unit/session_client")
killed() { # NAME MODE...
  echo "$1 timeout -s KILL 5 /programs/session_client /usr/lib/causeway/libcuda.so.1 ${*:2}; test \$? -ge 137"
}
{
  for name in $tests; do echo "$name /programs/driver_${name}_test --gtest_brief=1"; done
  killed killed_pageable copy pageable
  killed killed_pinned copy pinned
  killed killed_registering lose register
  killed killed_managed lose managed
  killed killed_images lose images
  # The session ends under the threads, whose memory may not go with it.
  echo 'exit_in_call for i in $(seq 60); do /programs/session_client /usr/lib/causeway/libcuda.so.1 leave threads || exit 1; done'
  echo "after /programs/vector_add"
} > "$work/commands"
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" "${options[@]}"
status=0
"$configs/run_vm.sh" --initramfs "$work/initramfs" --region "$region" --commands "$work/commands" --log "$work/console" \
  --memory 2048 --timeout "${VM_TIMEOUT_S:-540}" --program-timeout 240 || status=$?
python3 "$here/vm_capture.py" "$work/console" "$work/vm" > /dev/null
for name in $tests killed_pageable killed_pinned killed_registering killed_managed killed_images exit_in_call after; do
  [ "$(cat "$work/vm/$name.code" 2> /dev/null)" = 0 ] && continue
  grep -E 'Failure|FAILED|Which is|Expected' "$work/vm/$name.stdout" | head -n 20 >&2 || true
  fail "$name ended with $(cat "$work/vm/$name.code" 2> /dev/null || echo nothing) in the VM."
done
[ "$status" = 0 ] || daemon_failed "the VM ended with status $status."
daemon_status > "$work/status.json"
python3 - "$work/status.json" <<'TEXT'
import json, sys
status = json.load(open(sys.argv[1]))
region = status["regions"][0]
left = {"sessions": len(status["sessions"]), "accounts": len(status["accounts"]), "slots": region["slots_in_use"],
        "slices": region["slices"] - region["slices_free"], "violations": status["counters"]["violations"]}
sys.exit(f"vm_data.sh: left behind: {left}" if any(left.values()) else 0)
TEXT
echo "vm_data.sh: passed: $(wc -w <<< "$tests") programs of the conformance suite, and nothing is left of five that were killed"
