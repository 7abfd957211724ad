# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced by vm_tls.sh, after demo_daemon.sh: a network namespace of the test's own, in which the host has 10.77.0.1 on the bridge br0, with a
# tap as its port, and 10.78.0.1 on the card eth0 with a macvtap on top of it, where the kernel has that. Sets: space, cards (QEMU's options for
# a guest's cards, the second with file 3), tap (what file 3 is to be), macvtap (yes or no). Exits with 77 where there can be no such bridge.
# The script that sources this removes the namespace: ip netns del "$space".
[ "$(id -u)" = 0 ] || { echo "$(basename "$0"): not root, which a network namespace takes"; exit 77; }
command -v ip > /dev/null || { echo "$(basename "$0"): the command ip (package iproute2) is missing"; exit 77; }
space=cw-vm-tls-$$
# in_space COMMANDS: each line is one of `ip`. What a failed one says is in $work/said.
in_space() { ip -n "$space" -batch - > "$work/said" 2>&1 <<< "$1"; }

if ! ip netns add "$space" 2> "$work/said" || ! in_space "link add br0 type bridge
addr add 10.77.0.1/24 dev br0
link set br0 up
tuntap add tap0 mode tap
link set tap0 master br0
link set tap0 up"; then
  echo "$(basename "$0"): this machine can have no bridge with a tap: $(head -n 1 "$work/said")"
  exit 77
fi
cards=(-netdev "tap,id=net0,ifname=tap0,script=no,downscript=no" -device "virtio-net-pci,netdev=net0,romfile=")
# Device files of all namespaces lie in one folder and are named by their numbers, so that this number has to be nobody else's.
tap=/dev/tap$((100000 + $$)) macvtap=no
if in_space "link add eth0 type veth peer name cable
addr add 10.78.0.1/24 dev eth0
link set eth0 up
link set cable up
link add link eth0 name tap1 index ${tap#/dev/tap} address 52:54:00:77:00:02 type macvtap mode bridge
link set tap1 up" && [ -c "$tap" ]; then
  macvtap=yes cards+=(-netdev "tap,id=net1,fd=3" -device "virtio-net-pci,netdev=net1,mac=52:54:00:77:00:02,romfile=")
else
  tap=/dev/null
  echo "$(basename "$0"): this machine has no macvtap, which is left out: $(head -n 1 "$work/said")"
fi

# The host's address moves from the card to an interface of the host's own on top of it, which a macvtap reaches.
add_macvlan() {
  in_space "link add link eth0 name macvlan0 type macvlan mode bridge
link set macvlan0 up
addr del 10.78.0.1/24 dev eth0
addr add 10.78.0.1/24 dev macvlan0" || fail "no macvlan: $(head -n 1 "$work/said")"
}
