# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests that boot a VM, with the build folder as $1. Sets: here, configs, build, KERNEL, and a function
# fail. Exits with 77 where QEMU or a guest kernel is missing.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
configs=$here/../../vm_configs
build=$(cd "$1" && pwd)
fail() { echo "$(basename "$0"): $*" >&2; exit 1; }

read -ra qemu <<< "${QEMU:-qemu-system-x86_64}"
command -v "${qemu[0]}" > /dev/null || { echo "$(basename "$0"): ${qemu[0]} is not installed"; exit 77; }
[ -n "${KERNEL:-}" ] || KERNEL=$("$configs/find_kernel.sh") || exit 77
export KERNEL
