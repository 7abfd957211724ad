# shellcheck shell=bash disable=SC2034
# SPDX-License-Identifier: Apache-2.0
# Sourced with a script's arguments, BUILD_DIR [--types "TYPE..."] [--keep DIR]. Sets folder to the first, and types and keep, which have
# the script's defaults before. Ends the script with 2 at any other option.
folder=$1
shift
while [ $# -gt 0 ]; do
  case "$1" in
    --types) types=$2 ;; --keep) keep=$2 ;;
    *) echo "$(basename "$0"): unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done
