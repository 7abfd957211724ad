#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a folder with a release of Debian, from the mirror that this machine's apt uses.
# usage: fetch_root.sh RELEASE DIR PACKAGE...     (for example: fetch_root.sh bullseye build/bullseye libc6 busybox-static)
# RELEASE may be one of backports. A folder that is complete is left as it is.
# environment: VARIANT=extract (default: files alone, nothing is configured) or another variant of mmdebstrap
#   LATER="RELEASE PACKAGE..." packages of a newer release, with what they need, as files in DIR/later
# exit status: 0 the folder is there; 77 the release cannot be fetched here, which the last line explains
set -euo pipefail
[ $# -ge 3 ] || { sed -n '4,9s/^# //p' "$0" >&2; exit 2; }
release=$1 folder=$2
shift 2
skip() { echo "fetch_root.sh: $*"; exit 77; }

wanted="$release ${VARIANT:-extract} $* ${LATER:-}"
if [ "$(cat "$folder.packages" 2> /dev/null)" = "$wanted" ]; then exit 0; fi
command -v mmdebstrap > /dev/null || skip "mmdebstrap is not installed, so there is no $release: vm_configs/install_dependencies.sh installs it."
# shellcheck disable=SC2016  # apt fills it in
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' 2> /dev/null | sort -u | head -n 1)
[ -n "$mirror" ] || skip "this machine's apt has no mirror of Debian, so $release cannot be fetched."
mkdir -p "$(dirname "$folder")"
# One at a time. Not into what mmdebstrap mounts meanwhile, this machine's /dev/shm among it.
exec 9> "$folder.lock"
flock -w 2400 9 || skip "another one makes $folder since 40 minutes."
if [ "$(cat "$folder.packages" 2> /dev/null)" = "$wanted" ]; then exit 0; fi
rm -rf --one-file-system "$folder" "$folder.packages" || skip "$folder cannot be removed; is something mounted in it?"
sources=$(mktemp)
trap 'rm -f "$sources"' EXIT
echo "deb $mirror $release main" > "$sources"
[ "${release%-backports}" = "$release" ] || echo "deb $mirror ${release%-backports} main" >> "$sources"
later=()
if [ -n "${LATER:-}" ]; then
  read -ra names <<< "$LATER"
  echo "deb $mirror ${names[0]} main" >> "$sources"
  # The folder may have no apt of its own.
  # shellcheck disable=SC2016  # mmdebstrap's shell expands $1
  later=("--customize-hook=mkdir -p \"\$1/later/partial\" && APT_CONFIG=\$MMDEBSTRAP_APT_CONFIG apt-get -y -q --download-only \
    --no-install-recommends -o Dir::Cache::archives=\"\$1/later\" -t ${names[0]} install ${names[*]:1} && \
    rm -rf \"\$1/later/partial\" \"\$1/later/lock\"")
fi
packages=$(IFS=,; echo "$*")
if ! timeout 2400 mmdebstrap --variant="${VARIANT:-extract}" --include="$packages" \
  --dpkgopt=force-unsafe-io --aptopt="APT::Default-Release \"$release\"" "${later[@]}" "${release%-backports}" "$folder" "$sources" > "$folder.log" 2>&1 < /dev/null; then
  rm -rf --one-file-system "$folder" || true
  skip "$release cannot be fetched from $mirror: $(grep -E '^(E:|mmdebstrap)' "$folder.log" | head -n 1)"
fi
# Its apt, if it has one, knows no release, so that it installs files.
rm -f "$folder/etc/apt/apt.conf.d/99mmdebstrap"
echo "$wanted" > "$folder.packages"
