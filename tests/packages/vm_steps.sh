#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the VM of packages_vm.sh, as root, when the system has started: the packages in a system that lives.
# /packages holds them, the programs and the software GPU. Each step prints "EXIT NAME STATUS"; run_vm.sh reads that.
cd /packages || exit 1
version=$(dpkg-deb -f causeway-guest_*-1_amd64.deb Version)
version=${version%-1}
echo
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"
as_gpu() { runuser -u gpu -- "$@"; }

# ---- a guest: its packages were installed before it was started ---------------------------------------------------
guest_device() {
  udevadm settle --timeout=60
  expect "the device" "$(stat -c '%U:%G %a' /dev/causeway)" "root:render 660" && dmesg | grep -o 'causeway: region of.*'
}
# Every link of a guest that works, then two that are broken and mended as the doctor says.
guest_doctor() {
  as_gpu causeway doctor && rmmod causeway && ! causeway doctor > broken && grep -q 'mend it: modprobe causeway' broken && modprobe causeway &&
    udevadm settle --timeout=60 && mv /etc/ld.so.conf.d/00-causeway.conf kept && ldconfig && ! causeway doctor > broken &&
    sh -c "$(sed -n 's/.*mend it: //p' broken)" && causeway doctor
}
guest_runs() { as_gpu ./vector_add && as_gpu ./nvml_query > /dev/null; }
# A user that is not in the group has no GPU, is told so, and has one as a member.
guest_refuses() {
  ! runuser -u nobody -- ./vector_add > refused 2>&1 && grep 'is this user in group render' refused && usermod -aG render nobody &&
    runuser -u nobody -- ./vector_add && gpasswd -d nobody render
}
# DKMS has signed the module. A kernel that refuses it for the upgrade, as with Secure Boot without that key: the package says what to do with
# which file, and is installed nevertheless.
guest_upgrades() {
  local status=0
  as_gpu ./vector_add && modinfo -F sig_id causeway | grep . && rmmod causeway || return 1
  echo 'install causeway /bin/false' > /etc/modprobe.d/refused.conf
  dpkg -i "next/causeway-guest_$version-2_amd64.deb" "next/causeway-dkms_$version-2_all.deb" > upgraded 2>&1 || status=$?
  rm /etc/modprobe.d/refused.conf
  cat upgraded
  expect "dpkg's status" "$status" 0 && [ -s "$(grep -o 'mokutil --import .*' upgraded | cut -d' ' -f3)" ] && modprobe causeway && udevadm settle --timeout=60 &&
    as_gpu ./vector_add
}
guest_purged() {
  dpkg -P causeway-guest causeway-dkms && expect "the module" "$(lsmod | grep -c '^causeway ')" 0 &&
    expect "what is left of the module" "$(find /lib/modules /var/lib/dkms /usr/src -name 'causeway*' 2> /dev/null)" "" &&
    expect "what is left of the libraries" "$(ldconfig -p | grep -c causeway)" 0 && ! [ -e /dev/causeway ]
}

# ---- the same system as a host -----------------------------------------------------------------------------------
main_pid() { systemctl show -p MainPID --value causewayd.service; }
host_starts() {
  dpkg -i causeway-worker-*_"$version-1_amd64.deb" "causeway-host_$version-1_amd64.deb" && expect "the service" "$(systemctl is-active causewayd.service)" active
}
host_serves() {
  # The administrator's change of the configuration: a driver that is not NVIDIA's.
  sed -i 's#^driver_library = .*#driver_library = "/packages/libcuda.so.1"#' /etc/causeway/causewayd.toml
  systemctl stop causewayd.service && systemctl start causewayd.service  # a restart would keep the launcher, and the driver with it
  local tries
  for tries in $(seq 60); do [ -S /run/causeway/causeway.sock ] && break; sleep 0.5; done
  causeway status > status && expect "who the daemon is" "$(ps -o user= -p "$(main_pid)")" causeway &&
    as_gpu env CAUSEWAY=local:/run/causeway/causeway.sock LD_LIBRARY_PATH=/usr/libexec/causeway/guest_lib ./vector_add
}
host_doctor() { causeway doctor; }
# The daemon becomes the next program, as the same process.
host_upgrades() {
  local before
  before=$(main_pid)
  dpkg -i next/causeway-worker-*_"$version-2_amd64.deb" "next/causeway-host_$version-2_amd64.deb" && expect "the service after the upgrade" "$(systemctl is-active causewayd.service)" active &&
    [ "$(main_pid)" = "$before" ] && causeway status > status && grep -q '^driver_library = "/packages' /etc/causeway/causewayd.toml && [ -z "$(pgrep -P 1 causeway-worker)" ]
}
host_stops() {
  dpkg -r causeway-host && expect "what still runs" "$(pgrep -l causeway)" "" && [ -e /etc/causeway/causewayd.toml ]
}
host_purged() {
  dpkg -P causeway-host "$(dpkg-query -W -f '${Package}\n' 'causeway-worker-*' | head -n 1)" && expect "the user" "$(getent passwd causeway)" "" &&
    expect "what is left" "$(find / -xdev -path /packages -prune -o -path /var/lib/dkms -prune -o -name '*causeway*' ! -path '/etc/systemd/system/*causeway-test*' \
      ! -path '/proc/*' ! -path '/sys/*' ! -path '/var/lib/dpkg/*' ! -path '/usr/local/*' -print)" ""
}

. "$(dirname "$0")/run_steps.sh"
run_steps guest_device guest_runs guest_doctor guest_refuses guest_upgrades guest_purged host_starts host_serves host_doctor host_upgrades host_stops host_purged
