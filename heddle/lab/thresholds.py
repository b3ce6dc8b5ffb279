"""Change queue thresholds while packets pass: every switch uses the old values or the new ones, never a mix.

In:  a running lab, settings as `path=value` of the fabric file's `queues`, and the switches that they are for.
Out: an entry in the lab's record, which `validate`, `queues` and `up --repair` use; then the inactive half of the
policies map is written, and one store activates it. The result is checked like a fabric file before anything changes.
For one run, ECN curves of all switches can be multiplied, where its profile of congestion control asks for that. The
lab's record has the curves from before, so the next run, or `up --repair`, undoes them after a kill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Final

from heddle.base import owners, state
from heddle.base.ethernet import CLASSES
from heddle.base.events import Observer
from heddle.base.problems import HeddleError, InputError, MachineError, Problem, Problems, did_you_mean, nearest
from heddle.base.tables import some_of
from heddle.base.units import shown
from heddle.fabric.checks import KeyPlaces, complaints_about, unknown_words
from heddle.fabric.model import Fabric, Role
from heddle.fabric.policydata import dump_queues, load_queues, queue_policy, queues_as_file
from heddle.fabric.wiring import BACKEND, Level, Node, Port
from heddle.lab import agents
from heddle.lab.dscpclasses import wrong_classes
from heddle.lab.spread import concat, nothing, spread
from heddle.spec.groups import InFile, group_of
from heddle.spec.keys import Strict
from heddle.spec.plain import nested_values
from heddle.spec.queuepolicy import EcnPolicy, QueuePolicy
from heddle.switch.pfc import control as pfc
from heddle.switch.queues import red
from heddle.switch.queues.classes import Policies, numbered_ports, policies_of, row
from heddle.switch.queues.portqueues import Setup

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.switch.queues.cells import LabQueues

# Paths below `queues` that are thresholds, which are in a BPF map. All others are in qdiscs, or in tables for qdiscs.
LIVE: Final = ("ecn.enabled", "ecn.kmin", "ecn.kmax", "ecn.pmax", "ecn.at", "ecn.classes", "pfc", "buffer", "reserve",
                "alpha", "trimming.enabled", "trimming.size", "trimming.actions")  # fmt: skip


QueueSetting = str | int | float | bool | None | Sequence[int]  # a value of a fabric file's `queues`


def own_queues(lab: Lab) -> dict[str, QueuePolicy]:
    """Node -> its queues, for nodes set while the lab was running; MachineError when the record cannot be read."""
    record = state.read_record(lab.name)
    try:
        return {node: load_queues(data) for node, data in (record.queues if record is not None else {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        why = "was set by another version of Heddle, and this one cannot read it"
        hint = f"./inv down {lab.name}, then up again"
        raise MachineError(Problem("", f"the queues of lab {lab.name}", why, hint)) from None


def wanted_policies(lab: Lab) -> Policies:
    """The expected policies of every port: as set last, or else as in the fabric file."""
    return policies_of(lab.fabric, own=own_queues(lab))


def own_settings(lab: Lab) -> dict[str, dict[str, QueueSetting]]:
    """Node -> path -> value, for values that differ from the fabric file: `ecn.kmax` -> 800000."""
    usual = nested_values(_as_file(lab.fabric, lab.fabric.policy.queues))
    found: dict[str, dict[str, QueueSetting]] = {}
    for node, queues in own_queues(lab).items():
        rows = nested_values(_as_file(lab.fabric, queues))
        found[node] = {path: value for path, value in rows.items() if usual.get(path) != value}
    return found


def late_marks(lab: Lab) -> tuple[str, ...]:
    """The sentences of QueuePolicy.late_marks for the switches of a lab, as set last."""
    own, found = own_queues(lab), dict[str, list[str]]()
    for node in lab.fabric.switches:
        for each in _queues_at(lab.fabric, node, own).late_marks:
            found.setdefault(each, []).append(node.name)
    every = len(lab.fabric.switches)
    return tuple(each if len(names) == every else f"{some_of(names)}: {each}" for each, names in found.items())


def _queues_at(fabric: Fabric, node: Node, own: Mapping[str, QueuePolicy]) -> QueuePolicy:
    """The queues of a switch: as set last, or else those of its network in the file."""
    return own.get(node.name) or fabric.policy.of(fabric.level_of(node).network).queues


def set_queues(lab: Lab, settings: Sequence[str], switches: Sequence[str] = ()) -> list[str]:
    """Set new thresholds on a running lab, or on some of its switches, all at once; returns the nodes' names.

    settings: `path=value` each, below `queues`. switches: names, or patterns such as `ctsw*`; without any, all nodes.
    InputError with every problem, and nothing changed, if the result would not be valid in a fabric file.
    """
    names = _nodes(lab, switches)
    levels = {lab.fabric.by_name[name].level for name in names}
    with owners.lock(lab.name, owners.CHANGES):  # it also guards the record: both change while runs hold the lab's lock
        own = own_queues(lab)
        usual = lab.fabric.policy.queues
        changes: list[tuple[QueuePolicy, QueuePolicy]] = []  # (before, after), reused: most switches have the same
        for name in names:
            before = own.get(name, usual)
            after = next((new for old, new in changes if old == before), None)
            if after is None:
                after = changed(lab.fabric, before, settings, levels)
                changes.append((before, after))
            own[name] = after
        _check_gates(lab, [after for _, after in changes])
        write_queues(lab, own, names)
    agents.reload(lab)
    return names


def write_queues(lab: Lab, own: Mapping[str, QueuePolicy], names: Sequence[str], **values: Any) -> None:
    """Set and record the queues of nodes, of which those in `names` change. values: of the lab's record.

    The caller holds CHANGES, and reloads the PFC agent where its thresholds change.
    """
    usual = lab.fabric.policy.queues
    own = {name: queues for name, queues in own.items() if queues != usual}
    kept, again = {name: dump_queues(queues) for name, queues in own.items()}, partial(reapply_queues, lab)
    with state.recorded(lab.name, again, queues=kept, **values):
        _set_policies(lab, own, list(names))


@spread(nothing)
def _set_policies(lab: Lab, own: Mapping[str, QueuePolicy], names: Sequence[str]) -> None:
    """own: node -> its queues, where they differ from the file's. names: the nodes that change."""
    from heddle.switch.queues.cells import LabQueues

    with LabQueues.pinned(lab.fabric) as live:
        live.set_policies(policies_of(lab.fabric, own=own))
        _set_red_curves(lab, own, names)


