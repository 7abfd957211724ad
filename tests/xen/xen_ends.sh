#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How sessions of a guest of Xen end, and that nothing of them is left: daemon killed, guest saved, destroyed and started
# again, region detached and attached, module unloaded while used, xenstore's keys and the region overwritten with anything.
# usage: xen_ends.sh BUILD_DIR [--types "pv pvh hvm"] [--cycles N] [--only cycles] [--keep DIR]
#   --cycles   so often the region is detached from a running guest and attached again (4)
#   --only cycles  the region detached and attached, and what follows it, without what comes before
# exit status: 0 all as docs/xen.md says; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types=pv keep='' names=vector_add cycles=4 only=''
folder=$1
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --types) types=$2 ;; --cycles) cycles=$2 ;; --only) only=$2 ;; --keep) keep=$2 ;;
    *) echo "xen_ends.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" \
  --program "$programs/vector_add" --program "$build/tests/unit/session_client"

# Each hold ends by what domain 0 does meanwhile, with the error that is final for a process; each again is another
# process, which is served as soon as there is a region. Granting may take longer than a guest takes to boot, the more so where the
# pages of the guest before have to be free first.
client='timeout -s KILL 600 /programs/session_client /usr/lib/causeway/libcuda.so.1 copy pageable'
# shellcheck disable=SC2016  # the guest's shell expands it
again='n=0; until /programs/vector_add; do n=$((n + 1)); [ $n -lt 120 ] || exit 1; sleep 1; done 2> /dev/null'
cat > "$work/commands" <<TEXT
appears:root until [ -c /dev/causeway ]; do sleep 0.1; done
& hold1 $client
used:root while grep -q '^causeway .* 0 ' /proc/modules || ! ls -l /proc/*/fd 2> /dev/null | grep -q dev/causeway; do sleep 0.2; done; ! rmmod causeway
wait
again1:root $again
& hold2 $client
wait
again2:root $again
& hold3 $client
wait
again3:root $again
stay:root sleep 100000
TEXT
guest ends "$work/commands"
cat > "$payload/steps.sh" <<TEXT
types="$types" cycles=$cycles only=$only
. /causeway/xen_functions.sh
. /causeway/ends_steps.sh
TEXT
# Room for a line for each page of a region.
xen_options="conring_size=4m"
run_payload $(((1500 + 12 * cycles) * $(wc -w <<< "$types")))
for type in $types; do
  failed=$(grep -a "^$type FAILED" "$work/log" || true)
  { [ -z "$failed" ] && grep -qa "^$type ENDED" "$work/log"; } ||
    { tail -n 120 "$work/log" >&2; fail "$type: ${failed:-its steps did not come to their end.}"; }
  grep -a "^$type \(OK\|GRANTS\)" "$work/log"
done
echo "xen_ends.sh: passed in guests of type $types, with $cycles cycles"
