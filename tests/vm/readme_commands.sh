# shellcheck shell=bash disable=SC2154
# SPDX-License-Identifier: Apache-2.0
# Sourced by tests that do what vm_configs/README.md tells users of libvirt to do: they take the commands from that page, so that page and
# tests cannot differ. Needs: configs, fail.

# The commands of that section, one a line, without what they are explained by.
readme_commands() {
  awk '/^## /{section = /^## Attach an existing libvirt VM/} section && /^```/{code = !code; next} section && code && !/^ /' "$configs/README.md" |
    sed -E 's/ +#.*//'
}

# readme_command BEGINNING [OLD=NEW]...: the command that begins so, with a test's own names in place of the page's.
readme_command() {
  local command each
  command=$(readme_commands | grep -m 1 "^$1") || fail "vm_configs/README.md has no command that begins with \"$1\"."
  shift
  for each in "$@"; do
    [[ $command == *"${each%%=*}"* ]] || fail "\"$command\" of vm_configs/README.md has no \"${each%%=*}\"."
    command=${command//"${each%%=*}"/"${each#*=}"}
  done
  printf '%s\n' "$command"
}

# Each command of the page is one that a test runs: host_vm.sh all but the tarball's, which packages_test.sh installs; modes.sh those of causeway
# and what the guest shows.
all_commands_are_tried() {
  local command
  while read -r command; do
    case $command in
      'apt install ./causeway-worker-'* | 'apt install linux-headers-'* | 'tar xf causeway-guest-'* | 'usermod -aG render '*) ;;
      'causeway attach guest1 --memory 1G' | 'causeway list' | 'causeway detach guest1') ;;
      'causeway doctor' | 'dmesg | grep causeway' | 'cat /sys/class/causeway/causeway/slices_free') ;;
      *) fail "no test runs this command of vm_configs/README.md: $command" ;;
    esac
  done < <(readme_commands)
}
