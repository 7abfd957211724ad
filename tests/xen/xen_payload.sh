# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests under Xen, with the build folder as $1, the programs' names in `names` and files of the build folder in `more`. Sets: here, build,
# dom0 (what run_xen.sh boots), work and payload; fills payload with the daemon, the software GPU and guests.
# environment: XEN_HERE=1 this machine is domain 0 of a Xen host, on which the guests are started, instead of an emulated
# one; GPU_DRIVER=FILE libcuda.so.1 of its driver instead of the software GPU. docs/xen.md says what it needs.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
configs=$here/../../vm_configs
fail() { echo "$(basename "$0"): $*" >&2; exit 1; }
skip() { echo "$(basename "$0"): $*"; exit 77; }

[ -n "${XEN_HERE:-}" ] || command -v qemu-system-x86_64 > /dev/null || skip "qemu-system-x86_64 is not installed"
[ -n "${KERNEL:-}" ] || KERNEL=$("$configs/find_kernel.sh") || exit 77
export KERNEL
for file in host_backend/causewayd host_backend/causeway host_backend/causeway-launcher host_backend/causeway-worker \
  guest_lib/libcuda.so.1 software_gpu/libcuda.so.1; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build everything first."
done
programs=${PROGRAMS:-$build/programs}
dom0=$build/xen
if [ -n "${XEN_HERE:-}" ]; then
  grep -q control_d /proc/xen/capabilities 2> /dev/null || skip "XEN_HERE is for domain 0 of a Xen host, and this is none."
  mkdir -p "$dom0"
  python3 "$here/unpack_kernel.py" "$KERNEL" "$dom0/vmlinux"
else
  "$here/make_dom0.sh" "$dom0" || exit
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
payload=$work/payload
mkdir -p "$payload"/{bin,gpu,guest}
for name in causewayd causeway causeway-launcher causeway-worker; do
  strip --strip-debug -o "$payload/bin/$name" "$build/host_backend/$name"
done
for library in libcuda.so.1 libnvidia-ml.so.1; do
  strip --strip-debug -o "$payload/gpu/$library" "$build/software_gpu/$library"
done
cp "$KERNEL" "$payload/guest/vmlinuz"
cp "$dom0/vmlinux" "$payload/guest/"
cp "$here"/dom0/* "$payload/"
as --32 -o "$work/boot_sector.o" "$here/boot_disk.S"
ld -m elf_i386 -e start -Ttext 0x7c00 --oformat binary -o "$payload/boot_sector" "$work/boot_sector.o"

options=()
for name in $names; do options+=(--program "$programs/$name"); done
for name in ${driver:-}; do options+=(--program "${DRIVER_TESTS:-$build/driver_tests}/driver_${name}_test"); done
for file in ${more:-}; do options+=(--program "$build/$file"); done
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" "${options[@]}"

# guest NAME COMMANDS_FILE: the first memory of a guest that runs these commands (vm_configs/demo_init.sh).
guest() {
  mkdir -p "$work/extra/etc"
  cp "$2" "$work/extra/etc/causeway_commands"
  { (cd "$work/extra" && find . | cpio --quiet -o -H newc -R 0:0); cat "$work/initramfs"; } > "$payload/guest/$1.initramfs"
}

# run_payload SECONDS: boots domain 0 with what was made; what it says is in $work/log, and in the folder $keep if there is one.
run_payload() {
  local status=0
  if [ -n "${XEN_HERE:-}" ]; then
    mkdir -p /causeway
    mount --bind "$payload" /causeway
    timeout "${XEN_TIMEOUT_S:-$1}" bash -c '. /causeway/steps.sh; echo DONE' > "$work/console" 2>&1 < /dev/null || status=$?
    umount /causeway
  else
    # Again where the machine stood still (3), which is the emulator's fault.
    for _ in 1 2 3; do
      status=0
      "$here/run_xen.sh" --dom0 "$dom0" --payload "$payload" --log "$work/console" --timeout "${XEN_TIMEOUT_S:-$1}" \
        --xen-options "${xen_options:-}" --memory "${memory:-3072}" || status=$?
      [ "$status" = 3 ] || break
    done
  fi
  tr -d '\r' < "$work/console" > "$work/log"
  [ -z "$keep" ] || { mkdir -p "$keep" && cp "$work/log" "$keep/log"; }
  [ "$status" = 0 ] || { tail -n 60 "$work/log" >&2; fail "the emulated machine ended with status $status."; }
}

# compare_guest TYPE: ends the test unless the programs of $names did in the guest of that type what they do directly. Its
# console's results are then in the folder $work/TYPE. A PV guest cannot register memory, so that host_register has to say so there.
compare_guest() {
  local compared=" $names "
  sed -n "s/^$1: //p" "$work/log" > "$work/$1.console"
  python3 "$here/../vm/vm_capture.py" "$work/$1.console" "$work/$1" > /dev/null || { tail -n 80 "$work/log"; fail "the $1 guest ran no program."; }
  if [ "$1" = pv ] && [[ $compared == *" host_register "* ]]; then
    compared=${compared/ host_register / }
    grep -q 'cudaHostRegister(.*cudaErrorNotSupported (801)' "$work/$1/host_register.stdout" ||
      { cat "$work/$1"/host_register.*; fail "host_register ended otherwise than by error 801 in the pv guest."; }
  fi
  # shellcheck disable=SC2086
  [ -z "${compared// /}" ] || python3 "$here/../programs/compare.py" --programs "$programs" \
    --way "direct=$here/../vm/quiet_gpu.sh env LD_LIBRARY_PATH=$build/software_gpu" --captured "$1=$work/$1" --only $compared ||
    { tail -n 30 "$work/$1.console"; fail "the $1 guest's results differ from a direct run."; }
}
