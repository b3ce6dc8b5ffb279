"""Cold to converged: `zone` with hosts, queues and programs, against a bare script with neither."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from heddle.base.events import Observer
from heddle.fabric.fabricfile import load_fabric
from heddle.kernel.namespace import NodeHandle
from heddle.lab import lifecycle as labs

from . import Figure, at_most
from .yardstick import bare_fabric

_LAB = "benchup"
_RACKS, _CTSW = 8, 4


def figures(observer: Observer) -> Iterator[Figure]:
    """The best of two each, in turn, and what a switch weighs."""
    bare, full, rss, agent = float("inf"), float("inf"), 0.0, 0.0
    for _ in range(2):
        bare = min(bare, bare_fabric(_RACKS, _CTSW))
        spec = load_fabric("zone", name=_LAB).spec
        try:
            result = labs.up(spec, observer=observer, rollback=True)
            full = min(full, result.seconds["total"])
            handles = result.lab.handles()
            switches = [handles[s.name] for s in result.lab.fabric.switches]
            each = [_rss_mb(switch) for switch in switches]
            rss, agent = max([rss, *(daemons for daemons, _ in each)]), max([agent, *(others for _, others in each)])
        finally:
            labs.down(_LAB, observer)
    yield at_most("up zone, cold to converged", full, "s", 6.0)
    yield at_most("up zone, cold to converged", full / bare, "x", 1.72, "bare script, no hosts, no queues")
    yield Figure("bare script, 8 x 4 switches", bare, "s")
    yield at_most("memory of a zone switch, the largest", rss, "MB RSS", 40.0)
    yield Figure("memory of the agent and keeper of PFC, one pair a lab", agent, "MB RSS")


def _rss_mb(handle: NodeHandle) -> tuple[float, float]:
    """Resident memory of a node's daemons and of the lab's agent that stands in it, MB; shared pages count in each."""
    inode = handle.netns.stat().st_ino
    found = {False: 0, True: 0}
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            if (proc / "ns" / "net").stat().st_ino == inode:
                agent = b"heddle.switch.pfc" in (proc / "cmdline").read_bytes()
                found[agent] += int((proc / "statm").read_text().split()[1]) * 4096
        except OSError:
            continue  # it ended meanwhile
    return found[False] / 1e6, found[True] / 1e6
