"""What a step looks at: facts of the learner's runs, of the live fabric, and of typed answers.

In:  a UnitLab (the running lab and the learner's progress), and a step of lab.yml.
Out: Seen: facts by name, and where they were observed. NotDoneError when there is nothing to look at yet.
docs/unit-keys.md lists the facts of each look; FACTS has their names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from heddle.base.conditions import Condition, Fact, number_of
from heddle.base.problems import InputError, MachineError, Problem, did_you_mean
from heddle.base.tables import flat
from heddle.lab.snapshot import LabPart
from heddle.runs.figures import FIGURES
from heddle.runs.parts.admission import AdmissionUse
from heddle.runs.parts.queues import QueueUse

if TYPE_CHECKING:
    from heddle.fabric.model import Fabric
    from heddle.lab.lab import Lab
    from heddle.lab.queues import QueuesResult
    from heddle.proof.verdict import PathsResult
    from heddle.runs.runrecord import RunRecord
    from heddle_plugins.workshop.unitspec import StepSpec

Facts = Mapping[str, Fact]

_OPTIONS: Final = (
    "collective", "algorithm", "ranks", "size", "iters", "qps", "qp_mode", "sport", "placement", "transport", "split",
    "chunk", "posting", "mode", "congestion", "admission", "budget", "cts_class", "slow_hosts",
)  # fmt: skip
_FIGURES: Final = (  # of runs/figures.py, at the largest size
    "busbw", "wrong", "marks", "trims", "drops", "pauses", "paused_ms", "paused_hosts", "storms", "deepest",
)  # fmt: skip
_RESULTS: Final = (
    *_FIGURES, "time_us", "damaged", "reliable", "fabric", "deepest_at", "cnps", "cts", "cts_wait_us",
)  # fmt: skip
_PATHS: Final = (
    "agree", "mmr_flows", "mmr_bytes", "uplinks", "uplinks_used", "upper_uplinks", "upper_used", "five_tuples",
)  # fmt: skip
FACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "run": (*_OPTIONS, *_RESULTS, *_PATHS),
    "bgp": ("state", "up", "remote_as", "local_as", "peer_as", "as_wrong", "shut", "reset"),
    "lab": ("sessions", "sessions_expected", "missing", "links_down", "drained", "converged"),
    "hashing": ("mode", "switches", "resilient", "gap_ms", "seeds"),
    "queues": ("marks", "trims", "drops", "pauses_sent", "pauses_received", "paused_ms", "storms", "deepest", "depth"),
    "answer": ("answer",),
}
# Looks whose facts are not in a list: keys of a fabric file (live or as started), and what a function returns.
OPEN_LOOKS: Final = frozenset({"settings", "fabric", "function"})


class NotDoneError(Exception):
    """A step cannot be judged yet; the text says what is missing, as `no run with qps 16 was made`."""


@dataclass(frozen=True, slots=True)
class Seen:
    """Facts, and where they were observed: `run 0002`, `rtsw1:eth2`. run: the ID of the run, where they are of one."""

    facts: Facts
    where: str = ""
    run: str = ""


@dataclass(frozen=True)
class UnitLab:
    """What checks look at. lab: the unit's running lab. answers: step -> the text that the learner typed.

    A function of check.py gets it and returns its facts, or a Seen.
    """

    lab: Lab
    answers: Mapping[str, str] = field(default_factory=dict)
    _paths: dict[str, PathsResult] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def runs(self) -> Sequence[RunRecord]:
        """The learner's runs that came to their end, oldest first."""
        from heddle.runs.store import History

        records = (each.record for each in History.of(self.lab).runs() if not each.damage)
        return [record for record in records if record.done and not record.launch]

    def last_run(self, **options: Fact) -> RunRecord:
        """The last run, or the last one with these facts: last_run(qps=16). NotDoneError when there is none."""
        for record in reversed(self.runs):
            facts = run_facts(record)
            if all(Condition(wanted).holds(facts[key]) for key, wanted in options.items()):
                return record
        words = ", ".join(f"{key} {Condition(value).text()}" for key, value in options.items())
        raise NotDoneError(f"no run with {words} was made" if options else "no run was made")

    def paths(self, record: RunRecord) -> PathsResult:
        """The paths of a run, by three sources."""
        from heddle.runs.store import paths_of

        if record.id not in self._paths:
            self._paths[record.id] = paths_of(self.lab, record.id)
        return self._paths[record.id]

    def queues(self) -> QueuesResult:
        """Every queue, counted since `up` or since ./inv queues reset."""
        from heddle.lab.queues import read_queues

        return read_queues(self.lab)

    def answer(self, step: str) -> str:
        """The text that the learner typed for a step. NotDoneError when there is none."""
        if step not in self.answers:
            raise NotDoneError(f"no answer was given; type ./inv workshop answer {step} VALUE")
        return self.answers[step]


