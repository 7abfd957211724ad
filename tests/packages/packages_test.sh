#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The packages in the root folder of a fresh Debian 12, which is not booted: installed, found by every kind of program, upgraded,
# removed and purged. What needs a running system is in packages_vm.sh.
# usage: packages_test.sh BUILD_DIR
# exit status: 0 all is well; 77 it cannot be tried here, and the last line says why; else something is wrong
set -euo pipefail
# shellcheck source=tests/packages/packages_begin.sh
. "$(dirname "$0")/packages_begin.sh" "$1"
VARIANT=essential "$here/fetch_root.sh" bookworm "$build/packages_root/bookworm" systemd passwd
build_packages
scratch=$(mktemp -d -p "$build/packages_root")
trap 'rm -rf "$scratch"' EXIT
root=$scratch/root
cp -a "$build/packages_root/bookworm" "$root"
mkdir -p "$root/packages" "$root/opt/prefix/bin" "$root/opt/prefix/lib"
cp -r "$packages"/. "$root/packages/"
cp "$build/tests/packages/which_library" "$root/usr/local/bin/"
# A prefix of its own, as conda has them: its programs look into its own lib folder first.
cp "$build/tests/packages/which_library_prefix" "$root/opt/prefix/bin/which_library"

in_root() { chroot "$root" env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive "$@"; }
quietly() { in_root "$@" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail "failed: $*"; }; }

# ---- guest -------------------------------------------------------------------------------------------------------
# NVIDIA's own library is there as well, by its names and in its places: the multiarch folder, and one of its own that the loader
# knows by a file in ld.so.conf.d.
for place in usr/lib/x86_64-linux-gnu usr/lib/x86_64-linux-gnu/nvidia/current; do
  mkdir -p "$root/$place"
  for library in cuda:cuInit nvidia-ml:nvmlInit_v2; do
    echo "int ${library#*:}(void) { return 999; }" > "$scratch/nvidia.c"
    cc -shared -fPIC -Wl,-soname,"lib${library%:*}.so.1" "$scratch/nvidia.c" -o "$root/$place/lib${library%:*}.so.999.1"
    ln -sf "lib${library%:*}.so.999.1" "$root/$place/lib${library%:*}.so.1"
    ln -sf "lib${library%:*}.so.1" "$root/$place/lib${library%:*}.so"
  done
done
echo /usr/lib/x86_64-linux-gnu/nvidia/current > "$root/etc/ld.so.conf.d/nvidia.conf"
quietly ldconfig
list_files "$root" > "$scratch/before"

# check_look_ups FOLDER WHEN: every way to find the libraries leads to FOLDER, or below it for NVIDIA's.
check_look_ups() {
  local folder=$1 when=$2 found entry
  # The command, what it looks up, and who looks so.
  while IFS='|' read -r entry who; do
    # shellcheck disable=SC2086
    found=$(in_root $entry) || fail "$when: $who finds nothing"
    [[ $found == $folder/lib* ]] || fail "$when: $who finds $found and not $folder"
  done <<TEXT
which_library|a program that nvcc's driver API links
which_library libcuda.so.1|the CUDA runtime and what opens libcuda.so.1, as PyTorch, JAX and CuPy do
which_library libcuda.so|Numba, which opens libcuda.so
which_library libnvidia-ml.so.1|nvidia-smi and pynvml
/opt/prefix/bin/which_library|a program of another prefix, as conda's
/opt/prefix/bin/which_library libcuda.so.1|what a program of another prefix opens
env LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64 which_library libcuda.so.1|a program in NVIDIA's images, which set this path
TEXT
  # As Triton does: the folders of all lines of `ldconfig -p` that name libcuda.so.1, of which a linker takes the first.
  found=$(in_root /sbin/ldconfig -p | awk '/libcuda\.so\.1/ { print $NF }' | head -n 1)
  [[ $found == $folder/libcuda.so.1 ]] || fail "$when: Triton finds $found and not $folder"
  [ -e "$root$folder/libcuda.so.1" ] || fail "$when: Triton's linker finds no libcuda.so.1 in $folder"
}

