"""The verb `import`: a fabric, or a switch's configuration, of another tool as a fabric file."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.verbs import verb

SONIC: Final = "sonic"
IMPORTS: Final = (SONIC, "hpcc", "simai", "htsim", "infragraph")
_HELP: Final[Options] = {
    "kind": Option("the format of the file", IMPORTS, listed="one of", closed=True),
    "file": "a switch's config_db.json, or a topology",
    "onto": Option(
        "the preset or fabric file that gets the keys (sonic: default zone) and keeps its others",
        "heddle.spec.load:presets",
        listed="presets:",
    ),
    "out": "fabric file to write",
    "set": "a key of the fabric file that has priority over the imported ones; can be repeated",
}


@verb(name="import", group="Lab", help=_HELP, files_in=["file", "onto"], files_out=["out_"])
def import_(
    out: Console, kind: str, file: str, onto: str | None = None, out_: str | None = None, set_: Sequence[str] = ()
) -> None:
    """Make a fabric file of another tool's file: a switch of SONiC, or a simulator's topology. Start nothing.

    sonic applies a config_db.json to a fabric: queues, PFC and hashing (docs/sonic-keys.md). Each key is applied, or
    listed as not modelled, with its line and the reason. Without --out, the command with --set is printed.
    hpcc, simai, htsim and infragraph give sizes, rates and delays of a fabric (docs/fabric-file.md). What the shapes do
    not have is an error that names the line. Without --out, the fabric file is printed.
    """
    from heddle.traffic.inflight import xoff_not_reached
    from heddle.views.graph import check_target, write_file
    from heddle_plugins.readers.fabrics.importing import import_fabric
    from heddle_plugins.readers.sonic.fromsonic import fabric_yaml, import_sonic, import_text, up_command

    if kind not in IMPORTS:
        raise InputError(Problem("", f"./inv import {kind}", "is not a format", did_you_mean(kind, IMPORTS)))
    if out_ is not None:
        check_target(real(out_), out_)
    typed = [f"./inv import {kind}", shlex.quote(file)]
    if kind == SONIC:
        onto = onto or "zone"
        found = import_sonic(file, onto, set_)
        built, keys, sources = found.fabric, found.data, found.sources
        data = {"settings": found.settings, "keys": [each.to_json() for each in found.rows]}
        text, end = f"{import_text(found.rows)}\n\n", up_command(onto, found.data, found.settings, set_)
        head = []
    else:
        made = import_fabric(kind, file, onto, set_)
        built, keys, sources = made.fabric, made.data, {}
        data = {"fabric": made.data, "notes": [*made.notes]}
        text, end, head = "", "", [*made.notes]
    warnings = [*built.policy.queues.late_marks, *xoff_not_reached(built)]
    for each in warnings:
        out.observer.warn(each)
    typed += ["--onto", shlex.quote(onto)] if onto else []
    command = " ".join([*typed, *(f"--set {shlex.quote(each)}" for each in set_)])
    content = fabric_yaml(keys, sources, [command, *head])
    if out_ is not None:
        write_file(real(out_), content.encode(), out_)
        end = "".join(f"{each}\n" for each in head) + f"wrote {out_}: run ./inv up {shlex.quote(out_)}"
    out.result({"onto": onto, "out": out_, **data, "warnings": warnings}, text + (end or content.removesuffix("\n")))
