#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `kill -9` at random moments, in the numbers that docs/gpu_results.md tells: guest processes and workers, daemons, VMs.
# usage: storm.sh BUILD_DIR [--guests N] [--daemons N] [--vms N] [--seed N] [--driver LIBRARY|nvidia] [--at-once N]
#   --guests   guest processes and workers, about half of each (default 9000)
#   --daemons  daemons, each with up to three guests (default 900)
#   --vms      VMs, killed while they boot, work or end (default 100; some 20 s each; on the software GPU)
#   --seed     of all of it; without it a random one, which is printed
#   --driver   what kill_storm.py's workers load: by default the software GPU, `nvidia`: this host's
# As root. It takes hours: `kill_storm.py` and `vm_storm.py` alone, with small numbers, are tests of ctest.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
usage() { sed -n '4,10s/^# \{0,1\}//p' "$0" >&2; exit 2; }
[ $# -ge 1 ] && [[ $1 != -* ]] || usage
build=$(cd "$1" && pwd)
shift
guests=9000 daemons=900 vms=100 seed=$(od -An -N3 -tu4 /dev/urandom | tr -d ' ') more=()
while [ $# -gt 0 ]; do
  [ $# -ge 2 ] || usage
  case "$1" in
    --guests) guests=$2 ;; --daemons) daemons=$2 ;; --vms) vms=$2 ;; --seed) seed=$2 ;;
    --driver | --at-once) more+=("$1" "$2") ;;
    *) usage ;;
  esac
  shift 2
done
python3 "$here/kill_storm.py" "$build" --guests "$guests" --daemons "$daemons" --seed "$seed" "${more[@]}"
[ "$vms" = 0 ] || python3 "$here/vm_storm.py" "$build" --vms "$vms" --seed "$seed"
echo "storm.sh: passed: $guests guests and workers, $daemons daemons, $vms VMs, seed $seed"
