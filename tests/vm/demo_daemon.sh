# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced, after vm_begin.sh, by the tests that need causewayd with one VM. They set: driver (folder of the host's
# libcuda.so.1), region_mib and, if what the test leaves is to stay, keep (a folder). This sets: work, which like the
# daemon goes with the test; region, daemon_pid.
for file in host_backend/causewayd host_backend/causeway host_backend/causeway-launcher host_backend/causeway-worker guest_lib/libcuda.so.1 \
  programs/programs.txt; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build everything first."
done
[ -e "$driver/libcuda.so.1" ] || fail "$driver holds no libcuda.so.1."
work=$(mktemp -d)
region=/dev/shm/causeway-vm-test-$$

cat > "$work/causewayd.toml" <<TEXT
socket = "$work/causeway.sock"
worker = "$build/host_backend/causeway-worker"
driver_library = "$driver/libcuda.so.1"
spare_workers = 1
[[vm]]
name = "demo"
region_file = "$region"
region_mib = $region_mib
TEXT

# shellcheck source=tests/vm/own_daemon.sh
. "$(dirname "${BASH_SOURCE[0]}")/own_daemon.sh"

clean_up() {
  stop_daemon
  rm -f "$region"
  [ -z "${keep:-}" ] || { mkdir -p "$keep" && cp -r "$work/." "$keep/"; }
  rm -rf "$work"
}
trap clean_up EXIT
