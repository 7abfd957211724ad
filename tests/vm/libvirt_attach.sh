#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# `causeway attach`, `detach` and `list` with a real libvirtd and a real causewayd (private_libvirtd.sh): what is refused, whether what a
# refusal advises helps, two domains beside each other, a user's own libvirt. One domain's whole life is modes.sh.
# usage: libvirt_attach.sh BUILD_DIR [MODE...]      modes: refusals advice two session all (default: refusals advice)
#   environment: KEEP=DIR keeps the logs and consoles
set -euo pipefail
# shellcheck source=tests/vm/vm_begin.sh
. "$(dirname "$0")/vm_begin.sh" "$1"
driver=$build/software_gpu
# shellcheck source=tests/vm/private_libvirtd.sh
. "$here/private_libvirtd.sh"
shift
modes="${*:-refusals advice}"
[ "$modes" != all ] || modes="refusals advice two session"
prefix=lv$$
# shellcheck source=tests/vm/libvirt_guests.sh
. "$here/libvirt_guests.sh"

step() { echo "libvirt_attach.sh: $* ($SECONDS s)"; }

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
  all_commands_are_tried
  local one=$prefix-one other=$prefix-other q35=$prefix-q35 full=$prefix-full slots slot
  define "$one" pc
  define "$other" pc
  define "$q35" q35
  refuses 'knows no domain nobody; see .virsh list --all., choose another libvirt by --connect' cw attach nobody
  refuses 'knows no domain nobody' cw detach nobody
  refuses "Domain $one has no region" cw detach "$one"
  refuses 'must be a power of two.* correct --memory, for example to 1G' cw attach "$one" --memory 100M
  refuses 'must be a power of two' cw attach "$one" --memory 32M
  refuses 'does not fit into /dev/shm/, which has [0-9]+ MiB free of 1024 MiB' cw attach "$one" --memory 4G
  refuses 'named by its UUID' cw attach "$one" --memory 64M --gpu 0
  for _ in $(seq 300); do ! daemon_status | grep -q '"devices":1' || break; sleep 0.2; done  # of the first worker
  refuses 'has no GPU GPU-00000000; it has GPU-[0-9a-f-]{36}' cw attach "$one" --memory 64M --gpu GPU-00000000
  refuses 'choose one by --name' cw attach "$one" --memory 64M --name 'a b'
  refuses 'drives TEST' cw attach test -c test:///default
  status=0; cw attach > /dev/null 2>&1 || status=$?
  [ "$status" = 2 ] || fail "usage errors exit with $status instead of 2."

  refuses 'are for VMs of QEMU' cw attach test -c xen:/// --doorbell

  # Another host's libvirt: an ssh that stays here.
  printf '#!/bin/sh\nexec virt-ssh-helper qemu:///system\n' > "$work/ssh"
  chmod 0755 "$work/ssh"
  refuses "is another host's.* run this command there" cw attach "$one" -c "qemu+ssh://elsewhere/system?command=$work/ssh"

  # Hosts without libvirt's library, and with one that is too old.
  mkdir "$work/none" "$work/old"
  : > "$work/none/libvirt.so.0"
  echo 'int virConnectOpen(void) { return 0; }' | cc -shared -fPIC -x c - -o "$work/old/libvirt.so.0"
  refuses "libvirt's library cannot be loaded: .*install the package libvirt0" env LD_LIBRARY_PATH="$work/none" "$build_bin/causeway" attach "$one"
  refuses "libvirt's library has no function .*install a newer one" env LD_LIBRARY_PATH="$work/old" "$build_bin/causeway" attach "$one"

  # One region, one domain; one size.
  mib=64 by_readme "$one" attach
  mib=64 by_readme "$one" attach | grep -q 'in doorbell mode, already' || fail "a second attach says nothing."
  refuses "Domain $one has the region causeway-$one in doorbell mode; detach it first, or leave --plain out" cw attach "$one" --memory 64M --plain
  refuses "causewayd serves VM $one already, with another size.* see .causeway list., and detach it first" cw attach "$one" --memory 128M
  refuses "Domain $one has the region causeway-$one;.* Choose another by --name" cw attach "$other" --memory 64M --name "$one"
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
  refuses "with 128 MiB in its XML, not 64; detach it first, or attach it with --memory 128M" cw attach "$other" --memory 64M
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
  refuses 'has no free slot on its first PCI bus.* --config' cw attach "$full" --memory 64M
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
  refuses "in plain mode; detach it first, or leave --doorbell out" cw attach "$other" --memory 64M --doorbell
  refuses "Domain $other has the region causeway-$other with 64 MiB in its XML, not 128" cw attach "$other" --memory 128M
  refuses 'did not let go of the region within 2 s' cw detach "$other" --timeout 2
  virsh -q destroy "$other" > /dev/null
  cw detach "$other"

  # Who may: libvirt's group, causewayd's group, and what causewayd was told of QEMU's group.
  refuses 'libvirt does not let you in|libvirt cannot be reached' as nobody "$build_bin/causeway" list --control-socket "$work/causeway.sock.control" -c qemu:///system
  refuses "You may not use causewayd's control socket.* run this as root, or join the group" as bob "$build_bin/causeway" list --control-socket "$work/causeway.sock.control" -c qemu:///system
  stop_daemon
  refuses 'causewayd cannot be reached at its control socket' cw attach "$other" --memory 64M
  refuses 'causewayd cannot be reached at its control socket' cw detach "$one"
  make_config 'attach_groups = ["kvm"]'
  start_daemon
  refuses 'QEMU runs as group libvirt-qemu, to which causewayd gives no region.* attach_groups' cw attach "$other" --memory 64M
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

