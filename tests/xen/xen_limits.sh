#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The limits of Xen and of Linux that a region meets, each in a real domain 0: that a sentence names the option to change, that
# a region which was refused leaves nothing behind, and that the command of vm_configs/causeway-xen.service sets a limit that fits, and that
# of causewayd-xen.conf mends the allocator's count.
# usage: xen_limits.sh BUILD_DIR [--keep DIR]
# exit status: 0 all as docs/xen.md says; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
keep='' names=''
folder=$1
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --keep) keep=$2 ;;
    *) echo "xen_limits.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
echo 'stay:root sleep 100000' > "$work/commands"
guest idle "$work/commands"
"$configs/copy_modules.sh" "${KERNEL##*/vmlinuz-}" "$payload/modules" xen-gntalloc
# The units' commands as systemd gives them to the shell.
command_of() { sed -n "s/^$2=[+-]*\/bin\/sh -c '\(.*\)'\$/\1/p" "$configs/$1" | sed 's/\$\$/$/g'; }
command_of causeway-xen.service ExecStart > "$payload/set_limit"
command_of causewayd-xen.conf ExecStopPost > "$payload/load_anew"
for file in set_limit load_anew; do [ -s "$payload/$file" ] || fail "the units have no command for $file."; done
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
. /causeway/limits_steps.sh
TEXT
run_payload 600
failed=$(grep -a ' FAILED ' "$work/log" || true)
{ [ -z "$failed" ] && grep -qa '^LIMITS ENDED' "$work/log"; } ||
  { tail -n 120 "$work/log" >&2; fail "${failed:-the steps did not come to their end.}"; }
grep -aE '^(pv|pvh) (OK|SAID) ' "$work/log"
echo "xen_limits.sh: passed"
