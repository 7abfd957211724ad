#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Xen in emulation: causewayd and the software GPU in domain 0, a guest of a type, and in it CUDA programs as an
# unprivileged user, whose output and exit codes are compared with a direct run on this machine.
# usage: xen_pv.sh BUILD_DIR [--types "pv pvh hvm"] [--programs "NAME..."] [--driver "NAME..."] [--together] [--vcpus N]
#                  [--region MIB] [--keep DIR]
#   --driver    conformance programs (tests/driver) that have to end with 0 there, too
#   --together  all guests run at the same time
#   --vcpus     of each guest; "1/4" is one of at most four (maxcpus)
#   --region    of each guest; from 128 on, and for guests together, Xen is booted with a larger table of grants
# exit status: 0 all agreed; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types=pv names='vector_add device_printf memory_kinds error_codes' keep='' driver='' together='' vcpus=1 region=64
folder=$1
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --together) together=yes; shift; continue ;;
    --types) types=$2 ;; --programs) names=$2 ;; --driver) driver=$2 ;; --vcpus) vcpus=$2 ;; --region) region=$2 ;;
    --keep) keep=$2 ;;
    *) echo "xen_pv.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"

{
  # causewayd grants memory while the guest boots.
  echo 'appears:root until [ -c /dev/causeway ]; do sleep 0.1; done'
  for name in $names; do echo "$name /programs/$name"; done
  for name in $driver; do echo "driver_$name /programs/driver_${name}_test --gtest_brief=1"; done
} > "$work/commands"
guest programs "$work/commands"
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
echo 262144 > /sys/module/xen_gntalloc/parameters/limit
REGION_MIB=$region
start_daemon $(for type in $types; do printf '%s ' "$type:guest-$type"; done)
for type in $types; do
  echo "GUEST \$type \$(cut -d' ' -f1 /proc/uptime)"
  create guest-\$type \$type programs $vcpus || continue
  [ -n "$together" ] || await_end 600 guest-\$type
done
for type in $types; do
  [ -z "$together" ] || await_end 600 guest-\$type
  console guest-\$type \$type
done
status
cat /run/causewayd.log
TEXT
# Two regions of 64 MiB are more than domain 0 may grant without.
[ "$region" -lt 128 ] && [ -z "$together" ] || xen_options="gnttab_max_frames=1024 gnttab_max_maptrack_frames=2048"
run_payload $((300 + 600 * $(wc -w <<< "$types")))
for type in $types; do
  if [ "$type" != pv ] && grep -a '^TOOLS ' "$work/log" | grep -qv ' virt_caps.* hvm'; then
    echo "xen_pv.sh: no $type guest ran: this QEMU emulates no SVM, which Xen needs for it"
    continue
  fi
  compare_guest "$type"
  for name in $driver; do
    [ "$(cat "$work/$type/driver_$name.code" 2> /dev/null)" = 0 ] ||
      { grep -E 'Failure|FAILED' "$work/$type/driver_$name.stdout" | head -n 20 >&2; fail "driver_${name}_test failed in the $type guest."; }
  done
done
echo "xen_pv.sh: passed: $(wc -w <<< "$names $driver") programs did in guests of type $types${together:+, which ran together,} what they do directly"
