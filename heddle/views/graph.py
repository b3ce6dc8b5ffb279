"""`./inv graph`: draw a fabric: text by containerlab (mermaid, dot, drawio), or a picture by Heddle (svg, png, pdf).

In:  Fabric, and the link loads of a run if there is one.
Out: the drawing as bytes of a file.
containerlab draws a rendered topology, so it gets one in a temporary directory. It starts nothing.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from heddle.base.files import is_dir
from heddle.base.problems import InputError, MachineError, Problem, did_you_mean, machine_errors, trouble
from heddle.base.process import run
from heddle.base.userfiles import as_caller, give_to_caller
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
    """The kind by its name, else by the file's suffix, else svg. InputError when there is no such kind, or both differ.

    A file without a suffix is an svg. With an unknown suffix, `word` must name the kind.
    """
    ending = Path(file or "").suffix.removeprefix(".")
    named = next((kind for kind in KINDS if kind == ending), None)
    if word is None:
        if ending and named is None:
            hint = f"use one of {', '.join(f'.{kind}' for kind in KINDS)}, or add --kind"
            raise InputError(Problem("", f"--out {file}", "has an unknown suffix", hint))
        return named or "svg"
    for kind in KINDS:
        if kind == word:
            if named not in (None, kind):
                hint = f"use --kind {named}, or another file name"
                raise InputError(
                    Problem("", f"--out {file}", f"has the suffix of another kind than --kind {kind}", hint)
                )
            return kind
    raise InputError(Problem("", f"--kind {word}", "is not a kind of drawing", did_you_mean(word, KINDS)))


def drawing(
    kind: Kind, fabric: Fabric, loads: Sequence[LinkLoad] = (), caption: str = "", topology: Path | None = None
) -> bytes:
    """The drawing. MachineError when containerlab is needed and cannot draw.

    loads, caption: of the run that a picture shows. topology: the file that containerlab draws; None: render one.
    """
    if kind == "svg" or kind == "png" or kind == "pdf":  # noqa: PLR1714 - the type checker narrows this one
        from heddle.views.picture import draw

        return draw(kind, fabric, loads, caption)
    return _by_containerlab(kind, fabric, topology)


# Of the files of flags that do not name a picture, for an example.
_ENDINGS: Final = {"--csv": "csv", "--json": "json", "--inspector": "log", "--conf": "conf"}


def check_target(path: Path, shown: str, flag: str = "--out") -> None:
    """InputError for a path that cannot be a file: a directory, or a path in a directory that does not exist."""
    with as_caller(path):
        whole, place = is_dir(path, f"{flag} {shown}"), is_dir(path.parent, f"{flag} {shown}")
    if whole:
        hint = f"name a file in it, for example {flag} {shown}/zone.{_ENDINGS.get(flag, 'svg')}"
        raise InputError(Problem("", f"{flag} {shown}", "is a directory", hint))
    if not place:
        hint = f"run mkdir -p {shlex.quote(str(Path(shown).parent))}, or use another path"
        raise InputError(Problem("", f"{flag} {shown}", "is in a directory that does not exist", hint))


def write_file(path: Path, content: bytes, shown: str, flag: str = "--out") -> None:
    """Write a drawing as a file of the calling user. InputError when the path cannot be written.

    shown: the path as the user typed it. It differs from `path` when the verb runs on another machine.
    flag: the flag that named it.
    """
    check_target(path, shown, flag)
    try:
        _replace(path, content)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        why = f"cannot be written: {error.strerror}"
        raise InputError(Problem("", f"{flag} {shown}", why, "use another file name")) from None
    except OSError as error:
        if error.errno == errno.ENXIO and path.is_fifo():
            why, hint = "is a FIFO that no process reads", "start its reader before"
            raise InputError(Problem("", f"{flag} {shown}", why, hint)) from None
        raise trouble(error, shown) from None


def _replace(path: Path, content: bytes) -> None:
    """Write the whole file or none of it. What is no file (a pipe, /dev/stdout) is written to."""
    with as_caller(path):
        if not path.exists() or path.is_file():
            _replace_file(path, content)
            return
        # A FIFO without a reader is ENXIO then, and does not block.
        with open(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC), "wb") as file:  # noqa: PTH123
            os.set_blocking(file.fileno(), True)
            file.write(content)


def _replace_file(path: Path, content: bytes) -> None:
    place = path.resolve()  # a link stays one
    mode = place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~_umask()
    fd, name = tempfile.mkstemp(prefix=f".{place.name[:40]}.", dir=place.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(content)
            os.fchmod(fd, mode)
        give_to_caller(Path(name))
        Path(name).replace(place)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _umask() -> int:
    before = os.umask(0o077)
    os.umask(before)
    return before


def _by_containerlab(kind: Kind, fabric: Fabric, ready: Path | None) -> bytes:
    from heddle.host.engine import binary, docker
    from heddle.render.dialects import RenderOptions
    from heddle.render.render import render

    program = binary.find() or binary.require()  # it can draw even where it cannot deploy on this kernel
    wrong = docker.trouble()  # containerlab connects to the engine first, even to draw
    if wrong is not None:
        raise MachineError(replace(wrong, why=f"{wrong.why} (containerlab needs a running engine to draw {kind})"))
    with tempfile.TemporaryDirectory(prefix="heddle-graph-") as scratch, machine_errors():
        place = Path(scratch, "topology")
        if ready is None:
            topology = render(fabric, place, RenderOptions())
        else:  # drawio writes beside its input, so it gets a copy
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
    """A local image, if there is one: containerlab's default tag, `latest`, is always pulled."""
    if kind != "drawio":
        return []
    from heddle.host.engine.docker import docker

    tags = docker(["image", "ls", DRAWIO_IMAGE, "--format", "{{.Tag}}"], check=False).out.split()
    known = sorted(tag for tag in tags if tag not in {"latest", "<none>"})
    return ["--drawio-version", known[-1]] if known else []


def _failed(kind: Kind, said: str) -> Problem:
    """containerlab's error box as one line; for drawio with a hint about its image."""
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", said).split()).partition("ERROR ")
    why = words[2] or words[0] or "it printed nothing"
    if kind == "drawio":
        return Problem(
            "",
            "--kind drawio",
            f"needs the image {DRAWIO_IMAGE}, and containerlab could not use it: {why}",
            f"without access to {DRAWIO_IMAGE.partition('/')[0]}, docker load this image with a tag other than latest "
            "(latest is always pulled), or use --kind svg or --kind mermaid",
        )
    return Problem(
        "", f"containerlab graph --{kind}", f"failed: {why}", "./inv doctor checks containerlab and its engine"
    )


def _ordered(text: str) -> str:
    """Mermaid's lines sorted by name: containerlab writes links in the random order of a Go map."""
    lines = text.splitlines()
    links = [line for line in lines if "---" in line.strip("-")]
    rest = [line for line in lines if "---" not in line.strip("-")]
    return "\n".join([*rest, *sorted(links, key=_natural)]) + "\n"


def _natural(line: str) -> list[tuple[int, str]]:
    """host2 before host10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", line)]
