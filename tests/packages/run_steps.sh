# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What a script sources that runs in a VM as its only work.
# run_steps STEP...: runs these functions in turn, says the end of what each printed and its exit status in the form that
# run_vm.sh reads, and switches the machine off.
run_steps() {
  local step code
  for step in "$@"; do
    "$step" > log 2>&1
    code=$?
    tail -n 30 log | sed "s/^/$step| /"
    echo "EXIT $step $code 0 $(cut -d' ' -f1 /proc/uptime)"
  done
  echo "DONE $(cut -d' ' -f1 /proc/uptime)"
  systemctl poweroff --force
}
