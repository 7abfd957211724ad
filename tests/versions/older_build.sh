#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the product as an older release: of another commit, or of this tree with rows that differ.
#
# usage: older_build.sh FOLDER [COMMIT]
#
# Without COMMIT it is release 0.0.9 of this tree with one row less and another order, so that nearly all opcodes are others.
# FOLDER then holds the sources and, in FOLDER/build, the programs. Then: versions.py BUILD --older FOLDER/build
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${1:?usage: older_build.sh FOLDER [COMMIT]}
commit=${2:-}
mkdir -p "$folder"
if [ -n "$commit" ]; then
  git -C "$root" archive "$commit" | tar -x -C "$folder"
else
  git -C "$root" ls-files -z | tar -c -C "$root" --null -T - --ignore-failed-read 2> /dev/null | tar -x -C "$folder"
  rows=$folder/ivshmem_ring/calls
  # One less: the guest refuses it from now on.
  sed -i 's/^CALL(cuDeviceGetP2PAttribute, .*/REFUSE(cuDeviceGetP2PAttribute, "not in this release")/' "$rows/device.def"
  # Another order: the first row becomes its file's last.
  row=$(grep '^CALL(cuDeviceGetExecAffinitySupport' "$rows/device.def")
  sed -i '/^CALL(cuDeviceGetExecAffinitySupport/d' "$rows/device.def"
  echo "$row" >> "$rows/device.def"
  sed -i 's/^project(causeway VERSION [0-9.]*/project(causeway VERSION 0.0.9/' "$folder/CMakeLists.txt"
  sed -i 's/^PACKAGE_VERSION=.*/PACKAGE_VERSION="0.0.9"/' "$folder/kernel_module/dkms.conf"
  if diff -rq "$root/ivshmem_ring/calls" "$rows" > /dev/null; then
    echo "older_build.sh: no row was changed: calls/device.def has no longer the rows that this script knows" >&2
    exit 1
  fi
fi
include=$(sed -n 's/^CAUSEWAY_CUDA_INCLUDE:PATH=//p' "$root/build/CMakeCache.txt")
cmake -S "$folder" -B "$folder/build" -G Ninja -DCAUSEWAY_CUDA_INCLUDE="$include" > "$folder/configure.log"
cmake --build "$folder/build" --target causewayd causeway causeway-launcher causeway-worker guest_libcuda guest_libnvml
