"""The yardstick for `up`: the same Clos by the shortest way. Namespaces, veths, zebra, bgpd, nothing else.

No hosts, queues, programs, state or clean errors; one rack prefix an RTSW. What Heddle takes longer is for more.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import IPv4Network
from pathlib import Path
from typing import Final

from heddle.kernel.fib import read_fib
from heddle.kernel.namespace import NodeHandle, inside

_PREFIX: Final = "heddle-yardstick-"
_FRR: Final = Path("/usr/lib/frr")
_SYSCTLS: Final = {
    "ipv4/ip_forward": "1",
    "ipv6/conf/all/forwarding": "1",
    "ipv6/conf/all/accept_dad": "0",
    "ipv6/conf/default/accept_dad": "0",
    "ipv4/fib_multipath_hash_policy": "1",
}


def bare_fabric(racks: int, ctsw: int, limit_s: float = 60.0) -> float:
    """Seconds from nothing until every switch has every prefix with all its next hops; TimeoutError after `limit_s`."""
    switches = [f"r{i}" for i in range(racks)] + [f"c{i}" for i in range(ctsw)]
    with _scratch(switches) as (work, pids):
        start = time.monotonic()
        _links(racks, ctsw, switches)
        for index, switch in enumerate(switches):
            ports = ctsw if switch[0] == "r" else racks
            _prepare(switch, ports)
            pids.extend(_daemons(work / switch, switch, _config(switch, index, ports)))
        waiting = {s: (racks if s[0] == "c" else racks - 1) for s in switches}
        while waiting:
            if time.monotonic() - start > limit_s:
                raise TimeoutError(f"{len(waiting)} switches have not converged")
            waiting = {s: n for s, n in waiting.items() if not _converged(s, n, ctsw if s[0] == "r" else 1)}
            time.sleep(0.05)
        return time.monotonic() - start


@contextmanager
def _scratch(switches: list[str]) -> Iterator[tuple[Path, list[int]]]:
    work = Path(tempfile.mkdtemp(prefix="heddle-yardstick-"))
    work.chmod(0o755)
    pids: list[int] = []
    try:
        yield work, pids
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        _ip("".join(f"netns del {_PREFIX}{s}\n" for s in switches), force=True)
        shutil.rmtree(work)


def _links(racks: int, ctsw: int, switches: list[str]) -> None:
    _ip("".join(f"netns add {_PREFIX}{s}\n" for s in switches))
    _ip(
        "".join(
            f"link add e{c} netns {_PREFIX}r{r} type veth peer name e{r} netns {_PREFIX}c{c}\n"
            for r in range(racks)
            for c in range(ctsw)
        )
    )


def _prepare(switch: str, ports: int) -> None:
    netns = Path("/run/netns", _PREFIX + switch)
    with inside(netns):
        for name, value in _SYSCTLS.items():
            Path("/proc/sys/net", name).write_text(value)
        _ip("link set lo up\n" + "".join(f"link set e{p} up\n" for p in range(ports)))


def _config(switch: str, index: int, ports: int) -> str:
    asn = 65000 if switch[0] == "c" else 65001 + index
    lines = ["frr defaults datacenter", f"hostname {switch}"]
    for port in range(ports):
        lines += [f"interface e{port}", " no ipv6 nd suppress-ra", " ipv6 nd ra-interval 1"]
    lines += [f"router bgp {asn}", f" bgp router-id 10.255.0.{index + 1}", " bgp bestpath as-path multipath-relax"]
    lines += [" no bgp ebgp-requires-policy", " no bgp network import-check", " coalesce-time 0"]
    for port in range(ports):
        lines += [f" neighbor e{port} interface remote-as external", f" neighbor e{port} timers connect 1"]
    lines += [
        " address-family ipv4 unicast",
        f"  network 10.0.{index}.0/24" if switch[0] == "r" else "  redistribute connected",
    ]
    return "\n".join(lines) + "\n"


def _daemons(home: Path, switch: str, config: str) -> Iterator[int]:
    """Start zebra and bgpd in the namespace, with all their files in `home`; their pids."""
    home.mkdir()
    shutil.chown(home, "frr", "frr")
    (home / "frr.conf").write_text(config)
    env = {**os.environ, "MALLOC_ARENA_MAX": "1"}
    for daemon in ("zebra", "bgpd"):
        pid = home / f"{daemon}.pid"
        argv = [str(_FRR / daemon), "-d", "-f", str(home / "frr.conf"), "-z", str(home / "zserv.api"), "-P", "0"]
        argv += ["--vty_socket", str(home), "-i", str(pid), "-u", "frr", "-g", "frr"]
        with inside(Path("/run/netns", _PREFIX + switch)):
            # -d returns when the daemon listens; a bgpd that finds no zebra asks again only after ten seconds.
            subprocess.run(argv, env=env, check=True, capture_output=True)
        yield int(pid.read_text())


def _converged(switch: str, prefixes: int, next_hops: int) -> bool:
    fib = read_fib(NodeHandle(switch, Path("/run/netns", _PREFIX + switch)))
    racks = [hops for net, hops in fib.routes.items() if net.network_address in IPv4Network("10.0.0.0/16") and hops]
    return len(racks) >= prefixes and all(len(hops) >= next_hops for hops in racks)


def _ip(batch: str, force: bool = False) -> None:
    flags = ["-force"] if force else []
    subprocess.run(["ip", *flags, "-batch", "-"], input=batch, text=True, check=not force, capture_output=force)
