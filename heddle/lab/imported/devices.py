"""Devices that the commands of a topology create, and that this machine's kernel does not have.

In:  the nodes. Out: problems for `up` to report before anything starts, and warnings where a shell decides whether the
command runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from heddle.base.problems import Problem
from heddle.base.tables import some_of
from heddle.kernel.devicetypes import HINT, created, missing
from heddle.lab.imported.decisions import command_lines
from heddle.lab.imported.description import NodeDescription

_SHOWN: Final = 100  # characters of a command


class _Use(NamedTuple):
    """A command that creates a device. certain: no shell decides whether it runs."""

    where: str
    line: str
    certain: bool


def missing_devices(nodes: Iterable[NodeDescription]) -> tuple[list[Problem], list[str]]:
    """Commands that must fail, one for each type, with its nodes; and warnings for those inside a shell script."""
    found: dict[tuple[str, ...], dict[str, _Use]] = {}
    for node in nodes:
        for command in node.exec:
            for words in command_lines(command, node.sources):
                if (kind := created(words)) and missing(*kind):
                    certain = command.split()[:1] == words[:1]
                    found.setdefault(kind, {}).setdefault(node.name, _Use(node.where, " ".join(words), certain))
    problems, warnings = [], []
    for kind, uses in found.items():
        first = next((use for use in uses.values() if use.certain), next(iter(uses.values())))
        what, why = f"exec: {first.line[:_SHOWN]}", f"is not possible here: {missing(*kind)}; nodes: {some_of([*uses])}"
        if first.certain:
            problems.append(Problem(first.where, what, why, HINT))
        else:
            warnings.append(f"{what} {why}; {HINT}")
    return problems, warnings
