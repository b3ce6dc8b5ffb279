#!/bin/sh
# iperf3 over the fabric: ./inv launch --ranks 4 -- sh traffic/programs/iperf3.sh [FLAGS OF THE CLIENTS, as -t 5 -P 4]
#
# Rank 0 has a server for each other rank, and all clients send to it at the same time. -u -b 20M sends UDP.
# What to look at: with -P 4 ./inv paths shows four connections of each client, which may take different paths. The
# queue at the port of rank 0's host drops packets, and TCP shares the port. Needs iperf3.
set -eu

if [ "$RANK" = 0 ]; then
    for rank in $(seq $((WORLD_SIZE - 1))); do
        iperf3 -s -1 -p $((5200 + rank)) >/dev/null &
    done
    wait
    exit
fi
port=$((5200 + RANK)) tries=0
until iperf3 -f m -c rank0 -p $port "$@" 2>/dev/null; do # the server may not listen yet
    tries=$((tries + 1))
    [ $tries -lt 25 ] || exec iperf3 -f m -c rank0 -p $port "$@"
    sleep 0.2
done
