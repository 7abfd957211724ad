#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The guest's packages in a Debian 12 that is a guest of Xen: udev loads by its alias the module that DKMS has built, programs of an ordinary
# user find the GPU, `causeway doctor` agrees, and what is unloaded and purged leaves nothing. In domain 0 is this build's causewayd.
# usage: xen_packages.sh BUILD_DIR [--types "pv pvh"] [--keep DIR]
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong
set -euo pipefail
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/../packages/packages_begin.sh" "$1"
# shellcheck source=tests/packages/guest_disk.sh
. "$here/guest_disk.sh"
types=pvh names='' keep='' memory=3584
# shellcheck source=tests/xen/xen_options.sh
. "$(dirname "$0")/xen_options.sh" "$@"
cmake --build "$build" --target packages > "$build/packages.log" 2>&1 || { tail -n 30 "$build/packages.log" >&2; fail "the packages cannot be built."; }
guest=$(mktemp -d)
trap 'rm -rf "$guest"' EXIT
guest_root "$guest/root"
cp "$here/run_steps.sh" "$here/../xen/dom0/packages_guest.sh" "$build/old_system/vector_add" "$build/old_system/nvml_query" "$guest/root/packages/"
run_at_boot "$guest/root" /packages/packages_guest.sh
sed -i 's/ttyS0/hvc0/' "$guest/root/etc/systemd/system/causeway-test.service"
rm -rf "$guest"/root/{later,usr/share/{doc,man,locale,info}}
take_kernel "$guest/root" "$guest"

# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
trap 'rm -rf "$work" "$guest"' EXIT
python3 "$here/unpack_kernel.py" "$guest/kernel" "$payload/guest/vmlinux"
mv "$guest/initramfs" "$payload/guest/packages.initramfs"
for type in $types; do
  mke2fs -q -t ext4 -O ^has_journal -d "$guest/root" "$payload/guest/disk-$type" "$(($(du -sm "$guest/root" | cut -f 1) * 5 / 4 + 256))M"
done
rm -rf "$guest/root"
cat > "$payload/steps.sh" <<TEXT
. /causeway/xen_functions.sh
echo 32256 > /sys/module/xen_gntalloc/parameters/limit
GUEST_MIB=768
GUEST_WORDS="root=/dev/xvda rw systemd.show_status=0 systemd.mask=serial-getty@hvc0.service"
for type in $types; do
  DOMAIN_LINES="disk = [\"format=raw, vdev=xvda, access=rw, backendtype=qdisk, target=/causeway/guest/disk-\$type\"]"
  start_daemon "\$type:guest-\$type"
  create guest-\$type \$type packages || continue
  await_end 3600 guest-\$type
  console guest-\$type \$type
  status
  stop_all
done
cat /run/causewayd.log
TEXT
run_payload $((300 + 3700 * $(wc -w <<< "$types")))
for type in $types; do
  grep -aE "^$type: [a-z]+(\||: )|^$type: EXIT" "$work/log" || true
  [ "$(grep -acE "^$type: EXIT (device|runs|doctor|refuses|unloads|purged) 0 " "$work/log")" = 6 ] ||
    { tail -n 80 "$work/log" >&2; fail "$type: not every step passed."; }
done
echo "xen_packages.sh: passed in guests of type $types"
