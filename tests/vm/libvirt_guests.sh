# shellcheck shell=bash disable=SC2034,SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced, after private_libvirtd.sh, by tests whose domains run programs. They set: prefix (of the domains' names).
# shellcheck source=tests/vm/readme_commands.sh
. "$here/readme_commands.sh"

# ---- the guest ----------------------------------------------------------------------------------------------------
# As soon as there is a device, one user runs a program again and again, and a second has a session that lasts. Each round is a line
# on the console. /run/hold stops both. A second serial port takes commands of root's (guest_says).
make_guest() {
  mkdir -p "$work/extra/etc" "$work/sockets"
  chown libvirt-qemu: "$work/sockets"
  echo 'agent:root sh /agent.sh' > "$work/extra/etc/causeway_commands"
  cat > "$work/extra/agent.sh" <<'TEXT'
if exec 3<> /dev/ttyS1; then
  stty raw -echo <&3
  while read -r line <&3; do
    sh -c "$line" > /run/answer 2>&1 < /dev/null
    status=$?
    { tail -n 5 /run/answer; echo "ANSWER $status"; } >&3
  done &
fi 2> /dev/null
run_as() { su "$1" -c "LD_LIBRARY_PATH=/usr/lib/causeway exec $2"; }
round=0 load=''
while true; do
  if [ -e /run/hold ]; then
    [ -z "$load" ] || kill "$load" 2> /dev/null
    killall soak 2> /dev/null
    load=''
    sleep 1
    continue
  fi
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
      (run_as gpu2 '/programs/soak 100000 1' > /run/load 2>&1; echo "LOAD-ENDED $? $(grep -v ' lives$\|no PTX\|neither PTX' /run/load | tail -n 3 | tr '\n' ' ')" > /dev/console) &
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

# guest_says NAME COMMAND: runs it in the guest, prints the last lines of its output, and returns its status.
guest_says() {
  python3 - "$work/sockets/$1" "$2" <<'TEXT'
import re, socket, sys
port = socket.socket(socket.AF_UNIX)
port.settimeout(120)
port.connect(sys.argv[1])
port.sendall(sys.argv[2].encode() + b"\n")
text = b""
while not (end := re.search(rb"ANSWER (\d+)\r?\n", text)):
    piece = port.recv(4096)
    if not piece:
        sys.exit("the guest has gone")
    text += piece
sys.stdout.write(text[:end.start()].decode(errors="replace"))
sys.exit(int(end[1]))
TEXT
}

# ---- domains ------------------------------------------------------------------------------------------------------
# domain_xml NAME MACHINE CONSOLE [EXTRA_DEVICES]    variables: firmware (seabios or ovmf), processors (one or several)
firmware=seabios processors=several
domain_xml() {
  local loader='' vcpu='<vcpu>2</vcpu>'
  [ $firmware = seabios ] || loader="<loader readonly='yes' type='rom'>/usr/share/ovmf/OVMF.fd</loader>"
  # Room for a second one, without which QEMU's emulation leaves out fences towards the host.
  [ $processors = several ] || vcpu="<vcpu current='1'>2</vcpu>"
  cat <<TEXT
<domain type='qemu'>
  <name>$1</name>
  <memory unit='MiB'>448</memory>
  $vcpu
  <os>
    <type arch='x86_64' machine='$2'>hvm</type>
    $loader
    <kernel>$work/kernel</kernel>
    <initrd>$work/initramfs</initrd>
    <cmdline>console=ttyS0 no_timer_check quiet loglevel=3 panic=-1 oops=panic nokaslr mitigations=off random.trust_cpu=on causeway.timeout_s=100000 watchdog_thresh=60</cmdline>
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
  domain_xml "$1" "$2" "$work/$1.console" "${3:-}" > "$work/$1.xml"
  virsh -q define "$work/$1.xml" > /dev/null
}

# await NAME SECONDS PATTERN: a new line of the console, since the last such call that marked the place (mark NAME).
mark() { marks[$1]=$(wc -l < "$work/$1.console" 2> /dev/null || echo 0); }
declare -A marks
lines_since_mark() { tail -n "+$((${marks[$1]:-0} + 1))" "$work/$1.console" 2> /dev/null | tr -d '\r'; }
await() {
  local end=$((SECONDS + $2))
  while [ $SECONDS -lt $end ]; do
    lines_since_mark "$1" | grep -qaE "$3" && return
    sleep 0.3
  done
  tail -n 20 "$work/$1.console" >&2 || true
  tail -n 20 "$work/causewayd.log" >&2
  fail "$1: no line \"$3\" within $2 s."
}
# works NAME [SECONDS [NODES]]
works() { mark "$1"; await "$1" "${2:-240}" "^ROUND [0-9]+ nodes=${3:-1} exit=0 "; }
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

# by_readme NAME COMMAND [OPTION...]: `causeway COMMAND` as vm_configs/README.md has it, with this domain's name, for this test's daemon.
by_readme() {
  local command words names=()
  [ "$2" = list ] || names=("guest1=$1")
  [ "$2" != attach ] || names+=("1G=${mib:-128}M")
  command=$(readme_command "causeway $2" "${names[@]}") || return 2
  read -ra words <<< "${command#causeway }"
  cw "${words[@]}" "${@:3}"
}

# ---- what is refused ----------------------------------------------------------------------------------------------
# refuses PATTERN COMMAND...: exits 1 with that sentence, and changes nothing that libvirt or causewayd know.
state_of_all() {
  local domain commands=list
  for domain in $(virsh -q list --all --name 2> /dev/null); do commands+="; dumpxml --inactive $domain; dumpxml $domain"; done
  virsh -q "$commands" 2>&1 || true
  cw list --json 2>&1 | sed -E 's/"(sessions|polled)": ?[0-9a-z]+//g' || true  # programs come and go meanwhile
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

# ---- what libvirt and causewayd know ------------------------------------------------------------------------------
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

end_of() {
  ! grep -qa KERNEL-FAULT "$work/$1.console" || fail "$1: $(grep -a KERNEL-FAULT "$work/$1.console")"
  virsh -q destroy "$1" > /dev/null
  by_readme "$1" detach
  check_gone "$1" 2> /dev/null
  virsh -q undefine "$1" > /dev/null
}
