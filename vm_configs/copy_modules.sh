#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copies kernel modules, with all that they need, into a folder for an initramfs, and unpacks them, because busybox loads
# no compressed ones.
# usage: copy_modules.sh KERNEL_VERSION FOLDER NAME...
# FOLDER/order lists the files in the order in which they are to be loaded. Exits 1 with a sentence when there is no such
# module.
set -euo pipefail
version=$1 folder=$2
shift 2
mkdir -p "$folder"
for name in "$@"; do
  /sbin/modprobe -S "$version" --show-depends "$name" || { echo "copy_modules.sh: the kernel $version has no module $name." >&2; exit 1; }
done | sed -n 's/^insmod \([^ ]*\).*/\1/p' | awk '!seen[$0]++' | while read -r module; do
  case "$module" in
    *.xz) xz -dc "$module" > "$folder/$(basename "$module" .xz)" ;;
    *.zst) zstd -qdc "$module" > "$folder/$(basename "$module" .zst)" ;;
    *) cp "$module" "$folder/" ;;
  esac
  basename "$module" | sed 's/\.ko.*/.ko/' >> "$folder/order"
done
