# shellcheck shell=bash disable=SC2154,SC2174
# SPDX-License-Identifier: Apache-2.0
# Sourced by steps.sh in domain 0: what the tests do there. Everything waits for at most a bound.
status() { /causeway/bin/causeway status --json --socket /run/causeway.sock; }
number() { status | python3 -c "import json, sys; s = json.load(sys.stdin); print($1)"; }
# No session is left, nor anything of one in a region.
idle() { [ "$(number 'len(s["sessions"]) + sum(r["slots_in_use"] + r["slices"] - r["slices_free"] for r in s["regions"])')" = 0 ]; }

# start_daemon VM[:DOMAIN]...: causewayd with 64 MiB for each, and with the file $MORE at the end of its configuration.
start_daemon() {
  mkdir -m 0700 -p /run/causeway-state
  cat > /run/causewayd.toml <<TEXT
socket = "/run/causeway.sock"
worker = "/causeway/bin/causeway-worker"
driver_library = "${GPU_DRIVER:-/causeway/gpu/libcuda.so.1}"
spare_workers = 1
keep_sessions_s = ${KEEP_S:-0}
state_folder = "/run/causeway-state"
TEXT
  for vm in "$@"; do
    printf '[[vm]]\nname = "%s"\nxen_domain = "%s"\nregion_mib = %s\n' "${vm%:*}" "${vm#*:}" "${REGION_MIB:-64}" >> /run/causewayd.toml
  done
  [ -z "$MORE" ] || cat "$MORE" >> /run/causewayd.toml
  /causeway/bin/causewayd --config /run/causewayd.toml >> /run/causewayd.log 2>&1 &
  daemon=$!
  until_true 60 status
}

# attach DOMAIN [OPTIONS...]         MEMORY: of its region
attach() { /causeway/bin/causeway attach --memory "${MEMORY:-64M}" --control-socket /run/causeway.sock.control "$@"; }
detach() { /causeway/bin/causeway detach "$1" --force --control-socket /run/causeway.sock.control; }

# until_true SECONDS COMMAND...
until_true() {
  local end=$((SECONDS + $1))
  shift
  until "$@" > /dev/null 2>&1; do
    [ "$SECONDS" -lt "$end" ] || { echo "FAILED in time: $*"; return 1; }
    sleep 0.2
  done
}

# create NAME TYPE INITRAMFS [VCPUS[/MAXVCPUS]]      GUEST_MIB: its memory; DOMAIN_LINES: more of its configuration; GUEST_WORDS: of its command line
create() {
  local vcpus=${4:-1} initramfs=/causeway/guest/$3
  [ "${3#/}" = "$3" ] || initramfs=$3
  local words="console=hvc0 quiet loglevel=4 panic=-1 oops=panic watchdog_thresh=60 mitigations=off random.trust_cpu=on causeway.timeout_s=${LIMIT_S:-120} $GUEST_WORDS"
  cat > "/run/$1.cfg" <<TEXT
name = "$1"
type = "$2"
memory = ${GUEST_MIB:-320}
vcpus = ${vcpus%/*}
maxvcpus = ${vcpus#*/}
$DOMAIN_LINES
on_poweroff = "destroy"
on_reboot = "destroy"
on_crash = "preserve"
TEXT
  if [ "$2" = hvm ]; then
    # Not by "kernel", whose bytes the firmware gets one by one (boot_disk.S).
    python3 /causeway/boot_disk.py /causeway/boot_sector /causeway/guest/vmlinuz "$initramfs.initramfs" "$words" "/run/$1.disk" || return 1
    cat >> "/run/$1.cfg" <<TEXT
vga = "none"
serial = "pty"
hdtype = "ahci"
disk = ["format=raw, vdev=hda, access=rw, backendtype=qdisk, target=/run/$1.disk"]
TEXT
  else
    printf 'kernel = "/causeway/guest/vmlinux"\nramdisk = "%s"\nextra = "%s"\n' "$initramfs.initramfs" "$words" >> "/run/$1.cfg"
  fi
  rm -f "/var/log/xen/guest-$1.log"
  # shellcheck disable=SC2086
  xl create $PAUSED "/run/$1.cfg" || { echo "FAILED: xl create $1"; cat /var/log/xen/xl-"$1".log /var/log/xen/qemu-dm-"$1".log 2> /dev/null; return 1; }
}

gone() { ! xl domid "$1" > /dev/null 2>&1; }
# A guest whose kernel gave up stays until it is destroyed, so that its last words reach the console.
ended() { gone "$1" || [[ $(xl list "$1" | tail -n 1 | tr -s ' ' | cut -d ' ' -f 5) == *c* ]]; }
await_end() {
  until_true "$1" ended "$2" || { echo "KERNEL-FAULT guest $2 does not end"; xl list; }
  gone "$2" || { echo "KERNEL-FAULT guest $2 crashed or hangs"; sleep 3; xl destroy "$2"; }
}
# What the guest printed, each line behind its name and type.
console() { tr -d '\r' < "/var/log/xen/guest-$1.log" | sed "s/^/$2: /"; }

# check WHAT COMMAND...: prints "TYPE OK WHAT" or "TYPE FAILED WHAT". This and what follows is about the guest $guest of type
# $type and the daemon $daemon.
check() {
  local what=$1
  shift
  if "$@"; then echo "$type OK $what"; else echo "$type FAILED $what"; fi
}
# What the guest printed, and what the daemon logged.
said() { grep -aq -- "$1" "/var/log/xen/guest-$guest.log"; }
logged() { grep -aq -- "$1" /run/causewayd.log; }
# The daemon is to leave nothing.
stop_all() {
  kill "$daemon"
  until_true 60 gone_process "$daemon"
}
gone_process() { ! kill -0 "$1" 2> /dev/null; }
backend() { echo "/local/domain/0/backend/causeway/$(xl domid "$guest")/0"; }
frontend() { echo "/local/domain/$(xl domid "$guest")/device/causeway/0"; }
gone_frontend() { ! xenstore-exists "$(frontend)" > /dev/null 2>&1; }
state_is() { [ "$(xenstore-read "$(frontend)/state" 2> /dev/null)" = "$1" ]; }
# refused WORDS [MEMORY]: whether an attach fails with a sentence that has these words.
refused() { ! answer=$(MEMORY=${2:-64M} attach "$guest" 2>&1) && { echo "$type SAID $answer"; grep -q -- "$1" <<< "$answer"; }; }
