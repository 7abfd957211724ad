#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The module's tests of tests/vm in guests of Xen: in domain 0 granted_host.py plays the host over granted pages.
# usage: xen_module.sh BUILD_DIR [--types "pv pvh hvm"] [--keep DIR]
# exit status: 0 all passed; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types=pv keep='' names=''
# shellcheck source=tests/xen/xen_options.sh
. "$(dirname "$0")/xen_options.sh" "$@"
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
cp "$here/../vm/fake_host.py" "$payload/"
"$configs/demo_initramfs.sh" --output "$work/initramfs" --program "${MODULE_TEST:-$build/tests/vm/module_test}"
{
  for name in mappings slices two_processes fork killed:gpu2 quarantine slots remap wipe speed; do
    echo "$name /programs/module_test ${name%:*}"
  done
  echo 'outsider:nobody ! cat /dev/causeway'
  echo 'bound:root ! rmmod causeway'
  echo 'unload:root echo causeway-0 > /sys/bus/xen/drivers/causeway/unbind && rmmod causeway && ! grep -q causeway /proc/modules'
} > "$work/commands"
for type in $types; do
  # A PV guest's mappings cannot be moved.
  if [ "$type" = pv ]; then sed 's/ remap$/ remap_in_place/' "$work/commands"; else cat "$work/commands"; fi > "$work/commands_of_type"
  guest "module_$type" "$work/commands_of_type"
done
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
echo 262144 > /sys/module/xen_gntalloc/parameters/limit
for type in $types; do
  PAUSED=-p create guest-\$type \$type module_\$type || continue
  python3 /causeway/granted_host.py \$(xl domid guest-\$type) > /run/host.log 2>&1 &
  host=\$!
  until_true 300 grep -q offered /run/host.log
  xl unpause guest-\$type
  await_end 900 guest-\$type
  console guest-\$type \$type
  kill \$host
  wait \$host && echo "HOST \$type agreed"
  cat /run/host.log
done
TEXT
run_payload $((300 + 900 * $(wc -w <<< "$types")))
for type in $types; do
  grep -q "^HOST $type agreed" "$work/log" || { tail -n 80 "$work/log" >&2; fail "$type: the host saw the module break its rules, or no guest."; }
  [ "$(grep -c "^$type: EXIT [a-z_]* 0 " "$work/log")" = "$(wc -l < "$work/commands")" ] ||
    { grep "^$type: " "$work/log" >&2; fail "$type: not every command succeeded."; }
  for mode in cache_mode user_cache_mode; do
    grep -q "^$type: SYSFS $mode WB" "$work/log" || echo "$type: $mode is not known to be write-back"
  done
done
echo "xen_module.sh: passed in guests of type $types"
