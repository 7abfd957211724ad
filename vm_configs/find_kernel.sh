#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the newest installed Debian kernel image whose headers are installed too, or says what is missing.
set -euo pipefail
for kernel in $(printf '%s\n' /boot/vmlinuz-* | sort -rV); do
  if [ -r "$kernel" ] && [ -d "/lib/modules/${kernel##*/vmlinuz-}/build" ]; then
    echo "$kernel"
    exit 0
  fi
done
echo "find_kernel.sh: no kernel with headers in /boot: install linux-image-amd64 and linux-headers-amd64, or pass KERNEL=vmlinuz MODULE=causeway.ko." >&2
exit 1
