"""A rail file: the NICs of a job, with NCCL's settings, on a fabric of Heddle or on a real cluster.

In:  YAML: a fabric or the addresses of hosts (`ip -j addr`, `ip addr`), HCAs, and NCCL's variables by their names.
Out: RailJob: each NIC with its rail, and the part of the network in which NICs reach each other. InputError with all
     problems, with file and line.
On a fabric, rail and part come from the switch at the other end of the NIC's link. Otherwise subnets reach each other
only where `routed` has a network with both. The rail of a subnet is the number that most of its NICs have on their
hosts; a subnet with two NICs of a host is no part of a rail.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from ipaddress import ip_network
from typing import Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from heddle.base.families import Network
from heddle.base.files import beside, expanded, real
from heddle.base.problems import HeddleError, InputError, Problems, did_you_mean, printable, some_of
from heddle.base.untrusted import kept_below
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import BACKEND, Fabric
from heddle.spec.keys import Strict, at
from heddle.spec.load import settings_of, value_text
from heddle.spec.wording import examined
from heddle.spec.yamlfile import Document, ReadOptions, Trail, dotted, parse, read_text
from heddle_plugins.engineering.hostaddresses import HostInterface, address_of, read_addresses
from heddle_plugins.engineering.nccldumps import read_nics

COLLECTIVES: Final = "collectives"
SEND_RECV: Final = "send-recv"
GIN: Final = "gin"
TRANSFER: Final = "transfer-engine"
_READING: Final = ReadOptions(max_bytes=1 << 20, values=200_000, kind="rail file", example="docs/rails.md")
_DUMP: Final = replace(_READING, max_bytes=4 << 20, kind="dump of addresses")
_POINT_TO_POINT: Final = 1  # bits of a host at most: such a subnet is one link, and says nothing of rails


class RailHost(Strict):
    """One host. Files are relative to the rail file."""

    addr: str | None = Field(None, description="output of `ip -d -j addr`, or of `ip addr`")
    topo: str | None = Field(None, description="file of NCCL_TOPO_DUMP_FILE: its HCAs, in NCCL's order")
    addresses: dict[str, str] = Field(default={}, description="interface -> address/length")
    devices: dict[str, str] = Field(default={}, description="HCA -> interface, in NCCL's order")


class RailFile(Strict):
    """The keys of the file."""

    synonyms: ClassVar[Mapping[str, str]] = {
        "cross_nic": "NCCL_CROSS_NIC", "pxn_disable": "NCCL_PXN_DISABLE", "pxn": "NCCL_PXN_DISABLE",
        "hca": "NCCL_IB_HCA", "nodes": "hosts",
    }  # fmt: skip
    fabric: str | None = Field(None, examples=["rail"])
    set: dict[str, Any] = Field(default={})
    hosts: dict[str, RailHost] = Field(default={})
    devices: dict[str, str] = Field(default={})
    rails: list[str] = Field(default=[], examples=["[10.1.0.0/16, 10.2.0.0/16]"])
    routed: list[str] = Field(default=[], examples=["[10.0.0.0/8]"])
    NCCL_IB_HCA: str = ""
    NCCL_CROSS_NIC: int = Field(2, ge=0, le=2)
    NCCL_PXN_DISABLE: int = Field(0, ge=0, le=1)
    device_name: str = ""
    uses: list[Literal["collectives", "send-recv", "gin", "transfer-engine"]] = Field(
        default=[COLLECTIVES, SEND_RECV], min_length=1
    )

    @model_validator(mode="after")
    def _has_hosts(self) -> RailFile:
        if self.fabric is None and not self.hosts:
            raise at("hosts", "is missing, and so is fabric", "add a fabric, or hosts with addr or addresses")
        return self


@dataclass(frozen=True, slots=True)
class RailNic:
    """A NIC of the job. number: its place among the HCAs that NCCL uses on its host, from 0.

    part: NICs with an equal one reach each other. rail: leaving it means to pass a spine or a router; empty without
    rails. where: rail and plane, or subnet, in words. front: whether it is in another network than ranks are.
    """

    host: str
    hca: str
    number: int
    part: Hashable
    rail: str
    where: str
    front: bool = False

    def __str__(self) -> str:
        """`host1:mlx5_0 (rail 1, plane 1)`."""
        return f"{self.host}:{self.hca}{self.where and f' ({self.where})'}"


@dataclass(frozen=True)
class RailJob:
    """A file that was read. nics: those of NCCL_IB_HCA, host by host. all: those of the transfer engine.

    assumed: what the file did not say, as sentences.
    """

    file: str
    spec: RailFile
    nics: Sequence[RailNic]
    all: Sequence[RailNic]
    assumed: Sequence[str]


def files_of_rails(typed: str) -> list[str]:
    """The user's files that a rail file needs, below its folder."""
    try:
        data = parse(read_text(real(typed), typed, _READING), typed, _READING).data
        named = [host[key] for host in (data.get("hosts") or {}).values() for key in ("addr", "topo") if key in host]
        named += [data["fabric"]] if _is_path(str(data.get("fabric", ""))) else []
    except (HeddleError, AttributeError, TypeError):  # load_rails reports it
        return [typed]
    return [typed, *kept_below(expanded(typed), [beside(typed, str(each)) for each in named])]


