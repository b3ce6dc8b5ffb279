"""The possible values of a verb's parameters, for completion and for `--help`.

In:  a verb, one of its parameters, and the words before the cursor: they name the lab or the fabric.
Out: words; none for free values. An unreadable lab or file offers nothing, because completion cannot show errors.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from heddle.base.problems import HeddleError
from heddle.cli.argv import Parameter, Verb

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric, Node

# Parameters that accept several words with commas.
LISTS: Final = frozenset({"down", "drain", "host", "node", "placement", "port", "switch"})
_FABRIC_FLAGS: Final = ("--fabric", "--predict")


@dataclass(frozen=True, slots=True)
class Typed:
    """A word to complete. before: the words after the verb; last: the typed part of it."""

    verb: Verb
    parameter: Parameter
    before: Sequence[str]
    last: str

    def value_of(self, *flags: str) -> str:
        """The typed value of a flag, or an empty text."""
        for at, word in enumerate(self.before):
            name, equals, value = word.partition("=")
            if name in flags:
                return value if equals else "".join(self.before[at + 1 : at + 2])
        return ""


def offered(typed: Typed) -> list[str]:
    """The values; a shell filters them by the typed part."""
    verb, word = typed.verb.name, typed.parameter.word
    make = _OF_VERBS.get((verb, word)) or _OF_LAB.get(word)
    with suppress(HeddleError):
        if make is not None:
            return make(typed)
        return _KNOWN[word]() if word in _KNOWN else []
    return []


def _presets() -> list[str]:
    from heddle.spec.load import presets

    return presets()


def _runtimes() -> list[str]:
    from heddle.runtimes.registry import RUNTIMES

    return list(RUNTIMES)


def _dialects() -> list[str]:
    from heddle.render.dialects import DIALECTS

    return list(DIALECTS)


def _mgmts() -> list[str]:
    from heddle.render.dialects import MGMTS

    return list(MGMTS)


def _kinds() -> list[str]:
    from heddle.views.graph import KINDS

    return list(KINDS)


def _modes() -> list[str]:
    from heddle.fabric.hashmodes import MODES

    return list(MODES)


def _collectives() -> list[str]:
    from heddle.traffic.collectives import patterns

    return list(dict.fromkeys(collective for collective, _ in patterns()))


def _algorithms() -> list[str]:
    from heddle.traffic.collectives import patterns

    return list(dict.fromkeys(algorithm for _, algorithm in patterns()))


def _algorithms_of(typed: Typed) -> list[str]:
    """The algorithms of the typed collective."""
    from heddle.traffic.collectives import patterns

    wanted = typed.value_of("--collective") or "all-reduce"
    return [algorithm for collective, algorithm in patterns() if collective == wanted]


def _congestion_controls() -> list[str]:
    from heddle.endpoints.congestion.controlled import CONTROLLERS

    return ["none", *CONTROLLERS]


def _congestion_settings() -> list[str]:
    from heddle.endpoints.congestion.controlled import CONTROLLERS

    return list(dict.fromkeys(f"{each.name}=" for kind in CONTROLLERS.values() for each in kind.tunables))


def _admission_settings() -> list[str]:
    from heddle.traffic.admission import ADMISSION_TUNABLES

    return [f"{each.name}=" for each in ADMISSION_TUNABLES]


def _transports() -> list[str]:
    from heddle.endpoints.transports import TRANSPORTS

    return list(TRANSPORTS)


def _qp_modes() -> list[str]:
    from heddle.traffic.options import QpMode

    return list(typing.get_args(QpMode))


def _recoveries() -> list[str]:
    from heddle.traffic.options import Recovery

    return list(typing.get_args(Recovery))


def _plans() -> list[str]:
    from heddle.forecast.planfile import plan_words, plans

    return [*plan_words(), *plans()]


def _filters() -> list[str]:
    from heddle.lab.capture import FILTERS

    return list(FILTERS)


def _replays() -> list[str]:
    from heddle.places.vm.replayscript import scripts

    return scripts()


def _suites() -> list[str]:
    from heddle.cli.test_verb import SUITES

    return [*SUITES, "all"]


def _terms() -> list[str]:
    from heddle.cli.glossary import glossary

    return [entry.word for entry in glossary()]


def _labs() -> list[str]:
    from heddle.base.state import labs

    return list(labs())


def _labs_named(typed: Typed) -> list[str]:
    """The lab that is already typed, with its flag or as a word; else all labs."""
    known = _labs()
    words = typed.before
    takes_word = any(parameter.word == "lab" for parameter in typed.verb.positionals)
    for before, word in zip(["", *words], words, strict=False):
        name = word.removeprefix("--lab=")
        if name in known and (before == "--lab" or name != word or (takes_word and not before.startswith("-"))):
            return [name]
    return known


def _runs(typed: Typed) -> list[str]:
    from heddle.runs.store import LAST, History

    ids = {each for lab in _labs_named(typed) for each in History.named(lab).ids()}
    return [*sorted(ids, key=int), LAST] if ids else []


def _fabrics_meant(typed: Typed) -> Iterator[Fabric]:
    """The typed fabric, or the fabrics of the possible labs."""
    if name := typed.value_of(*_FABRIC_FLAGS):
        from heddle.fabric.fabricfile import load_fabric

        yield load_fabric(name).fabric
        return
    from heddle.base.state import read_record
    from heddle.lab.opening import reopened

    for lab in _labs_named(typed):
        with suppress(HeddleError):
            if record := read_record(lab):
                yield reopened(record).fabric


def _nodes(typed: Typed, chosen: Callable[[Fabric], Sequence[Node]]) -> list[str]:
    return list(dict.fromkeys(node.name for fabric in _fabrics_meant(typed) for node in chosen(fabric)))


def _every_node(typed: Typed) -> list[str]:
    return _nodes(typed, lambda fabric: fabric.nodes)


def _switches(typed: Typed) -> list[str]:
    return _nodes(typed, lambda fabric: fabric.switches)


def _hosts(typed: Typed) -> list[str]:
    return _nodes(typed, lambda fabric: fabric.hosts)


def _ports(typed: Typed) -> list[str]:
    """Nodes; and ports, when only one node matches."""
    return _with_ports(typed, lambda fabric: fabric.nodes)


def _nics(typed: Typed) -> list[str]:
    return _with_ports(typed, lambda fabric: fabric.hosts)


def _with_ports(typed: Typed, chosen: Callable[[Fabric], Sequence[Node]]) -> list[str]:
    nodes = [node for fabric in _fabrics_meant(typed) for node in chosen(fabric)]
    start, colon, _ = typed.last.partition(":")
    meant = [node for node in nodes if (node.name == start if colon else node.name.startswith(start))]
    ports = [port.ref for node in meant for port in node.ports] if len(meant) == 1 or colon else []
    return list(dict.fromkeys([*([] if colon else (node.name for node in meant)), *ports]))


def _placements(typed: Typed) -> list[str]:
    return ["block", "cyclic", *_hosts(typed)]


def _settings() -> list[str]:
    """Keys of `queues set`: those that can change in a running lab."""
    from heddle.lab.requeue import LIVE
    from heddle.spec.queuespec import QueuesSpec
    from heddle.spec.shapes import SHAPES
    from heddle.spec.wording import paths_of

    words = dict.fromkeys(word for spec in SHAPES.values() for word in spec.levels)
    paths = [path for path in paths_of(QueuesSpec) if path != "buffer.switch"]  # `buffer` is the same
    paths += [f"buffer.{word}" for word in words]
    groups = {path.rpartition(".")[0] for path in paths} | {"ecn.classes"}
    groups -= {"buffer"}  # it also accepts one size for all switches
    return [f"{path}=" for path in paths if path.startswith(LIVE) and path not in groups]


def _file_settings(typed: Typed) -> list[str]:
    """Keys of a fabric file; after `key=` its values, if they are a list of words."""
    from heddle.spec.shapes import SHAPES
    from heddle.spec.wording import paths_of

    key, equals, _ = typed.last.partition("=")
    if equals:
        return [f"{key}={each}" for each in dict.fromkeys(v for spec in SHAPES.values() for v in _values(spec, key))]
    paths = dict.fromkeys(path for spec in SHAPES.values() for path in paths_of(spec))
    groups = {path.rpartition(".")[0] for path in paths}
    return [f"{path}=" for path in paths if path not in groups]


def _values(model: Any, path: str) -> list[str]:
    """The words that a key of a pydantic model accepts; none for a number or a free text."""
    first, _, rest = path.partition(".")
    field = model.model_fields.get(first) if hasattr(model, "model_fields") else None
    if field is None:
        return []
    options = [field.annotation, *typing.get_args(field.annotation)]
    if rest:
        return next((found for each in options if (found := _values(each, rest))), [])
    if bool in options:
        return ["true", "false"]
    literals = [each for each in options if typing.get_origin(each) is typing.Literal]
    return [str(word) for each in literals for word in typing.get_args(each)]


_KNOWN: Final[Mapping[str, Callable[[], list[str]]]] = {
    "action": lambda: ["set", "reset"],
    "admission": lambda: ["on", "off"],
    "admission-set": _admission_settings,
    "algorithm": _algorithms,
    "cc": _congestion_controls,
    "cc-set": _congestion_settings,
    "collective": _collectives,
    "cts-class": lambda: ["control", "data"],
    "dcqcn": lambda: ["on", "off"],
    "dialect": _dialects,
    "fabric": _presets,
    "fastpath": lambda: ["auto", "on", "off"],
    "filter": _filters,
    "format": lambda: ["text", "json"],
    "kind": _kinds,
    "lab": _labs,
    "mgmt": _mgmts,
    "mode": _modes,
    "place": lambda: ["here"],
    "plan": _plans,
    "predict": _presets,
    "qp-mode": _qp_modes,
    "recovery": _recoveries,
    "runtime": _runtimes,
    "setting": _settings,
    "split": lambda: ["auto"],
    "sport": lambda: ["qpn", "own-qpn", "rxe", "fixed", "fixed:", "list:"],
    "suite": _suites,
    "term": _terms,
    "transport": _transports,
}
# Words that depend on the lab or fabric.
_OF_LAB: Final[Mapping[str, Callable[[Typed], list[str]]]] = {
    "drain": _switches,
    "down": _ports,
    "host": _nics,
    "node": _every_node,
    "placement": _placements,
    "port": _ports,
    "run": _runs,
    "set": _file_settings,
    "switch": _switches,
}
_OF_VERBS: Final[Mapping[tuple[str, str], Callable[[Typed], list[str]]]] = {
    ("run", "algorithm"): _algorithms_of,
    ("runs", "remove"): _runs,
    ("report", "runs"): _runs,
    ("compare", "a"): _runs,
    ("compare", "b"): _runs,
    ("hashing", "set"): lambda _: _hash_settings(),
    ("lab", "action"): lambda _: _lab_actions(),
    ("lab", "what"): lambda _: _unit_words(),
    ("replay", "script"): lambda _: _replays(),
    ("plot", "what"): lambda _: ["queues", "marking"],
    ("setup", "what"): lambda _: ["containerlab"],
}


def _lab_actions() -> list[str]:
    from heddle.cli.lab_verb import ACTIONS

    return list(ACTIONS)


def _unit_words() -> list[str]:
    from heddle.workshop.catalogue import unit_ids

    return unit_ids()


def _hash_settings() -> list[str]:
    """Keys of `hashing --set`: those of routing.hash, and two of routing."""
    from heddle.spec.routingspec import HashSpec
    from heddle.spec.wording import paths_of

    paths = list(paths_of(HashSpec))
    groups = {path.rpartition(".")[0] for path in paths}
    return [f"{path}=" for path in (*paths, "seed", "resilient") if path not in groups]


# Texts of `--help` before lists of words that can be extended.
_LISTED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("algorithm", "collective", "mode", "transport"), "one of"),
    **dict.fromkeys(("fabric", "predict"), "presets:"),
}


def listed(parameter: Parameter) -> str:
    """`; one of all-reduce, all-to-all, incast`: added to the help of a parameter whose words are a list."""
    word = parameter.word
    return f"; {_LISTED[word]} {', '.join(_KNOWN[word]())}" if word in _LISTED else ""
