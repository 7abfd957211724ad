#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the VM of service_vm.sh, as root, when the system has started. Each step prints "EXIT NAME STATUS"; run_vm.sh reads that.
cd /packages || exit 1
echo
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"
newest=$(printf '%s\n' causeway-host_*-2_amd64.deb) first=$(printf '%s\n' causeway-host_*-1_amd64.deb) older=older/causeway-host_0.0.9-1_amd64.deb
times=${TIMES:-3}

main_pid() { systemctl show -p MainPID --value causewayd.service; }
answers() { systemctl --quiet is-active causewayd.service && causeway status; }
release() { causeway status --json | grep -o '"version":"[^"]*"'; }

# ---- eight sessions at work ---------------------------------------------------------------------------------------
begin_sessions() {
  local at library
  rm -f input result.* && mkfifo input && exec 9<> input
  for at in $(seq 8); do
    library=/packages/lib_$([ $((at % 2)) = 0 ] && echo newer || echo older)
    runuser -u gpu -- env CAUSEWAY=local:/run/causeway/causeway.sock LD_LIBRARY_PATH="$library" ./upgrade_client "$at" < input > "result.$at" 2>&1 9>&- &
  done
  await "eight sessions" eval '[ "$(cat result.* | grep -c "^working")" = 8 ]' || { cat result.*; return 1; }
}
# end_sessions WHAT: each has gone on, and the table's line.
end_sessions() {
  exec 9>&-
  wait
  cat result.* | awk -v what="$1" '/^rounds/ { sessions++; rounds += $2; wrong += $4; if ($6 > longest) longest = $6 } /^failed/ { print }
    END { printf "%s: sessions %d, rounds %d, wrong %d, longest pause %d ms\n", what, sessions, rounds, wrong, longest; exit !(sessions == 8 && wrong == 0) }' && return 0
  journalctl -u causewayd --no-pager -o cat | grep -v ' info: \|^<6>' | tail -n 12 | cut -c1-300
  return 1
}
# under_sessions WHAT COMMAND...: the command several times under the same sessions, whose workers stay.
under_sessions() {
  local what=$1 before at
  shift
  begin_sessions && before=$(pgrep -x causeway-worker | wc -l) || return 1
  for at in $(seq "$times"); do
    "$@" || { echo "$what failed the time $at"; end_sessions "$what"; return 1; }
    sleep 2
  done
  echo "workers before $before, after $(pgrep -x causeway-worker | wc -l)"
  end_sessions "$what, $times times"
}

# ---- steps --------------------------------------------------------------------------------------------------------
installed() {
  dpkg -i older/causeway-worker-*.deb causeway-worker-*-1_amd64.deb "$first" || return 1
  mkdir lib_newer lib_older && cp /usr/libexec/causeway/guest_lib/* lib_newer/ && dpkg-deb -x "$older" older_root && cp older_root/usr/libexec/causeway/guest_lib/* lib_older/
  sed -i 's#^driver_library = .*#driver_library = "/packages/libcuda.so.1"#' /etc/causeway/causewayd.toml
  systemctl stop causewayd.service && systemctl start causewayd.service && await "the daemon" answers && expect "the daemon's limits" "$(journalctl -u causewayd -o cat --no-pager | grep -c 'no cgroups of their own')" 0
}
unchanged() { under_sessions "nothing" sleep 1; }
restart_once() {
  local before
  before=$(main_pid)
  systemctl restart causewayd.service && await "the next daemon" answers && [ "$(main_pid)" != "$before" ]
}
restarted() { under_sessions "systemctl restart" restart_once; }
crash_once() {
  local before
  before=$(main_pid)
  kill -9 "$before" && await "the next daemon" eval '[ "$(main_pid)" != 0 ] && [ "$(main_pid)" != '"$before"' ] && answers'
}
crashed() { under_sessions "kill -9" crash_once; }
change_once() {
  local pid
  pid=$(main_pid)
  dpkg -i "$newest" && await "the newest" answers && expect "the process" "$(main_pid)" "$pid" && release &&
    dpkg -i --force-downgrade "$older" && await "the older one" answers && release | grep -F '"0.0.9"' && dpkg -i "$first" && await "the first" answers &&
    expect "the process" "$(main_pid)" "$pid"
}
upgraded() { under_sessions "packages upgraded, downgraded, upgraded" change_once; }
# What NTP or an administrator does, to daemon, launcher, workers and sessions alike.
clock() { under_sessions "the time of day set a day on and back" eval 'date -s "+1 day" && sleep 3 && date -s "-1 day"'; }
reloaded() { under_sessions "systemctl daemon-reload and reload" eval 'systemctl daemon-reload && systemctl reload causewayd.service'; }
container() {
  make_image vector_add && podman import image.tar localhost/gpu:1 && mkdir -p /etc/cdi && causeway cdi --output /etc/cdi/causeway.json && in_container run --rm
}
in_container() { podman "$@" --network none --user 1234 --device causeway.org/gpu=all localhost/gpu:1 /bin/vector_add; }
container_lives() {
  podman run -d --name lives --network none --device causeway.org/gpu=all localhost/gpu:1 /bin/sleep 10000 && podman exec --user 1234 lives /bin/vector_add &&
    restart_once && podman exec --user 1234 lives /bin/vector_add && in_container run --rm &&
    systemctl daemon-reload && podman exec --user 1234 lives /bin/vector_add && in_container run --rm
}
# scrape: what the exporter answers, read by the shell alone.
scrape() { (exec 3<> /dev/tcp/127.0.0.1/9835 && printf 'GET /metrics HTTP/1.0\r\n\r\n' >&3 && cat <&3) 2> /dev/null | tr -d '\r'; }
is_up() { scrape | grep -x 'causeway_up 1'; }
counts() { scrape | grep -c "^$1{"; }
# Its service is off until it is enabled, tells of eight sessions, finds the next daemon, and is gone when it is stopped and purged.
exporter() {
  local unit=causeway-exporter.service
  dpkg -i causeway-exporter_*-1_amd64.deb && expect "the service at first" "$(systemctl is-enabled $unit) $(systemctl is-active $unit)" "disabled inactive" &&
    systemctl enable --now $unit && await "the exporter" is_up && is_up && begin_sessions || { journalctl -u $unit --no-pager -o cat | tail -n 12; return 1; }
  echo "GPU times of $(counts causeway_session_gpu_utilization_ratio) sessions"
  expect "sessions that it tells of" "$(counts causeway_session_calls_total)" 8 && restart_once && await "the exporter's next daemon" is_up &&
    end_sessions "scraped, and systemctl restart" && systemctl disable --now $unit && expect "what it answers when it is stopped" "$(scrape)" "" &&
    expect "the service in the end" "$(systemctl is-enabled $unit) $(systemctl is-active $unit)" "disabled inactive" && dpkg -P causeway-exporter &&
    expect "what is left" "$(find / -xdev \( -path /packages -o -path /proc -o -path /sys \) -prune -o -name 'causeway-exporter*' -print)" ""
}
stopped() {
  systemctl stop causewayd.service && sleep 1 && expect "what still runs" "$(ps -eo comm= | grep -E '^(causewayd|causeway-worke|causeway-launc)')" ""
}

. "$(dirname "$0")/run_steps.sh"
. "$(dirname "$0")/make_image.sh"
read -ra steps < steps
if [ ${#steps[@]} = 0 ]; then
  steps=(installed unchanged restarted crashed upgraded reloaded clock container container_lives)
  for package in causeway-exporter_*-1_amd64.deb; do [ ! -e "$package" ] || steps+=(exporter); done
  steps+=(stopped)
fi
run_steps "${steps[@]}"
