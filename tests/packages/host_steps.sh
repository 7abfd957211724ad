#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the host of host_vm.sh, as root, when libvirtd has started. Each step prints "EXIT NAME STATUS"; run_vm.sh reads that.
cd /packages || exit 1
. ./readme.sh  # the commands of vm_configs/README.md
# The host's processors are emulated, with AMD's virtualization: KVM on them runs a guest many times as fast as an emulator on them.
# udev loads KVM's modules beside libvirtd's start, and on a busy machine later; there is no /dev/kvm before, so they are loaded here.
kind=kvm
for module in kvm_amd kvm_intel; do [ -c /dev/kvm ] || modprobe -q "$module"; done
if [ ! -c /dev/kvm ]; then
  kind=qemu
  dmesg | grep -iE 'kvm|svm|vmx' | tail -n 5
fi
images=/var/lib/libvirt/images local_file=/etc/apparmor.d/local/abstractions/libvirt-qemu
echo
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"
echo "domains are of type $kind"

# The regions of VMs that are there; what causewayd keeps there for its workers is none.
regions() { find /dev/shm -mindepth 1 ! -path '/dev/shm/causeway-workers-*' -printf '%f\n'; }
# says PATTERN COMMAND...: it fails, with that sentence.
says() {
  local pattern=$1
  shift
  if "$@" > said 2>&1; then echo "\"$*\" did not fail"; return 1; fi
  cat said
  grep -qE "$pattern" said
}

# domain NAME [DEVICES]
domain() {
  cat <<TEXT
<domain type='$kind'>
  <name>$1</name>
  <memory unit='MiB'>768</memory>
  <vcpu current='1'>2</vcpu>
  <os>
    <type arch='x86_64' machine='pc'>hvm</type>
    <kernel>$images/kernel</kernel>
    <initrd>$images/initramfs</initrd>
    <cmdline>console=ttyS0 root=/dev/vda rw init=/guest_steps.sh no_timer_check quiet nowatchdog cryptomgr.notests rcupdate.rcu_cpu_stall_suppress=1 panic=-1 mitigations=off nokaslr random.trust_cpu=on</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum'/>
  <on_reboot>destroy</on_reboot>
  <devices>
    <serial type='file'><source path='/var/log/libvirt/qemu/$1.console' append='on'/></serial>
    <memballoon model='none'/>
    ${2:-}
  </devices>
</domain>
TEXT
}

