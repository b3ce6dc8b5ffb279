"""`plugin`: what plugins add to Heddle and what is wrong with them; and the skeleton of a new one.

A skeleton is a Python project that works as it is: one part, its entry points, and a test (templates/plugin/).
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Final

from heddle.base import plugins
from heddle.base.extras import how_installed
from heddle.base.files import real
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.progname import as_started
from heddle.base.resources import HERE, TEMPLATES
from heddle.base.tables import many, table
from heddle.base.userfiles import write_texts
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.host.doctor import Check

NEW: Final = "new"
KINDS: Final = ("collective", "transport", "congestion", "shape", "fault", "check", "verb")  # with a skeleton
_NAME: Final = re.compile(r"[a-z](?:[a-z0-9-]{0,28}[a-z0-9])?")


@verb(
    group="Elsewhere",
    help={
        "what": Option("new: write the skeleton of a plugin; without a word, list all plugins", (NEW,)),
        "kind": Option("with new: the kind of its part", KINDS, listed="one of"),
        "name": Option("with new: what users type for the part: small letters, digits and -"),
        "out": Option("with new: the directory to make (default: heddle-NAME)", value="DIR"),
    },
    positional=["what", "kind", "name"],
    files_out=["out_"],
    directory_out=True,
)
def plugin(
    out: Console, what: str | None = None, kind: str | None = None, name: str | None = None, out_: str | None = None
) -> None:
    """List what plugins add to Heddle, and what is wrong with them; or write the skeleton of one.

    ./inv plugin new congestion mine writes a project with a congestion control that works, and its test.
    Exit 1 when a part cannot be used.
    """
    if what is None:
        return _list(out)
    if what != NEW:
        raise InputError(Problem("", f"./inv plugin {what}", "is not an action", did_you_mean(what, [NEW])))
    written = skeleton(kind, name, out_)
    python, there = shlex.quote(sys.executable), shlex.quote(str(written))
    tests = [f"  {python} -m pytest {there}"]
    if (root := how_installed().checkout) is not None:  # where nothing is installed that pytest could find
        start = f"PYTHONPATH={shlex.quote(str(root))} {python}"
        tests = [f"  {as_started('./inv setup extras')}", f"  {start} -m pytest -p heddle.testing.plugin {there}"]
    lines = [
        f"{written}: a plugin with a {_WORDS.get(str(kind), kind)} that works, and its test. Install it, and try it:",
        f"  {python} -m pip install {there}",
        f"  {as_started(_TRIES[str(kind)].format(name=name))}",
        *tests,
    ]
    return out.result({"directory": str(written), "kind": kind, "name": name}, "\n".join(lines))


_WORDS: Final = {"congestion": "congestion control"}
_TRIES: Final[Mapping[str, str]] = {
    "collective": "./inv run --collective {name} --fabric tiny",
    "transport": "./inv run --transport {name} --fabric tiny",
    "congestion": "./inv run --cc {name} --fabric tiny",
    "shape": "./inv up FILE --dry-run, with shape: {name} and pods: 2 in the fabric file",
    "fault": "./inv fault {name} NODE:PORT, in a running lab",
    "check": "./inv validate, in a running lab",
    "verb": "./inv {name}",
}


def _list(out: Console) -> None:
    from heddle.cli.front import tasks
    from heddle.cli.program import commands_in

    rows: dict[str, list[tuple[plugins.PluginPart, Problem | None]]] = {each: [] for each in plugins.own_plugins()}
    rows.update({each: [] for each in plugins.other_plugins()})
    for part, problem in plugins.states(commands_in(vars(tasks()))):
        rows.setdefault(part.plugin, []).append((part, problem))
    whole = [each for each in plugins.refused() if not any(each == p for some in rows.values() for _, p in some)]
    problems = [*whole, *(problem for some in rows.values() for _, problem in some if problem is not None)]
    versions = plugins.other_plugins()
    lines = [(name, versions.get(name) or "Heddle's", _parts(some)) for name, some in rows.items()]
    text = table(("plugin", "version", "parts"), lines)
    out.result(
        {
            "contract": plugins.CONTRACT,
            "plugins": [
                {
                    "name": name,
                    "version": versions.get(name),
                    "parts": [{"kind": part.kind, "name": part.name, "ok": why is None} for part, why in some],
                }
                for name, some in rows.items()
            ],
            "problems": [{"what": each.what, "why": each.why, "hint": each.hint} for each in problems],
        },
        "\n\n".join([text, *map(str, problems)]),
    )
    out.exit_code = 1 if problems else 0


def _parts(some: list[tuple[plugins.PluginPart, Problem | None]]) -> str:
    kinds: dict[str, list[str]] = {}
    for part, problem in some:
        kinds.setdefault(part.kind, []).append(part.name + (" (not used)" if problem else ""))
    return "; ".join(f"{kind} {', '.join(names)}" for kind, names in kinds.items()) or "not used"


def doctor_check() -> Check:
    """The plugins of others: their versions, or the first problem."""
    from heddle.host.doctor import Check

    others = plugins.other_plugins()
    own = many(len(plugins.own_plugins()), "plugin")
    if problems := plugins.refused():
        text = f"{problems[0].what} {problems[0].why}"
        return Check("plugins", False, text, "./inv plugin shows all parts, and what is wrong", required=False)
    text = ", ".join(f"{name} {version}".strip() for name, version in others.items())
    return Check("plugins", True, f"{own} of Heddle's own; {f'of others: {text}' if text else 'none of others'}")


def skeleton(kind: str | None, name: str | None, out: str | None = None) -> Path:
    """Write a plugin with one part. Returns its directory. InputError for a wrong word or a directory in use."""
    import jinja2

    if kind not in KINDS:
        why = "is not a kind with a skeleton" if kind else "needs a kind and a name"
        hint = did_you_mean(kind, KINDS) if kind else "./inv plugin new congestion mine"
        raise InputError(Problem("", f"./inv plugin new {kind or ''}".rstrip(), why, hint))
    if name is None or not _NAME.fullmatch(name):
        why = "is no name of a part" if name else "needs a name"
        hint = f"small letters, digits and -, at most 30, from a letter on: ./inv plugin new {kind} mine"
        raise InputError(Problem("", f"./inv plugin new {kind} {name or ''}".rstrip(), why, hint))
    if (have := _taken(kind, name)) is not None:
        raise InputError(have)
    package = f"heddle_{name.replace('-', '_')}"
    typed = out or f"heddle-{name}"
    place = real(typed)
    values = {
        "kind": kind, "name": name, "package": package, "contract": plugins.CONTRACT,
        "words": "".join(each.capitalize() for each in name.split("-")),
        "key": f"{name}/direct" if kind == "collective" else name,
        "object": {"fault": "FAULT", "check": "check", "verb": package}.get(kind, ""),
    }  # fmt: skip
    loader = jinja2.FileSystemLoader(HERE.content(TEMPLATES) / "plugin")
    render = jinja2.Environment(  # noqa: S701  (Python and TOML, no HTML)
        loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True, trim_blocks=True
    )
    files = {
        "pyproject.toml": "pyproject.toml.j2",
        "README.md": "README.md.j2",
        f"{package}/__init__.py": "init.py.j2",
        f"{package}/{kind}.py": f"{kind}.py.j2",
        f"tests/test_{package}.py": f"test_{kind}.py.j2",
    }
    files |= {"verb": {f"{package}/examples.txt": "examples.txt.j2"}, "shape": {"tests/mine.yml": "mine.yml.j2"}}.get(
        kind, {}
    )
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InputError(Problem("", typed, "exists already", "choose another directory with --out"))
    for directory in dict.fromkeys(str(Path(path).parent) for path in files):
        here = {Path(p).name: render.get_template(t).render(values) for p, t in files.items() if _in(p, directory)}
        write_texts(place / directory, here)
    return place.resolve()


def _in(path: str, directory: str) -> bool:
    return str(Path(path).parent) == directory


def _taken(kind: str, name: str) -> Problem | None:
    """The problem of a name that Heddle or a plugin has already."""
    from heddle.cli.front import tasks
    from heddle.cli.program import commands_in

    names: Any = commands_in(vars(tasks())) if kind == "verb" else resolve_name(plugins.KINDS[kind].table)
    taken = {each.partition("/")[0] for each in names} if kind == "collective" else set(names)
    if name in taken:
        return Problem("", f"{kind} {name}", "is there already", "choose another name")
    return None
