#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The libvirt files are valid by libvirt's own schemas, and the example configuration, unit and snippets agree.
# usage: libvirt_xml_test.sh [CAUSEWAYD CAUSEWAY]: the daemon then checks its example configuration as well, and the command
# prints what the files hold
set -euo pipefail
configs=$(cd "$(dirname "$0")/../../vm_configs" && pwd)
command -v virt-xml-validate > /dev/null || { echo "virt-xml-validate is not installed (package libvirt-clients)"; exit 77; }
command -v xmllint > /dev/null || { echo "xmllint is not installed (package libxml2-utils)"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() { echo "libvirt_xml_test.sh: $*" >&2; exit 1; }

# The check must be able to fail: a domain with a misspelt element is refused.
sed 's/<vcpu>/<vcpus>/; s/<\/vcpu>/<\/vcpus>/' "$configs/libvirt/domain-pc.xml" > "$work/bad.xml"
! virt-xml-validate "$work/bad.xml" domain > /dev/null 2>&1 || fail "the schema accepts anything"

for domain in domain-pc domain-q35; do
  virt-xml-validate "$configs/libvirt/$domain.xml" domain || fail "$domain.xml is not valid"
done
# libvirt has a schema for domains only, so each device is checked inside one. in_domain FILE [TYPE]: that domain; a TYPE has nothing of QEMU.
in_domain() {
  python3 - "$configs/libvirt/domain-q35.xml" "$@" <<'TEXT'
import sys
import xml.etree.ElementTree as xml
domain, device = xml.parse(sys.argv[1]), xml.parse(sys.argv[2])
domain.find("devices").append(device.getroot())
if sys.argv[3:]:
    domain.getroot().set("type", sys.argv[3])
    domain.getroot().remove(domain.find("{http://libvirt.org/schemas/domain/qemu/1.0}override"))
domain.write(sys.stdout, encoding="unicode")
TEXT
}
for device in attach attach-q35 attach-doorbell interface-bridge interface-macvtap interface-ovs; do
  in_domain "$configs/libvirt/$device.xml" > "$work/$device.xml"
  virt-xml-validate "$work/$device.xml" domain || fail "$device.xml is not valid in a domain"
done
# What libvirt itself makes of an interface: its type, where it leads and how, and the card. libvirt's test driver needs no daemon.
understood() {
  local at='//interface[last()]'
  in_domain "$1" test > "$work/test.xml"
  virsh -q -c test:///default "define --validate $work/test.xml; dumpxml guest1" > "$work/said" 2>&1 || { cat "$work/said"; return; }
  sed -n '/<domain/,/<\/domain>/p' "$work/said" > "$work/defined.xml"
  xmllint --xpath "concat($at/@type, ' ', $at/source/@*[name() != 'mode'], ' ', $at/source/@mode, $at/virtualport/@type, ' ', $at/model/@type)" "$work/defined.xml"
}
while read -r interface words; do
  is=$(understood "$configs/libvirt/interface-$interface.xml")
  [ "$is" = "$words" ] || fail "libvirt understands interface-$interface.xml as \"$is\" instead of \"$words\""
done <<'TEXT'
bridge bridge br0  virtio
macvtap direct eth0 bridge virtio
ovs bridge ovsbr0 openvswitch virtio
TEXT
# libvirt knows what its schema does not: here that a bridge has to be named.
sed '/<source/d' "$configs/libvirt/interface-bridge.xml" > "$work/bad.xml"
[[ $(understood "$work/bad.xml") == *"requires a 'source' element"* ]] || fail "libvirt understands an interface without a bridge"

# One name and one size in all of them and in causewayd.toml.
file=$(sed -n 's/^region_file = "\([^"]*\)".*/\1/p' "$configs/causewayd.toml")
mib=$(sed -n 's/^region_mib = \([0-9]*\).*/\1/p' "$configs/causewayd.toml")
for xml in attach attach-q35 domain-pc; do
  name=$(xmllint --xpath 'string(//shmem/@name)' "$configs/libvirt/$xml.xml")
  size=$(xmllint --xpath 'string(//shmem/size)' "$configs/libvirt/$xml.xml")
  if [ "/dev/shm/$name" != "$file" ] || [ "$size" != "$mib" ]; then
    fail "$xml.xml names $name of $size MiB, causewayd.toml $file of $mib MiB"
  fi
done
# In doorbell mode the size is causewayd's alone.
[ "/dev/shm/$(xmllint --xpath 'string(//shmem/@name)' "$configs/libvirt/attach-doorbell.xml")" = "$file" ] || fail "attach-doorbell.xml names another region"
grep -q "doorbell_socket = \"$(xmllint --xpath 'string(//shmem/server/@path)' "$configs/libvirt/attach-doorbell.xml")\"" "$configs/causewayd.toml" ||
  fail "attach-doorbell.xml names another socket than causewayd.toml"
reserve=$(grep -o "pref64-reserve' type='unsigned' value='[0-9]*" "$configs/libvirt/domain-q35.xml" | grep -o '[0-9]*$')
[ "$reserve" -ge $((2 * mib << 20)) ] || fail "the root port of domain-q35.xml reserves too little for $mib MiB"
if [ $# -gt 0 ]; then
  "$1" --check --config "$configs/causewayd.toml" || fail "causewayd refuses causewayd.toml"
  while read -r file options; do
    # shellcheck disable=SC2086  # options are words
    "$2" xml guest1 --memory 1G $options | cmp - "$configs/libvirt/$file" || fail "$file is not what causeway xml prints"
  done <<'TEXT'
attach.xml
attach-q35.xml --machine q35
attach-doorbell.xml --doorbell /run/causeway/doorbell-guest1
domain-pc.xml --domain
domain-q35.xml --machine q35 --domain
TEXT
fi
if command -v systemd-analyze > /dev/null; then
  # Complaints about a program that is not installed here are not about the unit.
  complaints=$(systemd-analyze verify "$configs/causewayd.service" 2>&1 | grep causewayd.service | grep -v 'is not executable' || true)
  [ -z "$complaints" ] || fail "causewayd.service: $complaints"
fi
echo "libvirt_xml_test.sh: passed"
