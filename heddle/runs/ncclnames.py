"""The names that NCCL and nccl-tests have for collectives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

# The programs of nccl-tests 2.19, without `_perf`, that have a collective here.
PROGRAMS: Final[Mapping[str, str]] = {
    "all_gather": "all-gather",
    "all_reduce": "all-reduce",
    "alltoall": "all-to-all",
    "alltoallv": "all-to-all-v",
    "broadcast": "broadcast",
    "gather": "gather",
    "reduce": "reduce",
    "reduce_scatter": "reduce-scatter",
    "scatter": "scatter",
    "sendrecv": "send-recv",
}
_BY_COLLECTIVE: Final = {collective: program for program, collective in PROGRAMS.items()}
_NAMES: Final = {"all-to-all": "AlltoAll", "all-to-all-v": "AlltoAllV"}


def program_name(collective: str) -> str:
    """The program of nccl-tests: `all_reduce_perf`; for a collective that it does not have, a name of that form."""
    return f"{_BY_COLLECTIVE.get(collective, collective.replace('-', '_'))}_perf"


def collective_of(program: str) -> str:
    """The collective of a program by its name or its path; for one that Heddle does not know, the name itself."""
    name = program.rpartition("/")[2].removesuffix("_perf")
    return PROGRAMS.get(name, name.replace("_", "-"))


def collective_name(collective: str) -> str:
    """`all-reduce` as NCCL writes it: `AllReduce`."""
    return _NAMES.get(collective) or "".join(word.title() for word in collective.split("-"))
