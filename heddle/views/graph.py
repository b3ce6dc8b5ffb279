"""`./inv graph`: a fabric drawn, as text by containerlab (mermaid, dot, drawio) or as a picture by us (svg, png, pdf).

In:  Fabric, and the loads of a run where there was one.
Out: the drawing, as a file's bytes.
containerlab draws what is rendered, so it is given a rendered topology in a directory of its own; it starts nothing.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from heddle.base.problems import InputError, MachineError, Problem, did_you_mean, machine_errors, trouble
from heddle.base.process import run
from heddle.views.style import PICTURES

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.views.linkloads import LinkLoad

Kind = Literal["mermaid", "drawio", "dot", "svg", "png", "pdf"]
TEXTS: Final[tuple[Kind, ...]] = ("mermaid", "drawio", "dot")
KINDS: Final[tuple[Kind, ...]] = (*TEXTS, *PICTURES)
DRAWIO_IMAGE: Final = "ghcr.io/srl-labs/clab-io-draw"
_SECONDS: Final = 120.0  # drawio pulls an image of some hundred megabytes first


def kind_of(word: str | None, file: str | None = None) -> Kind:
    """The kind of that name, else of the file's ending, else svg; InputError for no kind, and for two.

    A file without an ending is an svg; with an ending that is no kind, the kind has to be named.
    """
    ending = Path(file or "").suffix.removeprefix(".")
    named = next((kind for kind in KINDS if kind == ending), None)
    if word is None:
        if ending and named is None:
            hint = f"endings are {', '.join(f'.{kind}' for kind in KINDS)}; or name the kind with --kind"
            raise InputError(Problem("", f"--out {file}", "ends in no kind of drawing", hint))
        return named or "svg"
    for kind in KINDS:
        if kind == word:
            if named not in (None, kind):
                hint = f"--kind {named}, or another name for the file"
                raise InputError(
                    Problem("", f"--out {file}", f"has the ending of another kind than --kind {kind}", hint)
                )
            return kind
    raise InputError(Problem("", f"--kind {word}", "is no kind of drawing", did_you_mean(word, KINDS)))


def drawing(
    kind: Kind, fabric: Fabric, loads: Sequence[LinkLoad] = (), caption: str = "", topology: Path | None = None
) -> bytes:
    """The fabric drawn. MachineError when containerlab is needed and cannot.

    loads, caption: of the run that a picture shows. topology: what containerlab draws; rendered when there is none yet.
    """
    if kind == "svg" or kind == "png" or kind == "pdf":  # noqa: PLR1714 - the type checker narrows this one
        from heddle.views.picture import draw

        return draw(kind, fabric, loads, caption)
    return _by_containerlab(kind, fabric, topology)


def write_file(path: Path, content: bytes, shown: str, flag: str = "--out") -> None:
    """Write a drawing as the caller's own file; InputError when there is no place for one.

    shown: the file as the caller called it, which is another name where it was brought over from another machine.
    flag: what it was named by.
    """
    from heddle.base import state

    if path.is_dir():
        raise InputError(Problem("", f"{flag} {shown}", "is a directory", f"name a file, as {flag} {shown}/zone"))
    try:
        path.write_bytes(content)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        why = f"cannot be written: {error.strerror}"
        raise InputError(Problem("", f"{flag} {shown}", why, "name another file")) from None
    except OSError as error:
        raise trouble(error, shown) from None
    state.give_to_caller(path)


def _by_containerlab(kind: Kind, fabric: Fabric, ready: Path | None) -> bytes:
    from heddle.host.engine import binary, docker
    from heddle.render.dialects import RenderOptions
    from heddle.render.render import render

    program = binary.find() or binary.require()  # one that cannot deploy on this kernel can draw
    wrong = docker.trouble()  # containerlab asks the engine before anything else, if only to draw
    if wrong is not None:
        raise MachineError(replace(wrong, why=f"{wrong.why} (containerlab draws {kind} only where an engine answers)"))
    with tempfile.TemporaryDirectory(prefix="heddle-graph-") as scratch, machine_errors():
        place = Path(scratch, "topology")
        if ready is None:
            topology = render(fabric, place, RenderOptions())
        else:  # drawio writes beside what it reads, so it gets a copy
            topology = Path(shutil.copytree(ready.parent, place, symlinks=True), ready.name)
        done = run(
            [
                "env", f"CLAB_LABDIR_BASE={scratch}", "CLAB_VERSION_CHECK=disable",
                str(program), "graph", f"--{kind}", "--offline", *_drawio_version(kind), "--topo", str(topology),
            ],
            stdin="", check=False, timeout=_SECONDS,
        )  # fmt: skip
        suffix = f".{kind}"
        made = sorted(path for path in Path(scratch).rglob(f"*{suffix}") if path.is_file())
        if done.code != 0 or not made:
            raise MachineError(_failed(kind, done.err or done.out))
        text = made[0].read_text(encoding="utf-8")
    return (_ordered(text) if kind == "mermaid" else text).encode()


def _drawio_version(kind: Kind) -> list[str]:
    """An image that is here already, if there is one: with its own default, `latest`, containerlab always pulls."""
    if kind != "drawio":
        return []
    from heddle.host.engine.docker import docker

    tags = docker(["image", "ls", DRAWIO_IMAGE, "--format", "{{.Tag}}"], check=False).out.split()
    known = sorted(tag for tag in tags if tag not in {"latest", "<none>"})
    return ["--drawio-version", known[-1]] if known else []


def _failed(kind: Kind, said: str) -> Problem:
    """What containerlab says in a box of its own, as one line; and for drawio, what it is that it wants."""
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", said).split()).partition("ERROR ")
    why = words[2] or words[0] or "it printed nothing"
    if kind == "drawio":
        return Problem(
            "",
            "--kind drawio",
            f"needs the image {DRAWIO_IMAGE}, in which containerlab draws it, and that did not work: {why}",
            f"where {DRAWIO_IMAGE.partition('/')[0]} is out of reach, docker load an image of it with a tag other than "
            "latest (that one is always pulled); --kind svg and --kind mermaid need none",
        )
    return Problem(
        "", f"containerlab graph --{kind}", f"failed: {why}", "./inv doctor looks at containerlab and its engine"
    )


def _ordered(text: str) -> str:
    """Mermaid's lines in the order of names: containerlab writes links as its map has them, another way each time."""
    lines = text.splitlines()
    links = [line for line in lines if "---" in line.strip("-")]
    rest = [line for line in lines if "---" not in line.strip("-")]
    return "\n".join([*rest, *sorted(links, key=_natural)]) + "\n"


def _natural(line: str) -> list[tuple[int, str]]:
    """host2 before host10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", line)]
