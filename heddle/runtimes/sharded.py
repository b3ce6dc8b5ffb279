"""A fabric over several kernels: each shard runs the namespace runtime on its part, and calls join them.

In:  a rendered topology, the cut of its fabric, and a Cluster that runs the shards.
Out: the same as from other runtimes. Handles name namespaces of the shards, so only functions that run there can use
them (heddle/lab/spread.py); commands in nodes run through the cluster.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
import weakref
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from heddle.base import state, values
from heddle.base.events import Observer
from heddle.base.problems import HeddleError, InputError, MachineError, Problem
from heddle.base.process import Journal, attached
from heddle.base.tables import some_of
from heddle.fabric.cutting import Cut
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.kernel.namespace import NETNS_DIR, NodeHandle
from heddle.render.dialects import RenderOptions
from heddle.runtimes.clusterkind import Cluster, ShardNeed
from heddle.runtimes.netns_topology import known_node, read_topology, start_timeout
from heddle.runtimes.registry import RUNTIMES, Runtime
from heddle.runtimes.shardcalls import AGENT, LIVE, OBSERVER, AgentCall, ClockOffset, Moment, Shards, call_all, removed
from heddle.runtimes.shardparts import parts
from heddle.spec.plain import load_spec
from heddle.switch.links.cuts import tunnel_port
from heddle.switch.queues.classes import check_ids

_NOTICED_S: Final = 5.0  # for a cluster to notice that a shard has ended
_LOOK_S: Final = 0.2
_PLAN: Final = "shards.json"  # beside the topology: the nodes of each shard
_BUILDING: Final = "heddle.shards.building"
_INSIDE: Final = "heddle.shards.inside"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Which nodes are in which shard. key: of their datagrams, in hexadecimal. addresses: of the shards.

    runtime, target: as in the lab's record, so that `down` finds the cluster without one.
    """

    shards: Mapping[str, tuple[str, ...]]
    key: str = ""
    addresses: Mapping[str, str] = field(default_factory=dict)
    runtime: str = ""
    target: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, lab: str) -> ShardPlan:
        """Of a lab; empty where it has none yet. MachineError when it cannot be read."""
        path = state.lab_dir(lab) / _PLAN
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            shards = {str(name): tuple(map(str, nodes)) for name, nodes in data["shards"].items()}
            addresses, target = (
                {str(name): str(each) for name, each in data.get(key, {}).items()} for key in ("addresses", "target")
            )
            return cls(shards, str(data["key"]), addresses, str(data.get("runtime", "")), target)
        except FileNotFoundError:
            return cls({})
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            why = f"cannot be read: {error}"
            raise MachineError(Problem("", str(path), why, f"run ./inv down {lab} to remove the lab")) from None

    def write(self, lab: str) -> None:
        """Keep it in the lab's directory."""
        shards = {name: list(nodes) for name, nodes in self.shards.items()}
        data = {
            "shards": shards, "key": self.key, "addresses": dict(self.addresses), "runtime": self.runtime,
            "target": dict(self.target),
        }  # fmt: skip
        state.write_json(state.lab_dir(lab) / _PLAN, data)

    def of(self, node: str) -> str:
        """The shard of a node; InputError when there is none."""
        for name, nodes in self.shards.items():
            if node in nodes:
                return name
        raise InputError(Problem("", node, "is not a node of a shard"))


