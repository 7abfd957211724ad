#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the guest of xen_packages.sh, as root, when the system has started. /packages holds the guest's packages, which are installed, and
# programs. Each step prints "EXIT NAME STATUS".
cd /packages || exit 1
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"
as_gpu() { runuser -u gpu -- "$@"; }
loaded() { grep -q '^causeway ' /proc/modules; }
# domain 0 grants memory while the guest boots.
device() {
  modinfo -F alias causeway | grep -x 'xen:causeway' && await "the module" loaded && await "the device" [ -c /dev/causeway ] && udevadm settle --timeout=60 &&
    expect "the device" "$(stat -c '%U:%G %a' /dev/causeway)" "root:render 660" && dmesg | grep -o 'causeway.*: region of.*'
}
runs() { await "a program" as_gpu ./vector_add && as_gpu ./vector_add && as_gpu ./nvml_query > /dev/null; }
doctor() { as_gpu causeway doctor; }
refuses() { ! runuser -u nobody -- ./vector_add > refused 2>&1 && grep 'is this user in group render' refused; }
# The command of docs/xen.md, and what the doctor says then and advises.
unloads() {
  echo causeway-0 > /sys/bus/xen/drivers/causeway/unbind && rmmod causeway && ! causeway doctor > broken && cat broken && modprobe causeway &&
    await "the device" [ -c /dev/causeway ] && udevadm settle --timeout=60 && runs
}
purged() {
  dpkg -P causeway-guest causeway-dkms &&
    expect "what is left of the module" "$(find /lib/modules /var/lib/dkms /usr/src -name 'causeway*' 2> /dev/null)" "" &&
    expect "what is left of the libraries" "$(ldconfig -p | grep -c causeway)" 0
}

. "$(dirname "$0")/run_steps.sh"
run_steps device runs doctor refuses unloads purged
