"""A fabric of an experiment, and the call in its pod: in a thread of its own, so that several run at the same time.

In:  the variants of a fabric; a pod that is ready. Out: what the pod needs, and what it reports, in the caller's queue.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from heddle.base import values
from heddle.base.events import Observer
from heddle.base.problems import HeddleError, first_lines
from heddle.experiments.inpod import EVENTS, GroupOrder
from heddle.experiments.loading import Variant
from heddle.experiments.running import array_bytes_of
from heddle.fabric.cutting import BUFFER_BYTES, MARGIN, cut
from heddle.runtimes.cluster import ShardCommand, ShardNeed
from heddle.runtimes.kube.jobs import IndexPod
from heddle.runtimes.shardcalls import OBSERVER, AgentCall

_ALL_RUNS_S: Final = 86_400.0  # of all runs of a fabric; the cluster reports a pod that is lost before
_CALL: Final = "heddle.experiments.inpod:run_group"
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
