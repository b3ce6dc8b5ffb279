"""Placement: which NIC each rank has.

In:  a fabric, the text of `--placement`, the number of ranks, and the NICs of other jobs.
Out: an Endpoint for each rank; InputError with the reason.
A text is an order of all NICs (_ORDERS), a list of hosts and NICs, or a file with a line for each rank. A new order
needs its function and one line there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, zip_longest
from operator import attrgetter
from typing import Final, NamedTuple, TypeVar

from heddle.base.families import text_of
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, Problems, did_you_mean
from heddle.fabric.model import Fabric, Role
from heddle.fabric.wiring import BACKEND, Port
from heddle.traffic.flow import Endpoint

Each = TypeVar("Each")
Ends = Mapping[str, Sequence[Port]]  # host -> its ports in the network of a job
_ADDRESSES: Final = "a rank needs an address of its host's port, and one of its switch (docs/bring-your-own.md)"
_ONCE: Final = "name each NIC once: a NIC has one rank"
_FILE_BYTES: Final = 1 << 20
_LAUNCHER: Final = re.compile(r"rank\s+([0-9]{1,6})\s*=\s*(\S+)\s+slot\s*=\s*([0-9]{1,6})")
_WRITE: Final = "write a host, a NIC as host3:eth1, or rank 0=host3 slot=1"


class _Ground(NamedTuple):
    """NICs that may have ranks. boxes: box -> host -> its NICs. used: NICs of other jobs. box: racks, for errors."""

    nics: Sequence[Port]
    boxes: Sequence[Sequence[Sequence[Port]]]
    used: Collection[str]
    box: str

    @property
    def hosts(self) -> list[Sequence[Port]]:
        return [*chain.from_iterable(self.boxes)]


Order = Callable[..., Iterable[Port]]  # takes _Ground and the numbers that were typed; ValueError: `reason; hint`


def _block(ground: _Ground) -> Iterable[Port]:
    """Fill box by box."""
    return ground.nics


def _cyclic(ground: _Ground) -> Iterable[Port]:
    """A NIC of each box in turn."""
    return in_turn([[*chain.from_iterable(box)] for box in ground.boxes])


def _interleaved(ground: _Ground) -> Iterable[Port]:
    """A host of each box in turn, with all its NICs."""
    return chain.from_iterable(in_turn(ground.boxes))


def _random(ground: _Ground, seed: int = 0) -> Iterable[Port]:
    """Hosts in random order, each with all its NICs."""
    return chain.from_iterable(shuffled(ground.hosts, seed))


def _fragmented(ground: _Ground, boxes: int, hosts: int, seed: int | None = None) -> Iterable[Port]:
    """That many free hosts in each of some boxes: the first ones, or random ones."""
    free = [[host for host in box if not any(nic.ref in ground.used for nic in host)] for box in ground.boxes]
    fits = [number for number, box in enumerate(free) if len(box) >= hosts]
    if min(boxes, hosts) < 1:
        raise ValueError(f"needs one {ground.box} and one host or more")
    if len(fits) < boxes:
        found = f"{len(fits)} have" if len(fits) != 1 else "one has"
        free_hosts = "a free host" if hosts == 1 else f"{hosts} free hosts"
        raise ValueError(f"needs {boxes} {ground.box}s with {free_hosts}, but {found}; use smaller numbers")
    if seed is not None:
        fits = shuffled(fits, seed)
    for number in sorted(fits[:boxes]):
        chosen = range(len(free[number])) if seed is None else shuffled(range(len(free[number])), (seed, number))
        for host in sorted(chosen[:hosts]):
            yield from free[number][host]


# The numbers that follow a word, as users type them; and its function.
_ORDERS: Final[Mapping[str, tuple[str, Order]]] = {
    "block": ("", _block),
    "cyclic": ("", _cyclic),
    "interleaved": ("", _interleaved),
    "random": ("[:SEED]", _random),
    "fragmented": (":K:N[:SEED]", _fragmented),
}


def placement_words() -> list[str]:
    """The orders as completion offers them: `fragmented:` needs more."""
    return [word + ":" * numbers.startswith(":") for word, (numbers, _) in _ORDERS.items()]


def is_order(placement: str) -> bool:
    """Whether it orders NICs, instead of naming them."""
    return placement.partition(":")[0] in _ORDERS


def is_rank_file(placement: str) -> bool:
    """Whether it is a file with a line for each rank: a name with `/`, or that ends in `.txt`."""
    return "/" in placement or placement.endswith(".txt")


def place(
    fabric: Fabric, placement: str = "block", wanted: int | None = None, used: Collection[str] = (), least: int = 2,
    *, named: bool = False, network: str = BACKEND, serving: bool = True,
) -> tuple[Endpoint, ...]:  # fmt: skip
    """Rank -> NIC. wanted: number of ranks; None for one on each NIC. named: steps name the ranks: the number is fixed.

    used: NICs of other jobs, which a placement in free hosts avoids. least: ranks that are needed. network: whose ports
    have the ranks; the front-end's are also those of hosts that serve, unless `serving` is false.
    """
    ends = {host: own for host, own in fabric.ends(network).items() if serving or not fabric.by_name[host].serves}
    if network != BACKEND and not ends:
        why = f"is not a network of {fabric.name}"
        raise InputError(Problem("", f"--network {network}", why, "write frontend: {storage: 4} into the fabric file"))
    ports = [*chain.from_iterable(ends.values())]
    bare = {port.ref: why for port in ports if (why := no_nic(fabric, port))}
    every = [port for port in ports if not bare or port.ref not in bare]
    if is_order(placement):
        nics = _ordered(placement, _ground(fabric, every, used))
    elif is_rank_file(placement):
        nics = _Lines(fabric, ends, placement, bare).ports()
    else:
        nics = _listed(fabric, ends, placement, bare)
    ranks = wanted or len(nics)
    asked = f"--ranks {ranks}" if wanted else fabric.name if nics == every else f"--placement {placement}"
    if ranks > len(nics):
        hint = f"try --ranks {len(nics)}"
        if len(nics) == len(every) and not bare:
            hint += f", or more {', '.join(fabric.sizes[:-1])} or {fabric.sizes[-1]} in the fabric file"
        if named:
            hint = f"use a fabric with {ranks} NICs, or a smaller trace or list of steps"
        why = f"is more than the {len(nics)} NICs to place them on"
        raise InputError(*_as_problems(bare), Problem("", f"--ranks {ranks}", why, hint))
    if ranks < least:
        hint = "use a fabric with two hosts or more" if is_order(placement) else "name two NICs or more"
        why = f"gives {ranks} of the two ranks that a collective needs"
        few = Problem("", asked, why, _ADDRESSES if bare else hint)
        raise InputError(*_as_problems(bare), few)  # the reason first
    return tuple(endpoint_at(fabric, rank, port) for rank, port in enumerate(nics[:ranks]))


def _ground(fabric: Fabric, nics: Sequence[Port], used: Collection[str]) -> _Ground:
    boxes: dict[int, dict[str, list[Port]]] = {}
    for host, ports in groupby(nics, attrgetter("node")):  # ports of a host are side by side
        boxes.setdefault(fabric.by_name[host].group(fabric.box) or 0, {})[host] = [*ports]
    return _Ground(nics, [[*box.values()] for box in boxes.values()], used, fabric.box or "group")


def _ordered(placement: str, ground: _Ground) -> list[Port]:
    word, *numbers = placement.split(":")
    form, order = _ORDERS[word]
    least, most = form.partition("[")[0].count(":"), form.count(":")
    what = f"--placement {placement}"
    if not (least <= len(numbers) <= most and all(re.fullmatch("[0-9]{1,9}", each) for each in numbers)):
        raise InputError(Problem("", what, f"is not {word}{form}", "write whole numbers after the colons" * bool(form)))
    try:
        return [*order(ground, *map(int, numbers))]
    except ValueError as error:
        why, _, hint = str(error).partition("; ")
        raise InputError(Problem("", what, why, hint)) from None


def in_turn(groups: Sequence[Sequence[Each]]) -> Iterator[Each]:
    """One of each group in turn, until all groups are used up."""
    return (each for turn in zip_longest(*groups) for each in turn if each is not None)


def shuffled(values: Sequence[Each], seed: int | tuple[int, ...]) -> list[Each]:
    """In a random order, the same one for the same seed."""
    import numpy as np

    return [values[at] for at in np.random.default_rng(seed).permutation(len(values)).tolist()]


def no_nic(fabric: Fabric, port: Port) -> str:
    """The reason that a host's port cannot have a rank; empty when it can. In fabrics of shapes all ports can."""
    peer, gateway = fabric.by_name[port.peer_node], fabric.gateways[port.node, port.name]
    if port.address is None:
        return (
            f"has no {fabric.policy.ip.name} address (those of its VLANs, bonds and bridges are not used); imported "
            "topologies run over IPv4 only"
        )
    if peer.role is Role.HOST:
        return f"leads to {peer.name}, which is not a switch"
    if gateway.address is None:
        router = gateway.ref if gateway.bridge is None else f"{gateway.ref}, a port of the bridge {gateway.bridge.name}"
        return f"leads to {router}, which has no {fabric.policy.ip.name} address, but a rank needs a router"
    if gateway.address.network is not port.address.network and gateway.address not in port.address.network:
        return f"({port.address}) and {gateway.ref} ({gateway.address}) are in different networks"
    return ""


