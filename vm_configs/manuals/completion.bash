# shellcheck shell=bash disable=SC2207
# SPDX-License-Identifier: Apache-2.0
# Completion of Causeway's programs in bash, made from their own options.
_causeway() {
  local program=${COMP_WORDS[0]##*/} current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]}
  local command='' commands='' words='' kind='' i
  case "$program" in
    @COMMANDS@
  esac
  for ((i = 1; i < COMP_CWORD; ++i)); do
    if [ -z "$command" ] && [[ $commands == *" ${COMP_WORDS[i]} "* ]]; then command=${COMP_WORDS[i]}; fi
    # What follows belongs to another program.
    if [ "${COMP_WORDS[i]}" = -- ]; then
      if declare -F _command_offset > /dev/null; then _command_offset $((i + 1)); else COMPREPLY=($(compgen -c -- "$current")); fi
      return
    fi
  done
  local place="$program${command:+ $command}"
  case "$place:$previous" in
    @VALUES@
  esac
  if [ -z "$kind" ]; then
    case "$place" in
      @WORDS@
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    [ "${current:0:1}" != - ] || return 0
    case "$place" in
      @PLACES@
    esac
  fi
  case "$kind" in
    words\ *) COMPREPLY=($(compgen -W "${kind#words }" -- "$current")) ;;
    file) COMPREPLY=($(compgen -f -- "$current")); compopt -o filenames 2> /dev/null ;;
    folder) COMPREPLY=($(compgen -d -- "$current")); compopt -o filenames 2> /dev/null ;;
    domain) COMPREPLY+=($(compgen -W "$(virsh list --all --name 2> /dev/null)" -- "$current")) ;;
    command) COMPREPLY+=($(compgen -c -- "$current")) ;;
  esac
  return 0
}
@PROGRAMS@