confinement() {
  expect "AppArmor" "$(cat /sys/module/apparmor/parameters/enabled)" Y
  virsh capabilities | grep -A1 '<secmodel>' | grep -q apparmor || { echo "libvirt does not use AppArmor"; return 1; }
  [ ! -e "$local_file" ] || ! grep -q causeway "$local_file"
}
# A VM from before the package was installed.
older_vm() {
  domain guest2 > guest2.xml
  virsh define guest2.xml && virsh start --paused guest2 &&
    expect "how it is confined" "$(cat "/proc/$(cat /run/libvirt/qemu/guest2.pid)/attr/current")" "libvirt-$(virsh domuuid guest2 | head -n 1) (enforce)"
}
installed() {
  readme_host && grep '/dev/shm/causeway-\* rw,' "$local_file" &&
    sed -i 's#^driver_library = .*#driver_library = "/packages/libcuda.so.1"#' /etc/causeway/causewayd.toml &&
    systemctl stop causewayd.service && systemctl start causewayd.service || return 1
  for _ in $(seq 120); do [ -S /run/causeway/causeway.sock ] && break; sleep 0.5; done
  causeway status && readme_doctor
}
# The rule is there, and the kernel's copy of the VM's profile is older.
plug_in_refused() {
  local profile
  profile=libvirt-$(virsh domuuid guest2 | head -n 1)
  says "newer than the running VM; run .apparmor_parser -r /etc/apparmor.d/libvirt/$profile." readme_attach guest2 &&
    expect "what is left" "$(regions)" "" && dmesg | grep -o 'apparmor="DENIED".*causeway-guest2' | tail -n 1 &&
    sed -i '/causeway/d' "$local_file" &&
    says "add the line .  /dev/shm/causeway-\* rw,. to $local_file and run .apparmor_parser -r /etc/apparmor.d/libvirt/$profile." readme_attach guest2
}
# What the two sentences say.
plugged_in() {
  echo '  /dev/shm/causeway-* rw,' >> "$local_file"
  apparmor_parser -r "/etc/apparmor.d/libvirt/libvirt-$(virsh domuuid guest2 | head -n 1)" && readme_attach guest2 &&
    grep -c causeway-guest2 "/proc/$(cat /run/libvirt/qemu/guest2.pid)/maps" && readme_list && virsh destroy guest2 && readme_detach guest2
}
attached_cold() {
  domain guest1 "<disk type='file' device='disk'><driver name='qemu' type='raw'/><source file='$images/disk'/><target dev='vda' bus='virtio'/></disk>" > guest1.xml
  virsh define guest1.xml && readme_attach guest1 && virsh start guest1 &&
    expect "how it is confined" "$(cat "/proc/$(cat /run/libvirt/qemu/guest1.pid)/attr/current")" "libvirt-$(virsh domuuid guest1 | head -n 1) (enforce)"
}
# guest_says LINE: waits until the guest has printed it, and keeps what the guest has said in the file said.
guest_says() {
  local console=/var/log/libvirt/qemu/guest1.console
  for _ in $(seq 1500); do
    grep -q "^GUEST $1" "$console" && break
    sleep 1
  done
  tr -d '\r' < "$console" | grep -a '^GUEST\|panic' | tee said
  grep -q "^GUEST $1" said || { tail -n 15 "$console"; return 1; }
}
program_runs() {
  guest_says ended &&
    expect "the device" "$(sed -n 's/^GUEST device //p' said)" "root:render 660" && grep -q '^GUEST kernel .*region of 64 MiB' said && grep -q '^GUEST slices [1-9]' said &&
    expect "the doctor's status in the guest" "$(sed -n 's/^GUEST doctor exit //p' said)" 0 && grep -q '^GUEST program .*sums equal' said &&
    journalctl -u causewayd --no-pager -o cat | grep 'VM guest1 slot'
}
# Of a VM that runs by KVM a region in doorbell mode is taken at any time, and libvirt then saves the VM: its QEMU has no handler that would
# be left behind (docs/attaching.md). An emulated one is to be asked for by --force.
detached_running() {
  says "peer mode" virsh save guest1 "$images/saved" || return 1
  if [ "$kind" = kvm ]; then readme_detach guest1; else causeway detach guest1 --force; fi &&
    guest_says 'without ended' && grep 'GUEST without .*run .causeway attach DOMAIN. on its host' said
}
saved() {
  [ "$kind" = kvm ] || { echo "not of an emulated VM"; return 0; }
  virsh save guest1 "$images/saved" && expect "the VM" "$(virsh domstate guest1 | head -n 1)" "shut off" && virsh restore "$images/saved"
}
# A doorbell has a rule of its own, which is not there again yet.
attached_hot() {
  local profile
  profile=libvirt-$(virsh domuuid guest1 | head -n 1)
  says "add the line .  /run/causeway/doorbell-\* rw,. to $local_file and run .apparmor_parser -r /etc/apparmor.d/libvirt/$profile." \
    causeway attach guest1 --memory 64M --doorbell || return 1
  echo '  /run/causeway/doorbell-* rw,' >> "$local_file"
  apparmor_parser -r "/etc/apparmor.d/libvirt/$profile" &&
    causeway attach guest1 --memory 64M --doorbell && readme_list && guest_says 'again ended' && grep 'GUEST again .*sums equal' said
}
detached() {
  virsh destroy guest1  # it may have ended by itself
  readme_detach guest1 && expect "what is left" "$(regions)" "" && expect "what list says" "$(readme_list)" "no domain has a region"
}

. "$(dirname "$0")/run_steps.sh"
run_steps confinement older_vm installed plug_in_refused plugged_in attached_cold program_runs detached_running saved attached_hot detached
