#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# containers_test.py with the user space of Debian 11 as the image, which old_system_test.sh has, too.
# usage: containers_test.sh BUILD_DIR     exit status: as of containers_test.py
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
"$here/../packages/fetch_root.sh" bullseye "$1/old_system/bullseye" libc6 libc-bin busybox-static
exec python3 "$here/containers_test.py" "$1" "$1/old_system/bullseye"
