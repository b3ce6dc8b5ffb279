#!/bin/sh
# Starts zebra, then bgpd, unless they run. No watchfrr and no vtysh -b: with hundreds of switches that saves processes.
set -eu
umask 022  # zebra and bgpd read their files as user frr
export MALLOC_ARENA_MAX=1  # one heap a daemon instead of one a thread: some 10 MB less a switch
# bgpd has 0.7 MB for each neighbour (bgpd.h, ibuf_scratch) and uses little of it. By default malloc keeps the first that
# is freed, and clears it for the next neighbour, which makes all of it resident.
export MALLOC_MMAP_THRESHOLD_=131072
for dir in /usr/lib/frr /usr/libexec/frr; do
  [ -x "$dir/zebra" ] && PATH="$dir:$PATH"
done

networks=${1:+/^  network /d}  # `start.sh held`: bgpd announces nothing until `up` enters its networks

# start DAEMON WITHOUT CONFIG [OPTION...]: each daemon reads frr.conf without the blocks that only other daemons know.
# Otherwise it logs a line for each of these. Root writes nothing in /run/frr: user frr could place a link there.
start() {
  daemon=$1 without=$2 config=$3
  shift 3
  # The process ID alone is not enough: the process may be dead, or another node may have this ID now.
  if [ -e "/run/frr/$daemon.pid" ] && vtysh -d "$daemon" -c "show version" > /dev/null 2>&1; then
    return
  fi
  sed "/^\($without\) /,/^!/d; $networks" /etc/frr/frr.conf > "$config"
  "$daemon" -d --log "file:/var/log/frr/$daemon.log" "$@"
}
# If FRR has mgmtd (10.3 does), mgmtd passes interface blocks to zebra. It has no option for a file, and reads the old
# file of zebra.
if command -v mgmtd > /dev/null; then
  start mgmtd 'router bgp\|route-map\|ip prefix-list\|ipv6 prefix-list\|no zebra\|zebra' /etc/frr/zebra.conf -P 0
  start zebra 'router bgp\|route-map\|ip prefix-list\|ipv6 prefix-list\|interface' /etc/frr/heddle-zebra.conf -f /etc/frr/heddle-zebra.conf -P 0 -s 90000000
else
  start zebra 'router bgp\|route-map\|ip prefix-list\|ipv6 prefix-list' /etc/frr/heddle-zebra.conf -f /etc/frr/heddle-zebra.conf -P 0 -s 90000000
fi
start bgpd 'interface\|no zebra\|zebra' /etc/frr/heddle-bgpd.conf -f /etc/frr/heddle-bgpd.conf -P 0
