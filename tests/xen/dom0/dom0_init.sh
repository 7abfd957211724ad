#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Domain 0's first process under run_xen.sh: starts what xl needs, runs /causeway/steps.sh, powers the machine off.
export PATH=/usr/lib/xen-4.17/bin:/usr/sbin:/usr/bin:/sbin:/bin LD_LIBRARY_PATH=/usr/lib/xen-4.17/lib/x86_64-linux-gnu
mount -t proc none /proc
mount -t sysfs none /sys
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs -o mode=1777 none /dev/shm
mount -t tmpfs none /run
# Unpacked packages have no link here, and xl looks for its sockets there.
rm -rf /var/run
ln -s /run /var/run
mkdir -p /run/lock /run/xen /run/xenstored /var/lib/xenstored /var/lib/xen /var/log/xen
# As Xen's own unit does: xenstored's file would be held up with the disk.
mount -t tmpfs none /var/lib/xenstored
mount -t xenfs none /proc/xen
exec > /dev/hvc0 2>&1 < /dev/null
stty -F /dev/hvc0 -onlcr
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"
xenstored --pid-file=/run/xenstored.pid
tries=0
until xenstore-read / > /dev/null 2>&1 || [ $((tries += 1)) -gt 300 ]; do sleep 0.2; done
xen-init-dom0
xenconsoled --pid-file=/run/xenconsoled.pid --log=guest --log-dir=/var/log/xen
echo "TOOLS $(cut -d' ' -f1 /proc/uptime) $(xl info | grep -E '^(xen_version|virt_caps)' | tr -s ' \n' ' ')"
. /causeway/run_steps.sh
