"""HPCC's and SimAI's `topology.txt`: read as nodes and links, and written from a fabric.

HPCC's header is `nodes switches links`; SimAI's is `nodes gpus_per_server nv_switches other_switches links gpu_type`.
Then come the numbers of all switches, and a line `a b RATE DELAY ERROR` for each link. What is behind the last link is
read by neither of their readers: Heddle writes there what the format cannot say.
Source: the readers in simulation/scratch/third.cc of alibaba-edu/High-Precision-Congestion-Control, and SimAI's
gen_Topo_Template.py. Each node is one NIC; SimAI's NVSwitches are inside a host, so Heddle has no links to them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem
from heddle.fabric.fabricfile import LoadedFabric
from heddle.spec.yamlfile import ReadOptions, read_text
from heddle_plugins.readers.fabrics.graph import MOST_LINKS, OtherGraph, OtherLink
from heddle_plugins.readers.fabrics.own import hardware, own_line, own_values

_FILE: Final = ReadOptions(max_bytes=128 << 20, kind="topology")
_HPCC: Final = ("nodes", "switches", "links")
_SIMAI: Final = ("nodes", "gpus_per_server", "nv_switches", "other_switches", "links")
_MOST_IDS: Final = 1 << 20
_NUMBER: Final = re.compile(r"[0-9]{1,12}")
_RATE: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)([kKMGT]?)(bps|b/s|Bps|B/s)")
_TIME: Final = re.compile(r"\+?([0-9]{1,15}(?:\.[0-9]{1,15})?)(s|ms|us|ns|ps|fs)")
_SHARE: Final = re.compile(r"[0-9]{1,3}(?:\.[0-9]{0,18})?(?:e-?[0-9]{1,2})?")
_FACTOR: Final = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_NS: Final = {
    "s": Fraction(10**9), "ms": Fraction(10**6), "us": Fraction(1000), "ns": Fraction(1), "ps": Fraction(1, 1000),
    "fs": Fraction(1, 10**6),
}  # fmt: skip
_NVLINK: Final = "2880Gbps 0.000025ms 0"  # of the generator's default GPU, an H100
_DUAL: Final = "use a topology with one link for each GPU: Spectrum-X, or a single ToR"


def read(file: str, together: int | None = None) -> OtherGraph:
    """The nodes and links of a file. together: NICs of a host, where the user sets it. InputError."""
    return _Reader(file).graph(together)


class _Reader:
    def __init__(self, file: str) -> None:
        self._file = file
        lines = read_text(real(file), file, _FILE).split("\n")
        self._own, self._rows = own_values(lines), [(n, line.split(None, 8)) for n, line in enumerate(lines, 1)]
        self._rows = [(n, words) for n, words in self._rows if words and not words[0].startswith("#")]
        if not self._rows:
            raise InputError(Problem(file, "the topology", "is empty"))

    def _wrong(self, line: int, what: str, why: str, hint: str = "") -> InputError:
        return InputError(Problem(f"{self._file}:{line}", what[:60], why, hint))

    def graph(self, together: int | None) -> OtherGraph:
        (line, words), *rest = self._rows
        names = _SIMAI if len(words) == len(_SIMAI) + 1 else _HPCC
        if len(words) not in (len(_HPCC), len(_SIMAI) + 1) or not all(map(_NUMBER.fullmatch, words[: len(names)])):
            hint = f"HPCC's header is {' '.join(_HPCC)}, SimAI's is {' '.join(_SIMAI)} gpu_type"
            raise self._wrong(line, " ".join(words), "is no header of a topology", hint)
        counts = dict(zip(names, map(int, words), strict=False))
        nodes, links, nvlinks = counts["nodes"], counts["links"], counts.get("nv_switches", 0)
        for name, most in (("nodes", _MOST_IDS), ("links", MOST_LINKS)):
            if counts[name] > most:
                raise self._wrong(line, f"{name} {counts[name]}", f"is above {most}, the most")
        switches, rest = self._switches(counts, rest, nodes, line)
        if len(rest) < links:
            at = rest[-1][0] if rest else line
            why = f"are in the header, but the file ends after {len(rest)}"
            raise self._wrong(at, f"{links} links", why, "check that the file is complete")
        found = [self._link(at, each, nodes) for at, each in rest[:links]]
        inside, hosts = {*switches[:nvlinks]}, {*range(nodes)} - {*switches}
        left = [link for link in found if link.a not in inside and link.b not in inside]
        notes = [f"{len(found) - len(left)} links to {nvlinks} NVSwitches are left out"] * (len(left) < len(found))
        if len(rest) > links:  # as in HPCC's own topology.txt
            notes.append(f"{len(rest) - links} lines behind the {links} links of the header are left out")
        own = int(self._own.get("nics_per_host", "0"))
        return OtherGraph(
            self._file, sorted(hosts), switches[nvlinks:], left, "node {}".format, f"{self._file}:{{}}".format,
            together or counts.get("gpus_per_server", 0) or own, _DUAL if names is _SIMAI else "", self._own,
            tuple(notes),
        )  # fmt: skip

    def _switches(
        self, counts: dict[str, int], rest: list[tuple[int, list[str]]], nodes: int, line: int
    ) -> tuple[list[int], list[tuple[int, list[str]]]]:
        """The numbers of switches, which may be in several lines, and the lines behind them."""
        count = counts.get("switches", counts.get("nv_switches", 0) + counts.get("other_switches", 0))
        found: dict[int, None] = {}
        lines = iter(rest)
        for at, first in lines:
            words = [*first[:-1], *first[-1].split()]
            for word in words:
                if not _NUMBER.fullmatch(word) or int(word) >= nodes or int(word) in found:
                    why = f"is not the number of another switch, below {nodes}"
                    raise self._wrong(at, word, why, f"the header counts {count} switches")
                found[int(word)] = None
            if len(found) >= count:
                break
        if len(found) != count or not count:
            raise self._wrong(line, f"{count} switches", f"do not fit the {len(found)} numbers of the next lines")
        return [*found], [*lines]

    def _link(self, line: int, words: Sequence[str], nodes: int) -> OtherLink:
        if len(words) != 5:
            raise self._wrong(line, " ".join(words), f"has {len(words)} words", "a link is A B RATE DELAY ERROR")
        for word in words[:2]:
            if not _NUMBER.fullmatch(word) or int(word) >= nodes:
                raise self._wrong(line, word, f"is not a node: they are 0 to {nodes - 1}")
        a, b = int(words[0]), int(words[1])
        if a == b:
            raise self._wrong(line, f"{a} {b}", "is a link from a node to itself")
        try:
            return OtherLink(a, b, rate_of(words[2]), time_of(words[3]), _share_of(words[4]), line)
        except ValueError as error:
            text, _, hint = str(error).partition("; ")
            what, _, why = text.partition(" ")
            raise self._wrong(line, what, why, hint) from None


@lru_cache(1024)
def rate_of(text: str) -> int:
    """bit/s of ns-3's DataRate, as `100Gbps`. ValueError with the text, the reason and a hint."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:30]} is not a rate; write it as 100Gbps")
    found = Fraction(match[1]) * _FACTOR[match[2]] * (8 if match[3][0] == "B" else 1)
    if found < 1:
        raise ValueError(f"{text[:30]} is no rate that sends anything; write it as 100Gbps, or remove the link")
    return round(found)