def _as_problems(bare: Mapping[str, str]) -> list[Problem]:
    return [Problem("", ref, why) for ref, why in bare.items()]


def _nics_of(
    fabric: Fabric, ends: Ends, word: str, bare: Mapping[str, str], what: tuple[str, str], more: Sequence[str]
) -> list[Port]:
    """The NICs of `host3` or `host3:eth1`. what: the place of the word, for errors. more: other legal words."""
    where, text = what
    name, colon, port = word.partition(":")
    host = fabric.by_name.get(name)
    if host is None or host.role is not Role.HOST:
        hint = did_you_mean(name, [*more, *(each.name for each in fabric.hosts)])
        raise InputError(Problem(where, text, f"names {name}, which is not a host", hint))
    if not ends.get(name):
        why = f"names {name}, which has no port in the network of this job"
        raise InputError(Problem(where, text, why, "use --network frontend for hosts that serve"))
    own = [each for each in ends[name] if not colon or each.name == port]
    if not own:
        hint = did_you_mean(port, [each.name for each in ends[name]])
        raise InputError(Problem(where, text, f"names {word}, which is not a NIC of {name}", hint))
    if found := [each for each in own if each.ref not in bare]:
        return found
    problem = Problem(where, text, f"names {word}, which has no port for a rank")
    raise InputError(problem, *_as_problems({each.ref: bare[each.ref] for each in own}))


