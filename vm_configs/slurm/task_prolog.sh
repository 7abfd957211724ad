#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# TaskProlog of slurm.conf: points a task to the GPUs that Slurm gave it, on the host that has them. Slurm takes the lines "export"
# into the task's environment and prints the lines "print". Numbers are explained by the file that causeway_gres.py has written.
numbers=${SLURM_STEP_GPUS:-${SLURM_JOB_GPUS:-}}
[ -n "$numbers" ] || exit 0
folder=$(dirname "${SLURM_CONF:-/etc/slurm/slurm.conf}")
host='' uuids=''
for number in $(echo "$numbers" | tr , ' '); do
  # shellcheck disable=SC2046  # three words
  set -- $(awk -v number="$number" '$1 == number' "$folder/causeway-gpus")
  if [ $# != 3 ]; then
    echo "print causeway: $folder/causeway-gpus does not know GPU $number: run causeway_gres.py on $(uname -n)."
    exit 1
  fi
  if [ -n "$host" ] && [ "$2" != "$host" ]; then
    echo "print causeway: This task was given GPUs of two hosts, $host and $2, and a process can use those of one: ask for a type, as in --gres=gpu:TYPE:NUMBER (sinfo -o %G lists them)."
    exit 1
  fi
  host=$2
  uuids=${uuids:+$uuids,}$3
done
echo "export CAUSEWAY=$host"
echo "export CUDA_VISIBLE_DEVICES=$uuids"
