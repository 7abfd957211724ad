#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# VM tests by name: module_seabios, module_q35, module_ovmf, module_one_cpu, module_foreign,
# module_doorbell. Exit 77 = cannot run here.
# usage: vm_test.sh NAME MODULE_TEST_PROGRAM [OPTIONS of run_vm.sh...]
# environment: KERNEL and MODULE as in vm_configs/demo_initramfs.sh
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
configs=$here/../../vm_configs
name=$1 program=$2
shift 2
more=("$@")

for tool in qemu-system-x86_64 cpio busybox python3 make; do
  command -v "$tool" > /dev/null || { echo "$tool is not installed"; exit 77; }
done
kernel=${KERNEL:-$("$configs/find_kernel.sh")} || exit 77

work=$(mktemp -d)
host_pid=''
stop() {
  [ -z "$host_pid" ] || kill "$host_pid" 2> /dev/null || true
  rm -rf "$work"
}
trap stop EXIT
fail() { echo "vm_test.sh $name: $*" >&2; exit 1; }

# start_host MIB [OPTIONS of fake_host.py...]
start_host() {
  python3 "$here/fake_host.py" "$work/region" --mib "$@" > "$work/host.log" 2>&1 &
  host_pid=$!
  for _ in $(seq 100); do
    grep -q formatted "$work/host.log" && return
    sleep 0.1
  done
  fail "the region was not formatted: $(cat "$work/host.log")"
}

stop_host() {
  local code=0
  kill -TERM "$host_pid"
  wait "$host_pid" || code=$?
  host_pid=''
  cat "$work/host.log"
  [ "$code" = 0 ] || fail "the host saw the module break its rules"
}

# Runs the commands of a file; every one must succeed. The rest are options of run_vm.sh.
boot() {
  local commands=$1
  shift
  KERNEL=$kernel "$configs/run_vm.sh" --initramfs "$work/initramfs" --commands "$commands" --timeout 240 \
    --log "$work/console" "$@" "${more[@]}" || fail "run_vm.sh ended with $?"
  [ "$(grep -acE '^EXIT ' "$work/console")" = "$(grep -cvE '^(wait)?$' "$commands")" ] ||
    fail "not every command reported its end"
}

require_write_back() {
  local mode
  for mode in cache_mode user_cache_mode; do
    grep -qa "^SYSFS $mode WB" "$work/console" || fail "$mode is not write-back"
  done
}

KERNEL=$kernel "$configs/demo_initramfs.sh" --output "$work/initramfs" --program "$program"
case "$name" in
  module_seabios)
    # A kernel that poisons freed memory, to see a use of it.
    start_host 128
    boot "$here/module_commands.txt" --region "$work/region" --append slub_debug=FZPU
    stop_host ;;
  module_one_cpu)
    # One virtual processor: QEMU's emulation then leaves out fences and atomic instructions towards the host.
    start_host 128
    grep -vE '^unload|^& calls' "$here/module_commands.txt" > "$work/commands"
    boot "$work/commands" --region "$work/region" --cpus 1 --append slub_debug=FZPU
    require_write_back
    stop_host ;;
  module_doorbell)
    start_host 128 --doorbell "$work/doorbell"
    {
      echo 'doorbell /programs/module_test doorbell'
      for pair in 1 2 3; do
        printf '%s\n' "& beside${pair}a /programs/module_test doorbell_beside" \
          "& beside${pair}b:gpu2 /programs/module_test doorbell_beside" wait
      done
      printf '%s\n' 'registers /programs/module_test registers' 'registers_root:root /programs/module_test registers' \
        'unbind_asleep:root /programs/module_test unbind_asleep'
      # And what does not depend on how one waits, in part.
      grep -E '^(mappings|& victim|& attacker|wait|killed|unbind|unload)' "$here/module_commands.txt"
    } > "$work/commands"
    boot "$work/commands" --doorbell "$work/doorbell" --append slub_debug=FZPU
    stop_host ;;
  module_q35 | module_ovmf)
    start_host 128
    printf '%s\n' 'mappings /programs/module_test mappings' 'speed /programs/module_test speed' > "$work/commands"
    options=(--machine q35)
    [ "$name" = module_q35 ] || options+=(--firmware ovmf)
    boot "$work/commands" --region "$work/region" "${options[@]}"
    require_write_back
    stop_host ;;
  module_foreign)
    # Beside the region: an ivshmem device of somebody else, an empty one as large as a region, and a region of another ABI. A
    # second region, whose host is not there, becomes /dev/causeway1.
    start_host 128
    truncate -s 4M "$work/foreign_small"
    truncate -s 64M "$work/foreign_large"
    python3 "$here/fake_host.py" "$work/second" --mib 64 --format-only
    python3 "$here/fake_host.py" "$work/other_abi" --mib 64 --format-only
    printf '\2' | dd of="$work/other_abi" bs=1 seek=8 conv=notrunc status=none  # abi_major
    second=()
    for file in foreign_small:4M foreign_large:64M other_abi:64M second:64M; do
      second+=(--qemu-option -object
        --qemu-option "memory-backend-file,id=${file%:*},mem-path=$work/${file%:*},size=${file#*:},share=on"
        --qemu-option -device --qemu-option "ivshmem-plain,memdev=${file%:*}")
    done
    printf '%s\n' 'two:root ls /dev/causeway /dev/causeway1 && ! ls /dev/causeway2' \
      'size:root grep -qx 67108864 /sys/class/causeway/causeway1/region_bytes' \
      'mappings /programs/module_test mappings' > "$work/commands"
    boot "$work/commands" --region "$work/region" "${second[@]}"
    [ "$(grep -ca '^KERNEL .*not used: ' "$work/console")" = 3 ] || fail "the foreign devices were not refused"
    grep -qa 'not used: the host speaks another major version .*: install the matching module' "$work/console" ||
      fail "the region of another ABI was refused for another reason"
    cmp "$work/foreign_large" <(head -c 64M /dev/zero) || fail "a foreign device's memory was written"
    stop_host ;;
  *) echo "unknown test $name" >&2; exit 2 ;;
esac
echo "vm_test.sh $name: passed"
