#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A guest of QEMU without a region, which comes by TLS over a card on a bridge of the host, and over a second one on a macvtap. No variable tells
# its programs the way: they find library and host by the files that the package and an administrator put there, and do what they do directly.
# The doctor in the guest says which way that is, and why. Without the list of hosts, and with a key that was revoked, a program fails with the
# sentence that says so. Guest and host do not reach each other over the macvtap until the host has its address on an interface beside it.
# usage: vm_tls.sh BUILD_DIR [--keep DIR]
# exit status: 0 all of it held; 77 something is missing here, which the last line explains; else failed
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
[ "${2:-}" != --keep ] || keep=$3
names='vector_add async_pinned streams_threads' driver=$build/software_gpu region_mib=0
for file in host_backend/causeway-tls host_backend/causeway-system guest_lib/libcauseway-tls.so.1 guest_lib/libnvidia-ml.so.1; do
  [ -e "$build/$file" ] || fail "$build/$file is missing: build everything first."
done
# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
space='' tls_pid='' vm_pid=''
finish() {
  for pid in $vm_pid $tls_pid; do kill "$pid" 2> /dev/null || true; wait "$pid" 2> /dev/null || true; done
  [ -z "$space" ] || ip netns del "$space" 2> /dev/null || true
  clean_up
}
trap finish EXIT
# shellcheck source=tests/vm/own_switch.sh
. "$here/own_switch.sh"

# The host: the daemon, which needs no network, a key, and causeway-tls.
sed -i '/^\[\[vm/,$d' "$work/causewayd.toml"
printf '%s\n' '[tls]' 'listen = ["0.0.0.0:7471"]' "keys = \"$work/keys\"" '[[remote]]' 'name = "guest1"' >> "$work/causewayd.toml"
keys() { "$build/host_backend/causeway" keys "$@" --keys "$work/keys" > "$work/said" 2>&1 || fail "causeway keys $*: $(cat "$work/said")"; }
keys create guest1 --output "$work/guest1.key"
start_daemon
ip netns exec "$space" "$build/host_backend/causeway-tls" --config "$work/causewayd.toml" > "$work/tls.log" 2>&1 &
tls_pid=$!
give_up() { tail -n 30 "$work/tls.log" >&2; daemon_failed "$1"; }
# until_says WORDS FILE SECONDS: as long as causeway-tls and the VM run.
until_says() {
  for _ in $(seq $(($3 * 10))); do
    ! grep -qas -- "$1" "$2" || return 0
    for pid in $tls_pid $vm_pid; do kill -0 "$pid" 2> /dev/null || give_up "\"$1\" was not said before a process ended."; done
    sleep 0.1
  done
  give_up "\"$1\" was not said within $3 s."
}
until_says 'TLS sessions are accepted at' "$work/tls.log" 30

# The guest: what the package causeway-guest puts into it, the loader's cache, the key, the list of hosts, and the cards' driver.
root=$work/root system=/programs/causeway-system
mkdir -p "$root"/{etc/causeway,etc/ld.so.conf.d,sbin,usr/lib/causeway}
for name in libcuda libnvidia-ml libcauseway-tls; do
  strip --strip-debug -o "$root/usr/lib/causeway/$name.so.1" "$build/guest_lib/$name.so.1" && ln -s $name.so.1 "$root/usr/lib/causeway/$name.so"
