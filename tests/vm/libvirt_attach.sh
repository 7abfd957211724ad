#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `causeway attach`, `detach` and `list` with a real libvirtd, a real causewayd and emulated VMs (private_libvirtd.sh).
# usage: libvirt_attach.sh BUILD_DIR [MODE...]      modes: refusals pc q35 two session all (default: refusals pc)
#   environment: KEEP=DIR keeps the logs and consoles
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu
# shellcheck source=tests/vm/private_libvirtd.sh
. "$here/private_libvirtd.sh"
shift
modes="${*:-refusals pc}"
[ "$modes" != all ] || modes="refusals pc q35 two session"
prefix=lv$$

# ---- guests: as soon as there is a device, they run a program as an ordinary user, again and again -----------------
make_guest() {
  mkdir "$work/extra" "$work/extra/etc"
  echo 'agent:root sh /agent.sh' > "$work/extra/etc/causeway_commands"
  cat > "$work/extra/agent.sh" <<'TEXT'
round=0 load=''
while true; do
  round=$((round + 1)) nodes=0 exit=none
  for node in /dev/causeway*; do
    [ -c "$node" ] || continue
    nodes=$((nodes + 1))
    chown root:render "$node"
    chmod 0660 "$node"
  done
  if [ $nodes != 0 ]; then
    timeout -s KILL 60 su gpu1 -c 'LD_LIBRARY_PATH=/usr/lib/causeway /programs/vector_add' > /run/vector_add 2>&1
    exit=$?
    if [ -z "$load" ] || ! kill -0 "$load" 2> /dev/null; then
      (su gpu2 -c 'LD_LIBRARY_PATH=/usr/lib/causeway exec /programs/soak 100000 1' > /dev/null 2>&1;
       echo "LOAD-ENDED $?" > /dev/console) &
      load=$!
    fi
  fi
  echo "ROUND $round nodes=$nodes exit=$exit $(tail -n 1 /run/vector_add 2> /dev/null)" > /dev/console
  dmesg | grep -E 'WARNING:|BUG[: ]|Oops|general protection' | sed 's/^/KERNEL-FAULT /' > /dev/console
  sleep 1
done
TEXT
  (cd "$work/extra" && find . | cpio --quiet -o -H newc -R 0:0) > "$work/initramfs"
  "$configs/demo_initramfs.sh" --output "$work/base" --library "$build/guest_lib/libcuda.so.1" \
    --program "$build/programs/vector_add" --program "$build/tests/soak/soak"
  cat "$work/base" >> "$work/initramfs"
  cp "$KERNEL" "$work/kernel"
  chmod 0644 "$work/kernel" "$work/initramfs"
}

# domain_xml NAME MACHINE CONSOLE [EXTRA_DEVICES]
domain_xml() {
  cat <<TEXT
<domain type='qemu'>
  <name>$1</name>
  <memory unit='MiB'>448</memory>
  <vcpu>2</vcpu>
  <os>
    <type arch='x86_64' machine='$2'>hvm</type>
    <kernel>$work/kernel</kernel>
    <initrd>$work/initramfs</initrd>
    <cmdline>console=ttyS0 no_timer_check quiet loglevel=3 panic=-1 oops=panic nokaslr mitigations=off random.trust_cpu=on causeway.timeout_s=100000</cmdline>
  </os>
  <features><acpi/><apic/></features>
  <cpu mode='maximum'/>
  <devices>
    <serial type='file'><source path='$3' append='on'/><target port='0'/></serial>
    <memballoon model='none'/>
    ${4:-}
  </devices>
</domain>
TEXT
}

define() {
  domain_xml "$1" "$2" "$work/$1.console" > "$work/$1.xml"
  virsh -q define "$work/$1.xml" > /dev/null
}

