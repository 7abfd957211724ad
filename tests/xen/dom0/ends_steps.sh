# shellcheck shell=bash disable=SC2034,SC2154,SC2317
# SPDX-License-Identifier: Apache-2.0
# Run in domain 0 by xen_ends.sh, which sets `types`, `cycles` and `only`. It checks as xen_functions.sh does.
serving() { [ "$(number 'sum(x["state"] == "serving" for x in s["sessions"])')" = "$1" ]; }
all_said() { xl dmesg | grep -q 'gnttab_usage_print_all \]'; }
# The grants that domain 0 has given and that are mapped, as Xen lists them: a line of its log for each, which has room for all lines
# (xen_ends.sh). "unknown" where it had not.
grants() {
  xl dmesg -c > /dev/null
  xl debug-keys g
  until_true 120 all_said
  xl dmesg | tr -d '\r' > /run/grants
  python3 - /run/grants <<'TEXT'
import re, sys
owner, count = None, 0
lines = open(sys.argv[1], errors="replace").readlines()
if not any("gnttab_usage_print_all [" in line for line in lines) or not any("gnttab_usage_print_all ]" in line for line in lines):
    sys.exit(print("unknown"))
for line in lines:
    if found := re.search(r"grant-table for remote d(\d+)", line):
        owner = found[1]
    elif owner == "0" and re.search(r"\[0x[0-9a-f]+\]", line):
        count += 1
print(count)
TEXT
}
# The allocator may give no page more than one region and causewayd take: it counts its own.
PAGES=16402
lists() { /causeway/bin/causeway list --control-socket /run/causeway.sock.control | grep -q -- "$1"; }
not_lost() { serving 1 && ! said "^EXIT hold1"; }
# Nothing that follows can be tried: what both sides say, and the guest's end.
why_not() {
  xl list
  xenstore-ls "$(backend)"
  status
  cat /run/causewayd.log
  console "$guest" "$type"
  xl destroy "$guest"
  stop_all
}
scribble() { python3 /causeway/scribble.py "$daemon" --writes 3000; }

# Daemon killed, guest saved, keys and region overwritten, guest destroyed. False: no guest could be started.
daemon_and_guest_end() {
  start_daemon "$type:$guest"
  create "$guest" "$type" ends || { echo "$type FAILED to start"; return 1; }
  check "a program is served" until_true 200 serving 1
  check "the module cannot be unloaded while used" until_true 100 said "^EXIT used 0"

  # The launcher keeps workers for the next daemon; their region is not its own any more.
  kill -9 "$daemon"
  start_daemon "$type:$guest"
  check "daemon killed and started again: the program ends with an error" until_true 120 said "^EXIT hold1 [1-9]"
  check "and the next one is served" until_true 200 said "^EXIT again1 0"
  check "a second program is served" until_true 120 serving 1

  xl save "$guest" /run/saved > /dev/null 2>&1 || echo "$type FAILED xl save"
  check "saved: no session is left" until_true 60 idle
  xl restore /run/saved > /dev/null 2>&1 || echo "$type FAILED xl restore"
  rm -f /run/saved
  check "restored: the program ended with an error" until_true 120 said "^EXIT hold2 [1-9]"
  check "and the next one is served" until_true 200 said "^EXIT again2 0"
  check "a third program is served" until_true 120 serving 1
  # The domain goes on where it is, and its xenbus does not say so.
  xl save -c "$guest" /run/saved > /dev/null 2>&1 || echo "$type FAILED xl save -c"
  rm -f /run/saved
  check "saved and going on: the program ended with an error" until_true 120 said "^EXIT hold3 [1-9]"
  check "and the next one is served" until_true 200 said "^EXIT again3 0"
  check "no session is left" until_true 60 idle

  console "$guest" "$type"
  # What the guest may write, and domain 0's own keys: anything in each.
  for key in state backend backend-id; do
    for value in "" 0 1 5 6 99 -1 4294967296 /local/domain/0 "$(head -c 2000 /dev/zero | tr '\0' x)"; do
      xenstore-write -- "$(frontend)/$key" "$value" 2> /dev/null
    done
  done
  check "after anything in the guest's keys the daemon answers" until_true 60 status
  xenstore-write "$(frontend)/backend" "$(backend)" "$(frontend)/backend-id" 0 "$(frontend)/state" 4
  for key in version bytes directory port-work port-control port-interrupt epoch state; do
    good=$(xenstore-read "$(backend)/$key")
    for value in "" x 0 1 5 6 -1 65536 4294967295 18446744073709551615 18446744073709551616; do
      [ "$value" != "$good" ] || continue
      # Other keys are read anew when the epoch changes, in this state. Of a key that is written twice the last value holds.
      xenstore-write -- "$(backend)/epoch" $((RANDOM + 1)) "$(backend)/state" 4 "$(backend)/$key" "$value"
      sleep 0.3
    done
    xenstore-write "$(backend)/$key" "$good" "$(backend)/epoch" $((RANDOM + 1)) "$(backend)/state" 4
  done
  check "after anything in domain 0's keys the guest's module connects again" until_true 60 state_is 4
  # Anything in the region, while no program of the guest runs and then under one that is served.
  check "anything is written into the region" scribble
  check "after anything in the region the daemon answers" until_true 60 status
  console "$guest" "$type" | tail -n 30
  xl destroy "$guest"
  create "$guest" "$type" ends || { echo "$type FAILED to start again"; return 1; }
  check "started again: a program is served" until_true 200 serving 1
  check "anything is written into the region under a program" scribble
  check "and the daemon answers" until_true 60 status
  xl destroy "$guest"
  check "destroyed: its session ends" until_true 60 idle
  stop_all
}

