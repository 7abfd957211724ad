#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the product and some quick unit tests with compilers that are newer than this machine's, and runs those tests:
# newer compilers warn of more, and warnings are errors here. The compilers come from a newer Debian, which is unpacked
# into a folder (by mmdebstrap, as root) and removed afterwards; nothing is installed but mmdebstrap.
# usage: other_compilers.sh [options] [COMPILER...]      (default: gcc-13 gcc-14; also clang-19)
#   --types "A B"  CMake build types (default "RelWithDebInfo Release")
#   --suite NAME   the Debian release that has the compilers (default trixie)
#   --folder DIR   keeps root and builds in DIR, so that the next run with it has less to do (default: a temporary folder)
#   --jobs N       compilers at a time (default 2)
#   --limit S      seconds for each build (default 7200)
# environment: FETCH_DEBIAN_FROM=URL takes Debian from there; without it, from where this machine's apt takes its own.
# CUDA's compiler and headers are those of this machine's toolkit (CUDA_HOME, nvcc, or vm_configs/install_dependencies.sh).
# Prints one line for each compiler and build type, and at the end "N passed, N failed"; exits 0 when none failed.
set -euo pipefail
source_dir=$(cd "$(dirname "$0")/.." && pwd)
fail() { echo "other_compilers.sh: $*" >&2; exit 2; }

types="RelWithDebInfo Release" suite=trixie folder='' jobs=2 limit_s=7200 compilers=()
while [ $# -gt 0 ]; do
  case "$1" in
    -h | --help) sed -n '3,15s/^# //p' "$0"; exit 0 ;;
    --types | --suite | --folder | --jobs | --limit)
      [ $# -ge 2 ] || fail "$1 needs a value"
      case "$1" in
        --types) types=$2 ;; --suite) suite=$2 ;; --folder) folder=$2 ;; --jobs) jobs=$2 ;; --limit) limit_s=$2 ;;
      esac
      shift 2 ;;
    gcc-[0-9]* | clang-[0-9]*) compilers+=("$1"); shift ;;
    *) fail "$1 is neither an option nor a compiler like gcc-14 or clang-19; see --help" ;;
  esac
done
[ "${#compilers[@]}" -gt 0 ] || compilers=(gcc-13 gcc-14)
[ "$(id -u)" = 0 ] || fail "unpacking a Debian and entering it needs root: run this with sudo."

if ! command -v mmdebstrap > /dev/null; then
  DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300 install -y -q --no-install-recommends mmdebstrap > /dev/null ||
    fail "mmdebstrap is missing and apt-get cannot install it."
fi
archive=${FETCH_DEBIAN_FROM:-}
if [ -z "$archive" ]; then
  # shellcheck disable=SC2016  # apt-get fills these in
  archive=$(apt-get indextargets --format '$(LABEL) $(COMPONENT) $(REPO_URI)' 'Identifier: Packages' |
    awk '$1 == "Debian" && $2 == "main" { print $3; exit }')
fi
[ -n "$archive" ] || fail "this machine's apt sources have no Debian; name an archive that has it: FETCH_DEBIAN_FROM=URL."
nvcc=$(command -v nvcc || true)
cuda=''
for each in "${CUDA_HOME:-}" "${nvcc:+$(dirname "$(dirname "$(readlink -f "$nvcc")")")}" /usr/local/cuda "$source_dir/build/cuda"; do
  if [ -n "$each" ] && [ -r "$each/include/cuda.h" ]; then cuda=$each; break; fi
done
[ -n "$cuda" ] || fail "no CUDA 13 toolkit was found: run vm_configs/install_dependencies.sh or set CUDA_HOME."

made=''
if [ -z "$folder" ]; then
  folder=$(mktemp -d)
  made=$folder
fi
cleanup() { [ -z "$made" ] || rm -rf --one-file-system "$made"; }
trap cleanup EXIT
trap 'exit 130' INT TERM
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
root=$folder/root

# One compiler's package: g++-14 for gcc-14, clang-19 for itself.
package_of() { echo "${1/#gcc-/g++-}"; }
packages=$("$source_dir/vm_configs/install_dependencies.sh" --list debian | grep -e '-dev$' | grep -v '^libclang')
packages+=" cmake ninja-build python3 ca-certificates"
# A root that was kept is used again as long as it is of this release and has these packages.
wanted="$suite ${packages//$'\n'/ }"
if [ "$(cat "$root.done" 2> /dev/null)" != "$wanted" ]; then
  rm -rf --one-file-system "$root" "$root.done"
  echo "unpacking Debian $suite into $root"
  # shellcheck disable=SC2086  # one word for each package
  nice -n 10 timeout -k 10 3600 mmdebstrap --mode=root --variant=apt --aptopt='Acquire::Retries "3"' \
    --include="$(echo $packages | tr ' ' ',')" "$suite" "$root" "$archive" > "$folder/root.log" 2>&1 ||
    { tail -n 20 "$folder/root.log" >&2; fail "Debian $suite could not be unpacked; the log is above."; }
  mkdir -p "$root/source" "$root/builds" "$root/cuda"
  echo "$wanted" > "$root.done"
