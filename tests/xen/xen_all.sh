#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything that is tried of Xen's guests, one emulated machine after the other; of these ctest runs `vm.xen`, the shortest.
# usage: xen_all.sh BUILD_DIR [--keep DIR]     (as root; about an hour and a half of one processor)
# environment: XEN_LOCK=FILE is locked (flock) for each machine, where several users share this one; PARTS="NAME..." these of the names
#   below instead of all
# exit status: 0 all passed; 77 something is missing here, which the last line explains; else the number of those that failed
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1 keep=''
[ "${2:-}" != --keep ] || keep=$3
failed=0
exec 9> "${XEN_LOCK:-/dev/null}"
try() { # NAME SCRIPT ARGUMENTS...
  local status=0 name=$1 script=$2 begun
  [ -z "${PARTS:-}" ] || [[ " $PARTS " == *" $name "* ]] || return 0
  shift 2
  echo "== $name: $script $build $*"
  [ -z "${XEN_LOCK:-}" ] || flock 9
  begun=$SECONDS
  "$here/$script" "$build" "$@" ${keep:+--keep "$keep/$name"} 9>&- || status=$?
  [ -z "${XEN_LOCK:-}" ] || flock -u 9
  [ "$status" != 77 ] || exit 77
  [ "$status" = 0 ] || { failed=$((failed + 1)); echo "== $name failed with status $status"; }
  echo "== $name: $((SECONDS - begun)) s"
}
try limits xen_limits.sh
try module xen_module.sh --types "pv pvh hvm"
# Those of ../../vm_configs/demo.sh, and memory_kinds.
demo="vector_add tiled_matmul reduction streams_threads graph_capture managed_variables host_register device_printf error_codes nvml_query"
try programs xen_pv.sh --types "pv pvh hvm" --programs "$demo memory_kinds"
# The HVM guest first: libxl waits for its device model for 60 s, which takes longer beside two guests that work.
try together xen_pv.sh --types "hvm pv pvh" --together
try refused xen_pv.sh --refused --programs "vector_add device_printf"
try doctor xen_doctor.sh --types "pv pvh"
[ -n "${XEN_HERE:-}" ] || try service xen_service.sh
try packages xen_packages.sh --types pvh
try tls xen_tls.sh --types "pv pvh"
try figures xen_figures.sh --types "pv pvh hvm"
try one_of_four xen_pv.sh --types "pv pvh hvm" --vcpus 1/4 --programs "vector_add device_printf"
try two_processors xen_pv.sh --types "pv pvh hvm" --vcpus 2 --programs "vector_add device_printf"
try large xen_pv.sh --types pvh --region 1024 --programs vector_add
# The programs of ../vm/vm_data.sh; a PV guest cannot register memory.
memory="host_memory mempool memcpy memcpy_box memcpy_batch unified_memory"
try memory_pv xen_pv.sh --programs '' --region 512 --killed --driver "$memory"
for type in pvh hvm; do
  try memory_$type xen_pv.sh --types $type --programs '' --region 512 --killed --driver "$memory host_register registered_kinds registered_pages pointer"
done
for type in pv pvh hvm; do try ends_$type xen_ends.sh --types $type; done
for type in pv pvh; do try cycles_$type xen_ends.sh --types $type --only cycles --cycles 100; done
echo "xen_all.sh: $failed failed"
exit "$failed"