LIMIT_S=3000  # what stays in the guest stays until it is destroyed
echo $PAGES > /sys/module/xen_gntalloc/parameters/limit
echo 1000 > /sys/module/grant_table/parameters/free_per_iteration  # as causeway-xen.service
for type in $types; do
  guest=guest-$type
  : > /run/causewayd.log
  before=$(grants)
  [ "$only" = cycles ] || daemon_and_guest_end || continue

  # A session that outlives its daemon, and pages that are granted and taken back under a guest that lives.
  rm -rf /run/causeway-state
  KEEP_S=60 start_daemon
  check "attached before it runs" attach "$guest"
  check "causeway list names it" lists "$guest"
  create "$guest" "$type" ends || { echo "$type FAILED to start a third time"; continue; }
  check "attached: a program is served" until_true 200 serving 1
  serving 1 || { why_not; continue; }
  kill -9 "$daemon"
  KEEP_S=60 start_daemon
  check "daemon killed: the next one goes on with the session" until_true 60 serving 1
  sleep 20
  check "which is not lost" not_lost
  for ((cycle = 1; cycle <= cycles; cycle++)); do
    detach "$guest" > /dev/null || echo "$type FAILED detach $cycle"
    until_true 60 gone_frontend || echo "$type FAILED the guest gives back $cycle"
    until_true 60 attach "$guest" --connect xen:/// || echo "$type FAILED attach $cycle"
    until_true 60 state_is 4 || echo "$type FAILED the guest maps $cycle"
    [ $((cycle % 10)) != 0 ] || echo "$type CYCLES $cycle, $(cut -d' ' -f1 /proc/uptime) s after domain 0's boot"
  done
  check "$cycles times detached and attached, within the pages of one region" until_true 60 state_is 4
  # A guest that does not run cannot let go.
  xl pause "$guest"
  detach "$guest"
  check "a guest that keeps its mappings is named" until_true 90 logged "$guest still has 64 MiB mapped of a region that was taken away"
  check "and it gets no other region meanwhile" refused "still has a region mapped that was taken away from it"
  xl unpause "$guest"
  check "it lets go when it runs" until_true 60 gone_frontend
  echo 1000 > /sys/module/xen_gntalloc/parameters/limit
  check "a small limit= is named" refused "xen-gntalloc grants 1000 pages in all"
  echo $PAGES > /sys/module/xen_gntalloc/parameters/limit
  # A guest that says it has let go, and has not: it is believed, and Xen and the kernel keep the pages out of use.
  check "it is attached once more" until_true 60 attach "$guest"
  check "and maps" until_true 60 state_is 4
  xl pause "$guest"
  detach "$guest"
  xenstore-write "$(frontend)/state" 6
  check "a guest that says it has let go is believed" until_true 60 gone_frontend
  held=$(grants)
  echo "$type GRANTS of domain 0 that are mapped by a guest that says there are none: $held"
  # All pages of the region, and none of the directory, which the module unmaps once it has read it. A PV guest's
  # processes map each 2 MiB when they first touch it: 256 KiB of the first of them its module has mapped from the start.
  least=16384
  [ "$type" != pv ] || least=64
  check "and the pages that it maps are granted still" [ "$held" -ge "$least" ]
  xl destroy "$guest"
  stop_all
  after=$(grants)
  echo "$type GRANTS of domain 0 that are mapped: $before before, $after after"
  check "as many grants are mapped as before" [ "$before" -eq "$after" ]
  cat /run/causewayd.log
  console "$guest" "$type"
  echo "$type ENDED"
done
