#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=dash
# In the demo VM, as /bin/in-host: runs a command in the host's root file system, which demo_init.sh has mounted read-only.
# usage: in-host [NAME=VALUE...] COMMAND...
# The guest's device nodes, /proc and /sys are there, /tmp and /run are its own, /mnt is the folder given by run_vm.sh
# --share; libraries in it (libcuda.so.1) come before the host's.
set -e
exec /bin/busybox chroot /host /usr/bin/env -i HOME=/tmp TERM=dumb LANG=C.UTF-8 \
  PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
  LD_LIBRARY_PATH="/mnt${HOST_LIBRARY_PATH:+:$HOST_LIBRARY_PATH}" "$@"