@lru_cache(1024)
def time_of(text: str) -> int:
    """Nanoseconds of ns-3's Time, as `0.001ms`, rounded. ValueError with the text, the reason and a hint."""
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:30]} is not a time; write it as 1us or 0.001ms")
    return round(Fraction(match[1]) * _NS[match[2]])


@lru_cache(1024)
def _share_of(text: str) -> float:
    if not _SHARE.fullmatch(text) or float(text) >= 1:
        raise ValueError(f"{text[:30]} is not a share of lost packets; write 0, or a number below 1")
    return float(text)


def hpcc(loaded: LoadedFabric) -> tuple[str, str]:
    """The file's name and text in HPCC's form."""
    return "topology.txt", _written(loaded, simai=False)


def simai(loaded: LoadedFabric) -> tuple[str, str]:
    """The file's name and text in SimAI's form, with one NVSwitch for each host of several NICs."""
    return "topology.txt", _written(loaded, simai=True)


def _written(loaded: LoadedFabric, *, simai: bool) -> str:
    fabric = loaded.fabric
    nics = {nic.ref: number for number, nic in enumerate(fabric.nics)}
    each = len(fabric.nics) // len(fabric.hosts)
    inside = len(fabric.hosts) if simai and each > 1 else 0
    first = len(nics) + inside
    number = {switch.name: first + place for place, switch in enumerate(fabric.switches)}
    lines = []
    for nic in range(len(nics) if inside else 0):
        lines.append(f"{nic} {len(nics) + nic // each} {_NVLINK}")
    for link in hardware(loaded):
        ends = (nics.get(":".join(end), number.get(end[0], -1)) for end in (link.a, link.b))
        rate = f"{link.rate_bps // 10**9}Gbps" if link.rate_bps % 10**9 == 0 else f"{link.rate_bps}bps"
        lines.append(f"{' '.join(map(str, ends))} {rate} {link.delay_ns}ns {link.loss or 0}")
    switches = range(len(nics), first + len(number))
    counts = [first + len(number), len(number), len(lines)]
    head = f"{counts[0]} {each} {inside} {counts[1]} {counts[2]} H100" if simai else " ".join(map(str, counts))
    return "\n".join([head, " ".join(map(str, switches)), *lines, own_line(loaded), ""])
