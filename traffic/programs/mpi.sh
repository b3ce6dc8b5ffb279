#!/bin/sh
# An MPI program over the fabric, with OpenMPI 4:
#   ./inv launch --ranks 4 --per-host 1 -- sh traffic/programs/mpi.sh python3 traffic/programs/all_reduce_mpi.py
#
# Rank 0 runs mpirun, which wants to start a daemon on each other host through ssh. There is no ssh in the fabric.
# Instead, this script is mpirun's remote shell: it puts the command into the directory that all ranks share, and the
# rank of that host runs it. What to look at: the connections between daemons, and those of MPI itself, in ./inv paths.
set -eu

if [ "${1:-}" = --remote ]; then # as `ssh HOST COMMAND...`, called by mpirun
    host=$2
    shift 2
    printf '%s\n' "$*" >"$SHARED_DIR/$host.part"
    mv "$SHARED_DIR/$host.part" "$SHARED_DIR/$host"
    until [ -e "$SHARED_DIR/$host.done" ]; do sleep 0.1; done
    exit "$(cat "$SHARED_DIR/$host.done")"
fi
if [ "$RANK" != 0 ]; then
    until [ -e "$SHARED_DIR/$(hostname)" ] || [ -e "$SHARED_DIR/done" ]; do sleep 0.1; done
    code=0
    [ ! -e "$SHARED_DIR/$(hostname)" ] || sh "$SHARED_DIR/$(hostname)" || code=$?
    echo $code >"$SHARED_DIR/$(hostname).done"
    exit $code
fi
command -v mpirun >/dev/null || { echo "mpirun is not installed: apt-get install openmpi-bin" >&2; exit 127; }
code=0 hosts=$(getent hosts $(for rank in $(seq 0 $((WORLD_SIZE - 1))); do echo "rank$rank"; done) | awk '{print $2}')
if [ "$(id -u)" = 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
fi
# OMPI_COMM_WORLD_* of this rank are not those of mpirun's.
unset OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE
mpirun --host "$(echo $hosts | tr ' ' ,)" -np "$WORLD_SIZE" --bind-to none \
    --leave-session-attached --mca plm_rsh_agent "sh $(realpath "$0") --remote" --mca plm_rsh_no_tree_spawn 1 \
    --mca oob_tcp_if_include "$GLOO_SOCKET_IFNAME" --mca btl self,tcp --mca btl_tcp_if_include "$GLOO_SOCKET_IFNAME" \
    "$@" || code=$?
touch "$SHARED_DIR/done"
until [ "$(find "$SHARED_DIR" -name '*.done' | wc -l)" = $((WORLD_SIZE - 1)) ]; do sleep 0.1; done
sleep 0.3 # the remote shells end
exit $code