# await NAME SECONDS PATTERN: a new line of the console, since the last such call that marked the place (mark NAME).
mark() { marks[$1]=$(wc -l < "$work/$1.console" 2> /dev/null || echo 0); }
declare -A marks
await() {
  local end=$((SECONDS + $2))
  while [ $SECONDS -lt $end ]; do
    tail -n "+$((${marks[$1]:-0} + 1))" "$work/$1.console" 2> /dev/null | tr -d '\r' | grep -qaE "$3" && return
    sleep 0.3
  done
  tail -n 20 "$work/$1.console" >&2 || true
  tail -n 20 "$work/causewayd.log" >&2
  fail "$1: no line \"$3\" within $2 s."
}
works() { mark "$1"; await "$1" "${2:-240}" '^ROUND [0-9]+ nodes=1 exit=0 '; }
has_none() { mark "$1"; await "$1" "${2:-120}" '^ROUND [0-9]+ nodes=0 exit=none'; }

# The guest's second user has a session.
loaded() {
  local end=$((SECONDS + 120))
  while [ $SECONDS -lt $end ]; do
    daemon_status | python3 -c "
import json, sys
sys.exit(not any(each['uid'] == 1002 and each['vm'] == '$1' and each['state'] == 'serving' for each in json.load(sys.stdin)['sessions']))" && return
    sleep 0.3
  done
  fail "the load of $1 has no session."
}

step() { echo "libvirt_attach.sh: $* ($SECONDS s)"; }

# refuses PATTERN COMMAND...: exits 1 with that sentence, and changes nothing that libvirt or causewayd know.
state_of_all() {
  local domain commands=list
  for domain in $(virsh -q list --all --name 2> /dev/null); do commands+="; dumpxml --inactive $domain; dumpxml $domain"; done
  virsh -q "$commands" 2>&1 || true
  cw list --json 2>&1 || true
  ls "$work/state/vms.d" 2> /dev/null || true
  find /dev/shm -name "causeway-$prefix*" | sort
}
refuses() {
  local pattern=$1 status=0 before
  shift
  before=$(state_of_all)
  "$@" > "$work/refusal" 2>&1 || status=$?
  [ "$status" = 1 ] || fail "\"$*\" exited with $status instead of 1: $(cat "$work/refusal")"
  grep -qE "$pattern" "$work/refusal" || fail "\"$*\" does not say \"$pattern\": $(cat "$work/refusal")"
  [ "$(wc -l < "$work/refusal")" = 1 ] || fail "\"$*\" says more than one sentence: $(cat "$work/refusal")"
  [ "$before" = "$(state_of_all)" ] || fail "\"$*\" was refused, and changed something."
}

# as USER COMMAND...: with no other rights than that user has.
as() {
  local user=$1
  shift
  setpriv --reuid "$user" --regid "$(id -g "$user")" --init-groups env XDG_RUNTIME_DIR="$work/$user/run" \
    XDG_CONFIG_HOME="$work/$user/config" XDG_CACHE_HOME="$work/$user/cache" HOME="$work/$user" "$@"
}

