#!/bin/busybox sh
# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=dash
# First process of the demo VM: sets the device up, runs /etc/causeway_commands (see run_vm.sh), powers off.
/bin/busybox mkdir -p /proc /sys /dev /tmp /run /etc /root /bin /sbin
/bin/busybox mount -t proc none /proc
/bin/busybox mount -t sysfs none /sys
/bin/busybox mount -t devtmpfs none /dev
export PATH=/bin:/sbin:/usr/bin LD_LIBRARY_PATH=/usr/lib/causeway
/bin/busybox --install -s /bin
mkdir -p /dev/pts /dev/shm
mount -t devpts none /dev/pts
mount -t tmpfs -o mode=1777 none /dev/shm
chmod 1777 /tmp
stty -onlcr < /dev/console
ip link set lo up

# NAME=value words of the kernel command line that begin with causeway.
argument() { tr ' ' '\n' < /proc/cmdline | sed -n "s/^causeway\.$1=//p"; }
limit_s=$(argument timeout_s)
limit_s=${limit_s:-300}

echo
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"

# What the udev rule of the module does on a full system.
own_device_nodes() {
  for node in /dev/causeway*; do
    [ -c "$node" ] && chown root:render "$node" && chmod 0660 "$node"
  done
}
# shellcheck disable=SC2046  # one word per parameter
insmod /lib/causeway.ko $(argument module_options | tr ',' ' ')
own_device_nodes
dmesg | grep -E '1af4|causeway [0-9]|causeway causeway|causeway:' | grep -vE 'taint|ommand line' | sed 's/^\[ *[0-9.]*\] /KERNEL /'
for file in /sys/class/causeway/*/*_mode /sys/class/causeway/*/read_mib_per_s; do
  [ -r "$file" ] && echo "SYSFS $(basename "$file") $(cat "$file")"
done

# The host's root file system and the folder of run_vm.sh --share, both read-only, for /bin/in-host.
mount_9p() { mount -t 9p -o ro,trans=virtio,version=9p2000.L,msize=524288,cache=loose "$1" "$2"; }
if [ -n "$(argument host_root)" ]; then
  while read -r module; do insmod "/lib/host_root/$module"; done < /lib/host_root/order
  mount_9p hostroot /host
  mount_9p share /host/mnt
  mount --bind /dev /host/dev
  mount --bind /dev/shm /host/dev/shm
  mount --bind /proc /host/proc
  mount --bind /sys /host/sys
  mount -t tmpfs -o mode=1777 none /host/tmp
  mount -t tmpfs none /host/run
  echo "HOST-ROOT $(ls /host/mnt | tr '\n' ' ')"
fi

# run NAME USER COMMAND: prints each line of its output behind its name, then how it ended.
run() {
  printf '%s\n' "$3" > "/run/$1.command"
  chmod 0644 "/run/$1.command"
  local started code
  started=$(cut -d' ' -f1 /proc/uptime)
  if [ "$2" = root ]; then
    cd /root || return
    timeout -s KILL "$limit_s" sh "/run/$1.command" < /dev/null > "/run/$1.out" 2> "/run/$1.err"
  else
    cd /tmp || return
    timeout -s KILL "$limit_s" su -s /bin/sh "$2" -c ". /run/$1.command" \
      < /dev/null > "/run/$1.out" 2> "/run/$1.err"
  fi
  code=$?
  # One write, so that programs that end together do not mix their lines.
  {
    sed "s/^/$1| /; \$a\\" "/run/$1.out"
    sed "s/^/$1! /; \$a\\" "/run/$1.err"
    echo "EXIT $1 $code $started $(cut -d' ' -f1 /proc/uptime)"
  } > "/run/$1.report"
  until mkdir /run/console.lock 2> /dev/null; do sleep 0.05; done
  cat "/run/$1.report"
  rmdir /run/console.lock
}

commands=/etc/causeway_commands
[ -r $commands ] || commands=/dev/null
while read -r word rest; do
  case "$word" in
    ''|'#'*) ;;
    wait) wait ;;
    '&')
      name=${rest%% *}
      case "$name" in *:*) user=${name#*:} ;; *) user=gpu1 ;; esac
      run "${name%%:*}" "$user" "${rest#* }" &
      ;;
    *)
      case "$word" in *:*) user=${word#*:} ;; *) user=gpu1 ;; esac
      run "${word%%:*}" "$user" "$rest"
      own_device_nodes
      ;;
  esac
done < "$commands"
wait
for file in /sys/class/causeway/*/[a-z]*_*; do
  [ -f "$file" ] && [ -r "$file" ] && echo "SYSFS $(basename "$file") $(cat "$file")"
done 2> /dev/null
# Anything that the kernel complained about (the text of warnings, oopses and lock-ups) fails the run.
dmesg | grep -E 'WARNING:|BUG[: ]|Oops|blocked for more than|general protection' | sed 's/^/KERNEL-FAULT /'
echo "DONE $(cut -d' ' -f1 /proc/uptime)"
poweroff -f
