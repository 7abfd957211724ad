#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the VM of lossy_vm.sh, as root, when the system has started. Each step prints "EXIT NAME STATUS"; run_vm.sh reads that.
cd /causeway || exit 1
echo
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"
# shellcheck source=/dev/null
. ./settings
mkdir -p /tmp/kernel_tls

system() { uname -r && openssl version && modprobe -a sch_netem veth bridge; }
# Kernel TLS before anybody has loaded its module: an ordinary user cannot have it loaded, root's first socket does.
user_without() { ! grep -q '^tls ' /proc/modules && ! runuser -u nobody -- ./kernel_tls --try; }
user_with() { modprobe tls && runuser -u nobody -- ./kernel_tls --try; }
kernel_tls() { ./kernel_tls "$MIB"; }
# tls_count NAME: how many connections the kernel was given so far, by its own name for it.
tls_count() { awk -v name="$1" '$1 == name { print $2 }' /proc/net/tls_stat; }
# openssl_with VERSION OPTION: what of a connection this system's library, as server and as client, gives to the kernel.
openssl_with() {
  local server writes reads size
  cd /tmp/kernel_tls || return 1
  printf 'openssl_conf = all\n[all]\nssl_conf = ssl\n[ssl]\nsystem_default = default\n[default]\nOptions = %s\n' "$2" > conf
  [ -e cert ] || openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout key -out cert -subj /CN=kernel_tls -days 1 2> /dev/null
  head -c 4M /dev/zero > payload
  writes=$(tls_count TlsTxSw) reads=$(tls_count TlsRxSw)
  OPENSSL_CONF=$PWD/conf openssl s_server -accept 127.0.0.1:4433 -cert cert -key key -WWW "-$1" > server.log 2>&1 &
  server=$!
  for _ in $(seq 100); do grep -q ACCEPT server.log && break; sleep 0.1; done
  printf 'GET /payload HTTP/1.0\r\n\r\n' |
    OPENSSL_CONF=$PWD/conf timeout 60 openssl s_client -connect 127.0.0.1:4433 -quiet "-$1" > answer 2> client.log
  size=$(stat -c %s answer)
  echo "$1, option $2: $size bytes came; of the two ends the kernel writes records for $(($(tls_count TlsTxSw) - writes)), reads records for $(($(tls_count TlsRxSw) - reads))"
  kill "$server"
  wait "$server" 2> /dev/null
  cd /causeway && [ "$size" -gt $((4 << 20)) ]
}
openssl_tls() { openssl_with tls1_3 -KTLS && openssl_with tls1_3 KTLS && openssl_with tls1_2 KTLS; }
networks() {
  # shellcheck disable=SC2086  # words
  python3 tests/remote/lossy_test.py host_backend software_gpu/libcuda.so.1 guest_lib programs driver_tests --seconds "$SECONDS_EACH" $ONLY
}

for step in $STEPS; do
  "$step" 2>&1 | sed -u "s/^/$step| /"
  echo "EXIT $step ${PIPESTATUS[0]} 0 $(cut -d' ' -f1 /proc/uptime)"
done
echo "DONE $(cut -d' ' -f1 /proc/uptime)"
systemctl poweroff --force