def _is_path(word: str) -> bool:
    return "/" in word or word.endswith((".yml", ".yaml"))


def hca_filter(text: str) -> Callable[[str, int], bool]:
    """Whether NCCL uses an HCA and port, by NCCL_IB_HCA (`^` first: not these; then `=`: whole names; `name:port`)."""
    no, exact, rows = hca_words(text)
    if not rows:
        return lambda *_: True

    def fits(hca: str, port: int) -> bool:
        named = ((hca == word if exact else hca.startswith(word)) and only in (0, port) for word, only in rows)
        return any(named) != no

    return fits


def hca_words(text: str) -> tuple[bool, bool, list[tuple[str, int]]]:
    """The parts of NCCL_IB_HCA: whether it excludes, whether names are whole, and each name with its port, 0 for any.

    As in NCCL, src/misc/utils.cc, parseStringList. ValueError: the reason.
    """
    no = text.startswith("^")
    exact = text[no:].startswith("=")
    rows = []
    for word in text[no + exact :].split(",") if text else ():
        name, colon, port = word.strip().partition(":")
        if not name or (colon and not re.fullmatch("[0-9]{1,3}", port)):
            raise ValueError("has a name without letters, or a port that is not a number")
        rows.append((name, int(port or 0)))
    return no, exact, rows


def load_rails(file: str) -> RailJob:
    """Read and check a rail file."""
    document = parse(read_text(real(file), file, _READING), file, _READING)
    found = examined(document, RailFile)
    if found.value is None or found.problems:
        raise InputError(*found.problems)
    return _Loader(document, found.value, file).job()


def _with_rails(nics: Sequence[RailNic]) -> list[RailNic]:
    """The NICs with the rails of their subnets."""
    subnets: dict[str, list[RailNic]] = {}
    for nic in nics:
        subnets.setdefault(nic.where, []).append(nic)
    rails = {
        where: str(Counter(nic.number for nic in of).most_common(1)[0][0])
        for where, of in subnets.items()
        if len({nic.host for nic in of}) == len(of)
    }
    return [replace(nic, rail=rails.get(nic.where, "")) for nic in nics]


