"""What the live page costs a large fabric: processor time of the dashboard with 64 x 8 switches, and of a scrape.

The share of one processor is the dashboard's own time (user and system, all of its threads) over wall time; what bgpd
spends on its answers is a figure of its own. Each share is measured on a fabric that rests and during a run.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from heddle.base.events import Observer
from heddle.base.resources import HERE
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import budget_pps
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from tests.webclient import EventStream, WebClient

from . import Figure, at_least, at_most
from .steady import wide_rate

_LAB: Final = "benchdash"
_SECONDS: Final = 20.0
_SETTLE_S: Final = 5.0
_SHARE: Final = 10.0  # % of a processor
_UPDATES: Final = 1.9  # a second; asked for are 2
_MANY: Final = 4
_SCRAPES: Final = 3
_WIDE: Final = ("racks=64", "ctsw=8")


def figures(observer: Observer) -> Iterator[Figure]:
    """No viewer, one viewer, several, a run; scrapes."""
    rate = f"{wide_rate(budget_pps(compiled=True), 128)}bit"  # a run leaves processor time for others
    overrides = (*_WIDE, f"link.host={rate}", f"link.fabric={rate}")
    try:
        lab = labs.up(load_fabric("zone", name=_LAB, overrides=overrides), observer=observer, rollback=True).lab
        with _dashboard() as (pid, page):
            yield at_most("64 x 8, no viewer: dashboard", 100 * _share([pid]), "%", 0.5, "a processor")
            yield Figure("64 x 8, no viewer: bgpd of all switches", 100 * _share(_bgpds(lab)), "%")
            yield from _viewed("one viewer", lab, pid, page, 1)
            yield from _viewed(f"{_MANY} viewers", lab, pid, page, _MANY)
            with _running(lab):
                yield from _viewed("one viewer, during a run", lab, pid, page, 1)
            yield from _scrapes(pid, page)
    finally:
        labs.down(_LAB, observer)


def _viewed(what: str, lab: Lab, pid: int, page: WebClient, viewers: int) -> Iterator[Figure]:
    with ExitStack() as stack:
        streams = [EventStream(page, lab.name) for _ in range(viewers)]
        for stream in streams:
            stack.callback(stream.close)
            stream.wait_for("update")
        time.sleep(_SETTLE_S)
        for stream in streams:
            stream.forget()
        daemons = _bgpds(lab)
        before, began = _ticks(daemons), time.monotonic()
        share = _share([pid])
        spent, seconds = _ticks(daemons) - before, time.monotonic() - began
        updates = min(sum(kind == "update" for kind, _ in stream.events) for stream in streams) / seconds
    yield at_most(f"64 x 8, {what}: dashboard", 100 * share, "%", _SHARE, "a processor")
    yield Figure(f"64 x 8, {what}: bgpd of all switches", 100 * spent / os.sysconf("SC_CLK_TCK") / seconds, "%")
    yield at_least(f"64 x 8, {what}: updates", updates, "/s", _UPDATES)


def _scrapes(pid: int, page: WebClient) -> Iterator[Figure]:
    before, began = _ticks([pid]), time.monotonic()
    sizes = [len(page.get("/metrics")) for _ in range(_SCRAPES)]
    wall = (time.monotonic() - began) / _SCRAPES
    spent = (_ticks([pid]) - before) / os.sysconf("SC_CLK_TCK") / _SCRAPES
    yield Figure("64 x 8, a scrape: dashboard", spent, "s")
    yield Figure("64 x 8, a scrape: answered in", wall, "s")
    yield Figure("64 x 8, a scrape: text", sizes[-1] / 1e6, "MB")


@contextmanager
def _dashboard() -> Iterator[tuple[int, WebClient]]:
    """The verb in a process of its own: its pid, and a client."""
    argv = [*HERE.command(), "dashboard", _LAB]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as proc:
        try:
            assert proc.stdout is not None
            address, _, token = proc.stdout.readline().strip().partition("#token=")
            time.sleep(1)
            yield proc.pid, WebClient(int(address.partition("127.0.0.1:")[2].partition("/")[0]), token)
        finally:
            proc.terminate()


@contextmanager
def _running(lab: Lab) -> Iterator[None]:
    """An all-reduce over all hosts, in a process of its own, that has begun and ends with the block."""
    argv = [*HERE.command(), "run", "--lab", lab.name, "--size", "4M", "--iters", "1000", "--qps", "4"]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as proc:
        try:
            time.sleep(2 * _SETTLE_S)
            yield
        finally:
            proc.terminate()


def _share(pids: list[int]) -> float:
    """Processors that some processes use, over some seconds."""
    before, began = _ticks(pids), time.monotonic()
    time.sleep(_SECONDS)
    return (_ticks(pids) - before) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)


def _ticks(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])  # utime and stime, proc(5)
    return total


def _bgpds(lab: Lab) -> list[int]:
    """The pids of all bgpd of a lab, by their namespaces."""
    spaces = {handle.netns.stat().st_ino for handle in lab.handles().values()}
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "comm").read_text() == "bgpd\n" and (entry / "ns/net").stat().st_ino in spaces:
                found.append(int(entry.name))
        except OSError:
            continue
    return found