fi

# inside SECONDS COMMAND...: in the root, with the sources and CUDA's headers read-only. The mounts, and all processes,
# end with the command.
inside() {
  local seconds=$1
  shift
  # shellcheck disable=SC2016  # the inner shell fills these in
  timeout -k 10 "$seconds" unshare --mount --pid --fork --kill-child sh -euc '
    root=$1 source=$2 cuda=$3 builds=$4
    shift 4
    mount --bind "$source" "$root/source" && mount -o remount,bind,ro "$root/source"
    mount --bind "$cuda" "$root/cuda" && mount -o remount,bind,ro "$root/cuda"
    mount --bind "$builds" "$root/builds"
    mount -t proc none "$root/proc"
    mount --rbind /dev "$root/dev"
    exec chroot "$root" /usr/bin/env -i HOME=/root CUDA_HOME=/cuda LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
  ' sh "$root" "$source_dir" "$cuda" "$folder/builds" "$@"
}
mkdir -p "$folder/builds"

product="causewayd causeway causeway-worker causeway-launcher guest_libcuda guest_libnvml software_gpu"
quick="layout_test ring_test waiter_test handles_test fatbin_test"
# build COMPILER TYPE: configures, builds, tests. The log tells what failed.
build() {
  local compiler=$1 type=$2 where=/builds/$1-$2
  local cxx=${compiler/#gcc-/g++-}
  cxx=${cxx/#clang-/clang++-}
  # shellcheck disable=SC2086,SC2016
  inside "$limit_s" nice -n 15 sh -euc '
    # The release has GoogleTest as its own compiler made it, which needs a newer C++ library than an older compiler has.
    cmake -S /usr/src/googletest -B "$1/googletest" -G Ninja -DCMAKE_BUILD_TYPE="$2" -DCMAKE_C_COMPILER="$3" -DCMAKE_CXX_COMPILER="$4" \
      -DBUILD_GMOCK=OFF -DCMAKE_INSTALL_PREFIX="$1/googletest/root"
    cmake --build "$1/googletest" -j "$5" --target install
    cmake -S /source -B "$1" -G Ninja -DCMAKE_BUILD_TYPE="$2" -DCMAKE_C_COMPILER="$3" -DCMAKE_CXX_COMPILER="$4" \
      -DCAUSEWAY_CUDA_INCLUDE=/cuda/include -DGTest_DIR="$1/googletest/root/lib/cmake/GTest"
    where=$1 jobs=$5
    shift 5
    cmake --build "$where" -j "$jobs" --target "$@" -- -k 0
  ' sh "$where" "$type" "$compiler" "$cxx" "$jobs" $product $quick &&
    inside 600 ctest --test-dir "$where" --output-on-failure --no-tests=error -R "^(${quick// /|})\$"
}

passed=0 failed=0
for compiler in "${compilers[@]}"; do
  package=$(package_of "$compiler")
  log=$folder/$compiler.log
  # shellcheck disable=SC2016
  if ! inside 1800 sh -euc 'command -v "$1" > /dev/null || { apt-get update -q; apt-get install -y -q --no-install-recommends "$2"; }' \
    sh "$compiler" "$package" > "$log" 2>&1 < /dev/null; then
    tail -n 5 "$log" >&2
    echo "$compiler: failed, Debian $suite has no package $package"
    failed=$((failed + 1))
    continue
  fi
  for type in $types; do
    log=$folder/$compiler-$type.log
    started=$SECONDS
    if build "$compiler" "$type" > "$log" 2>&1 < /dev/null; then
      echo "$compiler $type: passed ($((SECONDS - started)) s)"
      passed=$((passed + 1))
    else
      grep -aE 'error|Error|FAILED|Failed' "$log" | sort -u | head -n 40 >&2 || true
      tail -n 5 "$log" >&2
      echo "$compiler $type: failed after $((SECONDS - started)) s${made:+; --folder DIR keeps the log}"
      failed=$((failed + 1))
    fi
  done
done
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
