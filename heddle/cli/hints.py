"""Words of containerlab, and their counterparts in Heddle; those of nccl-tests are in nccltests.py.

In:  a word that is not a verb, or one word too many after a verb.
Out: a hint with a command. If there is no counterpart, the hint says so: a wrong guess is worse than none.
Source: `containerlab --help` (0.79).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from heddle.base.problems import nearest

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
    "all_reduce_perf": "./inv perf all_reduce",
    "alltoall_perf": "./inv perf alltoall",
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
