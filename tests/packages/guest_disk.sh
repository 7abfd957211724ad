# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced, after packages_begin.sh, by tests that boot a Debian 12 with the guest's packages.
configs=$here/../../vm_configs
# shellcheck source=tests/vm/readme_commands.sh
. "$here/../vm/readme_commands.sh"

# guest_root DIR [PACKAGE...]: a Debian 12 with a kernel, its headers, the guest's packages and a user gpu of the group render; /later has a newer
# kernel. With other packages it has those and no newer kernel, and is kept as the root GUEST_BASE.
guest_root() {
  local base=$build/packages_root/${GUEST_BASE:-bookworm_vm} log=$1.log later="bookworm-backports linux-image-amd64 linux-headers-amd64"
  [ $# = 1 ] || later=''
  LATER=$later VARIANT=essential "$here/fetch_root.sh" bookworm "$base" systemd-sysv udev passwd procps apt dkms openssl linux-image-amd64 linux-headers-amd64 "${@:2}"
  cp -a "$base" "$1"
  mkdir -p "$1/packages"
  cp -r "$packages"/. "$1/packages/"
  # As a builder of images does: DKMS then builds for the kernel of the root and not for the running one.
  answer_yes "$1"
  in_root "$1" useradd --create-home gpu
  in_root "$1" sh -ec "cd /packages; $(readme_command 'apt install linux-headers-'); $(readme_command 'usermod ' USER=gpu)" > "$log" 2>&1 < /dev/null ||
    { cat "$log" >&2; fail "the guest's packages do not install"; }
  in_root "$1" dkms status -m causeway | grep -q installed || { cat "$log" >&2; fail "DKMS has not installed the module"; }
}

# answer_yes DIR: as an administrator answers apt.
answer_yes() { echo 'APT::Get::Assume-Yes "true";' > "$1/etc/apt/apt.conf.d/00yes"; }

# in_root DIR COMMAND...
in_root() {
  # shellcheck disable=SC2016  # the other shell's
  unshare --mount sh -c 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" env -i \
    PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"' "$@"
}

# upgrade_kernel DIR: to the newer kernel, for which DKMS has to build the module as its package is installed.
upgrade_kernel() {
  local log=$1.kernel_log version
  # shellcheck disable=SC2016  # the other shell's
  in_root "$1" sh -c 'dpkg -i /later/*.deb' > "$log" 2>&1 || { cat "$log" >&2; fail "the newer kernel does not install"; }
  version=$(printf '%s\n' "$1"/lib/modules/* | sort -V | tail -n 1)
  version=${version##*/}
  in_root "$1" dkms status -m causeway | grep -F "$version" | grep -q installed ||
    { cat "$log" >&2; fail "DKMS has not installed the module for kernel $version"; }
  step "the kernel was upgraded to $version: $(in_root "$1" dkms status -m causeway | tr '\n' ';')"
}

# run_at_boot DIR SCRIPT: systemd runs it when the system has started, with the console as its output.
run_at_boot() {
  cat > "$1/etc/systemd/system/causeway-test.service" <<TEXT
[Unit]
After=${3:-systemd-udev-settle.service}
[Service]
Type=oneshot
ExecStart=$2
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
TEXT
  mkdir -p "$1/etc/systemd/system/multi-user.target.wants"
  ln -s ../causeway-test.service "$1/etc/systemd/system/multi-user.target.wants/"
}

# take_kernel DIR TO [VERSION]: its kernel as TO/kernel and its initramfs as TO/initramfs.
take_kernel() {
  local kernel
  kernel=$(printf '%s\n' "$1"/boot/vmlinuz-"${3:-}"* | sort -V | tail -n 1)
  cp "$kernel" "$2/kernel"
  cp "$1/boot/initrd.img-${kernel##*/vmlinuz-}" "$2/initramfs"
}

# run_disk MEMORY_MIB LIMIT_S: boots $work/disk with the kernel that take_kernel has put into $work, until it switches itself off; what
# the machine prints is in $work/console. Ends the test if the machine does not end well.
run_disk() {
  local status=0
  "$here/../../vm_configs/run_vm.sh" --kernel "$work/kernel" --initramfs "$work/initramfs" --memory "$1" --timeout "$2" --log "$work/console" \
    --append "root=/dev/vda rw systemd.show_status=0 systemd.mask=serial-getty@ttyS0.service" \
    --qemu-option -drive --qemu-option "file=$work/disk,if=virtio,format=raw,cache=unsafe" || status=$?
  [ "$status" = 0 ] || fail "the VM ended with status $status"
}
