#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Fetches NVIDIA's CUDA runtime libraries 11.7 to 12.9, with their headers, for the test old_runtimes: pinned versions,
# checked against their SHA-256, unpacked as <folder>/<version>/{include,lib}. With --toolkit also Debian 12's CUDA
# 11.8 (858 MB), its compiler and static runtime, as <folder>/toolkit-11.8, for the programs image_11_8_*; nothing is
# installed, and it needs no root. Configure the build again after that.
#
# Usage: fetch_old_runtimes.sh [--toolkit] [<folder>]      (build/old_runtimes of the repository when it is not given)
set -eu

toolkit=no
if [ "${1:-}" = --toolkit ]; then
  toolkit=yes
  shift
fi
folder=${1:-$(dirname "$0")/../../build/old_runtimes}
mkdir -p "$folder"
folder=$(cd "$folder" && pwd)
download=$(mktemp -d "$folder/download.XXXXXX")
trap 'rm -rf "$download"' EXIT

fetch() {
  package=$1 version=$2 sha256=$3
  if [ -d "$folder/$version" ]; then
    return
  fi
  printf '%s==%s --hash=sha256:%s\n' "$package" "$version" "$sha256" > "$download/$version.txt"
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --require-hashes --only-binary=:all: \
    --platform manylinux1_x86_64 --platform manylinux2014_x86_64 --platform manylinux_2_17_x86_64 \
    --dest "$download/$version" --requirement "$download/$version.txt"
  # The package's files lie under nvidia/cuda_runtime.
  python3 -m zipfile -e "$download/$version"/*.whl "$download/$version/files"
  mkdir "$download/$version/runtime"
  mv "$download/$version"/files/nvidia/cuda_runtime/include "$download/$version"/files/nvidia/cuda_runtime/lib \
    "$download/$version/runtime"
  mv "$download/$version/runtime" "$folder/$version"
  echo "CUDA runtime $version is in $folder/$version"
}

fetch nvidia-cuda-runtime-cu11 11.7.99 cc768314ae58d2641f07eac350f40f99dcb35719c4faff4bc458a7cd2b119e31
fetch nvidia-cuda-runtime-cu11 11.8.89 92d04069a987e1fbc9213f8376d265df0f7bb42617d44f5eda1f496acea7f2d1
fetch nvidia-cuda-runtime-cu12 12.0.146 18c038592af387684812fa712642aa9a26c12da80acb488b6709f7cced147f71
fetch nvidia-cuda-runtime-cu12 12.1.105 6e258468ddf5796e25f1dc591a31029fa317d97a0a94ed93468fc86301d61e40
fetch nvidia-cuda-runtime-cu12 12.2.140 acb9cb7e44594a3512533497ea790d9f0b0e399abcc888584c157d1ffa080e41
fetch nvidia-cuda-runtime-cu12 12.3.101 04604679ddca6acb96c76a7a9306282cddc16981f92e148e2dfe227078883cda
fetch nvidia-cuda-runtime-cu12 12.4.127 64403288fa2136ee8e467cdc9c9427e0434110899d07c779f25b5c068934faa5
fetch nvidia-cuda-runtime-cu12 12.5.82 3e79a060e126df40fd3a068f3f787eb000fa51b251ec6cd97d09579632687115
fetch nvidia-cuda-runtime-cu12 12.6.77 a84d15d5e1da416dd4774cb42edf5e954a3e60cc945698dc1d5be02321c44dc8
fetch nvidia-cuda-runtime-cu12 12.8.90 adade8dcbd0edf427b7204d480d6066d33902cab2a4707dcfc48a2d0fd44ab90
fetch nvidia-cuda-runtime-cu12 12.9.79 25bba2dfb01d48a9b59ca474a1ac43c6ebf7011f1b0b8cc44f54eb6ac48a96c3

# The archive that this machine's own apt sources take Debian 12 from; FETCH_DEBIAN_FROM names another one.
debian_12() {
  if [ -n "${FETCH_DEBIAN_FROM:-}" ]; then
    echo "$FETCH_DEBIAN_FROM"
    return
  fi
  # shellcheck disable=SC2016  # apt-get fills these in
  apt-get indextargets --format '$(CODENAME) $(REPO_URI)' 'Identifier: Packages' | awk '$1 == "bookworm" { print $2; exit }'
}

# Debian's packages, verified by apt with Debian's own key, from a list of sources of our own: those of this machine
# rarely have the section non-free.
fetch_toolkit() {
  to=$folder/toolkit-11.8
  apt=$download/apt
  version=11.8.89~11.8.0-5~deb12u1
  if [ -d "$to" ]; then
    return
  fi
  archive=$(debian_12)
  if [ -z "$archive" ]; then
    echo "fetch_old_runtimes.sh: this machine's apt sources have no Debian 12 (bookworm); name an archive that has it:" \
      "FETCH_DEBIAN_FROM=URL." >&2
    exit 1
  fi
  mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial" "$apt/files"
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive bookworm non-free" > "$apt/sources.list"
  set -- -q -o Dir::Etc::sourcelist="$apt/sources.list" -o Dir::Etc::sourceparts=- -o Dir::State::lists="$apt/lists" \
    -o Dir::Cache="$apt/cache" -o APT::Sandbox::User=
  apt-get "$@" update
  (cd "$apt" && apt-get "$@" download nvidia-cuda-toolkit="$version" nvidia-cuda-dev="$version")
  dpkg-deb -x "$apt"/nvidia-cuda-toolkit_*.deb "$apt/files"
  dpkg-deb --fsys-tarfile "$apt"/nvidia-cuda-dev_*.deb | tar -x -C "$apt/files" --wildcards './usr/include/*' \
    './usr/lib/x86_64-linux-gnu/libcudart_static.a' './usr/lib/x86_64-linux-gnu/libcudadevrt.a'
  # As NVIDIA lays it out, so that the compiler finds its parts wherever it is.
  made=$apt/made
  tools=$apt/files/usr/lib/nvidia-cuda-toolkit
  mkdir -p "$made/bin" "$made/nvvm/bin" "$made/nvvm/libdevice" "$made/lib64"
  for tool in bin2c cudafe++ fatbinary nvlink ptxas; do cp "$apt/files/usr/bin/$tool" "$made/bin"; done
  cp -r "$tools/bin/nvcc" "$tools/bin/crt" "$made/bin"
  cp "$tools/bin/cicc" "$made/nvvm/bin"
  cp -L "$tools"/libdevice/* "$made/nvvm/libdevice"
  cp -r "$apt/files/usr/include" "$made/include"
  cp "$apt"/files/usr/lib/x86_64-linux-gnu/libcuda*.a "$made/lib64"
  cat > "$made/bin/nvcc.profile" << 'END'
TOP = $(_HERE_)/..
NVVMIR_LIBRARY_DIR = $(TOP)/nvvm/libdevice
PATH += $(TOP)/nvvm/bin:$(_HERE_):
INCLUDES += "-I$(TOP)/include" $(_SPACE_)
LIBRARIES =+ $(_SPACE_) "-L$(TOP)/lib64"
END
  mv "$made" "$to"
  echo "the CUDA 11.8 toolkit is in $to"
}
if [ "$toolkit" = yes ]; then
  fetch_toolkit
fi