# ---- what a refusal advises helps ---------------------------------------------------------------------------------
# What the advice names is this test's own.
causeway() { cw "$@"; }
systemctl() {
  case "$*" in
    'start causewayd') start_daemon ;;
    'start libvirtd') start_libvirtd ;;
    *) fail "no stand-in for: systemctl $*" ;;
  esac
}
# advised [OLD=NEW]...: runs the first command that the last refusal names, as it is printed but for what the reader has to fill in.
advised() {
  local command each
  # shellcheck disable=SC2016  # the sentence's backticks
  command=$(grep -o '`[^`]*`' "$work/refusal" | head -n 1 | tr -d '`')
  [ -n "$command" ] || fail "nothing is advised: $(cat "$work/refusal")"
  for each in "$@"; do
    [[ $command == *"${each%%=*}"* ]] || fail "\"$command\", which is advised, has no \"${each%%=*}\"."
    command=${command//"${each%%=*}"/"${each#*=}"}
  done
  step "advised: $command"
  eval "$command" > "$work/advised" 2>&1 || fail "\"$command\", which is advised, fails: $(cat "$work/advised")"
}
# listed PATTERN: what `list` says.
listed() {
  cw list > "$work/refusal"
  grep -qE "$1" "$work/refusal" || fail "list does not say \"$1\": $(cat "$work/refusal")"
}

mode_advice() {
  step "what a refusal advises"
  local one=$prefix-advised q35=$prefix-advised-q35
  define "$one" pc
  define "$q35" q35

  refuses 'does not fit into /dev/shm/' cw attach "$one" --memory 4G
  advised SIZE=8G
  cw attach "$one" --memory 4G
  cw detach "$one"
  mount -o remount,size=1G /dev/shm

  as alice touch "/dev/shm/causeway-$one"
  chmod 0660 "/dev/shm/causeway-$one"
  refuses 'cannot be opened: permission denied' cw attach "$one" --memory 64M
  advised
  cw attach "$one" --memory 64M
  [ "$(stat -c '%a %G %s' "/dev/shm/causeway-$one")" = "660 libvirt-qemu $((64 << 20))" ] || fail "the region is not QEMU's."
  cw detach "$one"

  virsh -q start --paused "$q35" > /dev/null
  refuses 'without a free root port' cw attach "$q35" --memory 64M
  advised "--config=--config --memory 64M"
  virsh -q destroy "$q35" > /dev/null
  virsh -q start --paused "$q35" > /dev/null
  listed "^$q35 +running .* now and next start .* ok$"
  virsh -q destroy "$q35" > /dev/null
  cw detach "$q35"

  virsh -q attach-device "$one" <(cw_xml "$one" 128M) --config > /dev/null
  listed 'causewayd does not serve it: run `causeway attach '
  advised
  listed "^$one .* ok$"

  # A region that is gone, as after this host was started again; one in doorbell mode, whose VM does not start meanwhile.
  cw detach "$one"
  cw attach "$one" --memory 64M
  stop_daemon
  rm -rf "/dev/shm/causeway-$one" "$work"/causeway.sock* "$work"/doorbell-*
  if virsh -q start --paused "$one" > "$work/refusal" 2>&1; then fail "a VM in doorbell mode starts without causewayd."; fi
  grep -q "doorbell-$one" "$work/refusal" || fail "the refused start does not name the socket: $(cat "$work/refusal")"
  step "without causewayd: $(grep -v '^$' "$work/refusal" | tr '\n' ' ')"
  refuses 'causewayd cannot be reached at its control socket' cw attach "$one"
  advised
  listed "^$one .* ok$"
  virsh -q start --paused "$one" > /dev/null
  listed "^$one +running .* ok$"
  virsh -q destroy "$one" > /dev/null

  stop_libvirtd
  refuses 'libvirt cannot be reached' cw list
  advised
  virsh -q undefine "$one" > /dev/null
  listed 'no domain of this libvirt has it: if its domain is gone, run `causeway detach '
  advised
  [ "$(cw list)" = "no domain has a region" ] || fail "a region is left: $(cw list)"
  virsh -q undefine "$q35" > /dev/null
}

# cw_xml NAME MEMORY: the snippet of a region.
cw_xml() { "$build_bin/causeway" xml "$1" --memory "$2"; }

mode_two() {
  local name gpu=GPU-63617573-6577-6179-2d73-776770750000  # the software GPU's first
  step "two domains at once"
  for name in "$prefix-a" "$prefix-b"; do
    define "$name" pc
    # The second has the GPU by its name.
    if [ "$name" = "$prefix-a" ]; then by_readme "$name" attach; else by_readme "$name" attach --gpu "$gpu"; fi
    virsh -q start "$name" > /dev/null
  done
  [ "$(cw list --json | grep -o "\"gpus\": *\[\"$gpu\"\]" | wc -l)" = 1 ] || fail "one of two domains should have the GPU by its name: $(cw list --json)"
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

case " $modes " in *\ two\ * | *\ session\ *) make_guest ;; *) touch "$work/initramfs"; cp "$KERNEL" "$work/kernel" ;; esac
start_libvirtd
start_daemon
for mode in $modes; do "mode_$mode"; done
step "passed: $modes"