# ---- what is refused, with one sentence, and changes nothing ------------------------------------------------------
mode_refusals() {
  step "refusals"
  local one=$prefix-one other=$prefix-other q35=$prefix-q35 full=$prefix-full slots slot
  define "$one" pc
  define "$other" pc
  define "$q35" q35
  refuses 'knows no domain nobody' cw attach nobody
  refuses 'knows no domain nobody' cw detach nobody
  refuses "Domain $one has no region" cw detach "$one"
  refuses 'must be a power of two' cw attach "$one" --memory 100M
  refuses 'must be a power of two' cw attach "$one" --memory 32M
  refuses 'does not fit into /dev/shm/, which has [0-9]+ MiB free of 1024 MiB' cw attach "$one" --memory 4G
  refuses 'named by its UUID' cw attach "$one" --memory 64M --gpu 0
  refuses 'choose one by --name' cw attach "$one" --memory 64M --name 'a b'
  refuses 'drives TEST' cw attach test -c test:///default
  status=0; cw attach > /dev/null 2>&1 || status=$?
  [ "$status" = 2 ] || fail "usage errors exit with $status instead of 2."

  # Another host's libvirt: an ssh that stays here.
  printf '#!/bin/sh\nexec virt-ssh-helper qemu:///system\n' > "$work/ssh"
  chmod 0755 "$work/ssh"
  refuses 'is another host' cw attach "$one" -c "qemu+ssh://elsewhere/system?command=$work/ssh"

  # One region, one domain; one size.
  cw attach "$one" --memory 64M
  cw attach "$one" --memory 64M | grep -q already || fail "a second attach says nothing."
  refuses "Domain $one has the region causeway-$one with 64 MiB in its XML, not 128" cw attach "$one" --memory 128M
  refuses "Domain $one has the region causeway-$one;" cw attach "$other" --memory 64M --name "$one"
  refuses 'a VM has one region' cw attach "$one" --name elsewhere
  virsh -q attach-device "$other" <(cw_xml "$one" 64M) --config > /dev/null
  cw list --json > "$work/list"
  python3 - "$work/list" "$one" "$other" <<'TEXT'
import json, sys
rows = {row["domain"]: row for row in json.load(open(sys.argv[1]))}
assert "has the same region" in rows[sys.argv[2]]["agreement"], rows
assert sys.argv[2] in rows[sys.argv[3]]["agreement"], rows
TEXT
  refuses "Domain $other has the region causeway-$one;" cw attach "$one"
  virsh -q detach-device "$other" <(cw_xml "$one" 64M) --config > /dev/null
  virsh -q attach-device "$other" <(cw_xml "$other" 128M) --config > /dev/null
  cw list | grep -E "^$other .*causewayd does not serve it" > /dev/null || fail "list does not see a region that nobody serves."
  refuses "with 128 MiB in its XML, not 64" cw attach "$other" --memory 64M
  virsh -q detach-device "$other" <(cw_xml "$other" 128M) --config > /dev/null

  # A file that somebody else has put there.
  as alice touch "/dev/shm/causeway-$other"
  chmod 0660 "/dev/shm/causeway-$other"
  refuses 'cannot be opened: permission denied' cw attach "$other" --memory 64M
  rm "/dev/shm/causeway-$other"

  # Machines: unknown ones; a running q35 without a port; one without room for another device, from the first step that fails on.
  sed "s/machine='pc'/machine='isapc'/; s/$other/$prefix-isa/; s/<acpi\/><apic\/>//; s/<vcpu>2/<vcpu>1/" "$work/$other.xml" > "$work/isa.xml"
  virsh -q define "$work/isa.xml" > /dev/null
  refuses 'machines pc and q35' cw attach "$prefix-isa"
  virsh -q start --paused "$q35" > /dev/null
  refuses "without a free root port that has room for 64 MiB .* --config" cw attach "$q35" --memory 64M
  cw attach "$q35" --memory 64M --config
  refuses "without a free root port" cw attach "$q35" --memory 64M
  virsh -q destroy "$q35" > /dev/null
  cw detach "$q35"
  slots=''
  for slot in $(seq 0 29); do slots+="<controller type='scsi' index='$slot' model='virtio-scsi'/>"; done
  domain_xml "$full" pc "$work/$full.console" "$slots" > "$work/full.xml"
  virsh -q create --paused "$work/full.xml" > /dev/null
  refuses 'has no free slot on its first PCI bus' cw attach "$full" --memory 64M
  refuses 'is transient' cw attach "$full" --memory 64M --config
  virsh -q destroy "$full" > /dev/null

  # The last step fails, because QEMU has something of that name: the steps before it are undone.
  virsh -q start --paused "$other" > /dev/null
  virsh -q qemu-monitor-command "$other" '{"execute": "object-add", "arguments": {"qom-type": "memory-backend-ram",
    "id": "shmmem-shmem0", "size": 1048576}}' > /dev/null
  refuses 'cannot plug the region into the running domain' cw attach "$other" --memory 64M
  virsh -q destroy "$other" > /dev/null

  # A guest that does not let go, because it is paused: both sides stay as they are.
  virsh -q start --paused "$other" > /dev/null
  cw attach "$other" --memory 64M
  refuses 'did not let go of the region within 2 s' cw detach "$other" --timeout 2
  virsh -q destroy "$other" > /dev/null
  cw detach "$other"

  # Who may: libvirt's group, causewayd's group, and what causewayd was told of QEMU's group.
  refuses 'libvirt does not let you in|libvirt cannot be reached' as nobody "$build_bin/causeway" list --control-socket "$work/causeway.sock.control" -c qemu:///system
  refuses "You may not use causewayd's control socket" as bob "$build_bin/causeway" list --control-socket "$work/causeway.sock.control" -c qemu:///system
  stop_daemon
  refuses 'causewayd cannot be reached at its control socket' cw attach "$other" --memory 64M
  refuses 'causewayd cannot be reached at its control socket' cw detach "$one"
  make_config 'attach_groups = ["kvm"]'
  start_daemon
  refuses 'QEMU runs as group libvirt-qemu, to which causewayd gives no region' cw attach "$other" --memory 64M
  stop_daemon
  make_config
  start_daemon
  [ "$(cw list | grep -c "^$one .* ok$")" = 1 ] || fail "after a restart causewayd does not serve what was attached: $(cw list)"

  # A domain that is gone: its region is causewayd's to give up.
  virsh -q undefine "$one" > /dev/null
  cw list | grep -q "no domain of this libvirt has it" || fail "list does not say that a domain is gone."
  cw detach "$one"
  [ ! -e "/dev/shm/causeway-$one" ] || fail "the region of a domain that is gone is left."
  stop_libvirtd
  refuses 'libvirt cannot be reached' cw attach "$other"
  start_libvirtd
  for domain in "$other" "$q35" "$prefix-isa"; do virsh -q undefine "$domain" > /dev/null; done
  [ -z "$(ls "$work/state/vms.d")" ] || fail "VMs are left in the state folder: $(ls "$work/state/vms.d")"
}
# cw_xml NAME MEMORY: the snippet of a region.
cw_xml() { "$build_bin/causeway" xml "$1" --memory "$2"; }

