#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# containers_test.py with the user space of Debian 11 as the image, which old_system_test.sh has, too.
# usage: containers_test.sh BUILD_DIR     exit status: as of containers_test.py
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../packages/fetch_root.sh" bullseye "$1/old_system/bullseye" libc6 libc-bin busybox-static
# The interface's own schema, of Debian's package of it, which is not installed for the sake of two files.
package=golang-github-container-orchestrated-devices-container-device-interface-dev
inside=usr/share/gocode/src/github.com/container-orchestrated-devices/container-device-interface/schema
schema=/$inside
if [ ! -e "$schema/schema.json" ]; then
  folder=$1/old_system/cdi_package schema=$1/old_system/cdi_package/$inside
  if [ ! -e "$schema/schema.json" ]; then
    rm -rf "$folder" && mkdir -p "$folder"
    (cd "$folder" && apt-get -q -o APT::Sandbox::User=root download "$package" && dpkg-deb -x "$package"_*.deb .) > "$folder.log" 2>&1 || schema=''
  fi
fi
exec python3 "$here/containers_test.py" "$1" "$1/old_system/bullseye" ${schema:+"$schema"}
