"""Names of nodes, ports and NICs: as a user types them, and as tables show them.

In:  words with commas and shell patterns (`rtsw*,host1`), and the names that exist.
Out: the names that are meant, in their own order; InputError for each word that matches none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Final

from heddle.base.problems import Problems, did_you_mean
from heddle.fabric.wiring import Wiring

_PATTERN: Final = frozenset("*?[")


def split_words(typed: Iterable[str]) -> tuple[str, ...]:
    """A flag that was given several times, or once with commas: each word once, in the order typed."""
    return tuple(dict.fromkeys(word.strip() for each in typed for word in each.split(",") if word.strip()))


def is_pattern(word: str) -> bool:
    """Whether a word can mean several names: it has a wildcard or a comma."""
    return "," in word or bool(_PATTERN & set(word))


def matching_names(words: Sequence[str], names: Iterable[str], what: str, flag: str = "") -> list[str]:
    """The names that the words mean. what: `is not a node of zone`; flag: how the words were given, `--host`.

    InputError with a hint for each word that matches no name.
    """
    known = list(names)
    problems = Problems()
    for word in words:
        if not any(fnmatchcase(name, word) for name in known):
            problems.add(where="", what=f"{flag} {word}".strip(), why=what, hint=did_you_mean(word, known))
    problems.raise_if_any()
    return [name for name in known if any(fnmatchcase(name, word) for word in words)]


@dataclass(frozen=True, slots=True)
class NicNames:
    """How the ends of flows are called. ports: address of a NIC -> its port; single: hosts that have one NIC."""

    ports: Mapping[str, str] = field(default_factory=dict)
    single: frozenset[str] = frozenset()

    @classmethod
    def of(cls, wiring: Wiring) -> NicNames:
        """Of all hosts of a fabric."""
        ports = {address: port.ref for address, port in wiring.nic_at.items()}
        return cls(ports, frozenset(host for host, nics in wiring.nics_of.items() if len(nics) == 1))

    def nic(self, host: str, address: str) -> str:
        """`host1:eth2`; the host alone where the address is not of a NIC."""
        return self.ports.get(address, host)

    def shown(self, host: str, address: str) -> str:
        """`host1:eth2`, and `host1` where it has no other NIC."""
        return host if host in self.single else self.nic(host, address)
