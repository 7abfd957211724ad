#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Networks that lose, reorder, duplicate, corrupt and delay packets, and kernel TLS, for machines whose kernels have neither: a Debian 12
# with its own kernel is booted, and in it lossy_test.py runs remote guests over netem, and kernel_tls measures kernel TLS beside the
# records that Causeway makes in its own processes. Where there is no KVM everything is emulated, and so are the processor times.
# usage: lossy_vm.sh BUILD_DIR      (as root, which makes the disk)
#   environment: as of run_vm.sh; STEPS="networks kernel_tls ..." these of lossy_steps.sh instead of all; ONLY="loss_5 delay" these
#   disturbances instead of all; SECONDS_EACH how long launches are counted under each (default 3); MIB how much kernel_tls sends each time (default 4)
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong. It ends after 900 s.
set -euo pipefail
case "${1:-}" in
  '' | -h | --help) sed -n '3,10s/^# //p' "$0"; exit 2 ;;
esac
# Sets `here` to its own folder.
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/../packages/packages_begin.sh" "$1"
command -v qemu-system-x86_64 > /dev/null || { echo "$name: qemu-system-x86_64 is not installed."; exit 77; }
# shellcheck source=tests/packages/guest_disk.sh
. "$here/guest_disk.sh"
tests=$here/..
host=(causewayd causeway-launcher causeway-worker causeway causeway-tls)
guest=(libcuda.so.1 libcauseway-tls.so.1)
driver_tests=(driver_memcpy_test driver_event_test)
for file in "${host[@]/#/host_backend/}" "${guest[@]/#/guest_lib/}" "${driver_tests[@]/#/driver_tests/}" software_gpu/libcuda.so.1 \
  programs/vector_add tests/remote/kernel_tls; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build it first."
done
base=$build/packages_root/bookworm_lossy
VARIANT=essential "$here/fetch_root.sh" bookworm "$base" systemd-sysv udev passwd procps kmod iproute2 python3 openssl libstdc++6 linux-image-amd64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

root=$work/root
cp -a "$base" "$root"
mkdir -p "$root"/causeway/{host_backend,guest_lib,software_gpu,programs,driver_tests,tests/remote,tests/driver}
cp -L "${host[@]/#/$build/host_backend/}" "$root/causeway/host_backend/"
cp -L "${guest[@]/#/$build/guest_lib/}" "$root/causeway/guest_lib/"
cp -L "${driver_tests[@]/#/$build/driver_tests/}" "$root/causeway/driver_tests/"
cp -L "$build/software_gpu/libcuda.so.1" "$root/causeway/software_gpu/"
cp -L "$build/programs/vector_add" "$root/causeway/programs/"
cp -L "$build/tests/remote/kernel_tls" "$tests/remote/lossy_steps.sh" "$root/causeway/"
cp "$tests"/remote/{lossy_test,network,cutter}.py "$root/causeway/tests/remote/"
cp "$tests/driver/compare_ways.py" "$root/causeway/tests/driver/"
{
  printf 'STEPS=%q\n' "${STEPS:-system user_without user_with kernel_tls openssl_tls networks}"
  printf 'ONLY=%q\n' "${ONLY:+--only $ONLY}"
  printf 'SECONDS_EACH=%q\nMIB=%q\n' "${SECONDS_EACH:-3}" "${MIB:-4}"
} > "$root/causeway/settings"
run_at_boot "$root" /causeway/lossy_steps.sh basic.target
take_kernel "$root" "$work"
mke2fs -q -t ext4 -d "$root" "$work/disk" 2G > /dev/null
rm -rf "$root"

run_disk 2048 "${VM_TIMEOUT_S:-900}"
step passed
