"""Run an experiment in a cluster: each fabric in a pod of its own, several at the same time.

In:  as Running, and a namespace of a cluster. Out: ExperimentResult, as Running gives it.
The pods are those of one job (heddle/runtimes/clusterkind.py). What runs in each is Running, for one fabric (inpod.py);
each repeat comes back as soon as it has ended. A pod that is lost starts once more, with all runs of its fabric. Runs
without a lab are made here.
"""

from __future__ import annotations

import queue
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Final

from heddle.base import values
from heddle.base.events import Observer
from heddle.base.extras import KUBERNETES
from heddle.base.files import FILE_BYTES, read_regular, real
from heddle.base.problems import HeddleError, MachineError, Problem, first_lines, machine_errors
from heddle.base.tables import many
from heddle.base.untrusted import OUTPUT_BYTES
from heddle.base.userfiles import as_caller, new_directory
from heddle.fabric.cutting import BUFFER_BYTES, MARGIN, cut
from heddle.runtimes.clusterkind import (
    CLUSTERS,
    USUAL_S,
    IndexPod,
    JobNeed,
    PodJob,
    PodJobs,
    PodState,
    ShardCommand,
    ShardNeed,
    UnreachableError,
)
from heddle.runtimes.netns_topology import unpack
from heddle.runtimes.shardcalls import AGENT, OBSERVER, AgentCall
from heddle_plugins.experiments.finding import files_of_experiment
from heddle_plugins.experiments.inpod import BEAT, DONE, EVENTS, GroupOrder, SentRepeat, fingerprint
from heddle_plugins.experiments.loading import Variant
from heddle_plugins.experiments.outcome import ExperimentResult, Repeat
from heddle_plugins.experiments.running import Running, array_bytes_of

_STEP: Final = "fabrics"
_LOOK_S: Final = 1.0  # between two looks at the pods
_BEAT_S: Final = 10.0
_SILENT_S: Final = 60.0  # an API that does not answer
_REASON_S: Final = 10.0  # after a lost connection, until the cluster knows why
_STARTS: Final = 2  # of a fabric's pod, at most
_MOST_RUNS: Final = 256  # of a repeat
_WAITING: Final = 8  # events of pods that are not handled yet: then their threads wait


