"""Words of containerlab and of nccl-tests, and their counterparts in Heddle.

In:  a word that is not a verb, or words after `run` that are not its flags.
Out: a hint with a command. If there is no counterpart, the hint says so: a wrong guess is worse than none.
Sources: `containerlab --help` (0.79), `all_reduce_perf --help` (nccl-tests 2.19).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from heddle.base.problems import Problem, nearest

_NEAR: Final = 0.75  # similarity of two verbs: `start` is not a misspelt `status`, but `dwon` is `down`
_PORT: Final = re.compile(r"(eth|lo|ens|enp)[0-9a-z]*")

_VERBS: Final[Mapping[str, str]] = {
    "deploy": "./inv up FABRIC brings a fabric up; ./inv up FILE.clab.yml brings a containerlab topology up",
    "destroy": "./inv down LAB takes a lab down; ./inv down --all takes all labs down",
    "save": "./inv exec SWITCH vtysh -c 'show running-config' prints a configuration; ./inv render FABRIC writes all",
    "list": "./inv status lists labs, ./inv runs lists runs, ./inv --list lists verbs",
    "ls": "./inv status lists labs, ./inv runs lists runs, ./inv --list lists verbs",
    "ps": "./inv status lists labs, ./inv inspect lists the nodes of one",
    "nodes": "./inv inspect lists the nodes of a lab",
    "version": "./inv --version",
    "generate": "./inv render FABRIC writes a containerlab topology; a fabric file has its size (docs/fabric-file.md)",
    "ping": "./inv exec host1 ping ADDRESS",
    "vtysh": "./inv exec SWITCH vtysh",
    "ssh": "./inv exec NODE bash opens a shell in a node",
    "shell": "./inv exec NODE bash opens a shell in a node",
    "tcpdump": "./inv capture NODE:PORT shows the packets at a port",
    "all_reduce_perf": "./inv run --collective all-reduce",
    "alltoall_perf": "./inv run --collective all-to-all",
}


def verb_hint(word: str, verbs: Iterable[str]) -> str:
    """The verb that a wrong word may mean; the list of verbs when none is similar."""
    known = sorted(verbs)
    if word in _VERBS:
        return _VERBS[word]
    near = nearest(word, known, _NEAR)
    return f"did you mean {near}?" if near else f"verbs: {', '.join(known)}"


def spare_hint(verb: str, first: str, spare: str) -> str:
    """`capture host1 eth1` -> `host1:eth1`. first: the word before the spare one. Empty without a guess."""
    if verb == "capture" and first and ":" not in first and _PORT.fullmatch(spare):
        return f"did you mean ./inv capture {first}:{spare}?"
    return ""


# Flags of nccl-tests that have a counterpart, and their long forms; all take a value.
_OURS: Final = "befigtnw"
_LONG: Final[Mapping[str, str]] = {
    "--nthreads": "t", "--ngpus": "g", "--minbytes": "b", "--maxbytes": "e", "--stepbytes": "i", "--stepfactor": "f",
    "--warmup_iters": "w", "--agg_iters": "m", "--check": "c", "--op": "o", "--datatype": "d", "--root": "r",
    "--parallel_init": "p", "--blocking": "z", "--average": "a", "--cudagraph": "G",
}  # fmt: skip
# Flags without a counterpart, and why none is needed.
_WITHOUT: Final[Mapping[str, str]] = {
    "c": "every result is checked",
    "o": "all-reduce sums",
    "d": "elements are float",
    "r": "incast goes to rank 0",
    "a": "times are means over ranks",
    **dict.fromkeys("gt", "every NIC is a rank, and --ranks N takes fewer"),
    **dict.fromkeys("mpzyTCGRDSJN", ""),
}
_SHORT: Final = re.compile(r"-([A-Za-z])=?([0-9].*)?")
_USUAL_BYTES: Final = "32M"  # -b and -e of nccl-tests by default
_USUAL_STEP: Final = "1M"  # -i by default; -f is off


@dataclass(slots=True)
class NcclFlags:
    """Flags of nccl-tests among the words after `run`: letter -> value, '' when it is missing. rest: other words."""

    values: dict[str, str] = field(default_factory=dict)
    rest: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str], own: Iterable[str]) -> NcclFlags:
        """Separate them from the other words. own: the flags of `run`, which are kept."""
        found, known, waiting = cls(), set(own), list(words)
        while waiting:
            word = waiting.pop(0)
            letter, value = _letter(word)
            if word == "--":
                found.rest += [word, *waiting]
                break
            if not letter or word.partition("=")[0] in known:
                found.rest.append(word)
                if word in known and waiting:  # its value is not a flag
                    found.rest.append(waiting.pop(0))
                continue
            if not value and waiting and not waiting[0].startswith("-"):
                value = waiting.pop(0)
            found.values[letter] = value
        return found

    def problems(self) -> list[Problem]:
        """One problem for all flags with a counterpart, with the words to write; one for each other flag."""
        known = {letter: value for letter, value in self.values.items() if letter in _OURS and value}
        if not _rank_words(known):
            known = {letter: value for letter, value in known.items() if letter not in "gt"}
        words = _size_words(known) + _rank_words(known)
        words += [
            f"{flag} {known[letter]}" for letter, flag in (("n", "--iters"), ("w", "--warmup")) if letter in known
        ]
        problems = []
        if words:
            typed = " ".join(f"-{letter} {value}" for letter, value in known.items())
            problems.append(
                Problem("", typed, "is the syntax of nccl-tests", f"write {' '.join(words)}{_limit(words)}")
            )
        for letter, value in self.values.items():
            if letter not in known:
                reason = _WITHOUT.get(letter, "")
                why, hint = "is a flag of nccl-tests that has no counterpart here", "leave it out"
                if letter in _OURS and not value:
                    why, hint = "is a flag of nccl-tests without its value", "./inv run --help lists our flags"
                problems.append(Problem("", f"-{letter} {value}".strip(), why, f"{hint}: {reason}" if reason else hint))
        return problems


def _letter(word: str) -> tuple[str, str]:
    """The letter of a flag of nccl-tests and the value in the same word; empty for other words."""
    name, _, value = word.partition("=")
    if name in _LONG:
        return _LONG[name], value
    match = _SHORT.fullmatch(word)
    if match is None or match[1] not in {*_OURS, *_WITHOUT}:
        return "", ""
    return match[1], match[2] or ""


def _size_words(v: Mapping[str, str]) -> list[str]:
    """-b, -e, -f, -i as `--size 8:128M:x2`."""
    if not v.keys() & set("befi"):
        return []
    low, high = v.get("b", _USUAL_BYTES), v.get("e", _USUAL_BYTES)
    if low == high:
        return [f"--size {low}"]
    step = f"x{v['f']}" if "f" in v else v.get("i", _USUAL_STEP)
    return [f"--size {low}:{high}:{step}"]


def _rank_words(v: Mapping[str, str]) -> list[str]:
    """-t threads x -g GPUs each = ranks of one process, as --ranks; nothing for a single rank."""
    if not v.keys() & set("gt"):
        return []
    each = [v.get(letter, "1") for letter in "gt"]
    count = int(each[0]) * int(each[1]) if all(word.isdecimal() for word in each) else 0
    return [f"--ranks {count}"] if count > 1 else []


def _limit(words: Sequence[str]) -> str:
    """Why Heddle refuses sizes that nccl-tests accepts: they are limited."""
    from heddle.traffic.options import parse_sizes

    for word in words:
        flag, _, value = word.partition(" ")
        if flag == "--size":
            try:
                parse_sizes(value)
            except ValueError as error:
                return f"\nbut {value} {error}"
    return ""