def _listed(fabric: Fabric, ends: Ends, placement: str, bare: Mapping[str, str]) -> list[Port]:
    """All NICs of hosts, and single ones."""
    words = placement.split(",")
    what = ("", f"--placement {placement}")
    more = [*_ORDERS] if len(words) == 1 else []
    nics = [port for word in words for port in _nics_of(fabric, ends, word, bare, what, more)]
    for at, port in enumerate(nics):
        if port in nics[:at]:
            raise InputError(Problem(*what, f"names {port.ref} twice", _ONCE))
    return nics


class _Lines:
    """A file with a line for each rank: a host (its next NIC), a NIC, or a line of a rankfile of Open MPI."""

    def __init__(self, fabric: Fabric, ends: Ends, placement: str, bare: Mapping[str, str]) -> None:
        self._fabric, self._ends, self._file, self._bare = fabric, ends, placement, bare

    def ports(self) -> list[Port]:
        """By rank. InputError with every wrong line."""
        from heddle.spec.yamlfile import ReadOptions, read_text

        text = read_text(real(self._file), self._file, ReadOptions(max_bytes=_FILE_BYTES, kind="rank file"))
        problems, found, lines = Problems(), dict[int, Port](), dict[str, int]()
        numbered = [(n, line.partition("#")[0].strip()) for n, line in enumerate(text.splitlines(), 1)]
        for number, line in ((n, line) for n, line in numbered if line):
            where = f"{self._file}:{number}"
            try:
                rank, port = self._read(line, where, len(found), lines)
            except InputError as error:
                problems.found += error.problems
                continue
            if rank in found:
                problems.add(where=where, what=line, why=f"places rank {rank} a second time", hint="")
            elif port.ref in lines:
                why = f"places a rank on {port.ref}, as line {lines[port.ref]} does"
                problems.add(where=where, what=line, why=why, hint=_ONCE)
            else:
                found[rank], lines[port.ref] = port, number
        problems.raise_if_any()
        if not found:
            raise InputError(Problem(self._file, "the rank file", "places no rank", _WRITE))
        if (missing := next(n for n in range(len(found) + 1) if n not in found)) < len(found):
            raise InputError(Problem(self._file, f"rank {missing}", "has no line", "number ranks from 0"))
        return [found[rank] for rank in range(len(found))]

    def _read(self, line: str, where: str, following: int, lines: Mapping[str, int]) -> tuple[int, Port]:
        """The rank and the NIC of a line. following: the rank of a line without a number. lines: NICs that have one."""
        launcher = _LAUNCHER.fullmatch(line)
        if launcher is None and (len(line.split()) > 1 or "=" in line):
            raise InputError(Problem(where, line, "is not a line for a rank", _WRITE))
        word = line if launcher is None else launcher[2]
        own = _nics_of(self._fabric, self._ends, word, self._bare, (where, line), ())
        if launcher is None:
            return following, next((port for port in own if port.ref not in lines), own[0])
        # Slots are processors. A host with one NIC has one rank, on whatever processor.
        rank, slot = int(launcher[1]), int(launcher[3])
        if len(own) > 1 and slot >= len(own):
            why = f"has slot {slot}, but {word} has {len(own)} NICs, which are numbered from 0"
            raise InputError(Problem(where, line, why, f"use a slot from 0 to {len(own) - 1}"))
        return rank, own[slot if len(own) > 1 else 0]


def endpoint_at(fabric: Fabric, rank: int, port: Port) -> Endpoint:
    """The endpoint of a rank at a port that `no_nic` has found fit."""
    gateway = fabric.gateways[port.node, port.name]
    if port.address is None or gateway.address is None:
        raise ValueError(f"{port.ref} has no address")  # no_nic checked this
    return Endpoint(
        rank, port.node, port.name, text_of(port.address), port.mac,
        text_of(gateway.address), gateway.router_mac, gateway.ref, port.rate_bps, port.mtu,
        serves=fabric.by_name[port.node].serves,
    )  # fmt: skip
