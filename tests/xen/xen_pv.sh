#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Xen in emulation: causewayd and the software GPU in domain 0, a guest of a type, and in it CUDA programs as an
# unprivileged user, whose output and exit codes are compared with a direct run on this machine.
# usage: xen_pv.sh BUILD_DIR [--types "pv pvh hvm"] [--programs "NAME..."] [--driver "NAME..."] [--together] [--vcpus N]
#                  [--region MIB] [--killed] [--refused] [--keep DIR]
#   --driver    conformance programs (tests/driver) that have to end with 0 there, too
#   --together  all guests run at the same time
#   --vcpus     of each guest; "1/4" is one of at most four (maxcpus)
#   --killed    programs that are killed in the middle of work with memory as well, of which nothing may be left on the host
#   --refused   the driver registers no memory, as one may that does not take granted pages
#   --region    of each guest; from 128 on, and for guests together, Xen is booted with a larger table of grants
# exit status: 0 all agreed; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types=pv names='vector_add device_printf memory_kinds error_codes' keep='' driver='' together='' vcpus=1 region=64 killed='' refused=''
folder=$1
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --together) together=yes; shift; continue ;;
    --killed) killed=yes; shift; continue ;;
    --refused) refused=yes; shift; continue ;;
    --types) types=$2 ;; --programs) names=$2 ;; --driver) driver=$2 ;; --vcpus) vcpus=$2 ;; --region) region=$2 ;;
    --keep) keep=$2 ;;
    *) echo "xen_pv.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
more=''
[ -z "$killed" ] || more='programs/vector_add tests/unit/session_client'
killed_modes=("copy pageable" "copy pinned" "lose managed" "lose images")
# A PV guest cannot register memory.
[[ " $types " == *" pv "* ]] || killed_modes+=("lose register")
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"

{
  # causewayd grants memory while the guest boots, and clears it when the guest has come. A program waits for it, but for 5 s only.
  echo 'appears:root until [ -c /dev/causeway ]; do sleep 0.1; done; until (: < /dev/causeway) 2> /dev/null; do :; done'
  # With --refused the library says on stderr that the GPU writes no words of the region.
  for name in $names; do echo "$name /programs/$name${refused:+ 2> /dev/null}"; done
  for name in $driver; do echo "driver_$name /programs/driver_${name}_test --gtest_brief=1"; done
  if [ -n "$killed" ]; then
    for mode in "${killed_modes[@]}"; do
      echo "killed_${mode#* } timeout -s KILL 5 /programs/session_client /usr/lib/causeway/libcuda.so.1 $mode; test \$? -ge 137"
    done
    echo 'after /programs/vector_add'
    echo 'stay:root sleep 100000'
  fi
} > "$work/commands"
guest programs "$work/commands"
# Two regions of 64 MiB are more than domain 0 may grant without.
limit=32256
if [ "$region" -ge 128 ] || [ -n "$together" ]; then
  limit=523776 xen_options="gnttab_max_frames=1024 gnttab_max_maptrack_frames=2048"
fi
[ "$region" -le 512 ] || memory=$((3072 + region))
# Of each guest. Emulated on a busy machine, a conformance program of memory can take two minutes.
limit_s=$((600 + 120 * $(wc -w <<< "$driver")))
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
echo $limit > /sys/module/xen_gntalloc/parameters/limit
REGION_MIB=$region LIMIT_S=600
# What is left on the host after the programs that were killed, while the guest still runs.
left() {
  guest=\$1 type=\$2
  until_true $limit_s said "^EXIT after"
  check "nothing is left of programs that were killed" until_true 30 idle
  status
  xl destroy \$guest
}
[ -z "$refused" ] || export SOFTWARE_GPU_FAIL=\$(printf 'cuMemHostRegister_v2:1:801,%.0s' {1..200} | sed 's/,$//')
start_daemon $(for type in $types; do printf '%s ' "$type:guest-$type"; done)
for type in $types; do
  echo "GUEST \$type \$(cut -d' ' -f1 /proc/uptime)"
  create guest-\$type \$type programs $vcpus || continue
  [ -z "$killed" ] || left guest-\$type \$type
  [ -n "$together" ] || await_end $limit_s guest-\$type
done
for type in $types; do
  [ -z "$together" ] || { await_end $limit_s guest-\$type; status; }  # with how late causewayd was in the last minute
  console guest-\$type \$type
done
status
cat /run/causewayd.log
TEXT
run_payload $((300 + limit_s * $(wc -w <<< "$types")))
[ -z "$refused" ] || grep -a 'the driver registers no memory that is granted' "$work/log" ||
  fail "no worker said that its driver had refused to register granted memory."
for type in $types; do
  if [ "$type" != pv ] && grep -a '^TOOLS ' "$work/log" | grep -qv ' virt_caps.* hvm'; then
    echo "xen_pv.sh: no $type guest ran: this QEMU emulates no SVM, which Xen needs for it"
    continue
  fi
  compare_guest "$type"
  if [ -n "$killed" ]; then
    grep -qa "^$type OK nothing is left" "$work/log" || fail "$type: something is left of programs that were killed."
    for name in "${killed_modes[@]/#* /killed_}" after; do
      [ "$(cat "$work/$type/$name.code" 2> /dev/null)" = 0 ] || fail "$name ended otherwise in the $type guest."
    done
  fi
  for name in $driver; do
    [ "$(cat "$work/$type/driver_$name.code" 2> /dev/null)" = 0 ] ||
      { grep -E 'Failure|FAILED' "$work/$type/driver_$name.stdout" | head -n 20 >&2; fail "driver_${name}_test failed in the $type guest."; }
  done
done
echo "xen_pv.sh: passed: $(wc -w <<< "$names $driver") programs did in guests of type $types${together:+, which ran together,} what they do directly"