done
cp /sbin/ldconfig "$root/sbin/"
echo 'include /etc/ld.so.conf.d/*.conf' > "$root/etc/ld.so.conf"
cp "$configs/packages/guest/00-causeway.conf" "$root/etc/ld.so.conf.d/"
/sbin/ldconfig -r "$root"
echo tls://10.77.0.1 > "$root/etc/causeway/hosts"
install -m 0640 "$work/guest1.key" "$root/etc/causeway/key"
"$configs/copy_modules.sh" "${KERNEL##*/vmlinuz-}" "$root/lib/net" virtio_pci virtio_net
cat > "$root/network.sh" <<'TEXT'
while read -r module; do insmod "/lib/net/$module"; done < /lib/net/order
for i in $(seq 100); do [ ! -e /sys/class/net/eth0 ] || break; sleep 0.1; done
ip addr add 10.77.0.2/24 dev eth0 && ip link set eth0 up
chgrp render /etc/causeway/key
! ls /dev/causeway* && [ -z "${CAUSEWAY+set}" ]
TEXT
# shellcheck disable=SC2016  # the guest's shell expands it
echo 'for i in $(seq 60); do ! ping -q -c 1 -W 1 "$1" > /dev/null || exit 0; done; exit 1' > "$root/reach.sh"
{
  echo 'network:root sh /network.sh'
  [ $macvtap = no ] || echo 'macvtap:root ip addr add 10.78.0.2/24 dev eth1; ip link set eth1 up; ! ping -c 1 -W 1 10.78.0.1'
  for name in $names; do echo "$name unset LD_LIBRARY_PATH; /programs/$name"; done
  echo "doctor unset LD_LIBRARY_PATH; $system doctor && $system pool"
  [ $macvtap = no ] || echo 'by_macvtap:root sh /reach.sh 10.78.0.1; cp /etc/causeway/hosts /run/; echo tls://10.78.0.1 > /etc/causeway/hosts; /programs/vector_add; mv /run/hosts /etc/causeway/'
  echo 'no_list:root mv /etc/causeway/hosts /run/; ! /programs/vector_add; mv /run/hosts /etc/causeway/'
  # The host has this address from the moment on in which the key is revoked.
  echo 'await:root sh /reach.sh 10.77.0.9'
  echo 'refused ! /programs/vector_add'
  echo "doctor_refused ! $system doctor"
} > "$work/commands"
options=(--program "$build/host_backend/causeway-system")
for name in $names; do options+=(--program "$build/programs/$name"); done
"$configs/demo_initramfs.sh" --output "$work/base" "${options[@]}"
{ (cd "$root" && find . | cpio --quiet -o -H newc -R 0:0); cat "$work/base"; } > "$work/initramfs"
for word in "${cards[@]}"; do words+=(--qemu-option "$word"); done
# shellcheck disable=SC2016  # the shell inside the namespace expands it
ip netns exec "$space" bash -c 'exec "${@:2}" 3<> "$1"' bash "$tap" "$configs/run_vm.sh" --initramfs "$work/initramfs" --commands "$work/commands" \
  --log "$work/console" --timeout "${VM_TIMEOUT_S:-300}" --program-timeout 120 "${words[@]}" &
vm_pid=$!
[ $macvtap = no ] || { until_says '^EXIT macvtap' "$work/console" 240 && add_macvlan; }
until_says '^EXIT no_list' "$work/console" 240
keys revoke guest1
in_space 'addr add 10.77.0.9/24 dev br0' || fail "$(cat "$work/said")"
wait "$vm_pid" || give_up "the VM ended with status $?."
vm_pid=''

python3 "$here/vm_capture.py" "$work/console" "$work" > "$work/names"
# shellcheck disable=SC2086
python3 "$here/../programs/compare.py" --programs "$build/programs" --way "direct=$here/quiet_gpu.sh env LD_LIBRARY_PATH=$driver" \
  --captured "tls=$work" --only $names || give_up "the guest's results differ from a direct run."
[ $macvtap = no ] || cmp "$work/vector_add.stdout" "$work/by_macvtap.stdout" || give_up "vector_add printed something else over the macvtap."
keys list
while read -r file words; do
  grep -E -- "$words" "$work/$file" || give_up "$file does not say \"$words\"."
done <<'TEXT'
doctor.stdout ^skipped +device +There is no /dev/causeway, so that programs use the hosts of /etc/causeway/hosts\.$
doctor.stdout ^ok +key +The key /etc/causeway/key is there\.$
doctor.stdout ^ok +GPU +1 GPU
doctor.stdout ^A program that begins now would use tls://10\.77\.0\.1:7471\.$
no_list.stderr no tls://host:port is set in the variable CAUSEWAY or named in /etc/causeway/hosts
refused.stderr no encrypted connection with the key in /etc/causeway/key: .* its log has the reason, and `causeway keys list` there shows the key
doctor_refused.stdout ^broken +GPU .*no encrypted connection with the key in /etc/causeway/key
tls.log 10\.77\.0\.2:[0-9]+: refused: key guest1 was revoked at
said ^guest1 .*revoked
TEXT
daemon_status | python3 -c 'import json, sys; status = json.load(sys.stdin); sys.exit(bool(status["sessions"] or status["counters"]["violations"]))' ||
  give_up "a session is left, or the guest broke the protocol: $(daemon_status)"
echo "vm_tls.sh: passed: $(wc -w <<< "$names") programs did in a guest without a region what they do on the host (macvtap: $macvtap)"
