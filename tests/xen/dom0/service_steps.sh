# shellcheck shell=bash disable=SC2034,SC2154,SC2317
# SPDX-License-Identifier: Apache-2.0
# Run in domain 0 by xen_service.sh, under systemd, when the system has started. Everything is asked for as an administrator does.
status() { causeway status --json; }
attach() { causeway attach "$1" --memory "${MEMORY:-64M}"; }
detach() { causeway detach "$1" --force; }
of_unit() { systemctl show -p "$2" --value "$1"; }
limit=/sys/module/xen_gntalloc/parameters/limit
limit_is() { [ "$(cat $limit)" = "$1" ]; }
serving() { [ "$(number 'sum(x["state"] == "serving" for x in s["sessions"])')" = "$1" ]; }
goes_on() { serving 1 && ! said "^EXIT hold"; }
later_than() { [ "$(of_unit causewayd.service ExecMainStartTimestampMonotonic)" -gt "$(of_unit "$1" ActiveEnterTimestampMonotonic)" ]; }
another_daemon() { [ "$(of_unit causewayd.service MainPID)" != "$before" ] && status; }
fine() { causeway doctor --side host --json | python3 -c "import json, sys; print([l['sentence'] for l in json.load(sys.stdin)['links'] if l['link'] == 'Xen' and l['state'] == 'ok'])" | tee /dev/stderr | grep -q "grants $frames_worth pages"; }
# In the emulator systemd may take more than 15 s, after which a process of a VM takes its session for lost. The guest therefore does
# not run meanwhile, and then for as long that it could lose its session.
without_guest() {
  xl pause $guest
  "$@"
  xl unpause $guest
  sleep 20
}
restart_unit() { systemctl restart causewayd.service && until_true 60 another_daemon; }
kill_daemon() { kill -9 "$before" && until_true 60 another_daemon; }
systemctl() { command systemctl --no-pager "$@"; }

type=pv guest=guest-pv LIMIT_S=3000
frames_worth=$((69 * 512))
check "Debian's own script has started Xen's tools" systemctl is-active xen.service
check "causewayd is started after them" later_than xen.service
check "it runs as an unprivileged user" [ "$(stat -c %U "/proc/$(of_unit causewayd.service MainPID)")" = causeway ]
check "the drop-in has set the limit that Xen says" limit_is $frames_worth
check "and lets pages of a killed daemon go" [ "$(cat /sys/module/grant_table/parameters/free_per_iteration)" = 1000 ]
check "causeway doctor agrees" fine

check "attached before it runs" attach $guest
create $guest pv service
check "a program is served" until_true 200 said "^EXIT vector_add 0"
check "and another one" until_true 120 serving 1
before=$(of_unit causewayd.service MainPID)
without_guest check "systemctl restart" restart_unit
check "and the session goes on" goes_on
before=$(of_unit causewayd.service MainPID)
without_guest check "killed: systemd starts another causewayd" kill_daemon
check "and the session goes on" goes_on

check "systemctl stop" systemctl stop causewayd.service
check "the session ends with an error" until_true 120 said "^EXIT hold [1-9]"
check "the allocator is loaded anew, which its own limit shows" limit_is 32256
check "systemctl start" systemctl start causewayd.service
check "the limit is the drop-in's again" limit_is $frames_worth
check "the next program is served" until_true 200 said "^EXIT again 0"

# Once Xen's table was full, Linux's count is wrong until the module is loaded anew.
check "detached" detach $guest
check "the guest lets go" until_true 60 gone_frontend
echo 262144 > $limit
check "the table is too small" refused "boot Xen with gnttab_max_frames=" 256M
check "systemctl restart mends what that leaves" systemctl restart causewayd.service
check "and a region is granted" until_true 60 attach $guest
check "which the guest maps" until_true 60 state_is 4
check "causeway doctor agrees" fine
console $guest pv
xl destroy $guest
journalctl -u causewayd.service -u causeway-xen.service -o short-monotonic --no-pager | grep -v "left-over process\|This usually indicates"
echo "pv ENDED"
