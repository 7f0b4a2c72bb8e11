#!/bin/bash
# openmpi.sh HOST[:SLOTS],... [COMMAND]         a process for each slot, each with a GPU of its own
#
#   ./openmpi.sh 10.0.0.1:8,10.0.0.2:8
#   PORT=1234 ./openmpi.sh 10.0.0.1:8,10.0.0.2:8 python my_program.py
#
# COMMAND is given the flags of spmd.py. JAX knows Open MPI 4 by itself, but not 5, and takes the host
# of mpirun for that of process 0: this names all of it, for both versions. When a process fails,
# mpirun names it with its host and ends all.
set -eu
hosts=$1; shift
[ $# -gt 0 ] || set -- python "$(dirname "$(realpath "$0")")/spmd.py"
first=${hosts%%[:,]*}
# shellcheck disable=SC2016 # the variables are those of each process
exec mpirun ${MPIRUN_FLAGS:-} --host "$hosts" --map-by slot --tag-output -x PATH -x PYTHONPATH \
  sh -c 'exec "$@" --processes "$OMPI_COMM_WORLD_SIZE" --process "$OMPI_COMM_WORLD_RANK" \
    --device "$OMPI_COMM_WORLD_LOCAL_RANK"' sh "$@" --coordinator "$first:${PORT:-29511}"
