#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command on one processor, which it and all that it starts share with a process that never sleeps.
# usage: one_processor.sh COMMAND [ARGUMENT...]
set -euo pipefail
[ $# -ge 1 ] || { sed -n '4s/^# //p' "$0" >&2; exit 2; }
first=$(taskset -pc $$ | sed 's/.*: //; s/[,-].*//')
taskset -pc "$first" $$ > /dev/null
# It ends by itself if this script is killed.
timeout 250 sh -c 'while :; do :; done' &
hog=$!
trap 'kill "$hog" 2> /dev/null || true' EXIT
status=0
"$@" || status=$?
exit "$status"
