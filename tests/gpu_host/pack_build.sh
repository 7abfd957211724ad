#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Packs what run.sh needs of a build, stripped, and the VM, into one archive for a host where nothing can be installed.
# usage: pack_build.sh BUILD_DIR ARCHIVE.tar.xz [--no-vm]
# There: mkdir DIR && tar -xJf ARCHIVE.tar.xz -C DIR && tests/gpu_host/run.sh DIR/build OUT DIR/vm
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 2 ] || { sed -n '4,5s/^# //p' "$0" >&2; exit 2; }
build=$(cd "$1" && pwd)
archive=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/build/host_backend" "$work/build/guest_lib"
for file in host_backend/causeway host_backend/causewayd host_backend/causeway-launcher host_backend/causeway-worker host_backend/causeway-bench host_backend/causeway-bench-probe host_backend/causeway-bench-plot host_backend/causeway-bench-torch \
  host_backend/causeway-tls guest_lib/libcuda.so.1 guest_lib/libcauseway-tls.so.1 guest_lib/libnvidia-ml.so.1; do
  if [ -e "$build/$file" ]; then
    cp -L "$build/$file" "$work/build/$file"
  elif [ "$file" != guest_lib/libnvidia-ml.so.1 ]; then
    echo "pack_build.sh: $build/$file is missing: build everything first." >&2
    exit 1
  fi
done
cp -rL "$build/programs" "$work/build/"
for folder in driver_tests hostile_tests hostile_programs; do
  [ ! -d "$build/$folder" ] || cp -rL "$build/$folder" "$work/build/"
done
# The exporter, with those of its libraries that no system has by itself.
if [ -e "$build/host_backend/causeway-exporter" ]; then
  cp "$build/host_backend/causeway-exporter" "$work/build/host_backend/"
  mkdir "$work/build/exporter_libraries"
  ldd "$build/host_backend/causeway-exporter" | awk '/prometheus|civetweb/ { print $3 }' | xargs -r cp -L -t "$work/build/exporter_libraries"
fi
for file in bench/startup bench/crowded_load bench/managed_load bench/payload_bench differential/differential answers/answers; do
  if [ -e "$build/tests/$file" ]; then install -D "$build/tests/$file" "$work/build/tests/$file"; fi
done
find "$work/build" -type f -perm -u+x -exec strip --strip-unneeded {} + 2> /dev/null || true
(cd "$work" && strip --strip-unneeded build/guest_lib/*.so.1)
if [ "${3:-}" != --no-vm ]; then
  ARCHIVE=no COMPRESSION=none "$here/pack_vm.sh" "$work/vm" --build "$build" --program "$build/host_backend/causeway-bench-probe" --host-root
fi
# The programs have most of their code in common, which a dictionary larger than all of them finds.
# shellcheck disable=SC2046  # a word or none
tar -C "$work" -c build $([ ! -d "$work/vm" ] || echo vm) | xz -T1 -6 --lzma2=preset=6,dict=128MiB > "$archive"
echo "pack_build.sh: $archive, $(($(stat -c %s "$archive") >> 20)) MiB"
