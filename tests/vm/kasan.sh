#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The module's tests, generated calls among them, on a kernel that checks its memory: KASAN reports each access outside
# of an object and each use after its end, lockdep each order of locks that may end in a deadlock. The kernel is built
# from Debian's source package with the options of kasan.config. Two copies of the module with a defect each must be
# reported before the module itself is believed.
# usage: kasan.sh FOLDER [BUILD]      FOLDER keeps sources and kernel for the next run; BUILD is the build folder
#                                     (default: build beside tests/), of which module_test is built
# environment: SOURCE_PACKAGE (default linux-source-6.1), JOBS (default 2), CAUSEWAY_SEED for the generated calls
# The last line is "N passed, N failed"; exits 0 when none failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
fail() { echo "kasan.sh: $*" >&2; exit 2; }

case "${1:-}" in
  '' | -h | --help) sed -n '3,11s/^# //p' "$0"; exit 2 ;;
esac
mkdir -p "$1"
folder=$(cd "$1" && pwd) build=${2:-$top/build} package=${SOURCE_PACKAGE:-linux-source-6.1} jobs=${JOBS:-2}
sources=$folder/$package kernel=$folder/kernel
# Said now, and not when the kernel has been built.
[ -e "$build/CMakeCache.txt" ] || fail "$build is no build folder: configure it first (cmake -S . -B build -G Ninja)."
build=$(cd "$build" && pwd)
program=$build/tests/vm/module_test

# install_tools: what a kernel's build needs besides a compiler.
install_tools() {
  local missing=''
  for tool in flex bison bc xz make gcc; do command -v "$tool" > /dev/null || missing+=" ${tool/#xz/xz-utils}"; done
  [ -e /usr/include/libelf.h ] || missing+=" libelf-dev"
  [ -n "$missing" ] || return 0
  [ "$(id -u)" = 0 ] || fail "install these packages, or run this as root:$missing"
  # shellcheck disable=SC2086  # one word for each package
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends $missing > /dev/null ||
    fail "apt-get could not install:$missing"
}

# unpack_sources: the package is fetched and verified by apt from this machine's own sources, and not installed.
unpack_sources() {
  local parts=$folder/download
  [ ! -e "$sources/Makefile" ] || return 0
  rm -rf "$parts" "$sources"
  mkdir "$parts"
  if ! compgen -G "$folder/${package}_*.deb" > /dev/null; then
    (cd "$parts" && apt-get -o APT::Sandbox::User=root -q download "$package") || fail "apt-get could not fetch $package."
    mv "$parts/${package}"_*.deb "$folder"
  fi
  dpkg-deb -x "$folder/${package}"_*.deb "$parts"
  tar -xf "$parts/usr/src/$package.tar.xz" -C "$parts"
  mv "$parts/$package" "$sources"
  rm -rf "$parts"
}

build_kernel() {
  local absent
  mkdir -p "$kernel"
  # The configuration is made again each time; make then compiles what it changes, which is mostly nothing.
  make -s -C "$sources" O="$kernel" KCONFIG_ALLCONFIG="$here/kasan.config" allnoconfig > "$folder/kernel.log" 2>&1 ||
    { tail -n 20 "$folder/kernel.log" >&2; fail "the kernel cannot be configured."; }
  absent=$(grep '^CONFIG_' "$here/kasan.config" | grep -vxFf "$kernel/.config" | xargs || true)
  [ -z "$absent" ] || fail "this kernel does not take these options of kasan.config: $absent"
  timeout 7200 nice -n 10 make -C "$kernel" -j "$jobs" bzImage modules >> "$folder/kernel.log" 2>&1 ||
    { tail -n 20 "$folder/kernel.log" >&2; fail "the kernel does not build."; }
}

# build_module NAME [SED_SCRIPT FILE]: causeway.ko in FOLDER/NAME, of the module's sources or of a copy with a defect.
build_module() {
  local from=$top/kernel_module name=$1
  if [ $# = 3 ]; then
    from=$folder/$name-source
    rm -rf "$from"
    cp -r "$top/kernel_module" "$from"
    sed -i "$2" "$from/$3"
    ! cmp -s "$from/$3" "$top/kernel_module/$3" || fail "the defect '$name' changes nothing in $3: adapt it to the code."
  fi
  rm -rf "${folder:?}/$name"
  nice -n 10 make -s -C "$from" KDIR="$kernel" BUILD_DIR="$folder/$name" > "$folder/$name.log" 2>&1 ||
    { tail -n 20 "$folder/$name.log" >&2; fail "the module '$name' does not build for this kernel."; }
}

# boot NAME TEST: the module of that name under a test of vm_test.sh; the output goes to FOLDER/NAME.out. slub_debug gives
# way to KASAN, and the console shows a whole report (errors, and no warnings).
boot() {
  local code=0
  KERNEL=$kernel/arch/x86/boot/bzImage MODULE=$folder/$1/causeway.ko nice -n 10 "$here/vm_test.sh" "$2" "$program" \
    --timeout 3000 --memory 1024 --append loglevel=4 > "$folder/$1.out" 2>&1 || code=$?
  return $code
}

passed=0 failed=0
verdict() {
  if [ "$2" = yes ]; then
    passed=$((passed + 1))
    echo "$1: passed"
  else
    failed=$((failed + 1))
    echo "$1: failed; the output is in $folder/$3.out"
    grep -aE 'FAULT|FAILED|BUG:|vm_test.sh|run_vm.sh' "$folder/$3.out" | head -n 20 || true
  fi
}

# must_report NAME REPORT: the defective module fails the test, and by KASAN's report of this kind, inside the module. The
# report is looked for on the console: a kernel whose memory was spoilt may end before it has shown its whole log.
must_report() {
  local found=no
  if ! boot "$1" module_q35 && grep -qaE "BUG: KASAN: $2 in causeway_" "$folder/$1.out"; then found=yes; fi
  verdict "defect reported: $1" "$found" "$1"
}

install_tools
unpack_sources
build_kernel
nice -n 10 cmake --build "$build" --target module_test > "$folder/module_test.log" 2>&1 ||
  { tail -n 20 "$folder/module_test.log" >&2; fail "module_test does not build in $build."; }

# The owner table ends before the last granules of the test's region. What lies behind it in its slab object is nobody's,
# so that this harms nothing on a kernel without KASAN.
build_module short_table 's/kvcalloc(CAUSEWAY_MAX_GRANULES, /kvcalloc(60, /' causeway_main.c
must_report short_table slab-out-of-bounds
# A file's state is freed before the end of its session, which still reads it.
build_module freed_early '/^static int causeway_release/,/^}/{/kfree(cf);/d;s/causeway_end_session(cf);/kfree(cf); &/}' causeway_main.c
must_report freed_early '(slab-)?use-after-free'

build_module module
good=no
if boot module module_seabios && ! grep -qaE 'KASAN|KERNEL-FAULT' "$folder/module.out"; then good=yes; fi
grep -aE 'answers looked at|^vm_test' "$folder/module.out" || true
verdict "the module's tests, without a report" "$good" module
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
