"""The ranks of a program: their places in a fabric, their environment, and the names that they can look up.

In:  a fabric, ProgramOptions.
Out: Seat per rank; environment variables as torchrun and mpirun set them; the text of /etc/hosts in a host.
programruns.py starts the processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from heddle.base.problems import InputError, Problem
from heddle.base.tables import many
from heddle.fabric.model import Fabric
from heddle.kernel.rdma import link_name
from heddle.traffic.flow import Endpoint
from heddle.traffic.options import RunOptions
from heddle.traffic.placement import place
from heddle.wire.layout import TOS_DATA

MASTER_PORT: Final = 29500  # torchrun's; each host has ports of its own
_MOST: Final = 256  # ranks: each is a process of this machine


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """ranks: processes. per_host: of each host, which then share its NICs; None: one for each NIC.

    placement: as of a run. limit_s: seconds until the ranks are ended; None: no limit. rdma: whether NICs have
    soft-RoCE devices meanwhile.
    """

    ranks: int
    per_host: int | None = None
    placement: str = "block"
    limit_s: float | None = None
    rdma: bool = False


@dataclass(frozen=True, slots=True)
class Seat:
    """A rank: its NIC, and its number among the ranks of its host. node: the number of its host."""

    end: Endpoint
    local: int
    locals: int
    node: int

    @property
    def rank(self) -> int:
        """Its number."""
        return self.end.rank

    @property
    def text(self) -> str:
        """`rank 3 on host2`."""
        return f"rank {self.rank} on {self.end.host}"


def seats(fabric: Fabric, options: ProgramOptions) -> tuple[Seat, ...]:
    """The place of each rank. InputError for more ranks than there are NICs or, with per_host, hosts."""
    ranks, per_host = options.ranks, options.per_host
    if not 1 <= ranks <= _MOST:
        raise InputError(Problem("", f"--ranks {ranks}", f"is outside 1 to {_MOST}", "each rank is a process"))
    every = place(fabric, RunOptions(placement=options.placement), least=1)
    if per_host is None:
        if ranks > len(every):
            why = f"is more than the {many(len(every), 'NIC')} to place them on"
            hint = "use --per-host N: they share NICs"
            raise InputError(Problem("", f"--ranks {ranks}", why, f"try --ranks {len(every)}, or {hint}"))
        chosen = every[:ranks]
    else:
        chosen = _by_host(every, ranks, per_host)
    hosts = list(dict.fromkeys(end.host for end in chosen))
    on = {host: [end for end in chosen if end.host == host] for host in hosts}
    return tuple(
        Seat(replace(end, rank=rank), sum(other.host == end.host for other in chosen[:rank]), len(on[end.host]), at)
        for rank, end in enumerate(chosen)
        for at in [hosts.index(end.host)]
    )


def _by_host(every: Sequence[Endpoint], ranks: int, per_host: int) -> tuple[Endpoint, ...]:
    """per_host ranks on each host, over its NICs in turn."""
    nics: dict[str, list[Endpoint]] = {}
    for end in every:
        nics.setdefault(end.host, []).append(end)
    if per_host < 1:
        raise InputError(Problem("", f"--per-host {per_host}", "is less than 1", "use 1 or more"))
    if ranks % per_host:
        why = f"is not a multiple of --per-host {per_host}"
        raise InputError(Problem("", f"--ranks {ranks}", why, f"try --ranks {ranks + per_host - ranks % per_host}"))
    if ranks // per_host > len(nics):
        why = f"needs {ranks // per_host} hosts with --per-host {per_host}, but there are {len(nics)}"
        raise InputError(Problem("", f"--ranks {ranks}", why, f"try --ranks {len(nics) * per_host}"))
    hosts = list(nics.values())
    return tuple(hosts[rank // per_host][rank % per_host % len(hosts[rank // per_host])] for rank in range(ranks))


def environment(seat: Seat, every: Sequence[Seat]) -> dict[str, str]:
    """The variables of one rank, as torchrun sets them; and those by which programs find their rank under mpirun.

    The latter do not connect MPI itself: docs/programs.md shows what does. Interfaces are those of the rank's NIC.
    """
    rank, size, hosts = str(seat.rank), str(len(every)), str(every[-1].node + 1 if every else 1)
    local, local_size, nic = str(seat.local), str(seat.locals), seat.end.port
    torch = {
        "RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": local_size,
        "GROUP_RANK": str(seat.node), "GROUP_WORLD_SIZE": hosts, "ROLE_RANK": rank, "ROLE_WORLD_SIZE": size,
        "ROLE_NAME": "default", "TORCHELASTIC_RUN_ID": "heddle", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "MASTER_ADDR": every[0].end.ip, "MASTER_PORT": str(MASTER_PORT),
    }  # fmt: skip
    mpi = {
        "OMPI_COMM_WORLD_RANK": rank, "OMPI_COMM_WORLD_SIZE": size, "OMPI_COMM_WORLD_LOCAL_RANK": local,
        "OMPI_COMM_WORLD_LOCAL_SIZE": local_size, "OMPI_COMM_WORLD_NODE_RANK": local,
    }  # fmt: skip
    sockets = dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"), nic)
    return {**torch, **mpi, **sockets}


def rdma_environment(lab: str, seat: Seat) -> dict[str, str]:
    """The variables of a rank whose NIC has a soft-RoCE device; those that the user has set win.

    UCX (ucx.conf of its documentation): data on reliable connections, which it connects over TCP by the NIC itself, in
    the lossless class with ECN. NCCL: its device and its traffic class.
    """
    device, tos = link_name(lab, seat.end.host, seat.end.port), str(TOS_DATA)
    return {
        "RDMA_DEVICE": device,
        "UCX_TLS": "rc_verbs,tcp", "UCX_NET_DEVICES": f"{device}:1,{seat.end.port}", "UCX_IB_TRAFFIC_CLASS": tos,
        "UCX_MAX_RNDV_LANES": "1",  # else large messages go half over TCP
        "NCCL_IB_HCA": f"={device}", "NCCL_IB_TC": tos,
    }  # fmt: skip


def hosts_file(fabric: Fabric, every: Sequence[Seat]) -> str:
    """/etc/hosts in a host of the fabric: `host1` (its first NIC), `host1-eth2` for each NIC, and `rank0`, ..."""
    names: dict[str, list[str]] = {"127.0.0.1": ["localhost"], "::1": ["localhost"]}
    for host, nics in fabric.nics_of.items():
        addressed = [(str(port.address.ip), port.name) for port in nics if port.address is not None]
        for at, (address, port) in enumerate(addressed):
            names.setdefault(address, []).extend([*([host] if at == 0 else []), f"{host}-{port}"])
    for seat in every:
        names.setdefault(seat.end.ip, []).append(f"rank{seat.rank}")
    return "".join(f"{address} {' '.join(words)}\n" for address, words in names.items())


def by_host(every: Sequence[Seat]) -> Mapping[str, Sequence[Seat]]:
    """Host -> the seats there."""
    found: dict[str, list[Seat]] = {}
    for seat in every:
        found.setdefault(seat.end.host, []).append(seat)
    return found
