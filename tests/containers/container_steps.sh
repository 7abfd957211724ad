#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs in the VM of container_vm.sh, as root, when the system has started. Each step prints "EXIT NAME STATUS"; run_vm.sh reads that.
cd /packages || exit 1
echo
echo "BOOTED $(cut -d' ' -f1 /proc/uptime)"
device=(--device causeway.org/gpu=all) image=localhost/gpu:1 specification=/etc/cdi/causeway.json
programs=(managed_variables host_register nvml_query)
compat=(--env LD_LIBRARY_PATH=/usr/local/cuda/compat:/usr/local/nvidia/lib)

# in_container OPTION...: the program, in a container of root's.
in_container() { podman run --rm --network none "$@" "$image" /bin/vector_add; }
# As the user gpu, who has no right but the group render's, and no session of systemd's.
as_gpu() { (cd / && runuser -u gpu -- env HOME="$(echo ~gpu)" XDG_RUNTIME_DIR="$(echo ~gpu)/run" "$@"); }
rootless() { as_gpu podman run --rm --network none --cgroups disabled "$@" "$image" /bin/vector_add; }

guest_device() { udevadm settle --timeout=120 && expect "the device" "$(stat -c '%U:%G %a' /dev/causeway)" "root:render 660"; }
# Without a specification podman refuses the device by its name; with the one that the doctor names it is served.
specified() {
  make_image vector_add upgrade_client "${programs[@]}" && podman import image.tar "$image" || return 1
  ! in_container "${device[@]}" > refused 2>&1 && cat refused && causeway doctor | grep "causeway cdi --output $specification" || return 1
  mkdir -p /etc/cdi && causeway cdi --output "$specification" && cat "$specification" && time causeway doctor
}
as_root() { in_container "${device[@]}"; }
unprivileged() { in_container --user 1234:1234 "${device[@]}"; }
# What they print in a container is what they print beside it.
more_programs() {
  local program
  for program in "${programs[@]}"; do
    "./$program" > directly && podman run --rm --network none --user 1234:1234 "${device[@]}" "$image" "/bin/$program" > inside && echo "$program:" &&
      cat inside && [ -s inside ] && cmp directly inside || return 1
  done
}
read_only() { in_container --read-only --user 1234:1234 "${device[@]}"; }
compat_loses() { in_container --user 1234:1234 "${compat[@]}" "${device[@]}" && ! in_container "${compat[@]}"; }
# A container at work while the host's daemon is restarted and systemd reloaded, and one that begins afterwards.
lives() {
  local sessions
  # shellcheck disable=SC2016  # the container's shell
  podman run -d --name works --network none --user 1234:1234 "${device[@]}" "$image" \
    /bin/sh -c '/bin/sh -c "until [ -e /end ]; do sleep 1; done" | /bin/upgrade_client 1' &&
    await "the container's session" eval 'podman logs works | grep -q "^working"' || return 1
  echo "RESTART THE DAEMON" > /dev/ttyS0
  sleep 40
  systemctl daemon-reload && podman exec --user 1234 works /bin/vector_add && podman exec --user 0 works /bin/sh -c ': > /end' || return 1
  expect "the container's end" "$(timeout 120 podman wait works)" 0 && sessions=$(podman logs works) && echo "$sessions" &&
    grep -q '^rounds [1-9][0-9]* wrong 0 ' <<< "$sessions" && podman rm works && unprivileged
}
# A user's own podman: the group render's right has to be kept, which the device node asks for.
rootless_runs() {
  install -d -o gpu -m 700 ~gpu/run
  as_gpu podman import /packages/image.tar "$image" && rootless --group-add keep-groups "${device[@]}"
}
rootless_user() { rootless --group-add keep-groups --user 1234:1234 "${device[@]}"; }
rootless_without_group() { ! rootless "${device[@]}" > refused 2>&1 && cat refused && grep -iE 'permission|no CUDA-capable|initializ' refused; }

. ./run_steps.sh
. ./make_image.sh
read -ra steps < steps
[ ${#steps[@]} -gt 0 ] || steps=(guest_device specified as_root unprivileged more_programs read_only compat_loses lives rootless_runs rootless_user rootless_without_group)
run_steps "${steps[@]}"
