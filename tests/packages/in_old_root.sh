#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a program in another system's root folder, with this machine's kernel: `causeway run`'s socket, the guest's libraries and
# the program's folder are where they are here.
# usage: in_old_root.sh ROOT PROGRAM [ARGUMENT...]     environment: CAUSEWAY and LD_LIBRARY_PATH, as `causeway run` sets them
set -euo pipefail
if [ -z "${CAUSEWAY_IN_NAMESPACE:-}" ]; then
  as_root=()
  [ "$(id -u)" = 0 ] || as_root=(--map-root-user)
  CAUSEWAY_IN_NAMESPACE=1 exec unshare "${as_root[@]}" --mount -- "$0" "$@"
fi
root=$1 program=$2
shift 2
for folder in /proc /sys /dev; do
  mkdir -p "$root$folder"
  mount --rbind "$folder" "$root$folder"
done
# /tmp first: the others may lie in it.
mkdir -p "$root/tmp"
mount -t tmpfs -o mode=1777 none "$root/tmp"
folders=("$LD_LIBRARY_PATH" "$(dirname "${CAUSEWAY#local:}")")
[ -e "$root$program" ] || folders+=("$(dirname "$program")")
for folder in "${folders[@]}"; do
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
done
# env is the root's own, and so is the dynamic loader that it starts.
exec chroot "$root" /bin/busybox env -u CAUSEWAY_IN_NAMESPACE "$program" "$@"
