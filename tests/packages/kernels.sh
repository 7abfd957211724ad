#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernel module against kernels of other releases: built with the release's own compiler, without a warning, then (with --boot)
# its tests in a VM with that kernel. Kernels are fetched by apt's mirror; the first time takes a minute or two for each.
# usage: kernels.sh BUILD_DIR [--boot RELEASE]... [RELEASE...]
#   RELEASE: bullseye (5.10), bookworm (6.1), trixie (6.12), bookworm-backports and trixie-backports (the newest); default: all five
# exit status: 0 all is well; 77 none of the releases can be fetched here; else a module does not build or fails its tests
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
shift
releases=() boots=' '
while [ $# -gt 0 ]; do
  case "$1" in
    --boot) boots+="$2 "; releases+=("$2"); shift 2 ;;
    -*) sed -n '3,8s/^# //p' "$0" >&2; exit 2 ;;
    *) releases+=("$1"); shift ;;
  esac
done
[ ${#releases[@]} -gt 0 ] || releases=(bullseye bookworm bookworm-backports trixie trixie-backports)

# In the release's root: make and the compiler are the ones that its headers ask for.
build_module() {
  local root=$1 version=$2 module=$root/causeway_module
  rm -rf "$module"
  mkdir -p "$module"
  cp "$here"/../../kernel_module/{Kbuild,Makefile,*.[ch]} "$module/"
  # The newest kernels' objtool reads /proc/self/limits. The mount ends with the shell that made it.
  # shellcheck disable=SC2016  # the other shell's
  unshare --mount sh -c 'mount --bind /proc "$1/proc" && exec chroot "$1" make -s -C /causeway_module KVER="$2" W=1' sh "$root" "$version" \
    > "$module/log" 2>&1 || { cat "$module/log" >&2; return 1; }
  # Warnings of kbuild itself (an unsigned or unchecked symbol table) are not the module's.
  ! grep -E 'causeway[^ ]*\.[ch]:[0-9]+.*warning' "$module/log"
}

# Its tests, as ctest's vm.module_seabios and vm.module_q35, then programs on ordinary, managed and registered memory, as vm.demo.
boot() {
  local root=$1 version=$2 name
  export KERNEL=$root-image/boot/vmlinuz-$version MODULE=$root/causeway_module/causeway.ko
  [ -e "$KERNEL" ] || KERNEL=$root-image/usr/lib/modules/$version/vmlinuz  # where Debian's newest packages have it
  "$here/../vm/vm_demo.sh" "$build" \
    --programs "vector_add managed_variables host_register" > "$root/causeway_module/demo.log" 2>&1 < /dev/null ||
    { tail -n 60 "$root/causeway_module/demo.log" >&2; return 1; }
  for name in module_seabios module_q35; do
    "$here/../vm/vm_test.sh" "$name" "$build/tests/vm/module_test" > "$root/causeway_module/$name.log" 2>&1 < /dev/null ||
      { tail -n 60 "$root/causeway_module/$name.log" >&2; return 1; }
    grep -aqF "KERNEL causeway" "$root/causeway_module/$name.log" || { echo "kernels.sh: the module told nothing" >&2; return 1; }
  done
}

[ "$(id -u)" = 0 ] || { echo "kernels.sh: not root, which it takes to build in another release's root folder."; exit 77; }
failed=0 seen=0
for release in "${releases[@]}"; do
  root=$build/kernels/$release
  # The headers' newest compiler asks for a cross assembler, and still runs the one that is called `as`; dkms needs binutils, too.
  packages=(linux-headers-amd64 make perl binutils)
  status=0
  VARIANT=essential "$here/fetch_root.sh" "$release" "$root" "${packages[@]}" || status=$?
  # The kernel's files alone: configured, its package would make an initramfs.
  case "$boots" in
    *" $release "*) [ "$status" != 0 ] || VARIANT=extract "$here/fetch_root.sh" "$release" "$root-image" linux-image-amd64 || status=$? ;;
  esac
  [ "$status" = 77 ] && continue
  [ "$status" = 0 ] || exit "$status"
  seen=$((seen + 1))
  for headers in "$root"/usr/src/linux-headers-*-amd64; do
    version=${headers##*linux-headers-}
    result=built
    build_module "$root" "$version" || { result='DOES NOT BUILD'; failed=1; }
    case "$boots" in
      *" $release "*) [ "$result" = built ] && { boot "$root" "$version" && result+=', tests passed in a VM' || { result+=', TESTS FAIL'; failed=1; }; } ;;
    esac
    echo "$release: kernel $version, $(chroot "$root" sh -c 'ls /usr/bin/x86_64-linux-gnu-gcc-[0-9]*' | sed 's/.*gnu-//' | head -n 1): $result"
  done
done
[ "$seen" -gt 0 ] || exit 77
exit $failed
