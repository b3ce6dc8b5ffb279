"""Parts that plugins add to Heddle: its own plugins, in `plugins/`, and those of other distributions.

A plugin registers each part by an entry point: the group is `heddle.KIND`, the name is what users type, and the value
names an object, `module:attribute`. A distribution of someone else also states the contract that it was written for
(docs/plugins.md), as the name of an entry point:

    [project.entry-points."heddle.contract"]
    1 = "my_package"
    [project.entry-points."heddle.congestion"]
    mine = "my_package.control:Mine"

Entry points are read once in a process: Heddle's own from its pyproject.toml, all others from the metadata of installed
distributions. Nothing is imported until a part is used. A part that cannot be used costs itself only: it is
named with the reason by `doctor` and `plugin`, and by the verb that asks for it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, Final, Generic, NamedTuple, TypeVar, cast

from heddle.base.extras import DISTRIBUTION
from heddle.base.problems import HeddleError, InputError, MachineError, Problem
from heddle.base.resources import HERE, PLUGINS

CONTRACT: Final = 1  # what plugins may rely on: docs/plugins.md, tests/golden/contract-1.txt


class PartKind(NamedTuple):
    """A kind of part. what: one of its parts, for sentences. table: the Registry that has them, `module:name`."""

    what: str
    table: str = ""


# A new kind is a line here, and the Registry of those who use its parts.
KINDS: Final[Mapping[str, PartKind]] = {
    "verb": PartKind("a verb, made by heddle.cli.verbs.verb"),
    "shape": PartKind("a shape of fabrics: a subclass of heddle.spec.schema.FabricSpec", "heddle.spec.shapes:SHAPES"),
    "collective": PartKind(
        "a collective: a subclass of heddle.traffic.collectives.Pattern", "heddle.traffic.collectives:COLLECTIVES"
    ),
    "transport": PartKind(
        "a transport: a subclass of heddle.endpoints.transports.protocol.Transport",
        "heddle.endpoints.transports:TRANSPORTS",
    ),
    "congestion": PartKind(
        "a congestion control: heddle.endpoints.congestion.ratecontrol.Congestion",
        "heddle.endpoints.congestion.controlled:CONTROLLERS",
    ),
    "fault": PartKind(
        "a kind of fault: an instance of heddle.lab.faults.kind.NamedFault", "heddle.lab.faults.registry:KINDS"
    ),
    "control": PartKind(
        "a value of `routing.control`: an instance of heddle.lab.control.ControlPlane", "heddle.lab.control:CONTROLS"
    ),
    "fact": PartKind("a fact of running labs: heddle.lab.facts.FactKind", "heddle.lab.facts:FACTS"),
    "check": PartKind("a check of `validate`: a function of a lab's Subject", "heddle.checks.validate:CHECKS"),
    "export": PartKind("a format of `export`: heddle.runs.exports.Export", "heddle.runs.exports:EXPORTS"),
    "topology": PartKind(
        "a format of `render --kind`: a function of LoadedFabric that returns a file's name and its text",
        "heddle.render.render:TOPOLOGIES",
    ),
    "scheduler": PartKind("a placement of `simulate`: a function of a Ground, free NICs, ranks and a Generator"),
    "trace": PartKind("a format of traces, by the end of its files: a function", "heddle.traffic.traces:FORMATS"),
    "section": PartKind("a section of a run in the report: a Section", "heddle.views.report.page:SECTIONS"),
    "figure": PartKind("a figure of a run: heddle.runs.figures.Figure", "heddle.runs.figures:FIGURES"),
    "measure": PartKind("a measure of experiments: an instance of heddle.runs.measuring.Measure"),
    "change": PartKind("a live change of a lab for a run of an experiment, by its key: a function"),
    "runtime": PartKind("a runtime: heddle.runtimes.registry.Runtime", "heddle.runtimes.registry:RUNTIMES"),
    "cluster": PartKind(
        "a kind of cluster: heddle.runtimes.clusterkind.ClusterKind", "heddle.runtimes.clusterkind:CLUSTERS"
    ),
    "shardcall": PartKind("a function that agents of shards may call"),
    "place": PartKind("a kind of place: a function of the text of --on", "heddle.places.choice:KINDS"),
    "doctor": PartKind("a row of `doctor`: a function that returns heddle.host.doctor.Check"),
    "call": PartKind("a function that other parts call by its name"),
    "module": PartKind("a module under a name of `heddle`"),
}
_PROJECT: Final = "pyproject.toml"
_PREFIX: Final = "heddle."
_CONTRACT_KIND: Final = "contract"
_BY_SIGNALS: Final = (129, 130, 143)  # SIGHUP, SIGINT, SIGTERM end the verb (cli/endings.py)
_MOST_BYTES: Final = 1 << 18  # of a distribution's entry points
_SECTION: Final = re.compile(r"\[\s*(.+?)\s*\]")
_LINE: Final = re.compile(
    r"""["']?(?P<name>[^"'=]+?)["']?\s*=\s*["']?(?P<target>[^"'\s#]+)["']?\s*(?:\[.*\])?(?:#.*)?"""
)
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_.+/-]{0,39}")
_TARGET: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")
Entry = TypeVar("Entry")


