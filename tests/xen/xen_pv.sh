#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Xen in emulation: causewayd and the software GPU in domain 0, a guest of a type, and in it CUDA programs as an
# unprivileged user, whose output and exit codes are compared with a direct run on this machine.
# usage: xen_pv.sh BUILD_DIR [--types "pv pvh hvm"] [--programs "NAME..."] [--keep DIR]
# exit status: 0 all agreed; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types=pv names='vector_add device_printf memory_kinds error_codes' keep=''
folder=$1
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --types) types=$2 ;; --programs) names=$2 ;; --keep) keep=$2 ;;
    *) echo "xen_pv.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"

for name in $names; do echo "$name /programs/$name"; done > "$work/commands"
guest programs "$work/commands"
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
echo 262144 > /sys/module/xen_gntalloc/parameters/limit
start_daemon $(for type in $types; do printf '%s ' "$type:guest-$type"; done)
for type in $types; do
  echo "GUEST \$type \$(cut -d' ' -f1 /proc/uptime)"
  create guest-\$type \$type programs && await_end 900 guest-\$type
  console guest-\$type \$type
done
status
cat /run/causewayd.log
TEXT
run_payload 600
for type in $types; do
  sed -n "s/^$type: //p" "$work/log" > "$work/$type.console"
  python3 "$here/../vm/vm_capture.py" "$work/$type.console" "$work/$type" > /dev/null || { tail -n 80 "$work/log"; fail "the $type guest ran no program."; }
  # shellcheck disable=SC2086
  python3 "$here/../programs/compare.py" --programs "$programs" \
    --way "direct=$here/../vm/quiet_gpu.sh env LD_LIBRARY_PATH=$build/software_gpu" --captured "$type=$work/$type" --only $names ||
    fail "the $type guest's results differ from a direct run."
done
echo "xen_pv.sh: passed: $(wc -w <<< "$names") programs did in guests of type $types what they do directly"
