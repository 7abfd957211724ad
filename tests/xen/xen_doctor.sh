#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `causeway doctor` where there is Xen: in a guest, whose links are broken and mended in turn, and in domain 0, whose limit of grants is
# too large for Xen's table, and whose count of them is wrong.
# usage: xen_doctor.sh BUILD_DIR [--types "pv pvh hvm"] [--keep DIR]
# exit status: 0 it named each link, and none where all was well; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
types=pv names='' keep=''
# shellcheck source=tests/xen/xen_options.sh
. "$(dirname "$0")/xen_options.sh" "$@"
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
strip --strip-debug -o "$payload/bin/causeway-system" "$build/host_backend/causeway-system"
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" --program "$build/host_backend/causeway-system"
# What the guest's package adds to the libraries.
mkdir -p "$work"/extra/{sbin,etc/ld.so.conf.d,usr/lib/causeway}
cp /sbin/ldconfig "$work/extra/sbin/"
echo 'include /etc/ld.so.conf.d/*.conf' > "$work/extra/etc/ld.so.conf"
echo /usr/lib/causeway > "$work/extra/etc/ld.so.conf.d/00-causeway.conf"
for name in libcuda libnvidia-ml; do ln -s "$name.so.1" "$work/extra/usr/lib/causeway/$name.so"; done
doctor='/programs/causeway-system doctor --side guest'
device=/sys/bus/xen/drivers/causeway
cat > "$work/commands" <<TEXT
setup:root /sbin/ldconfig
healthy $doctor
unbound:root echo causeway-0 > $device/unbind; ! $doctor > /run/said; cat /run/said; grep -q 'The module did not take the device causeway-0' /run/said
bound:root echo causeway-0 > $device/bind; until [ -c /dev/causeway ]; do sleep 0.1; done
again $doctor
detached:root until [ ! -e /sys/bus/xen/devices/causeway-0 ]; do sleep 0.1; done; ! $doctor > /run/said; cat /run/said; grep -q 'This domain of Xen has no device causeway' /run/said
attached:root until [ -c /dev/causeway ]; do sleep 0.1; done
last $doctor
unloaded:root echo causeway-0 > $device/unbind; rmmod causeway; ! $doctor > /run/said; cat /run/said; grep -q 'The module causeway was not built' /run/said
TEXT
guest doctor "$work/commands"
"$configs/copy_modules.sh" "${KERNEL##*/vmlinuz-}" "$payload/modules" xen-gntalloc
# Takes pages until Xen's table is full: the kernel then counts one too few.
cat > "$payload/fill_table.py" <<'TEXT'
import fcntl, os, struct
fd = os.open("/dev/xen/gntalloc", os.O_RDWR)
try:
    while True:
        fcntl.ioctl(fd, 0x184705, bytearray(struct.pack("HHIQ", 0, 0, 512, 0) + bytes(4 * 512)))
except OSError as problem:
    print(problem)
TEXT
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
own_links() { /causeway/bin/causeway-system doctor --side host --json --config /run/causewayd.toml --socket /run/causeway.sock; }
link() { own_links | python3 -c "import json, sys; print([[l['state'], l['sentence'], l.get('mend', '')] for l in json.load(sys.stdin)['links'] if l['link'] == 'Xen'])"; }
limit=/sys/module/xen_gntalloc/parameters/limit
type=domain0
rm -rf /run/causeway-state
start_daemon
reload() { busybox rmmod xen_gntalloc && busybox insmod /causeway/modules/xen-gntalloc.ko; }
link_says() { said=\$(link); echo "domain0 SAID \$said"; grep -q -- "\$1" <<< "\$said"; }
echo 1024 > \$limit
check "a small limit is named" link_says "broken.*grants 1024 pages in all"
echo 262144 > \$limit
check "a limit that Xen's table has no room for is named" link_says "broken.*Xen's table has room for 32256"
python3 /causeway/fill_table.py
echo 32256 > \$limit
check "a count that a full table has left wrong is named" link_says "broken.*gives nobody a page, although none is taken"
check "and mended by what it advises" reload
echo 32256 > \$limit
check "the limit that it advises is good" link_says "ok.*grants 32256 pages"
for type in $types; do
  guest=guest-\$type
  attach \$guest
  create \$guest \$type doctor || continue
  until_true 200 said "^EXIT again"
  detach \$guest
  until_true 100 said "^EXIT detached"
  attach \$guest
  await_end 300 \$guest
  detach \$guest
  console \$guest \$type
done
cat /run/causewayd.log
TEXT
run_payload 900
grep -a '^domain0 ' "$work/log"
! grep -qa '^domain0 FAILED' "$work/log" || fail "domain 0's doctor named another link, or none."
for type in $types; do
  [ "$(grep -c "^$type: EXIT [a-z_]* 0 " "$work/log")" = "$(wc -l < "$work/commands")" ] ||
    { grep "^$type: " "$work/log" >&2; fail "$type: the doctor named another link, or none."; }
  grep -a "^$type: .*|" "$work/log"
done
echo "xen_doctor.sh: passed in domain 0 and in guests of type $types"
