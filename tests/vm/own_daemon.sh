# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced by demo_daemon.sh, private_libvirtd.sh and ../hardware_speed/bench.sh: starts, asks and stops the causewayd that belongs to a test. They set: build; work,
# with causewayd.toml, whose socket is $work/causeway.sock. This sets: daemon_pid, empty while none runs.
daemon_pid=''

daemon_failed() {
  cat "$work/causewayd.log" >&2
  fail "$1"
}

# Starts it and waits until it answers, by when the regions of its VMs are formatted.
start_daemon() {
  "$build/host_backend/causewayd" --config "$work/causewayd.toml" >> "$work/causewayd.log" 2>&1 &
  daemon_pid=$!
  for _ in $(seq 300); do
    daemon_status > /dev/null 2>&1 && return
    kill -0 "$daemon_pid" 2> /dev/null || daemon_failed "causewayd ended."
    sleep 0.1
  done
  daemon_failed "causewayd does not answer."
}

stop_daemon() {
  [ -n "$daemon_pid" ] || return 0
  kill "$daemon_pid" 2> /dev/null || true
  wait "$daemon_pid" 2> /dev/null || true
  daemon_pid=''
}

daemon_status() {
  "$build/host_backend/causeway" status --json --socket "$work/causeway.sock"
}