check_look_ups /usr/lib/x86_64-linux-gnu/nvidia/current "without Causeway"
quietly dpkg -i /packages/causeway-guest_$version-1_amd64.deb
check_look_ups /usr/lib/causeway "with Causeway and NVIDIA's library"
quietly ldconfig  # as NVIDIA's installer does at its end
check_look_ups /usr/lib/causeway "after another ldconfig"
# A cache that is stale, as in an image whose builder skipped dpkg's triggers: NVIDIA's library is found, until ldconfig has run.
rm "$root/etc/ld.so.cache"
[[ $(in_root which_library libcuda.so.1) != /usr/lib/causeway/* ]] || fail "the stale cache is not stale"
quietly ldconfig
check_look_ups /usr/lib/causeway "after ldconfig mended a stale cache"
printf 'int main(void) { return 0; }\n' > "$scratch/main.c"
cc "$scratch/main.c" -L"$root/usr/lib/causeway" -l:libcuda.so.1 -Wl,--no-as-needed -o "$scratch/linked" || fail "Triton's linker refuses the library"
# A disk that is full in the middle of an upgrade: dpkg says so, and what was installed is left as it was.
# What is installed lies on that disk, as dpkg's trigger for ldconfig will see.
# shellcheck disable=SC2016
if unshare --mount sh -c 'mount -t tmpfs -o "size=$4k" none "$3" && cp -a "$1/usr/lib/causeway/." "$3" && \
  mount --bind "$3" "$1/usr/lib/causeway" && exec chroot "$1" dpkg -i "$2"' sh "$root" "/packages/next/causeway-guest_$version-2_amd64.deb" \
  "$(mktemp -d -p "$scratch")" $(($(du -sk "$root/usr/lib/causeway" | cut -f1) + 600)) > "$scratch/log" 2>&1; then
  fail "dpkg filled a disk that is too small"
fi
grep -q 'No space left on device' "$scratch/log" || { cat "$scratch/log" >&2; fail "dpkg failed for another reason on a full disk"; }
expect "state on a full disk" "$(in_root dpkg-query -W -f '${Version} ${db:Status-Abbrev}' causeway-guest)" "$version-1 ii "
check_look_ups /usr/lib/causeway "after an upgrade that found the disk full"
quietly dpkg -i /packages/next/causeway-guest_$version-2_amd64.deb
check_look_ups /usr/lib/causeway "after an upgrade"
expect "version after the upgrade" "$(in_root dpkg-query -W -f '${Version}' causeway-guest)" "$version-2"
quietly dpkg -r causeway-guest
check_look_ups /usr/lib/x86_64-linux-gnu/nvidia/current "after the removal"
quietly dpkg -P causeway-guest
list_files "$root" | diff "$scratch/before" - || fail "purging causeway-guest left something"
step "guest: installed, found by every look-up, upgraded, removed and purged"

# ---- host --------------------------------------------------------------------------------------------------------
mkdir -p "$root/etc/apparmor.d/abstractions" "$root/etc/apparmor.d/local/abstractions"
local_file=$root/etc/apparmor.d/local/abstractions/libvirt-qemu
echo "# the administrator's" > "$local_file"
echo '# of the package apparmor' > "$root/etc/apparmor.d/abstractions/base"
list_files "$root" > "$scratch/before"
cp "$local_file" "$scratch/local"
worker=$(cd "$packages" && echo causeway-worker-*_"$version-1_amd64.deb")
hash=${worker#causeway-worker-} hash=${hash%%_*}
quietly dpkg -i "/packages/$worker" /packages/causeway-host_$version-1_amd64.deb
expect "the folder of workers" "$(ls "$root/usr/libexec/causeway/workers")" "$hash"
expect "the worker's release" "$(cat "$root/usr/libexec/causeway/workers/$hash/release")" "$version"
expect "licences of the libraries in the host's programs" "$(ls "$root/usr/share/doc/causeway-host/libraries" | tr '\n' ' ')" \
  "libcli11-dev libfmt-dev liblz4-dev libpugixml-dev libseccomp-dev libspdlog-dev libssl-dev libtomlplusplus-dev libzstd-dev nlohmann-json3-dev zlib1g-dev "
expect "licences of those in the worker" "$(ls "$root/usr/share/doc/causeway-worker-$hash/libraries" | wc -l)" 7
# Those of older releases, which outlive the upgrade.
mkdir "$root/packages/older"
for older in 0123456789abcdef 1111111111111111 2222222222222222; do "$here/older_packages.py" "$older" "$root/packages/older" "$packages/$worker"; done
quietly sh -c 'dpkg -i /packages/older/*.deb'
! grep -qs causeway "$local_file" || fail "a line for libvirt was added where there is no libvirt"
[ -n "$(in_root getent passwd causeway)" ] || fail "there is no user causeway"
install -m 0755 /dev/null "$root/usr/bin/nvidia-modprobe"
quietly systemd-analyze verify /usr/lib/systemd/system/causewayd.service /usr/lib/systemd/system/causeway-devices.service \
  /usr/lib/systemd/system/causeway-xen.service
expect "what systemd says of the units" "$(grep -v '^$' "$scratch/log" || true)" ""
rm "$root/usr/bin/nvidia-modprobe"
expect "causewayd.service" "$(in_root systemctl is-enabled causewayd.service)" enabled
# libvirt is installed later: dpkg tells the package.
mkdir -p "$scratch/libvirt/DEBIAN" "$scratch/libvirt/etc/apparmor.d/abstractions"
printf 'Package: libvirt-like\nVersion: 1\nArchitecture: all\nMaintainer: none <none@causeway.invalid>\nDescription: profile\n' > "$scratch/libvirt/DEBIAN/control"
echo '#include <local/abstractions/libvirt-qemu>' > "$scratch/libvirt/etc/apparmor.d/abstractions/libvirt-qemu"
dpkg-deb -b "$scratch/libvirt" "$root/packages/libvirt-like.deb" > /dev/null
quietly dpkg -i /packages/libvirt-like.deb
expect "lines for libvirt" "$(grep -cE '^  /(dev/shm/causeway|run/causeway/doorbell)-\* rw,' "$local_file")" 2
# The command and its private daemon work from where they are installed.
cp "$build/software_gpu/libcuda.so.1" "$root/packages/software_gpu.so"
cp "$build/old_system/vector_add" "$root/packages/"
# shellcheck disable=SC2016  # the other shell's
output=$(unshare --mount sh -c 'mount --bind /proc "$1/proc" && exec chroot "$1" /usr/bin/causeway run --driver /packages/software_gpu.so -- \
  /packages/vector_add' sh "$root" 2>&1) || fail "causeway run: $output"
[[ $output == *"sums equal"* ]] || fail "causeway run printed: $output"
# The administrator's changes outlive an upgrade.
sed -i 's/^spare_workers = 1 /spare_workers = 2 /' "$root/etc/causeway/causewayd.toml"
quietly dpkg -i "/packages/next/${worker/-1_/-2_}" /packages/next/causeway-host_$version-2_amd64.deb
expect "the folder of workers after the upgrade" "$(ls "$root/usr/libexec/causeway/workers" | tr '\n' ' ')" "$(printf '%s\n' 0123456789abcdef 1111111111111111 2222222222222222 "$hash" | sort | tr '\n' ' ')"
# causeway-host suggests the workers of the two releases before its own, so that apt keeps them, though apt has installed them for others;
# the third goes. By this machine's apt, of which the root has none; images of containers turn the setting off that is apt's default.
expect "what causeway-host suggests" "$(in_root dpkg-query -W -f '${Suggests}' causeway-host)" "causeway-worker-0123456789abcdef, causeway-worker-1111111111111111"
mkdir -p "$scratch/apt/etc" "$scratch/apt/cache"
for each in "$hash" 0123456789abcdef 1111111111111111 2222222222222222; do
  printf 'Package: causeway-worker-%s\nArchitecture: amd64\nAuto-Installed: 1\n\n' "$each"
done > "$scratch/apt/extended_states"
apt-get -o Dir::State="$scratch/apt" -o Dir::State::status="$root/var/lib/dpkg/status" -o Dir::Etc="$scratch/apt/etc" -o Dir::Cache="$scratch/apt/cache" \
  -o APT::AutoRemove::SuggestsImportant=true -s autoremove > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail "apt-get -s autoremove failed"; }
expect "what apt autoremove would remove of Causeway" "$(sed -n 's/^Remv \(causeway[^ ]*\) .*/\1/p' "$scratch/log")" causeway-worker-2222222222222222
grep -q '^spare_workers = 2' "$root/etc/causeway/causewayd.toml" || fail "the upgrade lost the administrator's configuration"
expect "lines for libvirt after the upgrade" "$(grep -cE '^  /(dev/shm/causeway|run/causeway/doorbell)-\* rw,' "$local_file")" 2
if in_root dpkg -i /packages/causeway-guest_$version-1_amd64.deb > "$scratch/log" 2>&1; then fail "causeway-guest was installed on a host"; fi
grep -q 'conflicts with causeway-host\|conflicting packages' "$scratch/log" || { cat "$scratch/log" >&2; fail "causeway-guest failed for another reason"; }
quietly dpkg -r causeway-host
[ -e "$root/etc/causeway/causewayd.toml" ] || fail "the removal took the configuration"
cmp "$local_file" "$scratch/local" || fail "the removal left libvirt's profile changed"
mkdir -p "$root/var/cache/causeway/scope" "$root/var/log/causeway"
quietly dpkg -P causeway-host "causeway-worker-$hash" causeway-worker-{0123456789abcdef,1111111111111111,2222222222222222} libvirt-like
list_files "$root" | diff "$scratch/before" - || fail "purging causeway-host left something"
[ -z "$(in_root getent passwd causeway)$(in_root getent group causeway)" ] || fail "the user or group causeway is left"
step "host: installed, run, upgraded, removed and purged"

# ---- the tarball, in a system without a package manager ----------------------------------------------------------
status=0
"$here/fetch_root.sh" bullseye "$build/old_system/bullseye" libc6 libc-bin busybox-static || status=$?
if [ "$status" = 77 ]; then
  step "passed, but for the tarball"
  exit 0
fi
[ "$status" = 0 ] || fail "fetch_root.sh ended with $status"
rm -rf "$root"
mkdir -p "$root"
cp -a "$build/old_system/bullseye"/{bin,etc,lib,lib64,sbin,usr,var} "$root/"
mkdir -p "$root/packages" "$root/tmp" "$root/run" "$root/dev" "$root/usr/local/bin" "$root/usr/src" "$root/etc/udev/rules.d"
mknod -m 0666 "$root/dev/null" c 1 3
cp "$build/tests/packages/which_library" "$root/usr/local/bin/"
chroot "$root" /bin/busybox --install -s /bin
list_files "$root" > "$scratch/before"
tar xf "$packages/causeway-guest-$version-x86_64.tar.gz" -C "$root/packages"
installer=/packages/causeway-guest-$version-x86_64/install.sh
if in_root "$installer" > "$scratch/log" 2>&1; then fail "install.sh built a module without headers"; fi
grep -q 'headers of the running kernel' "$scratch/log" || { cat "$scratch/log" >&2; fail "install.sh failed for another reason"; }
list_files "$root" | diff "$scratch/before" - || fail "install.sh left something when it failed"
for again in 1 2; do
  quietly "$installer" --no-module
  for library in libcuda.so.1 libcuda.so libnvidia-ml.so.1; do
    expect "what dlopen(\"$library\") finds after installation $again" "$(in_root which_library $library)" "/usr/lib/causeway/${library%.1}.1"
  done
done
in_root causeway doctor --help > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail "the command causeway of the tarball does not run"; }
for file in usr/libexec/causeway/causeway-container-hook usr/lib/causeway/loader.conf; do
  [ -e "$root/$file" ] || fail "install.sh has not installed $file, which containers take"
done
quietly "$installer" --uninstall
list_files "$root" | diff "$scratch/before" - || fail "install.sh --uninstall left something"
# A disk that is too small for one of the libraries.
# shellcheck disable=SC2016
if unshare --mount sh -c 'mkdir -p "$1/usr/lib/causeway" && mount -t tmpfs -o size=600k none "$1/usr/lib/causeway" && exec "$2" --root "$1"' \
  sh "$root" "$root$installer" > "$scratch/log" 2>&1; then fail "install.sh filled a disk that is too small"; fi
rmdir "$root/usr/lib/causeway"
grep -q 'nothing was changed' "$scratch/log" || { cat "$scratch/log" >&2; fail "install.sh failed for another reason on a full disk"; }
list_files "$root" | diff "$scratch/before" - || fail "install.sh left something on a full disk"
# Into another system's root, as image builders do.
"$root$installer" --root "$root" > "$scratch/log" 2>&1 || { cat "$scratch/log" >&2; fail "install.sh --root failed"; }
expect "what is found in a root that was filled" "$(in_root which_library libcuda.so.1)" /usr/lib/causeway/libcuda.so.1
"$root$installer" --root "$root" --uninstall > "$scratch/log"
list_files "$root" | diff "$scratch/before" - || fail "install.sh --uninstall --root left something"
step "tarball: installed twice, found, and removed"
step passed
