#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The host's packages in a Debian 12 that is booted, under eight busy sessions, four of this release and four of an older one: upgraded,
# downgraded, restarted, killed, systemd reloaded; and containers of podman by CDI alone over all that; and the service of the exporter, where
# BUILD_DIR has one. Steps: service_steps.sh.
# usage: service_vm.sh BUILD_DIR [PACKAGES]      It takes some fifteen minutes by emulation.
#   environment: as of run_vm.sh; STEPS="installed exporter" these steps of service_steps.sh instead of all; OLDER=FOLDER packages of release 0.0.9 whose
#   rows differ (tests/versions/older_build.sh, then its target `packages`), instead of this release's that say so
#   PACKAGES   a folder with packages and next/ with those of the next revision, instead of what BUILD_DIR makes
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong
set -euo pipefail
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/packages_begin.sh" "$1"
command -v qemu-system-x86_64 > /dev/null || { echo "$name: qemu-system-x86_64 is not installed."; exit 77; }
# shellcheck source=tests/packages/guest_disk.sh
. "$here/guest_disk.sh"
if [ $# -gt 1 ]; then packages=$2; else build_packages; fi
base=$build/packages_root/bookworm_service
VARIANT=essential "$here/fetch_root.sh" bookworm "$base" systemd-sysv udev passwd procps dbus init-system-helpers podman crun libstdc++6 libfmt9 libssl3 \
  libvirt0 libpugixml1v5 libseccomp2 libprometheus-cpp-pull1.0 linux-image-amd64
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

root=$work/root
cp -a "$base" "$root"
mkdir -p "$root/packages/older"
cp "$packages"/causeway-worker-*.deb "$packages"/causeway-host_*.deb "$packages"/next/causeway-worker-*.deb "$packages"/next/causeway-host_*.deb "$root/packages/"
cp "$packages"/causeway-exporter_*-1_*.deb "$root/packages/" 2> /dev/null || step "there is no package causeway-exporter, so that its service is not tried."
if [ -n "${OLDER:-}" ]; then
  cp "$OLDER"/causeway-worker-*_0.0.9-1_*.deb "$OLDER"/causeway-host_0.0.9-1_*.deb "$root/packages/older/"
else
  "$here/older_packages.py" 0123456789abcdef "$root/packages/older" "$packages"/causeway-worker-*.deb "$packages"/causeway-host_*.deb
fi
cp "$here/service_steps.sh" "$here/run_steps.sh" "$here/../containers/make_image.sh" "$build/tests/upgrade/upgrade_client" "$build/old_system/vector_add" "$root/packages/"
cp -L "$build"/software_gpu/lib*.so.1 "$root/packages/"
in_root "$root" useradd --create-home --groups render gpu
echo "${STEPS:-}" > "$root/packages/steps"
run_at_boot "$root" /packages/service_steps.sh basic.target
take_kernel "$root" "$work"
mke2fs -q -t ext4 -d "$root" "$work/disk" 3G > /dev/null
rm -rf "$root"

run_disk 4096 2700
step passed
