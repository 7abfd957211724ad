# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0
# Sourced by the tests of packages, with the build folder as $1. Sets here, build, packages (where they are) and version, and
# functions. Exits with 77 where they cannot run.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
build=$(cd "$1" && pwd)
packages=$build/packages
version=$(sed -n 's/^set(CPACK_PACKAGE_VERSION "\(.*\)")$/\1/p' "$build/CPackConfig.cmake")
name=$(basename "$0")
fail() { echo "$name: $*" >&2; exit 1; }
step() { echo "$name: $*"; }
[ "$(id -u)" = 0 ] || { echo "$name: not root, which installing packages into a root folder takes."; exit 77; }
unshare --mount true 2> /dev/null || { echo "$name: this machine allows no mount namespaces, which it takes."; exit 77; }
command -v dpkg-deb > /dev/null || { echo "$name: this system has no dpkg."; exit 77; }

# Builds the packages, and those of the next revision, with which upgrades are tried, into $packages/next. The next revision is made with
# a list of releases as there will be one: $packages/releases.
build_packages() {
  local lines
  cmake --build "$build" --target packages > "$build/packages.log" 2>&1 || { tail -n 30 "$build/packages.log" >&2; fail "the packages cannot be built."; }
  lines=$(printf '0.0.%s %s\n' 7 2222222222222222 8 1111111111111111 9 0123456789abcdef)
  { cat "$here/../../vm_configs/packages/releases" && echo "$lines" && "$here/../../vm_configs/packages/build_stamp.py" "$build/host_backend/causeway-worker"; } \
    > "$packages/releases"
  cpack --config "$build/CPackConfig.cmake" -D CPACK_DEBIAN_PACKAGE_RELEASE=2 -D "CPACK_CAUSEWAY_RELEASES=$packages/releases" -B "$packages/next" >> "$build/packages.log" 2>&1 ||
    fail "the packages of the next revision cannot be built: $(tail -n 1 "$build/packages.log")"
  rm -rf "$packages/next/_CPack_Packages"
}

# expect WHAT FOUND WANTED
expect() { [ "$2" = "$3" ] || fail "$1: '$2' instead of '$3'"; }

# list_files ROOT: all files with type, mode and target, but for what package managers and the loader write for themselves.
list_files() {
  (cd "$1" && find . -xdev \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./tmp -o -path ./packages -o -path ./var/lib/dpkg \
    -o -path ./var/cache -o -path ./var/log -o -path ./var/lib/apt \) -prune -o -printf '%p %y %m %l\n' |
    grep -vE '^\./etc/(ld\.so\.cache|(passwd|group|shadow|gshadow|subuid|subgid)-|\.pwd\.lock) ' | sort)
}
