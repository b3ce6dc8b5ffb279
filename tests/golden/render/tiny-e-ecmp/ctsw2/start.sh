#!/bin/sh
# Starts zebra, then bgpd, unless they run. No watchfrr and no vtysh -b: with hundreds of switches their processes add up.
set -eu
export MALLOC_ARENA_MAX=1  # one heap a daemon instead of one a thread: some 10 MB less a switch
for dir in /usr/lib/frr /usr/libexec/frr; do
  [ -x "$dir/zebra" ] && PATH="$dir:$PATH"
done

# start DAEMON WITHOUT [OPTION...]: each daemon takes frr.conf without the blocks that only others understand, or its
# log begins with a line for each of them.
start() {
  daemon=$1 without=$2
  shift 2
  if read -r pid < "/run/frr/$daemon.pid" && read -r name < "/proc/$pid/comm" && [ "$name" = "$daemon" ]; then
    return
  fi 2> /dev/null
  sed "/^\($without\) /,/^!/d" /etc/frr/frr.conf > "/run/frr/$daemon.conf"
  "$daemon" -d -f "/run/frr/$daemon.conf" --log "file:/var/log/frr/$daemon.log" "$@"
}
# Where FRR has mgmtd (10.3 has), what stands in interface blocks reaches zebra by way of it.
if command -v mgmtd > /dev/null; then
  start mgmtd 'router bgp' -P 0
  start zebra 'router bgp\|interface' -P 0 -s 90000000
else
  start zebra 'router bgp' -P 0 -s 90000000
fi
start bgpd interface -P 0
