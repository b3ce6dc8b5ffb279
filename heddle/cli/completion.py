"""Completion: the candidates for the word under the cursor, and the shells' scripts that request them.

In:  the words typed so far: first the program's name, last the word under the cursor (empty after a space).
Out: candidates; none for a file or a free word, so that the shell offers files. Values may depend on what is typed: on
the lab, the fabric or the word itself. An unreadable lab or file offers nothing, because completion cannot show errors.
"""

from __future__ import annotations

import typing
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from heddle.base import resources
from heddle.base.problems import HeddleError
from heddle.base.progname import INSTALLED, program
from heddle.cli import nccltests
from heddle.cli.argv import Parameter, Typed, Verb
from heddle.cli.oldnames import present_name
from heddle.spec.impairments import OUTAGES

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.fabric.wiring import Node

SHELLS: Final = ("bash", "zsh", "fish")


def script(shell: str) -> str:
    """A shell's completion script for the program's name (see heddle/base/progname.py).

    It runs the program that the user types: ./inv is not in PATH.
    """
    text = (resources.HERE.content("templates") / "completion" / f"complete.{shell}").read_text(encoding="utf-8")
    if program() == INSTALLED:
        text = text.replace("inv ./inv", INSTALLED).replace("--command inv", f"--command {INSTALLED}")
        text = text.replace("_complete_inv", f"_complete_{INSTALLED}")
    return text


def candidates(words: Sequence[str], verbs: Mapping[str, Verb], core: Sequence[str]) -> list[str]:
    """Candidates for the last word. core: flags of ./inv itself."""
    *before, last = list(words[1:]) or [""]
    if not before or before == ["help"]:
        return list(core) if last.startswith("-") else list(verbs)
    verb = None
    with suppress(HeddleError):  # of a plugin that cannot be used
        verb = verbs.get(present_name(before[0], verbs, noted=False))
    if verb is None or before[-1] in ("--help", "-h"):
        return ["all"] if verb is not None and verb.name in nccltests.VERBS else []
    waiting = verb.positionals
    value_of: Parameter | None = None
    for word in before[1:]:
        if value_of is not None:
            value_of = None
        elif word.startswith("-") and word != "--":
            flag = verb.flags.get(present_name(word, verb.flags, noted=False))
            value_of = flag if flag is not None and flag.kind != "bool" else None
        elif not waiting or waiting[0].kind != "list":
            waiting = waiting[1:]
        if word == "--" or (verb.rest_after_positionals and not waiting):
            return []  # words of pytest, or of a command in a node
    name, equals, text = last.partition("=")
    flag = verb.flags.get(present_name(name, verb.flags, noted=False))
    if value_of is None and equals and flag is not None:
        return [f"{name}={each}" for each in _values(verb, flag, before[1:], text)]
    if value_of is None and last.startswith("-"):
        return sorted(verb.flags)
    wanted = value_of or next(iter(waiting), verb.lab)
    return _values(verb, wanted, before[1:], last) if wanted is not None else []


def _values(verb: Verb, wanted: Parameter, before: Sequence[str], last: str) -> list[str]:
    """Values of a parameter; a shell filters them by the typed part."""
    with suppress(HeddleError):
        return wanted.option.offered(Typed(verb, wanted, before, last))
    return []


def workloads(_: Typed) -> list[str]:
    """Words for a workload, and names of files in traffic/."""
    from heddle.endpoints.workloadfile import workload_words, workloads

    return [*workload_words(), *workloads()]


def _labs_named(typed: Typed) -> list[str]:
    """The lab that is already typed, with its flag or as a word; else all labs."""
    from heddle.base.state import labs

    known = list(labs())
    words = typed.before
    takes_word = any(parameter.word == "lab" for parameter in typed.verb.parameters)
    for before, word in zip(["", *words], words, strict=False):
        name = word.removeprefix("--lab=")
        if name in known and (before == "--lab" or name != word or (takes_word and not before.startswith("-"))):
            return [name]
    return known


def runs(typed: Typed) -> list[str]:
    """IDs of the kept runs, and `last`."""
    from heddle.runs.store import LAST, History

    ids = {each for lab in _labs_named(typed) for each in History.named(lab).ids()}
    return [*sorted(ids, key=int), LAST] if ids else []


def _fabric_typed(typed: Typed) -> str:
    """The value of --fabric, or the first word of a verb that takes a fabric there; empty when neither is typed."""
    placed = [p.word for p in typed.verb.positionals][:1] == ["fabric"]
    first = next((word for word in typed.before if placed and not word.startswith("-")), "")
    return typed.value_of("--fabric") or first


def _fabrics_meant(typed: Typed) -> Iterator[Fabric]:
    if name := _fabric_typed(typed):
        from heddle.fabric.fabricfile import load_fabric

        yield load_fabric(name).fabric
        return
    from heddle.base.state import read_record
    from heddle.lab.opening import reopened

    for lab in _labs_named(typed):
        with suppress(HeddleError):
            if record := read_record(lab):
                yield reopened(record).fabric


