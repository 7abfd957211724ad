#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# slurm_test.py with Debian's Slurm, which is put into a folder of its own and not installed here.
# usage: slurm.sh BUILD_DIR [unittest arguments]     (as root)
# exit status: 0 passed; 77 it cannot be tried here, and the last line says why; else it failed
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "$1" && pwd)
[ "$(id -u)" = 0 ] || { echo "slurm.sh: Slurm's daemons and their namespace take root"; exit 77; }
root=$build/slurm_root/bookworm
VARIANT=essential "$here/../packages/fetch_root.sh" bookworm "$root" slurmctld slurmd slurm-client munge mawk python3
exec python3 "$here/slurm_test.py" "$build/host_backend" "$build/guest_lib/libcuda.so.1" "$build/software_gpu/libcuda.so.1" "$root" "${@:2}"
