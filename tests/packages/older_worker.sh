#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes the package of an older release's worker out of this release's: the same program under another hash and release.
#
# usage: older_worker.sh PACKAGE OUTPUT HASH
set -euo pipefail
package=$1 output=$2 hash=$3
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
dpkg-deb -R "$package" "$scratch/root"
workers=$scratch/root/usr/libexec/causeway/workers
mv "$workers"/* "$workers/$hash"
mv "$scratch/root/usr/share/doc"/* "$scratch/root/usr/share/doc/causeway-worker-$hash"
echo 0.0.9 > "$workers/$hash/release"
sed -i -E "s/^Package: .*/Package: causeway-worker-$hash/; s/^Version: .*/Version: 0.0.9-1/" "$scratch/root/DEBIAN/control"
rm "$scratch/root/DEBIAN/md5sums"
dpkg-deb -b "$scratch/root" "$output" > /dev/null