@dataclass(kw_only=True)
class Sweep(Running):
    """An experiment in a cluster. parallel: at most so many pods at once; None: one on each node that is free.

    cluster, target: its kind, and what the flags say of it. typed, only: as the user named the experiment and its
    checks.
    """

    cluster: str = KUBERNETES
    target: Mapping[str, str] = field(default_factory=dict)
    parallel: int | None = None
    typed: str = ""
    only: tuple[str, ...] = ()

    def run(self) -> ExperimentResult:
        """All of it. MachineError and InputError before the first run: the cluster, its rights, the image's name."""
        if not any(each.live for each in self.experiment.variants):
            return super().run()
        files_of_experiment(self.typed)  # InputError for files that are not sent, before a pod starts
        jobs = CLUSTERS[self.cluster].jobs(self.target)
        jobs.check()
        if count := jobs.remove_leftovers():
            self.observer.say(f"removed the pods of {many(count, 'experiment')} that had been killed")
        try:
            fabrics: list[FabricPod] = []
            for number, group in enumerate(self.groups()):
                if group[0].live:
                    fabrics.append(FabricPod(len(fabrics) + 1, number, group))
                else:
                    self.run_group(number)
            missing = _Pods(self, jobs, fabrics).run()
        except KeyboardInterrupt:
            return self.result(interrupted=True)
        if missing:
            self.done.clear()
        return self.result(skipped=missing)

    def order(self, group: int) -> GroupOrder:
        """What the pod of a fabric gets. MachineError when a file cannot be read."""
        files = {}
        for typed in files_of_experiment(self.typed):
            with machine_errors(typed):
                files[typed] = read_regular(real(typed), FILE_BYTES)
        copies = self.copies is not None
        print_ = fingerprint(self.experiment)
        return GroupOrder(self.typed, self.only, self.repeats, files, group, copies, print_, self.cluster)

    def take(self, sent: SentRepeat, among: Sequence[Variant] = ()) -> list[Path]:
        """Keep a repeat of a pod, and its copies of stored runs: in directories that are made now, and returned.

        among: the variants that the pod runs; all by default. MachineError for what a pod of this Heddle cannot send.
        """
        every = self.experiment.variants
        variant = every[sent.variant] if 0 <= sent.variant < len(every) else None
        if variant is None or not any(variant is each for each in among or every):
            raise _refused(f"the number {sent.variant} of a run that it does not have")
        ran = any(each.variant is variant and each.repeat == sent.repeat for each in self.done)
        if ran or not 1 <= sent.repeat <= self.times(variant):
            raise _refused(f"repeat {sent.repeat} of {variant.title}, which is not expected")
        if sent.figures is not None and not sent.figures.finite:
            raise _refused("a figure that is no number")
        if len(sent.runs) > (_MOST_RUNS if self.copies else 0):
            raise _refused(f"{len(sent.runs)} stored runs")
        copied: list[Path] = []
        try:
            self._unpack(variant, sent, copied)
        except (ValueError, HeddleError) as error:
            self.forget((), copied)
            raise error if isinstance(error, HeddleError) else _refused(f"a stored run that {error}") from None
        self.keep(Repeat(variant, sent.repeat, sent.figures, sent.why))
        return copied

    def _unpack(self, variant: Variant, sent: SentRepeat, copied: list[Path]) -> None:
        """Write the stored runs of a repeat. copied: gets their directories."""
        room = OUTPUT_BYTES
        for number, files in enumerate(sent.runs, 1):
            assert self.copies is not None  # noqa: S101
            with machine_errors(str(self.copies)), as_caller(self.copies):
                copied.append(new_directory(self.copies / self.copy_name(variant, sent.repeat)))
                room -= unpack(files, copied[-1], room)
            self.directories[f"{variant.title} {sent.repeat} {number}"] = str(copied[-1])

    def forget(self, variants: Sequence[Variant], copied: Sequence[Path]) -> None:
        """Drop the repeats of runs that are made again. copied: the directories that `take` made for them."""
        gone, paths = {id(each) for each in variants}, {*map(str, copied)}
        self.done = [each for each in self.done if id(each.variant) not in gone]
        self.directories = {key: path for key, path in self.directories.items() if path not in paths}
        for path in copied:
            with as_caller(path.parent):
                shutil.rmtree(path, ignore_errors=True)

    def fail(self, variants: Sequence[Variant], why: str) -> None:
        """Runs that have not come to their end have failed."""
        for variant in variants:
            ran = sum(each.variant is variant for each in self.done)
            if ran < self.times(variant):
                self.keep(Repeat(variant, ran + 1, None, f"{variant.fabric_text}: {why}"))


def _refused(what: str) -> MachineError:
    hint = "does the image have another version of Heddle? build it again, or do not trust it (docs/kubernetes.md)"
    return MachineError(Problem("", "its pod", f"has sent {what}", hint))