check_kept() {
  [ -f "$work/state/vms.d/$1.toml" ] || fail "VM $1 is not kept for the next start of causewayd."
  [ "$(stat -c '%a %G %s' "/dev/shm/causeway-$1")" = "660 libvirt-qemu $((128 << 20))" ] ||
    fail "the region of $1 has another owner, mode or size."
}
check_gone() {
  [ ! -e "/dev/shm/causeway-$1" ] || fail "the region of $1 is left."
  [ ! -e "$work/state/vms.d/$1.toml" ] || fail "VM $1 is left in the state folder."
  ! virsh dumpxml "$1" | grep -q '<shmem' || fail "the running domain $1 has the region still."
  ! virsh dumpxml --inactive "$1" | grep -q '<shmem' || fail "the domain $1 has the region at its next start."
}

# life_of NAME MACHINE: attached cold, detached under load, attached hot.
life_of() {
  local name=$1
  step "$2: attached cold"
  define "$name" "$2"
  cw attach "$name" --memory 128M
  check_kept "$name"
  virsh -q start "$name" > /dev/null
  works "$name"
  cw list | grep -E "^$name +running .* now and next start .* ok$" > /dev/null || fail "list: $(cw list)"
  step "$2: detached under load"
  loaded "$name"
  refuses 'programs have a session' cw detach "$name"
  mark "$name"
  cw detach "$name" --force
  await "$name" 60 '^LOAD-ENDED [1-9]'
  has_none "$name"
  check_gone "$name"
  step "$2: attached hot"
  cw attach "$name" --memory 128M
  check_kept "$name"
  works "$name"
}

end_of() {
  ! grep -qa KERNEL-FAULT "$work/$1.console" || fail "$1: $(grep -a KERNEL-FAULT "$work/$1.console")"
  virsh -q destroy "$1" > /dev/null
  cw detach "$1"
  check_gone "$1" 2> /dev/null
  virsh -q undefine "$1" > /dev/null
}