@dataclass(frozen=True, slots=True)
class PluginPart:
    """One part. plugin: of Heddle's own the folder in plugins/, else the distribution. version: of the distribution."""

    kind: str
    name: str
    target: str
    plugin: str
    version: str = ""

    @property
    def own(self) -> bool:
        """Whether it is Heddle's."""
        return self.target.startswith(f"{PLUGINS}.")

    @property
    def text(self) -> str:
        """`plugin ring 0.3`, for sentences."""
        return f"the plugin {self.plugin}{f' {self.version}' if self.version else ''}"

    def problem(self, why: str, hint: str) -> Problem:
        """What a user reads who asks for this part, when it cannot be used."""
        return Problem("", f"{self.kind} {self.name}", f"is a part of {self.text}, which {why}", hint)

    def load(self) -> Any:
        """The object of the part; InputError with the reason when there is none."""
        return _loaded(self)


@dataclass(frozen=True, slots=True)
class Refused:
    """A part that is not used, or a whole distribution (part is None)."""

    plugin: str
    problem: Problem
    part: PluginPart | None = None


@dataclass(slots=True)
class _Found:
    """kind -> name -> its part; and what is refused."""

    parts: dict[str, dict[str, PluginPart]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    refused: list[Refused] = field(default_factory=list)
    others: dict[str, str] = field(default_factory=dict)  # distribution -> version

    def add(self, part: PluginPart) -> None:
        """Add a part; of two with one name neither is used, and both are named, but Heddle's own stays."""
        before = self.parts[part.kind].get(part.name)
        if before is None and not any(_same(each.part, part) for each in self.refused):
            self.parts[part.kind][part.name] = part
        elif before is not None and before.own:
            self.refuse(part, f"uses a name that {before.text} has", "rename that part")
        else:
            other = before or next(each.part for each in self.refused if each.part and _same(each.part, part))
            self.parts[part.kind].pop(part.name, None)
            for one, two in ((other, part), (part, other)):
                if not any(each.part == one for each in self.refused):
                    self.refuse(one, f"registers a name that {two.text} registers, too", "remove one of the two")

    def refuse(self, part: PluginPart, why: str, hint: str) -> None:
        """Note a part that is not used."""
        self.refused.append(Refused(part.plugin, part.problem(why, hint), part))


def _same(one: PluginPart | None, two: PluginPart) -> bool:
    return one is not None and (one.kind, one.name) == (two.kind, two.name)


def parts(kind: str) -> Mapping[str, PluginPart]:
    """The parts of a kind that plugins register, by name, without those of folders that are not here."""
    return {name: part for name, part in _found().parts[kind].items() if not part.own or _there(part.plugin)}


def missing(kind: str, name: str) -> Problem | None:
    """Why a name that a plugin registers is no part: the plugin is not here, or is refused; None for other names."""
    part = _found().parts[kind].get(name)
    if part is not None and part.own and not _there(part.plugin):
        return part.problem("is not in this installation", "install Heddle again, or use a complete checkout")
    found = [
        each.problem for each in _found().refused if each.part and (each.part.kind, each.part.name) == (kind, name)
    ]
    return found[0] if found else None


def function(name: str, needed_by: str) -> Callable[..., Any]:
    """A part of kind `call`. needed_by: what the user asked for, named in the InputError when the part is not here."""
    if (problem := missing("call", name)) is not None:
        raise InputError(replace(problem, what=needed_by))
    return cast(Callable[..., Any], parts("call")[name].load())


def refused() -> list[Problem]:
    """Why parts, or all of a distribution, cannot be used, as far as it is known without an import."""
    return [each.problem for each in _found().refused]


def states(verbs: Registry[Any]) -> Iterator[tuple[PluginPart, Problem | None]]:
    """Every part that plugins register, and why it cannot be used; those of others are loaded. verbs: that table."""
    for kind in KINDS:
        for name, part in parts(kind).items():
            problem = None
            if not part.own:
                try:
                    table = verbs if kind == "verb" else resolve_name(KINDS[kind].table) if KINDS[kind].table else None
                    if table is not None and name in table.core:
                        problem = part.problem("uses a name of Heddle's core", "rename that part")
                    else:
                        part.load() if table is None else table[name]
                except InputError as error:
                    problem = error.problems[0]
            yield part, problem
    yield from ((each.part, each.problem) for each in _found().refused if each.part is not None)


def own_plugins() -> list[str]:
    """The folders of Heddle's own plugins that are in this installation."""
    return sorted({each.plugin for kind in KINDS for each in parts(kind).values() if each.own})


def other_plugins() -> Mapping[str, str]:
    """Distributions of others that register parts or try to -> their versions."""
    return _found().others


def folder(plugin: str) -> Path:
    """The directory of one of Heddle's own plugins."""
    return HERE.plugins / plugin


@cache
def _there(plugin: str) -> bool:
    return (folder(plugin) / "__init__.py").is_file()


@cache
def _found() -> _Found:
    found = _Found()
    own = HERE.root / _PROJECT
    _read(found, _text(str(own)), "project.entry-points.", DISTRIBUTION, "")
    if not any(found.parts.values()):
        why = "names none of Heddle's own plugins"
        found.refused.append(
            Refused("", Problem("", str(own), why, "install Heddle again, or use a complete checkout"))
        )
    for name, version, text in _distributions():
        _read(found, text, "", name, version)
    return found


def _distributions() -> Iterator[tuple[str, str, str]]:
    """Name, version and entry points of each installed distribution that registers parts, without Heddle's own."""
    rows: dict[str, tuple[str, str, str]] = {}
    for place in dict.fromkeys(sys.path):
        try:
            entries = [each.path for each in os.scandir(place or ".") if each.name.endswith(".dist-info")]
        except OSError:
            continue
        for path in sorted(entries):
            text = _text(f"{path}/entry_points.txt")
            name, _, version = Path(path).name.removesuffix(".dist-info").partition("-")
            name = re.sub(r"[-_.]+", "-", name).lower()
            if f"[{_PREFIX}" in text:
                rows.setdefault(name, (name, version, text))
    rows.pop(DISTRIBUTION, None)
    return iter(rows.values())


def _text(path: str) -> str:
    """The text of a small regular file; empty for anything else."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116  (a Path for each distribution takes longer)
            return ""
        with open(path, "rb") as file:  # noqa: PTH123
            return file.read(_MOST_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def _read(found: _Found, text: str, before: str, name: str, version: str) -> None:
    """Add the parts that a distribution registers, if it states this contract. before: the start of its sections."""
    rows = list[tuple[str, str, str]]()
    kind = ""
    for line in text.splitlines():
        if section := _SECTION.fullmatch(line.split(" #")[0].strip()):
            inner = section[1].removeprefix(before).strip("\"'") if section[1].startswith(before) else ""
            kind = inner.removeprefix(_PREFIX) if inner.startswith(_PREFIX) else ""
        elif kind and (words := _LINE.fullmatch(line.strip())):
            rows.append((kind, words["name"].strip(), words["target"]))
    stated = [key for kind, key, _ in rows if kind == _CONTRACT_KIND]
    if name != DISTRIBUTION:
        found.others[name] = version
        if why := _contract_problem(stated):
            found.refused.append(Refused(name, Problem("", f"plugin {name} {version}".strip(), *why)))
            return
    for kind, key, target in (row for row in rows if row[0] != _CONTRACT_KIND):
        own = name == DISTRIBUTION
        part = PluginPart(kind, key, target, re.split("[.:]", target)[1] if own else name, version if not own else "")
        if kind not in KINDS:
            hint = f"the kinds are {', '.join(KINDS)}"
            found.refuse(part, f"registers {key!r} as a part of the unknown kind {kind!r}", hint)
        elif not _NAME.fullmatch(key) or not _TARGET.fullmatch(target):
            hint = "names have small letters, digits and - (40 at most); the value is module:attribute"
            found.refuse(part, f"registers it by a wrong name or value: {key} = {target}", hint)
        elif not own and target.startswith((f"{PLUGINS}.", "heddle.")):
            found.refuse(part, f"names an object of Heddle itself, {target}", "name an object of the plugin's own")
        else:
            found.add(part)


def _contract_problem(stated: list[str]) -> tuple[str, str] | None:
    hint = f'an entry point "{CONTRACT}" in the group {_PREFIX}{_CONTRACT_KIND} (docs/plugins.md)'
    if not stated:
        return "does not say for which contract it was written", f"its author adds {hint}"
    if str(CONTRACT) in stated:
        return None
    numbers = [int(each) for each in stated if each.isdecimal() and len(each) < 5]
    if numbers and min(numbers) > CONTRACT:
        why = f"was written for contract {min(numbers)}, which is newer: this Heddle has contract {CONTRACT}"
        return why, "install a newer Heddle, or an older version of the plugin"
    return (
        f"was written for contract {', '.join(stated)[:40]}; this Heddle has {CONTRACT}",
        "install a newer version of it",
    )


def _loaded(part: PluginPart) -> Any:
    if part.own:
        return resolve_name(part.target)
    found, problem = _examined(part)
    if problem is not None:
        raise InputError(problem)
    return found


@cache
def _examined(part: PluginPart) -> tuple[Any, Problem | None]:
    """The object of a stranger's part, or why there is none: each module runs once."""
    module, _, attribute = part.target.partition(":")
    said = io.StringIO()
    hint = f"report it to the author of {part.plugin}, or uninstall it"
    try:
        with contextlib.redirect_stdout(said):
            found: Any = import_module(module)
        for name in attribute.split("."):
            found = getattr(found, name)
    except ModuleNotFoundError as error:
        name = error.name or "?"
        if name == module or module.startswith(f"{name}."):
            return None, part.problem(f"has no module {name}", hint)
        why = f"needs the Python package {name.partition('.')[0]}, which is not installed"
        return None, part.problem(why, "install it")
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever a stranger's module raises, SystemExit too
        if isinstance(error, SystemExit) and error.code in _BY_SIGNALS:
            raise
        if module in sys.modules:
            return None, part.problem(f"has no {part.target}", hint)
        why = f"cannot be imported: {type(error).__name__}: {first_line(error)}"
        return None, part.problem(why.rstrip(": "), hint)
    if text := said.getvalue().strip():
        why = f"writes to stdout when it is imported: {text.splitlines()[0][:60]!r}"
        return None, part.problem(why, hint)
    return found, None


def plugin_of(error: BaseException) -> str:
    """The distribution of someone else whose code raised an exception; empty if none of its modules did."""
    others = (part for rows in _found().parts.values() for part in rows.values() if not part.own)
    owners = {part.target.partition(":")[0].partition(".")[0]: part.plugin for part in others}
    found, trace = "", error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).partition(".")[0]
        found, trace = owners.get(package, found), trace.tb_next
    return found


