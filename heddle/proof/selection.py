"""Which queue pairs of a result are shown: by their number, by the hosts at their ends, by a link that they cross.

In:  what was typed after --qp, --host and --port, and the fabric; then a PathsResult.
Out: QpSelection; for each QP whether it is chosen. The verdict stays that of all QPs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from heddle.base.problems import Problems
from heddle.fabric.model import Fabric, matching_names, split_words
from heddle.predict.walk import ports_of
from heddle.proof.measure import natural
from heddle.proof.verdict import FlowProof, PathsResult

_NUMBER: Final = r"(0[xX][0-9a-fA-F]+|[0-9]+)"
_RANGE: Final = re.compile(rf"{_NUMBER}(?:-{_NUMBER})?")
_MOST: Final = (1 << 24) - 1  # a QP number has 24 bits
_LISTED: Final = 12

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class QpSelection:
    """An empty field chooses all. numbers: of the destination's QP, both ends included.

    nics: ports of hosts, `host1:eth2`. ends: both ends of each chosen link. words: flag and value, as typed.
    """

    numbers: tuple[Range, ...] = ()
    nics: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    words: tuple[tuple[str, str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.words)

    def text(self) -> str:
        """`--host host1 --port rtsw1:eth1`."""
        return " ".join(f"{flag} {value}" for flag, value in self.words)

    def to_json(self) -> dict[str, list[str]]:
        """`filter` of `paths`: the words of each flag."""
        return {
            flag[2:]: [value for each, value in self.words if each == flag] for flag in ("--qp", "--host", "--port")
        }

    def mask(self, result: PathsResult) -> list[bool]:
        """For each QP of a result: whether it is chosen."""
        return [self._has(result, proof) for proof in result.flows]

    def shown(self, result: PathsResult) -> list[FlowProof]:
        """The chosen QPs."""
        return [proof for proof, chosen in zip(result.flows, self.mask(result), strict=True) if chosen]

    def _has(self, result: PathsResult, proof: FlowProof) -> bool:
        return (
            (not self.numbers or any(low <= proof.flow.number <= high for low, high in self.numbers))
            and (not self.nics or not self.nics.isdisjoint(result.nics_of(proof)))
            and (not self.ends or not self.ends.isdisjoint(_ports(proof)))
        )

    def present(self, result: PathsResult) -> list[str]:
        """What each given filter could have chosen in this result, a line each: for a filter that matches nothing."""
        given = {flag for flag, _ in self.words}
        lines = []
        if "--qp" in given:
            lines.append(f"QP numbers: {_ranges(proof.flow.number for proof in result.flows)}")
        if "--host" in given:
            names = (name for proof in result.flows for name in result.ends(proof))
            lines.append(f"hosts with QPs: {_several(names)}")
        if "--port" in given:
            lines.append(
                f"ports that QPs leave by: {_several(ref for proof in result.flows for ref in _egress(proof))}"
            )
        return lines


def read_selection(fabric: Fabric, qp: Sequence[str], host: Sequence[str], port: Sequence[str]) -> QpSelection:
    """The selection that was typed; InputError for what is no QP number, and for names that the fabric does not have.

    qp: `17`, `0x11`, `17-20`. host: `host1`, `host1:eth2`, `'host*'`. port: `rtsw1:eth1`, or `rtsw1` for each of its
    ports. Each may be given many times, and have several words with commas.
    """
    problems = Problems()
    numbers = [found for word in split_words(qp) if (found := _range(word, problems)) is not None]
    problems.raise_if_any()
    words = (
        *(("--qp", word) for word in split_words(qp)),
        *(("--host", word) for word in split_words(host)),
        *(("--port", word) for word in split_words(port)),
    )
    return QpSelection(tuple(numbers), _hosts(fabric, split_words(host)), _ends(fabric, split_words(port)), words)


def _range(word: str, problems: Problems) -> Range | None:
    match = _RANGE.fullmatch(word)
    if match is None:
        hint = "write 17, 0x11, 17-20, or several with commas"
        problems.add(where="", what=f"--qp {word}", why="is no QP number and no range", hint=hint)
        return None
    low, high = (int(each, 0) if each[:2].lower() == "0x" else int(each) for each in (match[1], match[2] or match[1]))
    if low > high or high > _MOST:
        why = "ends below its start" if low > high else f"is above {_MOST}, the largest QP number"
        problems.add(where="", what=f"--qp {word}", why=why)
        return None
    return low, high


def _hosts(fabric: Fabric, words: Sequence[str]) -> frozenset[str]:
    """NICs of hosts, and single NICs."""
    refs = {host.name: [port.ref for port in host.ports] for host in fabric.hosts}
    names = [*refs, *(ref for each in refs.values() for ref in each)]
    chosen = matching_names(words, names, f"is not a host of {fabric.name}, nor one of its NICs", "--host")
    return frozenset(ref for name in chosen for ref in refs.get(name, [name]))


def _ends(fabric: Fabric, words: Sequence[str]) -> frozenset[str]:
    """Both ends of the links at these ports."""
    peers = {port.ref: port.peer_ref for node in fabric.nodes for port in node.ports}
    nodes = {node.name for node in fabric.nodes}
    known = [word for word in words if word.partition(":")[0] in nodes and ":" not in word]
    wanted = [f"{word}:*" if word in known else word for word in words]
    chosen = matching_names(wanted, peers, f"is not a port of {fabric.name}", "--port")
    return frozenset(end for ref in chosen for end in (ref, peers[ref]))


def _egress(proof: FlowProof) -> list[str]:
    """Switch ports that it left by: counted, or to be expected where nothing was sent; of a QP that is not proven, all
    that any source names.
    """
    if proof.spread and proof.by_port and not proof.why:
        return [port for port, packets in proof.by_port.items() if packets]
    paths = (proof.measured or proof.expected,) if not proof.why else (proof.expected, proof.oracle, proof.measured)
    named = [port for path in paths for step in path for port in ports_of(step)]
    return list(dict.fromkeys([*named, *(port for port, _ in proof.seen.stray)]))


def _ports(proof: FlowProof) -> set[str]:
    """The same, and the port that it came in by from its host."""
    return {*_egress(proof), proof.flow.first_hop}


def _ranges(numbers: Iterable[int]) -> str:
    """`256 to 263, 300`."""
    order = sorted(set(numbers))
    cuts = [0, *(at for at, (a, b) in enumerate(pairwise(order), 1) if b != a + 1), len(order)]
    groups = [(order[a], order[b - 1]) for a, b in pairwise(cuts) if b > a]
    return _several(f"{low} to {high}" if high > low else f"{low}" for low, high in groups)


def _several(words: Iterable[str]) -> str:
    """The first of some words, each once, and how many there are."""
    order = sorted(dict.fromkeys(words), key=natural)
    more = f", ... ({len(order)} in all)" if len(order) > _LISTED else ""
    return (", ".join(order[:_LISTED]) + more) or "none"