mode_pc() {
  life_of "$prefix-pc" pc
  step "pc: causewayd is killed and started again"
  kill -9 "$daemon_pid"
  wait "$daemon_pid" 2> /dev/null || true
  start_daemon
  works "$prefix-pc"
  end_of "$prefix-pc"
}

mode_q35() {
  life_of "$prefix-q35" q35
  virsh dumpxml --inactive "$prefix-q35" | grep -c pref64-reserve | grep -qx 1 || fail "one prepared port is enough."
  step "q35: the VM is reset"
  mark "$prefix-q35"
  virsh -q reset "$prefix-q35" > /dev/null
  await "$prefix-q35" 240 '^BOOTED'
  works "$prefix-q35"
  step "q35: QEMU is killed, and the domain started again"
  kill -9 "$(cat "/run/libvirt/qemu/$prefix-q35.pid")"
  for _ in $(seq 100); do
    [ "$(virsh domstate "$prefix-q35" | head -n 1)" != 'shut off' ] || break
    sleep 0.2
  done
  virsh -q start "$prefix-q35" > /dev/null
  works "$prefix-q35"
  step "q35: libvirtd is restarted"
  stop_libvirtd
  start_libvirtd
  works "$prefix-q35"
  end_of "$prefix-q35"
}

mode_two() {
  local name
  step "two domains at once"
  for name in "$prefix-a" "$prefix-b"; do
    define "$name" pc
    cw attach "$name" --memory 128M
    virsh -q start "$name" > /dev/null
  done
  for name in "$prefix-a" "$prefix-b"; do works "$name"; done
  # A program and a load of another user in each.
  for name in "$prefix-a" "$prefix-b"; do loaded "$name"; done
  step "one of the two is detached"
  cw detach "$prefix-a" --force
  has_none "$prefix-a"
  works "$prefix-b"
  virsh -q destroy "$prefix-a" > /dev/null
  virsh -q undefine "$prefix-a" > /dev/null
  end_of "$prefix-b"
}

mode_session() {
  local name=$prefix-session file
  step "alice's own libvirt"
  mkdir -p "$work/alice"/{run,config,cache}
  chown -R alice:alice "$work/alice"
  chmod 0700 "$work/alice/run"
  export LIBVIRT_DEFAULT_URI=qemu:///session
  # It starts with the first connection, as libvirt's session daemons do.
  as alice virsh version > /dev/null
  touch "$work/$name.console"
  chown alice "$work/$name.console"
  domain_xml "$name" pc "$work/$name.console" > "$work/$name.xml"
  as alice virsh -q define "$work/$name.xml" > /dev/null
  as alice "$build_bin/causeway" attach "$name" --memory 128M --control-socket "$work/causeway.sock.control"
  file=/dev/shm/causeway-$name-u3001
  [ "$(stat -c '%a %U %s' "$file")" = "660 alice $((128 << 20))" ] || fail "alice's region is $(stat -c '%a %U %s' "$file")."
  as alice virsh -q start "$name" > /dev/null
  works "$name"
  stop_daemon
  start_daemon
  works "$name"
  as alice "$build_bin/causeway" detach "$name" --force --control-socket "$work/causeway.sock.control"
  has_none "$name"
  [ ! -e "$file" ] || fail "alice's region is left."
  as alice virsh -q destroy "$name" > /dev/null
  as alice virsh -q undefine "$name" > /dev/null
  export LIBVIRT_DEFAULT_URI=qemu:///system
}

case " $modes " in *\ pc\ * | *\ q35\ * | *\ two\ * | *\ session\ *) make_guest ;; *) touch "$work/kernel" "$work/initramfs"; cp "$KERNEL" "$work/kernel" ;; esac
start_libvirtd
start_daemon
for mode in $modes; do "mode_$mode"; done
step "passed: $modes"