@spread(concat)
def wrong_thresholds(lab: Lab) -> list[Problem]:
    """Thresholds, classes of DSCPs and curves of RED in the kernel that differ from what was set last, one by one."""
    from heddle.switch.queues.cells import LabQueues

    own, handles, usual = own_queues(lab), lab.handles(), lab.fabric.policy.queues
    with LabQueues.pinned(lab.fabric) as live:
        found = [
            Problem(port.ref, f"class {number}:", what)
            for port, number, what in threshold_differences(lab.fabric, live, policies_of(lab.fabric, own=own))
            if port.node in handles
        ]
        found += wrong_classes(live, usual)
    for node in lab.own_nodes:
        queues = _queues_at(lab.fabric, node, own)
        if node.role is Role.SWITCH and queues.ecn.marker == "red":
            curves = red.curves_of(queues)
            given = {(port.name, number): curve for port in node.ports for number, curve in curves.items()}
            for line in red.differences(handles[node.name].netns, given):
                port, _, what = line.partition(", ")
                found.append(Problem(f"{node.name}:{port}", what.replace(", has", " has"), ""))
    return found


def threshold_differences(fabric: Fabric, live: LabQueues, policies: Policies) -> Iterator[tuple[Port, int, str]]:
    """Port, class, and `kmin is 9000, not 40000`, for each class whose thresholds in the BPF maps are others."""
    now, wanted = live.policies(), live.expected(policies)
    if (now == wanted).all():
        return
    for number, port in numbered_ports(fabric):
        for traffic_class in range(CLASSES):
            at = row(number, traffic_class)
            if now[at] != wanted[at]:
                names = [name for name in now.dtype.names or () if (now[at][name] != wanted[at][name]).any()]
                what = ", ".join(f"{name} is {now[at][name]}, not {wanted[at][name]}" for name in names)
                yield port, traffic_class, what


@spread(any)
def reapply_queues(lab: Lab) -> bool:
    """Set the recorded thresholds again where others are set, as after a `queues set` that was killed.

    False when nothing was to do. The caller holds CHANGES.
    """
    from heddle.switch.queues.cells import LabQueues

    own, usual = own_queues(lab), lab.fabric.policy.queues
    with LabQueues.pinned(lab.fabric) as live:
        wrong = bool(wrong_thresholds(lab))
        if wrong:
            live.set_policies(policies_of(lab.fabric, own=own))
            live.set_classes(usual)
    _set_red_curves(lab, own, [node.name for node in lab.fabric.switches])
    pfc.reload(lab.name)
    return wrong


def restore_queues(lab: Lab) -> bool:
    """Restore the thresholds of the fabric file on every node, and clear the record; False when none was changed.

    Raises the errors of set_queues.
    """
    with owners.lock(lab.name, owners.CHANGES):
        own = own_queues(lab)
        if not own:
            return False
        write_queues(lab, {}, [*own], before_run={})
    agents.reload(lab)
    return True


