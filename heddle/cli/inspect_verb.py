"""The verb `inspect`: the nodes, ports and links of a running lab."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.base import state
from heddle.base.problems import InputError, Problem
from heddle.cli import helptexts as words
from heddle.cli.argv import Tool
from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help=words.INSPECT,
    positional=["lab"],
    root=True,
    tool=Tool("Show nodes of a running lab: role, AS number, addresses, ports, peers."),
)
def inspect(out: Console, lab: str | None = None, node: Sequence[str] = ()) -> None:
    """Show the nodes of a running lab: role, AS number, addresses, ports and their peers.

    ./inv inspect zone --node host1 shows one node in detail: links, rates, MTU and BGP states. ./inv status shows
    whether the lab is converged.
    """
    from heddle.fabric.naming import matching_names, split_words
    from heddle.lab.inventory import read_inventory
    from heddle.lab.opening import open_lab
    from heddle.views.inventorytext import lab_text, nodes_text

    if lab is not None and lab not in state.labs():
        _check_node(lab)
    where = open_lab(lab)
    wanted = split_words(node)
    names = [each.name for each in where.fabric.nodes]
    chosen = matching_names(wanted, names, f"is not a node of {where.name}", "--node") if wanted else None
    found = read_inventory(where, chosen)
    out.result(found.to_json(), lab_text(found) if chosen is None else nodes_text(found))


def _check_node(word: str) -> None:
    """InputError that names the flag when the word after `inspect` is a node of the only running lab."""
    from heddle.lab.opening import open_lab

    if len(state.labs()) == 1:
        where = open_lab()
        if word in where.fabric.by_name:
            hint = f"./inv inspect {where.name} --node {word} shows that node"
            raise InputError(Problem("", f"lab {word}", f"is not running: {word} is a node of {where.name}", hint))