class _Pods:
    """The pods of the fabrics, until all fabrics are done. Everything but the calls happens in the main thread."""

    def __init__(self, sweep: Sweep, jobs: PodJobs, fabrics: list[FabricPod]) -> None:
        self._sweep, self._jobs, self._fabrics = sweep, jobs, fabrics
        self._observer = sweep.observer
        self._events: queue.Queue[tuple[FabricPod, str, str, Any]] = queue.Queue(_WAITING)
        self._job: PodJob | None = None
        self._members: list[FabricPod] = []  # by index of the job
        self._since: dict[str, tuple[str, float]] = {}  # fabric or job -> its state, and since when
        self._answered = time.monotonic()
        self._started = False  # whether any pod has run
        self._waits = ""
        self._missing = ""
        self._refused: list[Problem] = []  # fabrics that no pod runs
        self._stop = threading.Event()

    def run(self) -> str:
        """Returns the need that the pods do not have. MachineError when no pod can start."""
        self._observer.begin(_STEP, len(self._fabrics))
        threading.Thread(target=self._beat, daemon=True).start()
        try:
            while not self._missing and self._open:
                if self._job is None:
                    self._create()
                self._take()
                self._look()
        finally:
            self._stop.set()
            for each in self._fabrics:
                each.leave()
            self._remove()
            self._observer.drop(_STEP)
        if self._refused and not self._started:
            raise MachineError(*self._refused)
        return self._missing

    @property
    def _open(self) -> list[FabricPod]:
        return [each for each in self._fabrics if not each.done]

    def _create(self) -> None:
        """A job for all fabrics that are not done. Each of its pods has what the largest needs."""
        self._members = self._open
        needs = [each.need for each in self._members]
        most = ShardNeed("", (), max(each.memory_bytes for each in needs), max(each.cpus for each in needs))
        need = JobNeed(self._sweep.experiment.name, len(self._members), most, self._sweep.parallel)
        self._job = self._jobs.job(f"exp-{secrets.token_hex(4)}", need)
        self._since.clear()
        self._job.create()

    def _remove(self) -> None:
        job, self._job = self._job, None
        if job is None:
            return
        try:
            job.remove()
        except HeddleError as error:
            why = first_lines(error.problems)[0]
            self._observer.warn(f"the pods are not removed: {why}; they end by themselves within minutes")

    def _beat(self) -> None:
        while not self._stop.wait(_BEAT_S):
            for each in self._fabrics:
                each.tell(BEAT)

    # What the pods report.

    def _take(self) -> None:
        """What has come, and more of it for a while."""
        until = time.monotonic() + _LOOK_S
        while (left := until - time.monotonic()) > 0:
            with suppress(queue.Empty):
                fabric, uid, kind, value = self._events.get(timeout=left)
                if fabric.pod is not None and fabric.pod.uid == uid and not fabric.done:
                    self._event(fabric, kind, value)

    def _event(self, fabric: FabricPod, kind: str, value: Any) -> None:
        if kind in ("say", "warn"):
            getattr(self._observer, kind)(f"fabric {fabric.number}: {value}")
        elif kind == "repeated":
            try:
                fabric.copied += self._sweep.take(value, fabric.variants)
            except MachineError as error:
                self._fail(fabric, f"is given up: {first_lines(error.problems)[0]}", error.problems[0].hint)
                fabric.leave()
        elif kind == "finished":
            self._missing = f"{value} (in a pod, on node {self._node(fabric)})" if value else ""
            self._end(fabric)
        elif kind == "refused":
            problem = next(iter(value), Problem("", "it", "gives no reason"))
            self._fail(fabric, f"needs another image: {problem.what} {problem.why}", problem.hint)
        elif kind == "ended":
            fabric.ended = time.monotonic(), value
        else:
            raise RuntimeError(value)

    def _node(self, fabric: FabricPod) -> str:
        return "" if fabric.pod is None else fabric.pod.state.node

    def _begin(self, fabric: FabricPod, pod: IndexPod) -> None:
        self._started = True
        self._observer.say(f"{fabric.name} runs on node {pod.state.node}")
        assert self._job is not None  # noqa: S101  (it has the pod)

        def report(kind: str, value: Any) -> None:
            self._events.put((fabric, pod.uid, kind, value))

        start = partial(self._job.open, pod.name, [*self._jobs.python, AGENT])
        fabric.begin(pod, start, self._sweep.order(fabric.group), report)

    def _end(self, fabric: FabricPod) -> None:
        """Its pod has done its work: it ends, and the job starts the next one."""
        fabric.done = True
        fabric.tell(DONE)
        self._observer.advance(_STEP, len(self._fabrics) - len(self._open))

    def _fail(self, fabric: FabricPod, why: str, hint: str = "") -> None:
        """Its runs that are not made have failed, and the others go on."""
        self._sweep.fail(fabric.variants, why)
        self._observer.warn(f"{fabric.name} {why}" + (f"; {hint}" if hint else ""))
        self._end(fabric)

    # What the cluster reports.

    def _look(self) -> None:
        """Look at all pods, and report what is waited for."""
        self._waits = ""
        self._look_at_all()
        running = sum(each.pod is not None for each in self._open)
        self._observer.waiting(_STEP, self._waits or f"{running} running")

    def _look_at_all(self) -> None:
        """Begin in pods that are ready, and find those that are lost, or will never be ready."""
        assert self._job is not None  # noqa: S101
        try:
            self._job.renew()
            pods = self._job.pods()
            alive = any(self._lives(fabric, pods.get(index)) for index, fabric in enumerate(self._members))
            absent = None if alive else self._job.absent()
            self._answered = time.monotonic()
        except UnreachableError as error:
            if time.monotonic() - self._answered > _SILENT_S:
                for each in self._open:
                    self._fail(each, f"is lost: {first_lines(error.problems)[0]}")
            return
        if absent is not None and self._open:
            self._without_pods(absent)
            return
        self._since.pop("", None)
        for index, fabric in enumerate(self._members):
            if not fabric.done and self._job is not None:
                self._look_at(fabric, pods.get(index))

    def _lives(self, fabric: FabricPod, pod: IndexPod | None) -> bool:
        """Whether it has a pod to wait for, or one that was lost just now."""
        return not fabric.done and (fabric.pod is not None or (pod is not None and pod.uid not in fabric.lost))

    def _look_at(self, fabric: FabricPod, pod: IndexPod | None) -> None:
        if fabric.pod is not None:
            self._look_at_running(fabric, pod)
        elif pod is None or pod.uid in fabric.lost:
            return
        elif pod.state.ready:
            self._begin(fabric, pod)
        elif pod.state.gone:
            self._lose(fabric, pod, pod.state)
        else:
            self._look_at_waiting(fabric, pod)

    def _look_at_running(self, fabric: FabricPod, pod: IndexPod | None) -> None:
        assert fabric.pod is not None  # noqa: S101
        if pod is None or pod.uid != fabric.pod.uid:
            self._lose(fabric, fabric.pod, PodState(False, "was removed"))
        elif pod.state.gone or (fabric.ended is not None and not pod.state.ready):
            self._lose(fabric, pod, pod.state)
        elif fabric.ended is not None and time.monotonic() - fabric.ended[0] > _REASON_S:
            self._lose(fabric, pod, PodState(False, f"cannot be reached: {fabric.ended[1]}"), delete=True)

    def _look_at_waiting(self, fabric: FabricPod, pod: IndexPod) -> None:
        state = pod.state
        busy = any(each.pod is not None for each in self._members if not each.done)
        if not state.node and busy:  # it has its turn when another one ends
            self._since.pop(fabric.name, None)
            return
        self._waits = self._waits or f"fabric {fabric.number} {state.why}"
        if not self._overdue(fabric.name, state):
            return
        if not state.node:
            self._too_large(state)
        elif not self._started:
            self._none_starts(state, fabric)
        else:
            self._lose(fabric, pod, state, delete=True)

    def _without_pods(self, state: PodState) -> None:
        """The cluster has no pod of an open fabric."""
        self._waits = state.why
        if self._overdue("", state):
            if "quota" in state.why:
                self._too_large(state)
            else:
                self._none_starts(state, self._open[0])

    def _overdue(self, key: str, state: PodState) -> bool:
        now, same = time.monotonic(), f"{state.hint} {state.patience_s}"
        if self._since.get(key, ("", 0.0))[0] != same:
            self._since[key] = same, now
        return now - self._since[key][1] >= state.patience_s

    def _too_large(self, state: PodState) -> None:
        """No pod fits: without the largest fabrics, others may."""
        largest = max(each.need.memory_bytes for each in self._open)
        self._refuse([each for each in self._open if each.need.memory_bytes == largest], state)
        self._remove()

    def _none_starts(self, state: PodState, fabric: FabricPod) -> None:
        """What the pod of one fabric does not get, no other gets."""
        self._refuse([fabric, *(each for each in self._open if each is not fabric)], state, 1)

    def _refuse(self, fabrics: Sequence[FabricPod], state: PodState, named: int | None = None) -> None:
        """No pod can run them. named: how many of them are in the error, if it is one of the whole experiment."""
        self._refused += [Problem("kubernetes", each.name, state.why, state.hint) for each in fabrics[:named]]
        whole = not self._started and len(fabrics) == len(self._open)
        for each in fabrics:
            self._end(each) if whole else self._fail(each, state.why, state.hint)

    def _lose(self, fabric: FabricPod, pod: IndexPod, state: PodState, *, delete: bool = False) -> None:
        """A pod is lost: the job starts another one, with all runs of the fabric, but only once."""
        fabric.lost.append(pod.uid)
        fabric.leave()
        if delete and self._job is not None:
            with suppress(HeddleError):
                self._job.delete(pod.name)
        if len(fabric.lost) >= _STARTS:
            self._fail(fabric, f"{state.why}, for the second time", state.hint if state.patience_s < USUAL_S else "")
            return
        self._observer.warn(f"{fabric.name} {state.why}; it runs once more")
        self._sweep.forget(fabric.variants, fabric.copied)
        fabric.copied.clear()