class ShardedRuntime(Runtime):
    """A subclass says which cluster runs the shards of a lab."""

    daemons_here = False
    here = False

    def __init__(self, place: Mapping[str, str] | None = None) -> None:
        """place: where to look for labs, as in the options of a record; by default as recorded."""
        self._calls: dict[str, _Calls] = {}
        self._place = place

    @abstractmethod
    def cluster(self, lab: str) -> Cluster:
        """The cluster of a lab, as its record says; without one as its plan says."""

    @abstractmethod
    def cut_of(self, fabric: Fabric, options: Mapping[str, str]) -> Cut:
        """The shards of a fabric. options: of its record. InputError for a fabric that cannot be cut so."""

    def shards(self, lab: str) -> Shards:
        if lab not in self._calls:
            self._calls[lab] = _Calls(lab, self.cluster(lab))
        return self._calls[lab]

    def _called(self, lab: str) -> _Calls:
        self.shards(lab)
        return self._calls[lab]

    def exists(self, lab: str) -> bool:
        return self.place_of(lab) is not None and self.cluster(lab).exists(lab)

    def place_of(self, lab: str) -> Mapping[str, str] | None:
        """Where the shards of a lab are, as the options of its record; None for a lab that is not of this runtime.

        Without a record that can be read, its plan says so. MachineError when that cannot be read, either.
        """
        if self._place is not None:
            return self._place
        try:
            record = state.read_record(lab)
        except MachineError:
            record = None
        if record is not None and record.runtime in RUNTIMES:
            return record.options if record.runtime == self.name else None
        try:
            plan = ShardPlan.read(lab)
        except MachineError as error:
            where = f"./inv down {lab} --runtime {self.name} --namespace NS"
            hint = f"name its cluster: {where}, and --context C if it is not the current one"
            raise MachineError(*error.problems, Problem("", f"lab {lab}", "may be in a cluster", hint)) from None
        return plan.target if plan.runtime == self.name else None

    def prepare(self, fabric: Fabric, options: RenderOptions, observer: Observer) -> RenderOptions:
        if options.dialect == "c9s":
            hint = "leave --dialect out"
            raise InputError(Problem("", "--dialect c9s", f"is not possible with --runtime {self.name}", hint))
        if not fabric.edges:
            what = "an imported topology"
            raise InputError(Problem("", what, f"is not possible with --runtime {self.name}", "leave --runtime out"))
        for each in self.cut_of(fabric, options.target).shards:
            check_ids(fabric.of_shard(each.nodes), f"shard {each.name}")
        return options

    def create(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        """Start the shards, send each its part, and make namespaces, links, sysctls and cut links there."""
        record = state.read_record(lab)
        assert record is not None  # noqa: S101  (`up` has written it)
        found = self.cut_of(_fabric_of(record), record.options).shards
        needs = [ShardNeed(each.name, each.nodes, each.memory_bytes, each.cpus) for each in found]
        shards = {each.name: each.nodes for each in needs}
        plan = ShardPlan(shards, secrets.token_hex(32), {}, record.runtime, record.options)
        plan.write(lab)
        self._begin(lab, plan, needs, topology, observer)
        for each in needs:
            journal.comment(f"shard {each.name}: {', '.join(each.nodes)}")

    def _begin(
        self, lab: str, plan: ShardPlan, needs: Sequence[ShardNeed], topology: Path, observer: Observer,
        only: Collection[str] | None = None,
    ) -> None:  # fmt: skip
        """Start the shards that do not run, and make the nodes of those in `only`; of all by default."""
        record = state.read_record(lab)
        assert record is not None  # noqa: S101  (`up` has written it)
        cluster = self.cluster(lab)
        observer.begin("shards", len(needs))
        cluster.create(lab, needs, observer)
        addresses = dict(cluster.addresses(lab))
        replace(plan, addresses=addresses).write(lab)
        observer.end("shards", ", ".join(f"{each.name} {addresses[each.name]}" for each in needs))
        data, shards = values.dump(asdict(record)), {each.name: each.nodes for each in needs}
        call = {"call": f"{_BUILDING}:create", "kwargs": {}}
        names = [each.name for each in needs if only is None or each.name in only]
        made = parts(topology, _fabric_of(record), shards, addresses, tunnel_port(record.options), names)
        requests = {name: {**call, "args": [values.dump(shards[name]), data, files, plan.key]} for name, files in made}
        self._called(lab).each(requests, observer)

    def restore(self, lab: str, topology: Path, observer: Observer) -> list[str]:
        """Start lost shards again, with their nodes, without daemons; the others learn their addresses.

        Returns the names of the shards.
        """
        plan, record = ShardPlan.read(lab), state.read_record(lab)
        lost = [each.where.removeprefix("shard ") for each in self.cluster(lab).lost(lab)]
        if record is None or not lost:
            return []
        found = self.cut_of(_fabric_of(record), record.options).shards
        needs = [ShardNeed(each.name, each.nodes, each.memory_bytes, each.cpus) for each in found]
        self._called(lab).forget(lost)
        self._begin(lab, plan, needs, topology, observer, lost)
        now = ShardPlan.read(lab).addresses
        moved = {plan.addresses[name]: now[name] for name in lost if plan.addresses.get(name, now[name]) != now[name]}
        request = {"call": f"{_BUILDING}:readdress", "args": [lab, values.dump(moved)], "kwargs": {}}
        self._called(lab).each({name: request for name in plan.shards if name not in lost}, observer)
        return lost

    def start_in(self, lab: str, shards: Collection[str], observer: Observer) -> None:
        """Run the start scripts in some shards."""
        request = {"call": f"{_BUILDING}:start", "args": [lab, OBSERVER], "kwargs": {}}
        wait_s = start_timeout(max(map(len, ShardPlan.read(lab).shards.values())))
        self._called(lab).each(dict.fromkeys(shards, request), observer, wait_s)

    def start(self, lab: str, topology: Path, journal: Journal, observer: Observer) -> None:
        observer.begin("start")
        self.start_in(lab, list(ShardPlan.read(lab).shards), observer)
        observer.end("start", f"{len(read_topology(topology).nodes)} nodes")

    def nodes(self, lab: str, topology: Path) -> Mapping[str, NodeHandle]:
        return {name: NodeHandle(name, NETNS_DIR / f"heddle-{lab}-{name}") for name in read_topology(topology).nodes}

    def missing_nodes(self, lab: str, topology: Path) -> list[Problem]:
        """Shards that do not run, else nodes that do not run in them. If no shard runs: all nodes."""
        if (gone := removed(lab)) is not None:
            return [gone]
        cluster, plan = self.cluster(lab), ShardPlan.read(lab)
        lost = cluster.lost(lab)
        if not plan.shards.keys() & cluster.addresses(lab).keys():
            why = f"does not run: {lost[0].why}" if lost else "is gone: its objects were removed"
            hint = f"./inv up brings it up again, ./inv down {lab} removes its record"
            return [Problem(node, "its shard", why, hint) for nodes in plan.shards.values() for node in nodes]
        if lost:
            return lost
        request = {"call": f"{_BUILDING}:missing", "args": [lab], "kwargs": {}}
        return [each for found in self._called(lab).each(dict.fromkeys(plan.shards, request)) for each in found]

    def find(self, lab: str, topology: Path, node: str, path: str) -> Path | None:
        """Always None: no file of a node is on this machine."""
        return None

    def write_script(self, lab: str, topology: Path, journal: Journal) -> None:
        journal.comment("Each shard runs the commands of the namespace runtime for its nodes.")

    def exec(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> int:
        return attached(self._argv(lab, topology, node, argv, tty=sys.stdin.isatty() and sys.stdout.isatty()))

    def command(self, lab: str, topology: Path, node: str, argv: Sequence[str]) -> list[str]:
        return self._argv(lab, topology, node, argv)

    def _argv(self, lab: str, topology: Path, node: str, argv: Sequence[str], *, tty: bool = False) -> list[str]:
        known_node(lab, topology, node)
        cluster = self.cluster(lab)
        inside = [*cluster.python, _INSIDE, lab, node, *argv]
        return cluster.argv(lab, ShardPlan.read(lab).of(node), inside, tty=tty)

    def destroy(self, lab: str, observer: Observer) -> int:
        if self.place_of(lab) is None:
            return 0
        if lab in self._calls:
            self._calls.pop(lab).close()
        return self.cluster(lab).remove(lab, observer)


class _Calls(Shards):
    """Its agents end with it: a program that lives long, as the page, has many handles in turn."""

    def __init__(self, lab: str, cluster: Cluster) -> None:
        self._lab, self._cluster = lab, cluster
        self._asking = threading.Lock()  # agents are called by threads
        self._agents: dict[str, AgentCall] = {}  # they know this object weakly, so that it can be forgotten
        weakref.finalize(self, _close, self._agents)

    def _agent(self, shard: str) -> AgentCall:
        found = self._agents.get(shard)
        if found is not None and not found.alive and (lost := self._lost(shard)) is not None:
            raise MachineError(lost)  # a shard that has started again has nothing of the lab
        if found is None or not found.alive:
            start = partial(self._cluster.open, self._lab, shard, [*self._cluster.python, AGENT])
            methods = weakref.WeakMethod(self._lost), weakref.WeakMethod(self._located)
            ended, located = (partial(_weakly, each, shard) for each in methods)
            found = self._agents[shard] = AgentCall(shard, start, ended, located)
        return found

    def _lost(self, shard: str) -> Problem | None:
        """Why a shard is lost. The cluster may notice that a little later than we do."""
        end = time.monotonic() + _NOTICED_S
        while (gone := removed(self._lab)) is None and time.monotonic() < end:
            with self._asking:
                lost = [each for each in self._cluster.lost(self._lab) if each.where == f"shard {shard}"]
            if lost:
                return lost[0]
            time.sleep(_LOOK_S)
        return gone

    def _located(self, shard: str, problem: Problem) -> Problem:
        """A problem of a shard's machine, with the shard. A node or port of the fabric names its shard already."""
        plan = ShardPlan.read(self._lab)
        if any(problem.where.partition(":")[0] in nodes for nodes in plan.shards.values()):
            return problem
        where = f"shard {shard}"
        with self._asking, suppress(HeddleError):  # the first error is the one to report
            where += self._cluster.place(self._lab, shard)
        what = f"({some_of(plan.shards[shard])}) " + " ".join(filter(None, (problem.where, problem.what)))
        return replace(problem, where=where, what=what)

    def _of(self, names: Sequence[str]) -> list[AgentCall]:
        """Their agents; those that do not run are started at the same time."""
        with ThreadPoolExecutor(max(1, len(names)), thread_name_prefix="shards") as pool:
            return list(pool.map(self._agent, names))

    def of(self, node: str) -> str:
        return ShardPlan.read(self._lab).of(node)

    def module(self, shard: str, words: Sequence[str]) -> list[str]:
        return self._cluster.argv(self._lab, shard, [*self._cluster.python, *words])

    def clocks(self) -> Mapping[str, ClockOffset]:
        return {each.shard: each.clock for each in self._of(list(ShardPlan.read(self._lab).shards))}

    def each(
        self, requests: Mapping[str, Mapping[str, Any]], observer: Observer | None = None, wait_s: float = 0.0
    ) -> list[Any]:
        """A call of its own for each shard. wait_s: as in `call`."""
        return call_all(self._of(list(requests)), lambda agent: requests[agent.shard], observer, wait_s)

    def call(
        self, operation: str, nodes: Collection[str] | None, args: Sequence[Any], kwargs: Mapping[str, Any],
        wait_s: float = 0.0,
    ) -> list[Any]:  # fmt: skip
        plan, record = ShardPlan.read(self._lab), state.read_record(self._lab)
        names = list(plan.shards) if nodes is None else list(dict.fromkeys(plan.of(node) for node in nodes))
        observer = next((each for each in (*args, *kwargs.values()) if isinstance(each, Observer)), None)
        live = {key: getattr(record, key) if record is not None else {} for key in LIVE}

        def request(agent: AgentCall) -> dict[str, Any]:
            ahead = agent.clock.ahead_ns
            words = {"call": operation, "lab": self._lab, "live": live}
            pairs = {key: _dumped(each, ahead) for key, each in kwargs.items()}
            return {**words, "args": [_dumped(each, ahead) for each in args], "kwargs": pairs}

        return call_all(self._of(names), request, observer, wait_s)

    def forget(self, shards: Collection[str]) -> None:
        for name in shards:
            if (agent := self._agents.pop(name, None)) is not None:
                agent.close()

    def close(self) -> None:
        _close(self._agents)


def _fabric_of(record: state.Record) -> Fabric:
    return build(load_spec(record.spec))


def _close(agents: dict[str, AgentCall]) -> None:
    for each in agents.values():
        each.close()
    agents.clear()


def _weakly(method: weakref.WeakMethod[Any], *args: Any) -> Any:
    """What a method returns whose object may be gone: None then."""
    return None if (found := method()) is None else found(*args)


def _dumped(value: Any, ahead_ns: int) -> Any:
    if isinstance(value, Observer):
        return OBSERVER
    return values.dump(Moment(value.ns + ahead_ns) if isinstance(value, Moment) else value)