def _check_gates(lab: Lab, policies: Iterable[QueuePolicy]) -> None:
    """InputError where pauses are requested but the lab's scheduler has no gates to close."""
    if any(queues.paused for queues in policies):
        setup = Setup.of(lab.fabric)
        if not setup.gated:
            why = f"needs gates, and scheduler {setup.discipline.name} has none"
            hint = "./inv down, then ./inv up FABRIC --set queues.scheduler=htb"
            raise InputError(Problem("queues set", "pfc.enabled=true", why, hint))


class _Keys(Strict):
    """The part of a fabric file that can be set here."""

    queues: Annotated[QueuePolicy, InFile()]


def changed(
    fabric: Fabric, queues: QueuePolicy, settings: Sequence[str], levels: Collection[int] | None = None
) -> QueuePolicy:
    """`queues` with the settings applied, checked together with the rest of the fabric; InputError with all problems.

    levels: the levels of the nodes that it is for; all when None.
    """
    from heddle.spec.load import override
    from heddle.spec.wording import examined
    from heddle.spec.yamlfile import Document, Mark

    words = {level.word: number for number, level in enumerate(fabric.levels)}
    own = {level.word for level in fabric.levels if level.network == BACKEND}
    meant = [word for word, number in words.items() if word in own and (levels is None or number in levels)]
    document = Document({"queues": _as_file(fabric, queues)}, "")
    # So that a problem with an old value can quote it.
    for path, value in nested_values(document.data["queues"]).items():
        text = shown(value) if isinstance(value, int) and not isinstance(value, bool) else str(value)
        document.marks["queues", *path.split(".")] = Mark("", text)
    problems = Problems()
    for text in settings:
        path, equals, value = text.partition("=")
        key = path.strip().removeprefix("queues.")
        if not equals or not key:
            hint = f"as ./inv queues set ecn.kmax=800KB --switch '{fabric.top_level.word}*'"
            problems.add(where="queues set", what=text or "an empty text", why="is not path=value", hint=hint)
        elif wrong := _not_live(key, fabric, meant):
            problems.found.append(wrong)
        else:  # a single buffer size is for all chosen switches; hosts keep theirs
            one = key in ("buffer", "buffer.switch")
            for each in [f"buffer.{word}" for word in meant if words[word]] if one else [key]:
                override(document, f"queues.{each}={value}", problems)
    problems.found = [replace(each, where=each.where.replace("--set", "queues set")) for each in problems.found]
    for mark, found in list(document.marks.items()):
        document.marks[mark] = replace(found, where=found.where.replace("--set", "queues set"))
    result = examined(document, _Keys)
    problems.found += result.problems
    if result.value is None:
        raise InputError(*problems.found)
    spec = result.value.queues
    policy = queue_policy(spec, [*words][1:])
    built = replace(fabric, policy=replace(fabric.policy, queues=policy))
    complaints = [*unknown_words(spec.buffer.words, fabric), *complaints_about(built)]
    problems.found += KeyPlaces(document, result.spoilt).problems(complaints)
    problems.raise_if_any()
    return policy


def _set_red_curves(lab: Lab, own: Mapping[str, QueuePolicy], names: Collection[str]) -> None:
    """Set the curves of the kernel's RED qdiscs on nodes that mark by RED. It is done per port, without packet loss."""
    handles = lab.handles()
    for node in lab.fabric.switches:
        queues = _queues_at(lab.fabric, node, own)
        if node.name in handles and node.name in names and queues.ecn.marker == "red":
            curves = red.curves_of(queues)
            red.change(lab.handle(node.name).netns, {(p.name, n): c for p in node.ports for n, c in curves.items()})


def _not_live(key: str, fabric: Fabric, meant: Sequence[str]) -> Problem | None:
    """Why a path cannot be set on running nodes, or None when it can. meant: the level words of the chosen nodes."""
    from heddle.spec.wording import paths_of

    if any(key == live or key.startswith(f"{live}.") for live in LIVE):
        of, _, word = key.partition(".")
        level = next((each for each in fabric.levels if each.word == word), None)
        if of == "buffer" and level is not None and word not in meant:
            return Problem("queues set", key, *_not_meant(level, fabric, meant))
        return None
    known = [*paths_of(group_of(QueuePolicy))]
    inside = [each for each in LIVE if each.startswith(f"{key}.")]
    if inside:
        return Problem("queues set", key, "is a group of keys", f"as ./inv queues set {inside[0]}=VALUE")
    if key in known or any(key.startswith(f"{each}.") for each in ("weights", "dscp")):
        return Problem(
            *("queues set", key, "is fixed when a lab is created: recreate the lab"),
            f"./inv down, then ./inv up FABRIC --set queues.{key}=...",
        )
    single = [each for each in known if not any(other.startswith(f"{each}.") for other in known)]
    leaf = next((each for each in known if each.rpartition(".")[2] == key), "") or nearest(key, single)
    hint = f"did you mean {leaf}?" if leaf else f"allowed: {', '.join(LIVE)}"
    return Problem("queues set", key, "is no key of queues", hint)


