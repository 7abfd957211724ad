#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# CUDA programs in the user space of Debian 11 (glibc 2.31, without a C++ library) do what they do here.
# usage: old_system_test.sh BUILD_DIR PROGRAM...     The programs are build/old_system/PROGRAM, linked for old systems.
# exit status: 0 they did; 77 Debian 11 cannot be fetched here; else they did not
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
shift
root=$build/old_system/bullseye
own=()
[ "$(id -u)" = 0 ] || own=(--map-root-user)
unshare "${own[@]}" --mount true 2> /dev/null || { echo "old_system_test.sh: this machine allows no mount namespaces, which it takes."; exit 77; }
"$here/fetch_root.sh" bullseye "$root" libc6 libc-bin busybox-static
[ -e "$root/bin/busybox" ] || { echo "old_system_test.sh: $root has no busybox." >&2; exit 1; }
# What runs there is that system's library, and not this one's.
version=$(CAUSEWAY=local:$build/old_system/none LD_LIBRARY_PATH=$build/guest_lib "$here/in_old_root.sh" "$root" /lib/x86_64-linux-gnu/libc.so.6 |
  sed -n '1s/.*release version \([0-9.]*\)\.$/\1/p')
[ "$version" = 2.31 ] || { echo "old_system_test.sh: the root's glibc is '$version', not 2.31." >&2; exit 1; }
run="$build/host_backend/causeway run --driver $build/software_gpu/libcuda.so.1 --guest-library $build/guest_lib --"
python3 "$here/../programs/compare.py" --programs "$build/old_system" \
  --way "here=$here/../vm/quiet_gpu.sh env LD_LIBRARY_PATH=$build/software_gpu" --way "debian_11=$run $here/in_old_root.sh $root" --only "$@"
