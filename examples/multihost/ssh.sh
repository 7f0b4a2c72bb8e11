#!/bin/bash
# ssh.sh HOST,... [COMMAND]         a process on each host, each with all devices of its host
#
#   ./ssh.sh 10.0.0.1,10.0.0.2
#   PORT=1234 SSH="ssh -i key" ./ssh.sh 10.0.0.1,10.0.0.2 .venv/bin/python my_program.py
#
# COMMAND is given the flags of spmd.py and runs in this folder, which has to be on every host. The
# first process that fails is named with its host, and all end. Needs bash 5.1 here.
set -u
IFS=, read -ra hosts <<<"$1"; shift
[ $# -gt 0 ] || set -- python "$(dirname "$(realpath "$0")")/spmd.py"
set -- "$@" --coordinator "${hosts[0]}:${PORT:-29511}" --processes "${#hosts[@]}"

# There: the program ends when its input does, thus also when this script is killed or unplugged.
there='"$@" & p=$!; { cat >/dev/null; kill -9 $p; } <&3 & wait $p; s=$?; kill -9 $! 2>/dev/null; exit $s'
exec 4<> <(:)  # an input that does not end as long as this script runs
for i in "${!hosts[@]}"; do
  command=$(printf '%q ' env ${ENVIRONMENT:-} "$@" --process "$i")
  ${SSH:-ssh} "${hosts[i]}" "cd $(printf %q "$PWD") || exit; exec 3<&0; set -- $command; $there" \
    <&4 > >(sed -u "s/^/$i: /") 2> >(sed -u "s/^/$i: /" >&2) &
  started[$!]=$i
done
for _ in "${hosts[@]}"; do
  wait -n -p ended "${!started[@]}"; status=$?
  i=${started[ended]}
  unset "started[ended]"
  [ $status -eq 0 ] && continue
  echo "process $i on ${hosts[i]} failed: status $status; all end" >&2
  kill "${!started[@]}" 2>/dev/null
  exit "$status"
done
