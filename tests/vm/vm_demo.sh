#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job: causewayd, a VM attached to its region, and in the VM every CUDA program, compared with a direct run.
# usage: vm_demo.sh BUILD_DIR [--programs "NAME..."] [--driver DIR_OF_LIBCUDA] [--region-mib N] [--keep DIR]
#   --driver: the folder of the host's libcuda.so.1 (default: the software GPU of the build)
# exit status: 0 everything agreed; 77 QEMU or a guest kernel is missing; else failed
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
shift
names='' driver=$build/software_gpu region_mib=256 keep=''
while [ $# -gt 0 ]; do
  case "$1" in
    --programs) names=$2 ;; --driver) driver=$2 ;; --region-mib) region_mib=$2 ;; --keep) keep=$2 ;;
    *) echo "vm_demo.sh: unknown option $1" >&2; exit 2 ;;
  esac
  shift 2
done

if [ -z "$names" ]; then
  # NVIDIA's libraries (cuBLAS, cuFFT, ...), SASS, and kernels that launch kernels need a real GPU.
  while read -r name; do
    if [ "$driver" = "$build/software_gpu" ] && grep -qxF "$name" "$build/programs/library_programs.txt"; then
      continue
    fi
    names+="$name "
  done < "$build/programs/programs.txt"
fi

# shellcheck source=tests/vm/demo_daemon.sh
. "$here/demo_daemon.sh"
start_daemon

# Every program by itself; then the first two beside each other, as two users.
read -ra list <<< "$names"
two=("${list[0]}" "${list[1]:-${list[0]}}")
{
  for name in $names; do echo "$name /programs/$name"; done
  echo "& together.1 /programs/${two[0]}"
  echo "& together.2:gpu2 /programs/${two[1]}"
  echo wait
} > "$work/commands"
options=()
for name in $names; do options+=(--program "$build/programs/$name"); done
"$configs/demo_initramfs.sh" --output "$work/initramfs" --library "$build/guest_lib/libcuda.so.1" "${options[@]}"
status=0
"$configs/run_vm.sh" --initramfs "$work/initramfs" --region "$region" --commands "$work/commands" \
  --log "$work/console" --timeout "${VM_TIMEOUT_S:-480}" --program-timeout 120 || status=$?
# 1: a program exited non-zero, which compare.py judges; anything else is the VM's own trouble.
if [ "$status" -gt 1 ]; then
  cat "$work/causewayd.log" >&2
  fail "the VM ended with status $status."
fi

python3 "$here/vm_capture.py" "$work/console" "$work/vm" > "$work/names"
for i in 1 2; do
  name=${two[i - 1]}
  for part in stdout stderr code; do
    cmp "$work/vm/$name.$part" "$work/vm/together.$i.$part" || fail "$name differs when it runs beside another."
  done
done
kill -0 "$daemon_pid" || daemon_failed "causewayd did not survive the VM."
daemon_status > "$work/status.json"
python3 - "$work/status.json" "$(wc -w <<< "$names")" <<'TEXT'
import json, sys
status = json.load(open(sys.argv[1]))
counters, region = status["counters"], status["regions"][0]
print(f"causewayd: {counters}, {region['slots_in_use']} of {region['slots']} slots in use, "
      f"{region['slices_free']} of {region['slices']} slices free")
wrong = []
if counters["sessions"] < int(sys.argv[2]): wrong.append("fewer sessions than programs")
if counters["violations"]: wrong.append("the daemon counted violations")
if counters["refused"]: wrong.append("sessions were refused")
if region["slots_in_use"] or region["slices_free"] != region["slices"]: wrong.append("slots or slices were not given back")
sys.exit("vm_demo.sh: " + "; ".join(wrong) if wrong else 0)
TEXT
# shellcheck disable=SC2086
python3 "$here/../programs/compare.py" --programs "$build/programs" --way "direct=$here/quiet_gpu.sh env LD_LIBRARY_PATH=$driver" \
  --captured "vm=$work/vm" --only $names || { tail -n 30 "$work/causewayd.log" >&2; fail "the VM's results differ from a direct run."; }
echo "vm_demo.sh: passed: $(wc -w <<< "$names") programs in the VM did exactly what they do on the host"