def observed(where: UnitLab, name: str, step: StepSpec, function: Callable[[UnitLab], object] | None) -> Seen:
    """The facts of one step. NotDoneError when there is nothing to look at; AssertionError from a function."""
    if function is not None:
        found = function(where)
        return found if isinstance(found, Seen) else Seen(dict(found) if isinstance(found, Mapping) else {"ok": True})
    if step.look == "answer":
        return Seen({"answer": where.answer(name)}, "your answer")
    return _LOOKS[step.look](where, step)


def run_facts(record: RunRecord) -> dict[str, Fact]:
    """The options and results of a run that came to its end. Sizes in bytes; size, busbw, time_us: the largest size."""
    options = record.options
    facts: dict[str, Fact] = {
        "collective": options.collective, "algorithm": options.algorithm, "ranks": len(record.ranks),
        "size": max(options.sizes), "iters": options.iters, "qps": options.qps, "qp_mode": options.qp_mode,
        "sport": options.source_ports.mode, "placement": options.placement, "transport": options.transport,
        "split": options.split, "chunk": options.chunk, "mode": record.ecmp,
        "posting": options.posting.text if options.posting is not None else "",
        "congestion": options.congestion, "admission": options.admission, "cts_class": options.cts_class,
        "budget": options.admitted.budget_bytes if options.admitted is not None else 0,
        "slow_hosts": len(options.slow),
    }  # fmt: skip
    if record.done:
        admission = record.part(AdmissionUse)
        waits = admission.waits if admission is not None else None
        facts |= {
            "time_us": record.largest.time_us, "reliable": not record.limited, "damaged": record.icrc_errors or 0,
            "fabric": record.fabric_state.word if record.fabric_state is not None else "converged",
            "cnps": record.counters.get("cnps_sent", 0), "cts": admission.cts_received if admission is not None else 0,
            "cts_wait_us": waits.p90_s * 1e6 if waits is not None else 0,
        }  # fmt: skip
        facts |= {name: found for name in _FIGURES if (found := FIGURES[name].of(record)) is not None}
        if (used := record.part(QueueUse)) is not None:
            facts["deepest_at"] = used.deepest_at
    return facts


def _run(where: UnitLab, step: StepSpec) -> Seen:
    record = where.last_run(**step.of)
    facts = run_facts(record)
    if step.facts & set(_PATHS):
        facts |= path_facts(where.paths(record), where.lab.fabric)
    return Seen(facts, f"run {record.id}", record.id)


def path_facts(paths: PathsResult, fabric: Fabric) -> dict[str, Fact]:
    """Link utilization by a run. uplinks: those of switches with ranks below that could be used; 0 for an MMR when none
    carried any.

    upper_uplinks: links that lead up from a switch above the edge, where ranks are below.
    """
    links = paths.uplinks.links
    nodes = {link: fabric.by_name[link.port.partition(":")[0]] for link in paths.links if link.ranked and link.usable}
    inner = [(link, node) for link, node in nodes.items() if not fabric.level_of(node).is_edge]
    upper = [link for link, node in inner if fabric.leads_up(node.port(link.port.partition(":")[2]))]
    tuples = {(proof.flow.src_ip, proof.flow.dst_ip, proof.flow.sport) for proof in paths.flows}
    return {
        "agree": paths.agree, "mmr_flows": paths.mmr.flows or 0.0, "mmr_bytes": paths.mmr.bytes or 0.0,
        "uplinks": len(links), "uplinks_used": sum(1 for link in links if link.flows), "five_tuples": len(tuples),
        "upper_uplinks": len(upper), "upper_used": sum(1 for link in upper if link.flows),
    }  # fmt: skip


def _bgp(where: UnitLab, step: StepSpec) -> Seen:
    """One end of a session: step.of names switch and port. An AS number of 0 is not known."""
    switch, port = str(step.of.get("switch", "")), str(step.of.get("port", ""))
    node = where.lab.fabric.by_name.get(switch)
    if node is None:
        names = [each.name for each in where.lab.fabric.switches]
        raise InputError(Problem("lab.yml", f"of.switch: {switch}", "is no switch of it", did_you_mean(switch, names)))
    there = f"{switch}:{port}"
    peers = where.lab.daemons.peers(switch)
    if peers is None:
        hint = f"./inv up --repair --name {where.lab.name}"
        raise MachineError(Problem(switch, "bgpd", "does not answer", hint))
    local = next((peer.local_as for peer in peers.values() if peer.local_as), 0)
    other = where.lab.daemons.peers(node.port(port).peer_node) or {}
    peer_as = next((peer.local_as for peer in other.values() if peer.local_as), 0)
    facts: dict[str, Fact] = {"state": "not configured", "up": False, "remote_as": 0, "shut": False, "reset": ""}
    facts |= {"local_as": local, "peer_as": peer_as}
    if port in peers:
        peer = peers[port]
        up = peer.state == "Established"
        facts |= {"state": peer.state, "up": up, "remote_as": peer.remote_as, "shut": peer.shut, "reset": peer.reset}
    expected = int(facts["remote_as"])  # 0 for `remote-as external` until the peer has told its own
    facts["as_wrong"] = bool(expected and peer_as and expected != peer_as)
    return Seen(facts, there)


