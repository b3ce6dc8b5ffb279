#!/bin/sh
# Starts zebra, then bgpd, unless they run. No watchfrr and no vtysh -b: with hundreds of switches their processes add up.
set -eu
umask 022  # zebra and bgpd read their files as user frr
export MALLOC_ARENA_MAX=1  # one heap a daemon instead of one a thread: some 10 MB less a switch
for dir in /usr/lib/frr /usr/libexec/frr; do
  [ -x "$dir/zebra" ] && PATH="$dir:$PATH"
done

# start DAEMON WITHOUT CONFIG [OPTION...]: each daemon takes frr.conf without the blocks that only others understand, or
# its log begins with a line for each of them.
start() {
  daemon=$1 without=$2 config=$3
  shift 3
  # Its number alone does not tell: a process of another node, or a dead one, may have it by now.
  if [ -e "/run/frr/$daemon.pid" ] && vtysh -d "$daemon" -c "show version" > /dev/null 2>&1; then
    return
  fi
  sed "/^\($without\) /,/^!/d" /etc/frr/frr.conf > "$config"
  "$daemon" -d --log "file:/var/log/frr/$daemon.log" "$@"
}
# Where FRR has mgmtd (10.3 has), what stands in interface blocks reaches zebra by way of it; it has no option for a file,
# and reads zebra's old one.
if command -v mgmtd > /dev/null; then
  start mgmtd 'router bgp\|no zebra' /etc/frr/zebra.conf -P 0
  start zebra 'router bgp\|interface' /run/frr/zebra.conf -f /run/frr/zebra.conf -P 0 -s 90000000
else
  start zebra 'router bgp' /run/frr/zebra.conf -f /run/frr/zebra.conf -P 0 -s 90000000
fi
start bgpd 'interface\|no zebra' /run/frr/bgpd.conf -f /run/frr/bgpd.conf -P 0
