"""The verb `render`: the files of a fabric, and nothing is started."""

from __future__ import annotations

from collections.abc import Sequence

from heddle.cli.console import Console
from heddle.cli.verbs import verb


@verb(
    help={"out": "directory to write", "name": "override the lab name"},
    files_in=["fabric"],
    files_out=["out_"],
    directory_out=True,
)
def render(
    out: Console,
    fabric: str,
    out_: str = "out",
    name: str | None = None,
    set_: Sequence[str] = (),
    dialect: str | None = None,
    mgmt: str = "own",
) -> None:
    """Write a fabric's containerlab topology and FRR configuration; start nothing."""
    from pathlib import Path

    from heddle.base.files import real
    from heddle.fabric.fabricfile import load_fabric
    from heddle.host.engine.binary import installed_version
    from heddle.render.dialects import render_options
    from heddle.render.render import render as write

    options = render_options(dialect, mgmt, version=installed_version())
    written = write(load_fabric(fabric, name=name, overrides=set_).fabric, real(out_), options)
    topology = Path(out_) / written.name
    done = {"topology": str(topology), "dialect": options.dialect}
    out.result(done, f"wrote {topology}, with the files that it binds beside it")