class _Loader:
    """One file that is read; collects its errors."""

    def __init__(self, document: Document, spec: RailFile, file: str) -> None:
        self._document, self._spec, self._file, self._problems = document, spec, file, Problems()
        self._assumed: dict[str, None] = {}
        self._taken: dict[str, str] = {}  # address -> NIC
        self._known: dict[str, None] = {}  # names of HCAs
        self._rails, self._routed = self._networks("rails"), self._networks("routed")
        self._fabric = self._loaded() if spec.fabric is not None else None

    def job(self) -> RailJob:
        """The job. InputError with all problems."""
        spec, fabric = self._spec, self._fabric
        lists = {"NCCL_IB_HCA": spec.NCCL_IB_HCA} if {*spec.uses} - {TRANSFER} else {}
        if TRANSFER in spec.uses:
            lists["device_name"] = spec.device_name and f"={spec.device_name}"
        fits = {key: self._filter(key, text) for key, text in lists.items()}
        self._problems.raise_if_any()
        hosts = spec.hosts or {name: RailHost() for name, nics in (fabric.nics_of if fabric else {}).items() if nics}
        used: dict[str, list[RailNic]] = {key: [] for key in lists}
        for name, host in hosts.items():
            try:
                placed = self._placed(name, host, lambda hca, port: any(fit(hca, port) for fit in fits.values()))
            except InputError as error:
                self._problems.found += error.problems
                continue
            except ValueError as error:
                self._wrong(("hosts", name), *str(error).split("; ", 1))
                continue
            for key, fit in fits.items():
                some = (nic for device, nic in placed.items() if fit(*device))
                used[key] += [replace(nic, number=number) for number, nic in enumerate(some)]
        if not self._problems.found:
            for key, text in lists.items():
                self._check_list(key, text, {nic.host for nic in used[key]}, [*hosts])
        self._problems.raise_if_any()
        if fabric is None:
            inside = some_of([str(each) for each in self._routed])
            text = f"all in {inside} reach each other" if inside else "no route joins two rails (routed: says where)"
            self._assumed[f"NICs of one subnet or of one network of rails reach each other; {text}"] = None
            if not self._rails:
                used = {key: _with_rails(nics) for key, nics in used.items()}
        return RailJob(self._file, spec, used.get("NCCL_IB_HCA", []), used.get("device_name", []), [*self._assumed])

    def _wrong(self, trail: Trail, why: str, hint: str = "") -> None:
        text = self._document.text(trail)
        what = f"{dotted(trail)}: {text}" if text else dotted(trail)
        self._problems.add(where=self._document.where(trail), what=what, why=why, hint=hint)

    def _filter(self, key: str, text: str) -> Callable[[str, int], bool]:
        try:
            return hca_filter(text)
        except ValueError as error:
            self._wrong((key,), str(error), "write names with commas, as mlx5_0,mlx5_1:1")
            return hca_filter("")

    def _check_list(self, key: str, text: str, having: set[str], hosts: Sequence[str]) -> None:
        """Names of a list that no host has; hosts that it leaves without an HCA."""
        no, exact, rows = hca_words(text)
        for name, _ in rows if not no else ():
            if not any(known == name or (not exact and known.startswith(name)) for known in self._known):
                why = f"has {printable(name, 64)}, which is an HCA of no host"
                self._wrong((key,), why, did_you_mean(name, self._known))
        if not self._problems.found and (empty := [host for host in hosts if host not in having]):
            self._wrong((key,), f"leaves {some_of(empty)} without an HCA", "name an HCA of each host that is up")

    def _networks(self, key: str) -> list[Network]:
        found = list[Network]()
        for number, text in enumerate(getattr(self._spec, key)):
            try:
                found.append(ip_network(text))
            except ValueError as error:
                self._wrong((key, number), f"is not a network: {error}", "write it as 10.1.0.0/16")
        return found

    def _loaded(self) -> Fabric | None:
        spec = self._spec
        overrides = [f"{path}={value_text(path, value)}" for path, value in settings_of(spec.set)]
        name = spec.fabric or ""
        try:
            return load_fabric(beside(self._file, name) if _is_path(name) else name, overrides=overrides).fabric
        except InputError as error:
            where = self._document.where(("fabric",))
            self._problems.found += [
                each if each.where not in ("", "--set") else replace(each, where=where) for each in error.problems
            ]
            return None

    def _placed(self, name: str, host: RailHost, fits: Callable[[str, int], bool]) -> dict[tuple[str, int], RailNic]:
        """HCA and port -> the NIC, in NCCL's order, for those in use. ValueError: `reason; hint`; InputError."""
        links = self._interfaces(name, host)
        names = host.devices or self._spec.devices
        if host.topo is not None:
            nics = [(nic.hca, nic.port, nic.busid) for nic in read_nics(beside(self._file, host.topo))]
        elif names or host.addr is None:
            nics = [(hca, 1, "") for hca in names or links]
        else:
            hint = "add topo (NCCL_TOPO_DUMP_FILE), or devices: {mlx5_0: INTERFACE}, as ibdev2netdev lists them"
            raise ValueError(f"has no HCAs; {hint}")
        self._known |= {hca: None for hca, _, _ in nics}
        by_pci = {link.pci: interface for interface, link in links.items() if link.pci}
        found: dict[tuple[str, int], RailNic] = {}
        for hca, port, pci in nics:
            if not fits(hca, port):
                continue
            interface = names.get(hca) or by_pci.get(pci) or hca
            if interface not in links:
                hint = f"add devices: {{{hca}: INTERFACE}}, or write addr with ip -d -j addr"
                hint = hint if interface == hca else did_you_mean(interface, links)
                raise ValueError(f"has no interface for {hca}; {hint}")
            if links[interface].up:
                found[hca, port] = self._nic(name, hca, interface, links[interface])
            else:
                self._assumed[f"{name}:{hca} is down: NCCL leaves it out, so that later HCAs get lower numbers"] = None
        return found

    def _interfaces(self, name: str, host: RailHost) -> Mapping[str, HostInterface]:
        """All interfaces of a host. ValueError: `reason; hint`."""
        fabric = self._fabric
        if host.addr is not None:
            return read_addresses(read_text(real(beside(self._file, host.addr)), host.addr, _DUMP), host.addr)
        if host.addresses:
            return {interface: HostInterface([address_of(text)]) for interface, text in host.addresses.items()}
        if fabric is None:
            raise ValueError("has no addresses; add addr: a file of ip -d -j addr, or addresses")
        if name not in fabric.nics_of:
            hint = did_you_mean(name, fabric.nics_of)
            raise ValueError(f"is not a host of {fabric.name}, and has no addresses; {hint}")
        ports = fabric.by_name[name].ports
        return {port.name: HostInterface([port.address]) for port in ports if port.address is not None}

    def _nic(self, host: str, hca: str, interface: str, link: HostInterface) -> RailNic:
        """The NIC at its place in the network. ValueError: `reason; hint`."""
        label, fabric = f"{interface} ({hca})" if interface != hca else hca, self._fabric
        if not link.addresses:
            raise ValueError(f"has no address at {label}; leave the HCA out of the list, or give it an address")
        address = min(link.addresses, key=lambda each: each.version)
        if (other := self._taken.setdefault(str(address.ip), f"{host}:{hca}")) != f"{host}:{hca}":
            raise ValueError(f"has address {address.ip} at {label}, as {other} has; give each NIC its own address")
        if fabric is not None:
            port = fabric.nic_at.get(str(address.ip))
            if port is None:
                raise ValueError(f"has {address.ip} at {label}, which no NIC of {fabric.name} has; see ./inv inspect")
            switch = fabric.by_name[port.peer_node]
            groups = {word: switch.group(word) for word in ("rail", "plane")}
            words = [f"{word} {number}" for word, number in groups.items() if number is not None]
            front = port.network != BACKEND
            part = (port.network, fabric.part_of[switch.name])
            where = ", ".join([*words, *([port.network] if front else [])])
            return RailNic(host, hca, 0, part, words[0] if groups["rail"] is not None else "", where, front)
        rail = next((each for each in self._rails if address.ip in each), None if self._rails else address.network)
        if rail is None:
            raise ValueError(f"has {address.ip} at {label}, which is in none of rails; add its network to rails")
        if not self._rails and rail.prefixlen >= rail.max_prefixlen - _POINT_TO_POINT:
            why = f"has {address} at {label}: the subnet of one link does not say which rail it is"
            raise ValueError(f"{why}; add rails: a network for each, as [10.1.0.0/16, 10.2.0.0/16]")
        return RailNic(
            host, hca, 0, next((each for each in self._routed if address.ip in each), rail), str(rail), str(rail)
        )