def first_line(error: BaseException) -> str:
    """The first line of what an exception of a stranger's code says, whatever it is."""
    try:
        if isinstance(error, HeddleError) and error.problems:
            return str(error.problems[0])
        return (str(error).strip().splitlines() or [""])[0][:200]
    except BaseException:  # its __str__ raises
        return ""


def having(*attributes: str) -> Callable[[str, Any], str]:
    """For Registry: an object must have these attributes."""

    def fits(_: str, found: Any) -> str:
        lost = next((each for each in attributes if not hasattr(found, each)), None)
        return "" if lost is None else f"it has no `{lost}`"

    return fits


def alias(name: str) -> ModuleType:
    """The module that a plugin registers for a name of the core, `heddle.testing`; ImportError without it."""
    key = name.removeprefix(_PREFIX)
    part = parts("module").get(key)
    if part is None:
        problem = missing("module", key)
        raise ImportError(f"{name}: no plugin has it" if problem is None else str(problem))
    return import_module(part.target.partition(":")[0])


class Registry(Mapping[str, Entry], Generic[Entry]):
    """The parts of one kind: those of the core, then those of plugins, each loaded when it is asked for.

    kind: of KINDS. own: the core's. fits: the class that a plugin's object must be an instance of, or a subclass where
    `classes` is true; or a function of name and object: what is wrong, empty if nothing. made: the part of the object.
    Raises InputError for a part that cannot be used; names of such parts are listed like all others, `values` and
    `items` leave them out.
    """

    def __init__(
        self,
        kind: str,
        own: dict[str, Entry],
        fits: type | Callable[[str, Any], str] | None = None,
        *,
        classes: bool = False,
        made: Callable[[Any], Entry] | None = None,
    ) -> None:
        self.kind, self.core = kind, own
        self._fits, self._classes, self._made = fits, classes, made
        self._used: dict[str, Entry] = {}

    def __getitem__(self, name: str) -> Entry:
        if name in self.core:
            return self.core[name]
        if name not in self._used:
            part = parts(self.kind).get(name)
            if part is None:
                if (problem := missing(self.kind, name)) is not None:
                    raise InputError(problem)
                raise KeyError(name)
            found = part.load()
            if not part.own and (wrong := self._wrong(name, found)):
                hint = f"it must be {KINDS[self.kind].what}"
                raise InputError(part.problem(f"registers an object that does not fit: {wrong}", hint))
            self._used[name] = found if self._made is None else self._made(found)
        return self._used[name]

    def __iter__(self) -> Iterator[str]:
        yield from self.core
        yield from (name for name in parts(self.kind) if name not in self.core)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __contains__(self, name: object) -> bool:
        return name in self.core or name in parts(self.kind) or (isinstance(name, str) and self.lost(name))

    def lost(self, name: str) -> bool:
        """Whether a plugin that cannot be used registers the name: to ask for it gives the reason."""
        return name not in self.core and missing(self.kind, name) is not None

    def usable_one(self, name: str) -> Entry | None:
        """The part of that name; None where there is none, or it cannot be used."""
        with contextlib.suppress(InputError, MachineError, KeyError):
            return self[name]
        return None

    def absent(self) -> list[str]:
        """Names of Heddle's own parts that are not in this installation: to ask for one gives the reason."""
        return [name for name, part in _found().parts[self.kind].items() if part.own and not _there(part.plugin)]

    def usable(self) -> dict[str, Entry]:
        """Every part that can be used; each of the others is left out."""
        found = {}
        for name in self:
            with contextlib.suppress(InputError, MachineError):
                found[name] = self[name]
        return found

    def values(self) -> Any:
        """Every part that can be used."""
        return self.usable().values()

    def items(self) -> Any:
        """Every part that can be used, with its name."""
        return self.usable().items()

    def _wrong(self, name: str, found: Any) -> str:
        if self._fits is None:
            return ""
        if not isinstance(self._fits, type):
            return self._fits(name, found)
        if self._classes:
            fit = isinstance(found, type) and issubclass(found, self._fits)
        else:
            fit = isinstance(found, self._fits)
        return "" if fit else f"{type(found).__name__} {getattr(found, '__name__', '')}".strip()
