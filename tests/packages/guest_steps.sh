#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# First process of the guest of host_vm.sh: what systemd and udev would do for one device, then a CUDA program of an ordinary user's, which
# is run once more when the region was taken away, and when it has come back.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc none /proc
mount -t sysfs none /sys
mountpoint -q /dev || mount -t devtmpfs none /dev
/lib/systemd/systemd-udevd --daemon
udevadm trigger --action=add
udevadm settle --timeout=300
echo "GUEST device $(stat -c '%U:%G %a' /dev/causeway 2>&1)"
. /readme.sh  # the commands of vm_configs/README.md
readme_dmesg | sed 's/^/GUEST kernel /'
readme_slices 2>&1 | sed 's/^/GUEST slices /'
readme_doctor 2>&1 | sed 's/^/GUEST doctor /'
echo "GUEST doctor exit ${PIPESTATUS[0]}"
# run NAME: what the program prints, behind that name.
run() { su gpu -c ./home/gpu/vector_add 2>&1 | sed "s/^/GUEST $1 /"; }
run program
echo "GUEST ended"
for _ in $(seq 600); do [ -e /dev/causeway ] || break; sleep 1; done
run without
echo "GUEST without ended"
for _ in $(seq 600); do [ ! -e /dev/causeway ] || break; sleep 1; done
udevadm settle --timeout=300
run again
echo "GUEST again ended"
sync
echo o > /proc/sysrq-trigger
sleep 60
