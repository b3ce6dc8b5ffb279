"""The verb `import`: a switch's configuration of another tool, applied to a fabric."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from heddle.base.files import real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.cli.argv import Option, Options
from heddle.cli.console import Console
from heddle.cli.verbs import verb

IMPORTS: Final = ("sonic",)
_HELP: Final[Options] = {
    "kind": Option("the format of the file: sonic", IMPORTS, closed=True),
    "file": "a switch's config_db.json",
    "onto": Option("the preset or fabric file that gets the keys", "heddle.spec.load:presets", listed="presets:"),
    "out": "fabric file to write",
    "set": "a key of the fabric file that has priority over the imported ones; can be repeated",
}


@verb(name="import", group="Lab", help=_HELP, files_in=["file", "onto"], files_out=["out_"])
def import_(
    out: Console, kind: str, file: str, onto: str = "zone", out_: str | None = None, set_: Sequence[str] = ()
) -> None:
    """Apply a switch's configuration to a fabric: queues, PFC and hashing of SONiC's config_db.json. Start nothing.

    Each key is applied, or listed as not modelled, with its line and the reason. --out writes a fabric file for ./inv
    up. Without it, the command with --set is printed. docs/sonic-keys.md lists the keys.
    """
    from heddle.traffic.inflight import xoff_not_reached
    from heddle.views.graph import check_target, write_file
    from heddle_plugins.readers.sonic.fromsonic import fabric_yaml, import_sonic, import_text, up_command

    if kind not in IMPORTS:
        raise InputError(Problem("", f"./inv import {kind}", "is not a format", did_you_mean(kind, IMPORTS)))
    if out_ is not None:
        check_target(real(out_), out_)
    found = import_sonic(file, onto, set_)
    warnings = [*found.fabric.policy.queues.late_marks, *xoff_not_reached(found.fabric)]
    for each in warnings:
        out.observer.warn(each)
    rows = [each.to_json() for each in found.rows]
    data = {"onto": onto, "out": out_, "settings": found.settings, "keys": rows, "warnings": warnings}
    if out_ is None:
        end = up_command(onto, found.data, found.settings, set_)
    else:
        typed = [f"./inv import {kind}", shlex.quote(file), "--onto", shlex.quote(onto)]
        head = " ".join([*typed, *(f"--set {shlex.quote(each)}" for each in set_)])
        write_file(real(out_), fabric_yaml(found.data, found.sources, [head]).encode(), out_)
        end = f"wrote {out_}: run ./inv up {shlex.quote(out_)}"
    out.result(data, f"{import_text(found.rows)}\n\n{end}")
