#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a command without what the software GPU says of itself on stderr ("software GPU: ..."): it names addresses of one
# process, and where the GPU is remote vm_capture.py drops the same lines.
set -o pipefail
{ "$@" 2>&1 >&3 | grep -av '^software GPU: ' >&2; exit "${PIPESTATUS[0]}"; } 3>&1
