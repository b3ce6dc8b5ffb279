"""Changing thresholds of queues while packets pass: every switch goes by the old ones or the new ones, none by a mix.

In:  a running lab, settings as `path=value` of the fabric file's `queues`, and the switches that they are for.
Out: nothing but the other half of the policies' map, which one store makes the one that holds, and a line in the lab's
record, so that `validate` and `queues` know. The whole is checked as a fabric file is before anything changes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Final

from heddle.base import state
from heddle.base.problems import InputError, MachineError, Problem, Problems, did_you_mean, nearest
from heddle.spec.plain import dump_spec
from heddle.spec.queuespec import QueuesSpec, shown
from heddle.switch.pfc import control as pfc
from heddle.switch.queues import red
from heddle.switch.queues.classes import Policies, policies_of
from heddle.switch.queues.portqueues import Setup

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.spec.schema import FabricSpec

# Paths below `queues` that are thresholds, and so in a map; all others are in qdiscs, or in tables that those go by.
LIVE: Final = ("ecn.enabled", "ecn.kmin", "ecn.kmax", "ecn.pmax", "ecn.at", "ecn.classes", "pfc", "buffer", "reserve",
                "alpha")  # fmt: skip
_TIERS: Final = ("rtsw", "ctsw", "atsw")
_EXAMPLE: Final = "as ./inv queues set ecn.kmax=800KB --switch 'ctsw*'"


def own_queues(lab: Lab) -> dict[str, QueuesSpec]:
    """Node -> its queues, for those that were set while the lab ran; MachineError when the record cannot be read."""
    record = state.read_record(lab.name)
    try:
        return {
            node: QueuesSpec.model_validate_json(json.dumps(data))
            for node, data in (record.queues if record is not None else {}).items()
        }
    except ValueError:
        why = "was set by another version of Heddle, and this one cannot read it"
        hint = f"./inv down {lab.name}, then up again"
        raise MachineError(Problem("", f"the queues of lab {lab.name}", why, hint)) from None


def wanted_policies(lab: Lab) -> Policies:
    """What should hold on every port: as it was set last, and as the fabric file says where nobody has set anything."""
    return policies_of(lab.fabric, own=own_queues(lab))


def own_settings(lab: Lab) -> dict[str, dict[str, Any]]:
    """Node -> path -> value, for what is otherwise than the fabric file says: `ecn.kmax` -> 800000."""
    usual = _flat(_dumped(lab.fabric.spec, lab.fabric.spec.queues))
    found: dict[str, dict[str, Any]] = {}
    for node, queues in own_queues(lab).items():
        rows = _flat(_dumped(lab.fabric.spec, queues))
        found[node] = {path: value for path, value in rows.items() if usual.get(path) != value}
    return found


def set_queues(lab: Lab, settings: Sequence[str], switches: Sequence[str] = ()) -> list[str]:
    """Give a running lab, or some of its switches, other thresholds, all of them at once; the switches that have them.

    settings: `path=value` each, below `queues`. switches: names, or patterns as `ctsw*`; without any, all nodes.
    InputError, with every problem and nothing changed, when the whole would not do in a fabric file.
    """
    from heddle.switch.queues.cells import LabQueues

    names = _nodes(lab, switches)
    tiers = {lab.fabric.level_of(lab.fabric.by_name[name]).word for name in names}
    with state.lock(lab.name, state.HASHING):  # which guards the record, too: both are changed while runs hold the lab
        own = own_queues(lab)
        usual = lab.fabric.spec.queues
        made: dict[str, QueuesSpec] = {}  # before -> after, since most switches have the same
        for name in names:
            before = own.get(name, usual)
            key = before.model_dump_json()
            if key not in made:
                made[key] = changed(lab.fabric.spec, before, settings, tiers)
            own[name] = made[key]
        _check_gates(lab, made.values())
        own = {name: queues for name, queues in own.items() if queues != usual}
        policies = policies_of(lab.fabric, own=own)
        with LabQueues.pinned(lab.fabric) as live:
            live.set_policies(policies)
        _tell_red(lab, {name: own.get(name, usual) for name in names})
        record = state.read_record(lab.name)
        if record is not None:
            kept = {name: _dumped(lab.fabric.spec, queues) for name, queues in own.items()}
            state.write_record(replace(record, queues=kept))
    pfc.reload(lab.name)
    return names


def _check_gates(lab: Lab, made: Iterable[QueuesSpec]) -> None:
    """InputError where pauses are asked for, and the lab's scheduler has no gates that they could close."""
    if any(queues.pfc.enabled and queues.lossless for queues in made):
        setup = Setup.of(lab.fabric)
        if not setup.gated:
            why = f"needs gates, and scheduler {setup.discipline.name} has none"
            hint = "./inv down, then ./inv up FABRIC --set queues.scheduler=htb"
            raise InputError(Problem("queues set", "pfc.enabled=true", why, hint))