_ALL_RUNS_S: Final = 86_400.0  # of all runs of a fabric; the cluster reports a pod that is lost before
_CALL: Final = "experiment"  # a part of kind `shardcall`
# What a pod reports, with a value: `say` and `warn` (a text), `repeated` (SentRepeat), `finished` (the need that the
# pod does not have), `refused` (Problems); of the call: `ended` (why), `defect` (a traceback).
Report = Callable[[str, Any], None]


@dataclass
class FabricPod:
    """A fabric and its pod. number: from 1; group: in Running.groups. lost: the pods that it had before.

    ended: when the call in the pod ended without a result, and why.
    """

    number: int
    group: int
    variants: Sequence[Variant]
    lost: list[str] = field(default_factory=list)
    pod: IndexPod | None = None
    agent: AgentCall | None = None
    ended: tuple[float, str] | None = None
    done: bool = False
    copied: list[Path] = field(default_factory=list)

    @property
    def name(self) -> str:
        """`fabric 2 (tiny, racks=4)`."""
        return f"fabric {self.number} ({self.variants[0].fabric_text})"

    @property
    def need(self) -> ShardNeed:
        """Of its pod: the whole fabric, and the arrays of its largest run where they are more than usual."""
        fabric = self.variants[0].fabric.fabric
        (whole,) = cut(fabric, 1).shards
        usual = BUFFER_BYTES * len(fabric.nics)
        arrays = max(array_bytes_of(each) for each in self.variants)
        memory = whole.memory_bytes + round(max(0, arrays - usual) * MARGIN)
        return ShardNeed(self.name, whole.nodes, memory, whole.cpus)

    def begin(
        self, pod: IndexPod, start: Callable[[IO[bytes]], ShardCommand], order: GroupOrder, report: Report
    ) -> None:
        """Call into a pod that is ready. start: starts its agent."""
        self.pod, self.agent, self.ended = pod, None, None
        request = {"call": _CALL, "args": [values.dump(order), OBSERVER], "kwargs": {}}

        def call() -> None:
            agent = None
            try:
                agent = AgentCall(f"of fabric {self.number}", start, lambda: None)
                self.agent = agent
                agent.call(request, _Listener(report), _ALL_RUNS_S)
            except HeddleError as error:
                report("ended", first_lines(error.problems)[0])
            except Exception as error:  # a defect: raised again in the main thread
                report("defect", str(error))
            finally:
                if agent is not None:
                    agent.close()

        threading.Thread(target=call, daemon=True, name=f"fabric-{self.number}").start()

    def leave(self) -> None:
        """End the call: the pod is lost, or not needed any more."""
        if self.agent is not None:
            self.agent.kill()
        self.pod = self.agent = self.ended = None

    def tell(self, line: bytes) -> None:
        """Write beside the call."""
        if (agent := self.agent) is not None:
            agent.tell(line)


class _Listener(Observer):
    """Puts what a pod reports into a queue, in a thread of its own."""

    kinds: Mapping[str, Any] = EVENTS

    def __init__(self, put: Report) -> None:
        self.event = put

    def say(self, text: str) -> None:
        self.event("say", text)

    def warn(self, text: str) -> None:
        self.event("warn", text)
