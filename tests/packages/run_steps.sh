# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# What a script sources that runs in a VM as its only work.

# expect WHAT FOUND WANTED
expect() { [ "$2" = "$3" ] || { echo "$1: '$2' instead of '$3'"; return 1; }; }
# await WHAT COMMAND...: until it succeeds, for two minutes.
await() {
  local what=$1
  shift
  for _ in $(seq 240); do "$@" > /dev/null 2>&1 && return 0; sleep 0.5; done
  echo "waited in vain for $what"
  journalctl -u causewayd --no-pager -o cat | tail -n 12
  return 1
}
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
