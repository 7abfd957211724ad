#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How long a call and a bare round trip by event channels take in a guest of Xen, measured by the program that measures them in a
# VM of QEMU (tests/vm/first_call.sh), for which beside it the same is measured: call by call after 10 ms and after 1 s of idle time.
# All times are the emulator's. Both guests are emulated; under Xen domain 0 is, too, and shares one processor with the guest.
# usage: xen_figures.sh BUILD_DIR [--types "pv pvh hvm"] [--keep DIR]
# exit status: 0 all was measured; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types='pv pvh' names='' keep=''
# shellcheck source=tests/xen/xen_options.sh
. "$(dirname "$0")/xen_options.sh" "$@"
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
strip --strip-debug -o "$payload/bin/channel_echo" "$build/tests/vm/channel_echo"
cp "$here/../vm/fake_host.py" "$payload/"
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" --program "$build/tests/vm/first_call"
cat > "$work/commands" <<TEXT
appears:root until [ -c /dev/causeway1 ]; do sleep 0.1; done
10ms /programs/first_call libcuda.so.1 200 10 /dev/causeway1
1s /programs/first_call libcuda.so.1 15 1000 /dev/causeway1
TEXT
guest figures "$work/commands"
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
echo 262144 > /sys/module/xen_gntalloc/parameters/limit
for type in $types; do
  rm -rf /run/causeway-state
  start_daemon guest
  PAUSED=-p create guest \$type figures || continue
  until_true 60 grep -q 'region of 64 MiB.* is ready' /run/causewayd.log
  domain=\$(xl domid guest)
  /causeway/bin/channel_echo \$domain > /run/ports &
  echo=\$!
  until_true 60 [ -s /run/ports ]
  python3 /causeway/granted_host.py \$domain --number 1 --ports \$(cat /run/ports) > /run/host.log 2>&1 &
  host=\$!
  until_true 300 grep -q offered /run/host.log
  xl unpause guest
  # What plays the second region's host would take processor time from what is measured: the module needs it while it connects.
  until_true 200 grep -aq "^EXIT appears 0" /var/log/xen/guest-guest.log
  kill -STOP \$host
  await_end 600 guest
  kill -CONT \$host
  kill \$host \$echo
  stop_all
  console guest \$type
  cat /run/host.log /run/causewayd.log
  : > /run/causewayd.log
done
TEXT
xen_options="gnttab_max_frames=1024"
run_payload 900
for type in $types; do
  [ "$(grep -cE "^$type: .*idle [0-9]+ ms: (call|bare round trip)" "$work/log")" = 4 ] ||
    { tail -n 60 "$work/log" >&2; fail "$type: not everything was measured."; }
  sed -nE "s/^$type: .*(idle [0-9]+ ms: .*)/Xen, $type: \1/p" "$work/log"
done
# The same kind of machine: emulated, although this one may have KVM.
ACCEL=tcg MINUTES=0 "$here/../vm/first_call.sh" "$build" doorbell | sed 's/^doorbell: /ivshmem-doorbell: /'
