#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A guest of Xen without granted memory: it reaches causewayd in domain 0 by TLS over a bridge, configured by the example
# vm_configs/causewayd-xen-tls.toml, and its programs do what they do directly.
# usage: xen_tls.sh BUILD_DIR [--types "pv pvh"] [--keep DIR]
# exit status: 0 all agreed; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types=pv names='vector_add device_printf' keep=''
# shellcheck source=tests/xen/xen_options.sh
. "$(dirname "$0")/xen_options.sh" "$@"
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
for file in host_backend/causeway-tls guest_lib/libcauseway-tls.so.1; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build everything first."
done
strip --strip-debug -o "$payload/bin/causeway-tls" "$build/host_backend/causeway-tls"
cp "$configs/causewayd-xen-tls.toml" "$payload/"
"$configs/copy_modules.sh" "${KERNEL##*/vmlinuz-}" "$payload/modules" bridge
mkdir -p "$work/extra/usr/lib/causeway"
strip --strip-debug -o "$work/extra/usr/lib/causeway/libcauseway-tls.so.1" "$build/guest_lib/libcauseway-tls.so.1"
"$configs/copy_modules.sh" "${KERNEL##*/vmlinuz-}" "$work/extra/lib/net" xen-netfront
{
  # shellcheck disable=SC2016  # the guest's shell expands it
  echo 'net:root while read -r m; do insmod /lib/net/$m; done < /lib/net/order; n=0; until [ -e /sys/class/net/eth0 ] || [ $n = 100 ]; do n=$((n + 1)); sleep 0.1; done; ip addr add 192.168.130.2/24 dev eth0; ip link set eth0 up; n=0; until ping -c 1 -W 1 192.168.130.1 > /dev/null || [ $n = 30 ]; do n=$((n + 1)); done; ! ls /dev/causeway'
  for name in $names; do echo "$name CAUSEWAY=tls://192.168.130.1:7471 /programs/$name"; done
} > "$work/commands"
guest tls "$work/commands"
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
while read -r module; do busybox insmod /causeway/modules/\$module; done < /causeway/modules/order
busybox brctl addbr xenbr0
busybox ip addr add 192.168.130.1/24 dev xenbr0
busybox ip link set xenbr0 up
mkdir -p /etc/causeway
MORE=/causeway/causewayd-xen-tls.toml start_daemon
/causeway/bin/causeway keys create guest1 --output /run/guest1.key
/causeway/bin/causeway-tls --config /run/causewayd.toml &
# The key becomes a file of the guest's first memory.
mkdir -p /run/root/etc/causeway
cp /run/guest1.key /run/root/etc/causeway/key
chmod 0644 /run/root/etc/causeway/key
{ (cd /run/root && busybox find . | busybox cpio -o -H newc -R 0:0); cat /causeway/guest/tls.initramfs; } > /run/keyed.initramfs
for type in $types; do
  DOMAIN_LINES='vif = [ "script=/causeway/bridge_vif.sh" ]' create guest1 \$type /run/keyed || continue
  await_end 600 guest1
  console guest1 \$type
done
cat /run/causewayd.log
TEXT
run_payload 900
for type in $types; do compare_guest "$type"; done
echo "xen_tls.sh: passed: $(wc -w <<< "$names") programs did in guests of type $types over TLS and a bridge what they do directly"
