#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A host with cgroups of version 2, in a VM: causewayd on the software GPU there, and two of its users. One that uses up
# its memory or its threads loses its own session; the other's goes on. The bounds of the processor are those that are
# configured; that they hold is the kernel's matter. Without the hierarchy it is said once.
# usage: vm_cgroups.sh BUILD_DIR
# exit status: 0 all held; 77 QEMU or a guest kernel is missing; else failed
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
for file in host_backend/causewayd host_backend/causeway-launcher host_backend/causeway-worker host_backend/causeway software_gpu/libcuda.so.1 \
  guest_lib/libcuda.so.1 tests/vm/cgroup_client; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build it first."
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat > "$work/config.sh" <<'TEXT'
#!/bin/sh
cat > /tmp/causewayd.toml <<TOML
socket = "/tmp/causeway.sock"
socket_mode = "0666"
driver_library = "/lib/gpu/libcuda.so.1"
local_region_mib = 64
local_host_memory_mib = 96
local_max_threads = 40
local_cpu_weight = 70
local_cpu_percent = 150
log_file = "/tmp/causewayd.log"
TOML
TEXT
# The programs lie in /programs of the guest, the software GPU beside them under the name that its link has.
cat > "$work/serve.sh" <<'TEXT'
#!/bin/sh
sh /programs/config.sh
mkdir -p /lib/gpu
cp /programs/software_gpu.so /lib/gpu/libcuda.so.1
chmod 1777 /tmp
/programs/causewayd --config /tmp/causewayd.toml > /dev/null 2>&1 &
for i in $(seq 300); do
  grep -q 'accepts sessions' /tmp/causewayd.log 2> /dev/null && break
  sleep 0.1
done
sleep 0.5
TEXT
cat > "$work/stop.sh" <<'TEXT'
#!/bin/sh
kill $(pidof causewayd)
for i in $(seq 100); do pidof causewayd > /dev/null || break; sleep 0.1; done
! pidof causewayd causeway-launcher causeway-worker
TEXT
chmod +x "$work"/*.sh
cp "$build/software_gpu/libcuda.so.1" "$work/software_gpu.so"
cat > "$work/commands" <<'TEXT'
without:root sh /programs/serve.sh; grep -c 'have no cgroups of their own' /tmp/causewayd.log; sh /programs/stop.sh && rm /tmp/causewayd.log
mount:root mount -t cgroup2 none /sys/fs/cgroup && sh /programs/serve.sh && ! grep 'have no cgroups' /tmp/causewayd.log
& victim:gpu2 CAUSEWAY=local:/tmp/causeway.sock /programs/cgroup_client stay 12
ready:root for i in $(seq 300); do grep -q begins /run/victim.out && break; sleep 0.1; done; cd /sys/fs/cgroup/causeway/scope-uid_3a1002 && cat pids.max memory.max cpu.weight cpu.max
small:gpu1 CAUSEWAY=local:/tmp/causeway.sock /programs/cgroup_client memory 32
hog:gpu1 ! CAUSEWAY=local:/tmp/causeway.sock /programs/cgroup_client memory 512
threads:gpu1 ! CAUSEWAY=local:/tmp/causeway.sock /programs/cgroup_client threads 60
again:gpu1 CAUSEWAY=local:/tmp/causeway.sock /programs/cgroup_client memory 32
wait
left:root for i in $(seq 300); do ls -d /sys/fs/cgroup/causeway/scope-* > /dev/null 2>&1 || break; sleep 0.1; done; ls -d /sys/fs/cgroup/causeway/scope-* 2> /dev/null; grep -c 'host_memory_mib gives' /tmp/causewayd.log; sh /programs/stop.sh
TEXT
options=()
for file in host_backend/causewayd host_backend/causeway-launcher host_backend/causeway-worker tests/vm/cgroup_client; do
  options+=(--program "$build/$file")
done
for file in config.sh serve.sh stop.sh software_gpu.so; do options+=(--program "$work/$file"); done
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" "${options[@]}"
status=0
"$configs/run_vm.sh" --initramfs "$work/initramfs" --commands "$work/commands" --log "$work/console" --memory 1024 \
  --timeout "${VM_TIMEOUT_S:-300}" --program-timeout 60 || status=$?
[ "$status" = 0 ] || fail "the VM ended with status $status."
for line in 'without| 1' 'ready| 40' 'ready| 100663296' 'ready| 70' 'ready| 150000 100000' 'small| 32 MiB are written' 'again| 32 MiB are written' \
  'victim| unharmed' 'left| 1'; do
  grep -qaFx "$line" "$work/console" || fail "'$line' is missing."
done
grep -qaE '^hog\| ended at [0-9]+ MiB' "$work/console" || fail "the hog was not ended."
! grep -qa '^left| /sys' "$work/console" || fail "a scope's cgroup was left behind."
echo "vm_cgroups.sh: passed"