def _not_meant(level: Level, fabric: Fabric, meant: Sequence[str]) -> tuple[str, str]:
    """(why, hint) where a level's buffer is set and none of the chosen nodes is on that level."""
    hosts = fabric.host_level
    if level == hosts:
        return "is for hosts, but --switch names switches", "leave --switch out"
    hint = " or ".join(f"buffer.{word}" for word in meant if word != hosts.word)
    return f"is for {level.title}s, and none of the chosen nodes is one", f"use {hint}"


def _nodes(lab: Lab, patterns: Sequence[str]) -> list[str]:
    """Names of the matching nodes, in the fabric's order."""
    if not patterns:
        return [node.name for node in lab.fabric.nodes]
    names = [node.name for node in lab.fabric.switches]
    unknown = [each for each in patterns if not any(fnmatchcase(name, each) for name in names)]
    if unknown:
        problems = (
            Problem("--switch", each, f"is not a switch of {lab.name}", did_you_mean(each, names)) for each in unknown
        )
        raise InputError(*problems)
    found = [node for node in lab.fabric.switches if any(fnmatchcase(node.name, each) for each in patterns)]
    hint = "choose other switches, or create the lab again with other keys of frontend.queues"
    others = {node.name: network for node in found if (network := lab.fabric.level_of(node).network) != BACKEND}
    if others:
        raise InputError(
            *(Problem("--switch", name, f"is in {network}, not in the network of the ranks", hint)
              for name, network in others.items())
        )  # fmt: skip
    return [node.name for node in found]


def _as_file(fabric: Fabric, queues: QueuePolicy) -> dict[str, Any]:
    """Queues as keys and values of a fabric file."""
    words = {level.word: level.network for level in fabric.switch_levels}
    found = queues_as_file(queues, [*words])
    found["buffer"] = {word: size for word, size in found["buffer"].items() if words.get(word, BACKEND) == BACKEND}
    return found


@contextmanager
def ecn_for_run(lab: Lab, factor: int, observer: Observer) -> Iterator[None]:
    """Multiply Kmin and Kmax of all switches of the ranks' network for a with block. The caller holds the lab's lock.

    What `queues set` changes meanwhile stays, except ECN curves. Where the end cannot undo it, it warns.
    """
    if left := end_run_ecn(lab):
        observer.warn(f"a run that was killed had left its ECN thresholds on {some_of(left)}, which are restored now")
    try:
        if factor != 1:
            with owners.lock(lab.name, owners.CHANGES):
                own, usual = own_queues(lab), lab.fabric.policy.queues
                of_ranks = (node for node in lab.fabric.switches if lab.fabric.level_of(node).network == BACKEND)
                before = {node.name: own.get(node.name, usual) for node in of_ranks}
                scaled = {name: replace(each, ecn=_times(each.ecn, factor)) for name, each in before.items()}
                kept = {name: dump_queues(each) for name, each in before.items()}
                write_queues(lab, {**own, **scaled}, [*scaled], before_run=kept)
        yield
    finally:
        if factor != 1:
            try:
                end_run_ecn(lab)
            except HeddleError as error:
                why = str(error).partition("\n")[0]
                observer.warn(f"the ECN thresholds of this run are still set ({why}): run ./inv up --repair {lab.name}")


def end_run_ecn(lab: Lab) -> list[str]:
    """Restore the curves from before a run that has ended; returns the switches. The caller holds the lab's lock."""
    record = state.read_record(lab.name)
    if record is None or not record.before_run:
        return []
    with owners.lock(lab.name, owners.CHANGES):
        own, usual = own_queues(lab), lab.fabric.policy.queues
        before = {name: load_queues(data) for name, data in record.before_run.items()}
        restored = {name: replace(own.get(name, usual), ecn=each.ecn) for name, each in before.items()}
        write_queues(lab, {**own, **restored}, [*restored], before_run={})
    return [*before]


def _times(ecn: EcnPolicy, factor: int) -> EcnPolicy:
    def of(value: int | None) -> int | None:
        return None if value is None else value * factor

    classes = {number: replace(each, kmin=of(each.kmin), kmax=of(each.kmax)) for number, each in ecn.classes.items()}
    return replace(ecn, kmin=ecn.kmin * factor, kmax=ecn.kmax * factor, classes=classes)
