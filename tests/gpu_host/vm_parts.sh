# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced by run.sh: the parts that boot the packed VM. It has set: here, build, out, pack and the functions at_most,
# plain_programs, library_programs, compare, and native, the prefix of native runs.

# with_daemon FOLDER REGION_MIB COMMAND...: causewayd with one VM's region while the command runs; $region names it.
with_daemon() {
  local folder=$1 mib=$2 work daemon status=0
  shift 2
  work=$(mktemp -d)
  region=/dev/shm/causeway-gpu-test-$$-$(basename "$folder")
  printf 'socket = "%s"\nworker = "%s"\n%s[[vm]]\nname = "demo"\nregion_file = "%s"\nregion_mib = %s\n' "$work/causeway.sock" \
    "$build/host_backend/causeway-worker" "${CAUSEWAY_TEST_DRIVER:+driver_library = \"$CAUSEWAY_TEST_DRIVER\"
}" "$region" "$mib" > "$work/causewayd.toml"
  "$build/host_backend/causewayd" --config "$work/causewayd.toml" > "$folder/causewayd.log" 2>&1 &
  daemon=$!
  for _ in $(seq 100); do
    "$build/host_backend/causeway" status --json --socket "$work/causeway.sock" > /dev/null 2>&1 && break
    sleep 0.1
  done
  "$@" || status=$?
  kill "$daemon"
  wait "$daemon" 2> /dev/null
  rm -rf "$region" "$work"
  return "$status"
}

# A program's lines in the console become FOLDER/captured/NAME.{stdout,stderr,code}.
captured() { python3 "$here/../vm/vm_capture.py" "$1/console.log" "$1/captured" > /dev/null; }

run_programs_in_vm() {
  local folder=$1 names name
  mapfile -t names < <(plain_programs)
  {
    for name in "${names[@]}"; do echo "$name /programs/$name"; done
    echo "& together.1 /programs/${names[0]}"
    echo "& together.2:gpu2 /programs/${names[1]}"
    echo wait
    echo "bench /programs/causeway-bench-probe libcuda.so.1 --calls"
  } > "$folder/commands"
  "$pack/run_packed_vm.sh" --region "$region" --commands "$folder/commands" --log "$folder/console.log" \
    --timeout "$(at_most 280)" --program-timeout 100 > /dev/null
}
part_vm() {
  [ -n "$pack" ] || { echo "no VM_PACK was given"; return 77; }
  local status=0
  with_daemon "$1" 512 run_programs_in_vm "$1" || status=$?
  captured "$1"
  # 1: a program failed, as some do natively as well; the comparison says which.
  [ "$status" -le 1 ] || return "$status"
  compare "$1" vm "$(plain_programs)" --way "native=$native" --captured "vm=$1/captured"
}

# What runs in the frameworks part, natively and in the VM: NAME COMMAND; {share} is the folder of programs and scripts.
# CAUSEWAY_VM_SCRIPTS (NAME or NAME:SECTIONS, as CAUSEWAY_SECTIONS has them), CAUSEWAY_VM_PYTHON and CAUSEWAY_VM_ENVIRONMENT
# (NAME=VALUE words) choose other ones. CuPy compiles so much that an emulated processor takes eight minutes for it.
vm_scripts="cupy_basic:device,arrays cupy_basic:linear_algebra,random_numbers cupy_basic:fourier,raw_modules
  cupy_basic:-device,arrays,linear_algebra,random_numbers,fourier,raw_modules pytorch_basic"
vm_framework_commands() {
  local name sections part python=${CAUSEWAY_VM_PYTHON:-$(command -v python3)}
  for name in vector_add $(library_programs); do echo "$name {share}/programs/$name"; done
  for name in ${CAUSEWAY_VM_SCRIPTS:-$vm_scripts}; do
    sections=${name#"${name%%:*}"} name=${name%%:*}
    sections=${sections#:} part=${sections%%,*}
    echo "$name${part:+.${part/#-/not_}} env CAUSEWAY_SECTIONS=$sections $python {share}/frameworks/$name.py"
  done
}
# Small sizes and one thread; Python's compiled files are those of the native run, the host's root stays as it is.
vm_framework_environment() {
  echo "CAUSEWAY_SHORT=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 PYTHONUNBUFFERED=1" \
    "PYTHONPYCACHEPREFIX=$1/pycache ${CAUSEWAY_VM_ENVIRONMENT:-}"
}
run_framework_natively() {
  local folder=$1 name=$2 command=$3 status=0
  # shellcheck disable=SC2046,SC2086  # words are meant
  timeout -k 5 "$(at_most 100)" env $(vm_framework_environment "$folder/share") TMPDIR="$folder/native" \
    CUPY_CACHE_DIR="$folder/native/cupy" ${command//\{share\}/$folder/share} \
    > "$folder/native/$name.stdout" 2> "$folder/native/$name.stderr" < /dev/null || status=$?
  echo "$status" > "$folder/native/$name.code"
}
run_frameworks_in_vm() {
  local folder=$1 name command
  while read -r name command; do
    echo "& $name:root HOST_LIBRARY_PATH=${LD_LIBRARY_PATH:-} in-host PATH=$PATH $(vm_framework_environment /mnt) ${command//\{share\}//mnt}"
  done < <(vm_framework_commands) > "$folder/commands"
  # The first alone: it shows that device and library work before all others share the emulated processors.
  sed -i '1{s/^& //; a wait
}' "$folder/commands"
  "$pack/run_packed_vm.sh" --region "$region" --commands "$folder/commands" --log "$folder/console.log" --cpus "${VM_CPUS:-8}" \
    --memory "${VM_MEMORY_MIB:-16384}" --timeout "$(at_most 480)" --program-timeout "$(at_most 450)" --host-root / \
    --share "$folder/share" > /dev/null
}
part_vm_frameworks() {
  [ -n "$pack" ] || { echo "no VM_PACK was given"; return 77; }
  local status=0 name command jobs=()
  mkdir -p "$1/share" "$1/native"
  cp -rL "$build/programs" "$here/../frameworks" "$1/share/"
  cp -L "$build/guest_lib/libcuda.so.1" "$1/share/"
  [ ! -e "$build/guest_lib/libnvidia-ml.so.1" ] || cp -L "$build/guest_lib/libnvidia-ml.so.1" "$1/share/"
  while read -r name command; do
    run_framework_natively "$1" "$name" "$command" &
    jobs+=($!)
  done < <(vm_framework_commands)
  wait "${jobs[@]}"
  echo "native runs ended at $SECONDS s"
  with_daemon "$1" 1024 run_frameworks_in_vm "$1" || status=$?
  echo "the VM ended with $status at $SECONDS s"
  captured "$1"
  # A program that fails natively as well is for the comparison to judge.
  [ "$status" != 1 ] || status=0
  # shellcheck disable=SC2046  # words are meant
  python3 "$here/../frameworks/compare.py" --output "$1" --captured "native=$1/native" --captured "vm=$1/captured" \
    --only $(vm_framework_commands | cut -d' ' -f1) || status=1
  rm -rf "$1/share" "$1/native/cupy"
  return "$status"
}