def nodes(typed: Typed) -> list[str]:
    """Switches and hosts."""
    return _further(typed, (node.name for fabric in _fabrics_meant(typed) for node in fabric.nodes))


def switches(typed: Typed) -> list[str]:
    """Switches only."""
    return _further(typed, (node.name for fabric in _fabrics_meant(typed) for node in fabric.switches))


def placements(typed: Typed) -> list[str]:
    """Words for an order of ranks, and hosts."""
    from heddle.traffic.placement import placement_words

    hosts = (node.name for fabric in _fabrics_meant(typed) for node in fabric.hosts)
    return _further(typed, [*placement_words(), *hosts])


def ports(typed: Typed) -> list[str]:
    """Nodes; and ports, when only one node matches."""
    return _with_ports(typed, [node for fabric in _fabrics_meant(typed) for node in fabric.nodes])


def fault_words(typed: Typed) -> list[str]:
    """Actions of `fault`, and ports."""
    from heddle.lab.faults.registry import KEYS

    return [*dict.fromkeys((*OUTAGES, *KEYS)), "list", "clear", *ports(typed)]


def ports_or_switches(typed: Typed) -> list[str]:
    """Switches or hosts after a kind of fault that is for these, else ports."""
    from heddle.lab.faults.registry import KINDS

    of = {kind.at for name, kind in KINDS.items() if name in typed.before}
    if "host" in of:
        return _further(typed, (node.name for fabric in _fabrics_meant(typed) for node in fabric.hosts))
    return switches(typed) if "switch" in of or "undrain" in typed.before else ports(typed)


def nics(typed: Typed) -> list[str]:
    """Hosts; and NICs, when only one host matches."""
    return _with_ports(typed, [node for fabric in _fabrics_meant(typed) for node in fabric.hosts])


def _with_ports(typed: Typed, nodes: Sequence[Node]) -> list[str]:
    start, colon, _ = typed.last.rpartition(",")[2].partition(":")
    meant = [node for node in nodes if (node.name == start if colon else node.name.startswith(start))]
    ports = [port.ref for node in meant for port in node.ports] if len(meant) == 1 or colon else []
    return _further(typed, [*([] if colon else (node.name for node in meant)), *ports])


def _further(typed: Typed, words: Iterable[str]) -> list[str]:
    """Each word once, after the words with commas that are already typed."""
    head, comma, _ = typed.last.rpartition(",")
    return [f"{head}{comma}{each}" for each in dict.fromkeys(words)]


def queue_settings(_: Typed) -> list[str]:
    """Keys of `queues set`: those that can change in a running lab."""
    from heddle.lab.thresholds import LIVE
    from heddle.spec.groups import group_of
    from heddle.spec.queuepolicy import QueuePolicy
    from heddle.spec.shapes import SHAPES
    from heddle.spec.wording import paths_of

    words = dict.fromkeys(word for spec in SHAPES.values() for word in spec.levels)
    paths = [path for path in paths_of(group_of(QueuePolicy)) if path != "buffer.switch"]  # `buffer` is the same
    paths += [f"buffer.{word}" for word in words]
    # A key that has keys below it; but `buffer` also accepts one size for all switches.
    groups = {path.rpartition(".")[0] for path in paths} - {"buffer"} | {"ecn.classes"}
    return [f"{path}=" for path in paths if path.startswith(LIVE) and path not in groups]


def hash_settings(_: Typed) -> list[str]:
    """Keys of `hashing --set`: those of routing.hash, and two of routing."""
    from heddle.spec.groups import group_of
    from heddle.spec.routingpolicy import HashOptions
    from heddle.spec.wording import paths_of

    return _leaves([*paths_of(group_of(HashOptions)), "seed", "resilient"])


def file_settings(typed: Typed) -> list[str]:
    """Keys of a fabric file; after `key=` its values, if they are a list of words."""
    from heddle.spec.shapes import SHAPES
    from heddle.spec.wording import paths_of

    key, equals, _ = typed.last.partition("=")
    if equals:
        return [
            f"{key}={each}" for each in dict.fromkeys(v for spec in SHAPES.values() for v in _key_values(spec, key))
        ]
    return _leaves(dict.fromkeys(path for spec in SHAPES.values() for path in paths_of(spec)))


def _leaves(paths: Collection[str]) -> list[str]:
    """`path=` of the keys without keys below them."""
    groups = {path.rpartition(".")[0] for path in paths}
    return [f"{path}=" for path in paths if path not in groups]


def _key_values(model: Any, path: str) -> list[str]:
    """The words that a key of a pydantic model accepts; none for a number or a free text."""
    from heddle.spec.wording import model_in

    first, _, rest = path.partition(".")
    field = model.model_fields.get(first)
    if field is None:
        return []
    if rest:
        return _key_values(inner, rest) if (inner := model_in(field.annotation)) else []
    options = [field.annotation, *typing.get_args(field.annotation)]
    if bool in options:
        return ["true", "false"]
    literals = [each for each in options if typing.get_origin(each) is typing.Literal]
    return [str(word) for each in literals for word in typing.get_args(each)]
