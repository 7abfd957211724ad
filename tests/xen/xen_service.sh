#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# causewayd of the package causeway-host as systemd runs it in Xen's domain 0: as an unprivileged user, with the drop-in
# vm_configs/causewayd-xen.conf and the rules causeway-xen.rules, in a Debian 12 whose own scripts start Xen's tools.
# usage: xen_service.sh BUILD_DIR [--keep DIR]
# exit status: 0 all as docs/xen.md says; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/../packages/packages_begin.sh" "$1"
[ -z "${XEN_HERE:-}" ] || { echo "$name: it boots a machine of its own, and tries nothing on a Xen host."; exit 77; }
# shellcheck source=tests/packages/guest_disk.sh
. "$here/guest_disk.sh"
base=$build/packages_root/bookworm_xen
VARIANT=essential "$here/fetch_root.sh" bookworm "$base" systemd-sysv udev passwd procps dbus init-system-helpers kmod libstdc++6 libfmt9 \
  libssl3 libvirt0 libpugixml1v5 libseccomp2 xen-utils-4.17 busybox-static
names=vector_add keep=''
# shellcheck source=tests/xen/xen_options.sh
. "$(dirname "$0")/xen_options.sh" "$@"
more=tests/unit/session_client
# shellcheck source=tests/xen/xen_payload.sh
. "$(dirname "$0")/xen_payload.sh" "$folder"
cmake --build "$build" --target packages > "$build/packages.log" 2>&1 || { tail -n 30 "$build/packages.log" >&2; fail "the packages cannot be built."; }

root=$work/root
mkdir "$root"
cp -a "$base/." "$root/"
mkdir "$root/causeway" "$root/packages"
cp "$packages"/causeway-worker-*.deb "$packages"/causeway-host_*.deb "$root/packages/"
in_root "$root" sh -c 'dpkg -i /packages/*.deb' > "$work/log" 2>&1 < /dev/null || { cat "$work/log" >&2; fail "the host's packages do not install."; }
# The commands of docs/xen.md.
install -D -m 0644 "$configs/causewayd-xen.conf" "$root/etc/systemd/system/causewayd.service.d/xen.conf"
install -D -m 0644 "$configs/causeway-xen.rules" "$root/etc/udev/rules.d/71-causeway-xen.rules"
echo 'options xen-gntalloc limit=32256' > "$root/etc/modprobe.d/causeway-xen.conf"
echo xen-gntalloc > "$root/etc/modules-load.d/causeway-xen.conf"
# Where xen_functions.sh looks for what a guest prints.
echo 'XENCONSOLED_ARGS="--log=guest --log-dir=/var/log/xen"' >> "$root/etc/default/xen"
sed -i 's#^driver_library = .*#driver_library = "/causeway/gpu/libcuda.so.1"#' "$root/etc/causeway/causewayd.toml"
version=${KERNEL##*/vmlinuz-}
"$configs/copy_modules.sh" "$version" "$root/lib/modules/$version/kernel" xen-gntalloc xen-evtchn xen-gntdev xenfs xen-privcmd
depmod -b "$root" "$version" 2> /dev/null
cat > "$root/etc/systemd/system/causeway-test.service" <<'TEXT'
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c '. /causeway/run_steps.sh'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/hvc0
TimeoutStartSec=infinity
[Install]
WantedBy=graphical.target
TEXT
in_root "$root" systemctl --quiet enable causeway-test.service
in_root "$root" systemctl --quiet mask serial-getty@hvc0.service getty@tty1.service
ln -sf /lib/systemd/system/graphical.target "$root/etc/systemd/system/default.target"
# The machine's first memory has loaded the allocator: systemd shall.
cat > "$payload/dom0_init.sh" <<'TEXT'
mount -t proc none /proc
busybox rmmod xen_gntalloc
umount /proc
exec /sbin/init
TEXT
mkdir "$work/dom0"
ln -s "$dom0"/{xen,vmlinux,dom0.initramfs} "$work/dom0/"
mke2fs -q -t ext4 -O ^has_journal -d "$root" -E root_owner=0:0 "$work/dom0/dom0.ext4" "$(($(du -sm "$root" | cut -f 1) * 5 / 4 + 256))M"
rm -rf "$root"
dom0=$work/dom0

client='timeout -s KILL 600 /programs/session_client /usr/lib/causeway/libcuda.so.1 copy pageable'
cat > "$work/commands" <<TEXT
appears:root until [ -c /dev/causeway ]; do sleep 0.1; done; until (: < /dev/causeway) 2> /dev/null; do :; done
vector_add /programs/vector_add
& hold $client
wait
again:root n=0; until /programs/vector_add; do n=\$((n + 1)); [ \$n -lt 120 ] || exit 1; sleep 1; done 2> /dev/null
stay:root sleep 100000
TEXT
guest service "$work/commands"
cat > "$payload/steps.sh" <<'TEXT'
. /causeway/xen_functions.sh
. /causeway/service_steps.sh
TEXT
# Another number than 64, so that the limit can only be the drop-in's.
xen_options="gnttab_max_frames=70"
run_payload 1200
failed=$(grep -a '^pv FAILED' "$work/log" || true)
{ [ -z "$failed" ] && grep -qa '^pv ENDED' "$work/log"; } || { tail -n 150 "$work/log" >&2; fail "${failed:-the steps did not come to their end.}"; }
compare_guest pv
grep -aE '^pv (OK|SAID) ' "$work/log"
echo "xen_service.sh: passed"
