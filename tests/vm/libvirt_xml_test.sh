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
# libvirt has a schema for domains only, so each device is checked inside one.
for device in attach attach-q35 attach-doorbell; do
  python3 - "$configs/libvirt/domain-q35.xml" "$configs/libvirt/$device.xml" > "$work/$device.xml" <<'TEXT'
import sys
import xml.etree.ElementTree as xml
domain, device = xml.parse(sys.argv[1]), xml.parse(sys.argv[2])
domain.find("devices").append(device.getroot())
domain.write(sys.stdout, encoding="unicode")
TEXT
  virt-xml-validate "$work/$device.xml" domain || fail "$device.xml is not valid in a domain"
done

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