def _lab(where: UnitLab, _: StepSpec) -> Seen:
    from heddle.lab.status import status

    now = where.lab.snapshot(LabPart.CARRIER | LabPart.DRAINED)
    row = status(where.lab.name)[0]
    missing = "; ".join(each.text() for each in row.missing_sessions)
    return Seen(
        {
            "sessions": row.bgp.established, "sessions_expected": row.bgp.expected, "missing": missing or "none",
            "links_down": len(now.down), "drained": len(now.drained), "converged": bool(row.converged),
        },
        where.lab.name,
    )  # fmt: skip


def _switches(where: UnitLab, step: StepSpec) -> tuple[list[str], str]:
    """The switches that match step.of.switch, and the words for them."""
    pattern = str(step.of.get("switch", "*"))
    names = [node.name for node in where.lab.fabric.switches if fnmatchcase(node.name, pattern)]
    return names, pattern if pattern != "*" else "all switches"


def _hashing(where: UnitLab, step: StepSpec) -> Seen:
    """Of all switches, or of those that step.of names as a pattern; `mixed` where they differ."""
    names, which = _switches(where, step)
    now = where.lab.snapshot(LabPart.HASHING, names)
    rows = [now.hashing[name] for name in names]
    facts: dict[str, Fact] = {
        "mode": _same([row.mode for row in rows]),
        "switches": len(rows),
        "resilient": _same([row.options.resilient for row in rows]),
        "gap_ms": _same([row.options.gap_ns / 1e6 for row in rows]),
        "seeds": len({row.seed for row in rows}),
    }
    return Seen(facts, f"hashing of {which}")


def _queues(where: UnitLab, step: StepSpec) -> Seen:
    """Sums over ports of switches that match step.of.port; of one class, or of all."""
    pattern, number = str(step.of.get("port", "*")), step.of.get("class")
    switches = {node.name for node in where.lab.fabric.switches}
    rows = [
        row
        for row in where.queues().rows
        if fnmatchcase(row.port, pattern)
        and (pattern != "*" or row.port.partition(":")[0] in switches)
        and (number is None or row.traffic_class == number_of(number))
    ]
    facts: dict[str, Fact] = {
        "marks": sum(row.marks for row in rows),
        "trims": sum(row.trims for row in rows),
        "drops": sum(row.dropped for row in rows),
        "pauses_sent": sum(row.pfc_sent for row in rows),
        "pauses_received": sum(row.pfc_received for row in rows),
        "paused_ms": sum(row.paused_ms for row in rows),
        "storms": sum(row.storms for row in rows),
        "deepest": max((row.high_water for row in rows), default=0),
        "depth": max((row.depth for row in rows), default=0),
    }
    return Seen(facts, f"queues of {pattern}" if pattern != "*" else "queues of all switches")


def _settings(where: UnitLab, step: StepSpec) -> Seen:
    """Keys below `queues` as they are now, of all switches or of those that step.of names; `mixed` where they differ.

    A value is that of ./inv queues set, or else of the fabric file.
    """
    from heddle.fabric.policydata import queues_as_file
    from heddle.lab.thresholds import own_queues

    names, which = _switches(where, step)
    if not names:
        raise InputError(Problem("lab.yml", f"of.switch: {which}", "matches no switch of it"))
    levels = [level.word for level in where.lab.fabric.switch_levels]
    own, usual = own_queues(where.lab), where.lab.fabric.policy.queues
    rows = [flattened(queues_as_file(own.get(name, usual), levels)) for name in names]
    facts: dict[str, Fact] = {}
    for key in step.facts:
        if key not in rows[0]:
            raise InputError(Problem("lab.yml", key, "is not a key below queues", did_you_mean(key, rows[0])))
        facts[key] = _same([row[key] for row in rows])
    return Seen(facts, f"queues of {which}")


def _fabric(where: UnitLab, step: StepSpec) -> Seen:
    """Keys of the fabric file that runs, by their dotted paths."""
    data = flattened(where.lab.blueprint.spec_data())
    facts: dict[str, Fact] = {}
    for key in step.facts:
        if key not in data:
            raise InputError(Problem("lab.yml", key, "is not a key of this fabric file", did_you_mean(key, data)))
        facts[key] = data[key]
    return Seen(facts, f"the fabric file that {where.lab.name} runs")


def flattened(data: Mapping[str, Any]) -> dict[str, Fact]:
    """`queues.ecn.kmin` -> its value; lists as text with commas, and keys without a value left out."""
    return {
        key: ",".join(map(str, value)) if isinstance(value, list) else value
        for key, value in flat(data).items()
        if value not in (None, {})
    }


def _same(values: Sequence[Fact]) -> Fact:
    return values[0] if values and len(set(values)) == 1 else "mixed"


_LOOKS: Final[Mapping[str, Callable[[UnitLab, StepSpec], Seen]]] = {
    "run": _run, "bgp": _bgp, "lab": _lab, "hashing": _hashing, "queues": _queues, "settings": _settings,
    "fabric": _fabric,
}  # fmt: skip
