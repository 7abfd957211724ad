# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Run in domain 0 by xen_limits.sh, under a Xen with its usual table of 64 frames: that is one region of 64 MiB, not of 128.
limit=/sys/module/xen_gntalloc/parameters/limit
set_limit() { echo "$1" > $limit; }
granted_again() { attach "$guest" && until_true 60 state_is 4 && detach "$guest" && until_true 60 gone_frontend; }
new_daemon() {
  stop_all
  rm -rf /run/causeway-state
  start_daemon
}
# Domain 0 has no modprobe here.
mkdir -p "/lib/modules/$(uname -r)" /run/bin
cp /causeway/modules/xen-gntalloc.ko "/lib/modules/$(uname -r)/"
echo "xen-gntalloc.ko:" > "/lib/modules/$(uname -r)/modules.dep"
ln -s "$(command -v busybox)" /run/bin/modprobe
load_anew() { PATH=/run/bin:$PATH bash /causeway/load_anew; }
problem() { status | python3 -c "import json, sys; print([r.get('problem', '') for r in json.load(sys.stdin)['regions']])"; }
has_problem() { problem | grep -- "$1"; }
show_problem() { echo "$type SAID $(problem)"; has_problem "$1" > /dev/null; }

type=pv guest=guest-pv LIMIT_S=3000
rm -rf /run/causeway-state
start_daemon
create "$guest" "$type" idle
set_limit 1000
check "limit= is named" refused "xen-gntalloc grants 1000 pages in all, and this takes 16402 that no other region has"

set_limit 16402
check "after it a region that just fits is granted" granted_again

# Xen's table is full before the limit is reached.
set_limit 262144
check "gnttab_max_frames= is named" refused "boot Xen with gnttab_max_frames=194" 128M
check "the same answer comes again" refused "boot Xen with gnttab_max_frames=194" 128M
check "after it as much can be granted as before" granted_again
check "and again" granted_again
new_daemon
check "a kernel whose count is wrong is named" refused "gives nobody one, because its count has been wrong"
check "the unit's command loads the module anew, beside causewayd" load_anew
set_limit 262144
check "which mends it" granted_again
new_daemon

# The limit that the unit sets is reached before the table is full: nothing is wrong afterwards.
check "the unit's command sets the limit" busybox sh /causeway/set_limit
check "to 63 frames' worth" [ "$(cat $limit)" = 32256 ]
check "and lets pages of a killed daemon go" [ "$(cat /sys/module/grant_table/parameters/free_per_iteration)" = 1000 ]
check "a region that does not fit is refused" refused "not more than 512 for each frame of Xen's gnttab_max_frames=" 128M
new_daemon
check "and the next daemon can grant as before" granted_again
xl destroy "$guest"

# Xen's table of what a guest maps.
type=pvh guest=guest-pvh
if ! xl info | grep -q "^virt_caps.*hvm"; then
  echo "pvh OK without hardware virtualisation there is no PVH guest: max_maptrack_frames is not tried"
else
  check "attached before it runs" attach "$guest"
  DOMAIN_LINES="max_maptrack_frames = 16" create "$guest" "$type" idle
  check "max_maptrack_frames is named by the guest's module" until_true 90 said "set max_maptrack_frames = 130 or more"
  check "and in domain 0" until_true 60 has_problem "max_maptrack_frames"
  check "by causeway status" show_problem "max_maptrack_frames"
  console "$guest" "$type"
  xl destroy "$guest"
fi
stop_all
cat /run/causewayd.log
echo "LIMITS ENDED"
