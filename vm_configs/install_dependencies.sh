#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Installs what the build, the tests and the demo VM need on Debian 12 and Ubuntu 24.04: packages by apt and, where no
# CUDA 13 toolkit is found, its compiler and headers from PyPI into build/cuda. Does nothing when all is there.
# With --list debian|ubuntu it only prints that distribution's packages.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cuda_dir=$root/build/cuda

say() { echo "install_dependencies: $*"; }
fail() {
  say "$*" >&2
  exit 1
}

# Prints the packages for this distribution, one a line; the kernel's packages have other names on Ubuntu. Ubuntu's names were not
# checked on an Ubuntu.
packages() {
  printf '%s\n' g++ make cmake ninja-build ccache git clang clang-format libclang-rt-dev \
    universal-ctags python3 python3-pip ca-certificates \
    libspdlog-dev libfmt-dev libcli11-dev libtomlplusplus-dev nlohmann-json3-dev libzstd-dev liblz4-dev libseccomp-dev libssl-dev \
    libgtest-dev libbenchmark-dev liburing-dev pkgconf mmdebstrap libvirt-dev libpugixml-dev libvirt-daemon libvirt-daemon-driver-qemu \
    qemu-system-x86 qemu-utils ovmf busybox-static cpio kmod zstd systemd libvirt-clients libxml2-utils man-db mandoc \
    prometheus-cpp-dev prometheus podman crun uidmap slirp4netns fuse-overlayfs python3-jsonschema
  case "$1" in
    debian) printf '%s\n' linux-image-amd64 linux-headers-amd64 ;;
    ubuntu) printf '%s\n' linux-image-generic linux-headers-generic ;;
  esac
}

missing_packages() {
  local package
  packages "$1" | while read -r package; do
    dpkg-query -W -f='${Status}\n' "$package" 2>/dev/null | grep -q '^install ok installed$' || echo "$package"
  done
}

as_root() {
  if [ "$(id -u)" = 0 ]; then
    env DEBIAN_FRONTEND=noninteractive "$@"
  elif command -v sudo >/dev/null; then
    sudo env DEBIAN_FRONTEND=noninteractive "$@"
  else
    fail "packages are missing and this is neither root nor is sudo installed; run as root: $*"
  fi
}

install_packages() {
  local distribution missing
  [ -r /etc/os-release ] || fail "/etc/os-release is missing: this script knows Debian and Ubuntu"
  # shellcheck disable=SC1091
  distribution=$(. /etc/os-release && echo "$ID")
  case "$distribution" in
    debian | ubuntu) ;;
    *) fail "this script knows Debian and Ubuntu, not $distribution; install by hand: $(packages debian | xargs)" ;;
  esac
  missing=$(missing_packages "$distribution" | xargs)
  if [ -z "$missing" ]; then
    say "all packages are installed"
    return
  fi
  say "installing: $missing"
  [ "$distribution" = debian ] || say "the names of these packages were checked on Debian 12 alone, and not on $distribution"
  as_root apt-get update -q || fail "apt-get update failed: is there a network?"
  # shellcheck disable=SC2086  # one word for each package
  as_root apt-get install -y -q --no-install-recommends $missing || fail "apt-get could not install: $missing"
  missing=$(missing_packages "$distribution" | xargs)
  [ -z "$missing" ] || fail "still missing after apt-get: $missing"
  say "packages installed"
}

# True when the folder has all of CUDA 13 that the build uses: compiler, static runtime, cuda.h.
has_cuda_13() {
  [ -x "$1/bin/nvcc" ] && [ -r "$1/include/cuda_runtime.h" ] && [ -r "$1/include/cudaProfiler.h" ] &&
    { [ -r "$1/lib64/libcudart_static.a" ] || [ -r "$1/targets/x86_64-linux/lib/libcudart_static.a" ]; } &&
    grep -q '^#define CUDA_VERSION 13' "$1/include/cuda.h" 2>/dev/null
}

find_cuda() {
  local folder
  for folder in "${CUDA_HOME:-}" /usr/local/cuda /usr/local/cuda-13.0 "$cuda_dir"; do
    if [ -n "$folder" ] && has_cuda_13 "$folder"; then
      echo "$folder"
      return
    fi
  done
}

install_cuda() {
  local found wheels wheel
  found=$(find_cuda)
  if [ -n "$found" ]; then
    say "CUDA 13 found in $found"
    return
  fi
  say "no CUDA 13 toolkit found: unpacking its compiler and headers into build/cuda (about 105 MB to download)"
  mkdir -p "$root/build"
  wheels=$(mktemp -d "$root/build/wheels.XXXXXX")
  python3 -m pip download -q --no-deps --only-binary=:all: --require-hashes -r "$root/vm_configs/cuda_wheels.txt" \
    -d "$wheels" || fail "the CUDA wheels could not be downloaded: is there a network? Or install the CUDA 13 toolkit."
  rm -rf "$cuda_dir" "$cuda_dir.partial"
  mkdir "$cuda_dir.partial"
  for wheel in "$wheels"/*.whl; do
    say "unpacking $(basename "$wheel" | cut -d- -f1,2)"
    python3 -m zipfile -e "$wheel" "$wheels/unpacked"
  done
  mv "$wheels/unpacked/nvidia/cu13"/* "$cuda_dir.partial"/
  # nvcc looks for its libraries in lib64; unpacking has lost the permission to execute.
  ln -s lib "$cuda_dir.partial/lib64"
  chmod -R u+x "$cuda_dir.partial/bin" "$cuda_dir.partial/nvvm/bin"
  mv "$cuda_dir.partial" "$cuda_dir"
  rm -rf "$wheels"
  has_cuda_13 "$cuda_dir" || fail "the wheels lack a part of CUDA 13 that the build needs; see $cuda_dir"
  say "CUDA 13 unpacked in build/cuda"
}

if [ "${1:-}" = --list ]; then
  packages "${2:-debian}"
  exit
fi
[ "$(uname -m)" = x86_64 ] || fail "only x86_64 is supported, this is $(uname -m)"
install_packages
install_cuda
say "done"
