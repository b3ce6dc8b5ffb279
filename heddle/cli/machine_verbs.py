"""The verbs about this machine: doctor, setup, image; and `plugin`: what plugins add to Heddle and what is wrong with
them, and the skeleton of a new one.

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

from heddle.base import extras, plugins
from heddle.base.extras import how_installed
from heddle.base.files import real
from heddle.base.plugins import Registry, having
from heddle.base.problems import InputError, Problem, did_you_mean
from heddle.base.progname import as_started
from heddle.base.resources import HERE, TEMPLATES
from heddle.base.tables import many, table
from heddle.base.userfiles import write_texts
from heddle.cli.argv import Option
from heddle.cli.console import Console
from heddle.cli.helptexts import KUBERNETES, target_of
from heddle.cli.verbs import verb

if TYPE_CHECKING:
    from heddle.host.doctor import Check


@verb(group="Start")
def doctor(out: Console) -> None:
    """Check what this machine can run and how to fix what is missing.

    Exit code 3 when something that a fabric needs is missing. Nothing on the machine is changed.
    """
    from heddle.endpoints.rdma.verbscheck import rxe_check, verbs_check
    from heddle.host.doctor import examine
    from heddle.predict.selftest import doctor_check

    own = {"prediction": doctor_check, "rxe": rxe_check, "verbs": verbs_check, "plugins": plugins_check}
    found = examine(Registry("doctor", own, having("__call__")).usable())
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


@verb(
    group="Start",
    help={
        "what": Option(
            "containerlab; fabric: FRR and the other system packages of runtime netns; kubernetes: check a cluster; "
            "extras: the Python packages that only some verbs need",
            ("containerlab", "fabric", "kubernetes", "extras"),
        ),
        "stop": "stop the container engine that Heddle started, and do nothing else",
        "yes": "install missing packages without asking",
        **KUBERNETES,
        "out": "kubernetes: also write the manifests for an administrator into this directory",
    },
    positional=["what"],
    root=lambda typed: typed["what"] not in ("kubernetes", "extras"),
    lasting=True,
    files_in=["pod"],
    files_out=["out_"],
    directory_out=True,
)
def setup(
    out: Console,
    what: str = "containerlab",
    stop: bool = False,
    yes: bool = False,
    context: str | None = None,
    namespace: str | None = None,
    image: str | None = None,
    pull_secret: str | None = None,
    tunnel_port: int | None = None,
    pod: str | None = None,
    out_: str | None = None,
) -> None:
    """Install the missing parts of runtime containerlab: Docker, its daemon, containerlab, images.

    ./inv setup fabric installs the system packages that `up` needs without containers. ./inv setup extras installs the
    Python packages of all extras. All three ask before they install.
    ./inv setup kubernetes installs nothing: it checks what a cluster allows, by two pods, which it removes.
    """
    from heddle.host.engine import setup as engine
    from heddle.views import labtext as views

    engine.check_what(what)
    given = target_of({
        "context": context, "namespace": namespace, "image": image, "pull_secret": pull_secret,
        "tunnel_port": tunnel_port, "pod": pod,
    })  # fmt: skip
    if what == extras.KUBERNETES:
        if stop:
            raise InputError(Problem("", "--stop", "is only for containerlab", "run ./inv setup --stop"))
        return _setup_kubernetes(out, given, out_)
    if named := next(iter([*given, *(["out"] if out_ else [])]), None):
        flag = f"--{named.replace('_', '-')}"
        raise InputError(Problem("", flag, "is only for kubernetes", f"run ./inv setup kubernetes {flag} ..."))
    if what in (engine.FABRIC, engine.EXTRAS):
        if stop:
            raise InputError(Problem("", "--stop", "is only for containerlab", "run ./inv setup --stop"))
        install = engine.setup_fabric if what == engine.FABRIC else engine.setup_extras
        done = install(out.observer, yes=yes, ask=out.confirm)
        return out.result({"steps": [each.to_json() for each in done]}, views.steps_text(done))
    steps = [engine.stop_engine()] if stop else engine.setup_containerlab(out.observer, yes=yes, ask=out.confirm)
    return out.result({"steps": [each.to_json() for each in steps]}, views.steps_text(steps))


def _setup_kubernetes(out: Console, given: Mapping[str, str], directory: str | None) -> None:
    from heddle.runtimes.clusterkind import CLUSTERS

    found = CLUSTERS[extras.KUBERNETES].probe(given, out.observer)
    if directory is not None:
        write_texts(real(directory), found.files)
    out.result(found.to_json(), found.text())
    out.exit_code = 0 if found.ok else 3


@verb(
    group="Start",
    help={
        "rebuild": "build both images again, even if they exist; with --archive, the system below Heddle",
        "prune": "remove older images that nothing uses",
        "archive": Option("only write Heddle's own image to this file, for the nodes of a cluster", value="FILE"),
        "yes": "install missing system packages without asking",
    },
    files_out=["archive"],
    root=True,
    lasting=True,
)
def image(out: Console, rebuild: bool = False, prune: bool = False, archive: str = "", yes: bool = False) -> None:
    """Build the images of containerlab's nodes if they are missing, and list them.

    --archive needs no container engine: docs/install.md has the commands that load the file into a cluster.
    """
    from heddle.host.engine import images
    from heddle.views import labtext as views

    if archive:
        from heddle.base.files import real, result_name
        from heddle.host.fabricarchive import write_fabric_image

        made = write_fabric_image(real(archive), out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
        return out.result(
            {**made.to_json(), "archive": result_name(archive)},
            f"{archive}: image {made.name}, {made.bytes / 1e6:.0f} MB",
        )
    found = images.ensure_images(out.observer, rebuild=rebuild, yes=yes, ask=out.confirm)
    removed = images.prune() if prune else []
    return out.result(
        {"images": [each.to_json() for each in found], "removed": removed}, views.images_text(found, removed)
    )


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


def plugins_check() -> Check:
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
        here = [Path(path) for path in files if str(Path(path).parent) == directory]
        texts = {path.name: render.get_template(files[str(path)]).render(values) for path in here}
        write_texts(place / directory, texts)
    return place.resolve()


def _taken(kind: str, name: str) -> Problem | None:
    """The problem of a name that Heddle or a plugin has already."""
    from heddle.cli.front import tasks
    from heddle.cli.program import commands_in

    names: Any = commands_in(vars(tasks())) if kind == "verb" else resolve_name(plugins.KINDS[kind].table)
    taken = {each.partition("/")[0] for each in names} if kind == "collective" else set(names)
    if name in taken:
        return Problem("", f"{kind} {name}", "is there already", "choose another name")
    return None