def changed(
    given: FabricSpec, queues: QueuesSpec, settings: Sequence[str], tiers: Collection[str] = (*_TIERS, "host")
) -> QueuesSpec:
    """`queues` with settings in place, checked together with the rest of a fabric file; InputError with all problems.

    tiers: those of the nodes that it is for.
    """
    from pydantic import ValidationError

    from heddle.spec.load import override
    from heddle.spec.wording import problems_of
    from heddle.spec.yamlfile import Document, Mark

    model = type(given)
    document = Document({**dump_spec(given), "queues": _dumped(given, queues)}, "")
    for path, value in _flat(document.data["queues"]).items():  # so that a problem with what was there names its value
        said = shown(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
        document.marks["queues", *path.split(".")] = Mark("", said)
    problems = Problems()
    for text in settings:
        path, equals, value = text.partition("=")
        key = path.strip().removeprefix("queues.")
        if not equals or not key:
            problems.add(where="queues set", what=text or "an empty text", why="is not path=value", hint=_EXAMPLE)
        elif wrong := _not_live(key, tiers):
            problems.found.append(wrong)
        else:  # one size is for every switch that is meant, and leaves hosts theirs
            for each in [f"buffer.{tier}" for tier in _TIERS if tier in tiers] if key == "buffer" else [key]:
                override(document, f"queues.{each}={value}", problems)
    for mark, found in list(document.marks.items()):
        document.marks[mark] = replace(found, where=found.where.replace("--set", "queues set"))
    try:
        spec = model.model_validate(document.data)
    except ValidationError as error:
        problems.found += problems_of(error, document, model)
    problems.raise_if_any()
    return spec.queues


def _tell_red(lab: Lab, wanted: Mapping[str, QueuesSpec]) -> None:
    """Give the kernel's REDs of these nodes their curves, where they mark: a port at a time, and no packet is lost."""
    for node in lab.fabric.switches:
        if node.name in wanted and wanted[node.name].ecn.marker == "red":
            curves = red.curves_of(wanted[node.name])
            red.change(lab.handle(node.name).netns, {(p.name, n): c for p in node.ports for n, c in curves.items()})


def _not_live(key: str, tiers: Collection[str]) -> Problem | None:
    """Why a path cannot be set on running nodes of these tiers, or None when it can."""
    from heddle.spec.wording import paths_of

    if any(key == live or key.startswith(f"{live}.") for live in LIVE):
        of, _, tier = key.partition(".")
        if of == "buffer" and tier in (*_TIERS, "host") and tier not in tiers:
            return Problem("queues set", key, *_nobody(tier, tiers))
        return None
    known = [*paths_of(QueuesSpec)]
    inside = [each for each in LIVE if each.startswith(f"{key}.")]
    if inside:
        return Problem("queues set", key, "is a group of keys", f"as ./inv queues set {inside[0]}=VALUE")
    if key in known or any(key.startswith(f"{each}.") for each in ("weights", "dscp")):
        return Problem("queues set", key, "is fixed when a lab is made, and needs a new one", _anew(f"queues.{key}"))
    leaf = next((each for each in known if each.rpartition(".")[2] == key), "") or nearest(key, known)
    hint = f"did you mean {leaf}?" if leaf else f"legal here: {', '.join(LIVE)}"
    return Problem("queues set", key, "is no key of queues", hint)


def _nobody(tier: str, tiers: Collection[str]) -> tuple[str, str]:
    """Why and hint, where a tier's buffer is set and none of that tier is among those that are meant."""
    if tier == "host":
        return "is that of hosts, and --switch names switches", "leave --switch out"
    some = [each for each in _TIERS if each in tiers]
    hint = " or ".join(f"buffer.{each}" for each in some)
    return f"is that of {tier.upper()}s, and none is among the nodes that are meant", f"these have {hint}"


def _anew(path: str) -> str:
    return f"./inv down, then ./inv up FABRIC --set {path}=..."


def _nodes(lab: Lab, patterns: Sequence[str]) -> list[str]:
    """Names of the nodes meant, in the fabric's order."""
    if not patterns:
        return [node.name for node in lab.fabric.nodes]
    names = [node.name for node in lab.fabric.switches]
    unknown = [each for each in patterns if not any(fnmatchcase(name, each) for name in names)]
    if unknown:
        problems = (
            Problem("--switch", each, f"is no switch of {lab.name}", did_you_mean(each, names)) for each in unknown
        )
        raise InputError(*problems)
    return [name for name in names if any(fnmatchcase(name, each) for each in patterns)]


def _dumped(given: FabricSpec, queues: QueuesSpec) -> dict[str, Any]:
    """Queues as plain data, durations with their unit, as a fabric file has them."""
    data: dict[str, Any] = dump_spec(given.model_copy(update={"queues": queues}))["queues"]
    return data


def _flat(data: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in data.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return flat
