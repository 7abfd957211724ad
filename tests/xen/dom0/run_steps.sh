# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Sourced in domain 0 when what xl needs runs: runs /causeway/steps.sh, says what the kernel complained of, powers the machine off.
. /causeway/steps.sh
dmesg | grep -E 'WARNING:|BUG[: ]|Oops|blocked for more than|general protection' | sed 's/^/KERNEL-FAULT /'
echo "DONE $(cut -d' ' -f1 /proc/uptime)"
sync
echo o > /proc/sysrq-trigger
sleep 60
