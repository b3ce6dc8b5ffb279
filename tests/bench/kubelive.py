"""`zone` over two pods of a real cluster against `zone` in one kernel, in turn, on this machine.

The cluster is that of suite kube: a control plane and two nodes. Both nodes share this machine's processors, so times
include what the cluster itself does. On a busy machine they say nothing: other work has another weight beside a node
than beside one kernel's processes. Skipped with the reason where that cluster cannot run, or is not built.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Final

import yaml

from heddle.base.events import Observer, Silent
from heddle.fabric.cutting import cut
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.cutlinks import carriers, tunnels
from heddle.lab.lab import Lab
from heddle.lab.ports import down_of, in_network
from heddle.render.dialects import RenderOptions
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from heddle_plugins.kubernetes import manifests
from tests.kube.api import eventually
from tests.kube.cluster import RealCluster, cgroup_of, started
from tests.kube.programs import why_not_now

from . import Figure, at_most

_LAB: Final = "benchkube"
_SPACE: Final = "bench"
_ROUNDS: Final = 3
# Rates at which two processors carry all packets in both cases: the fabric is the limit, not the machine.
_RATES: Final = ("link.host=5mbit", "link.fabric=5mbit")
_REDUCE: Final = RunOptions(sizes=(1 << 18,), iters=2, warmup=1, qps=4)
_DAEMONS: Final = ("zebra", "bgpd", "mgmtd")
_KERNEL, _PODS, _POD = "one kernel", "two shards", "one shard"
_CHANGES: Final = 5
_PATIENCE_S: Final = 30.0


@dataclass
class _Readings:
    """Of one way to run the fabric, an item a round. frr: daemon -> its own memory a switch, MB. rtt_ms: of a link."""

    up_s: list[float] = field(default_factory=list)
    busbw: list[float] = field(default_factory=list)
    frr: dict[str, float] = field(default_factory=dict)
    files_mb: float = 0.0
    rest_mb: float = 0.0
    rtt_ms: list[float] = field(default_factory=list)
    version: str = ""

    @property
    def switch_mb(self) -> float:
        """Own memory of all daemons of a switch."""
        return sum(self.frr.values())


def figures(observer: Observer) -> Iterator[Figure]:
    """Ratios of two shards to one kernel; then the carrier, and a pod that is killed."""
    if (why := _obstacle()) is not None:
        observer.warn(f"bench kubernetes: without a cluster, since {why}: only figures on paper")
        return
    with started(observer.say) as cluster, _connected(cluster):
        yield from _figures(cluster, observer)


def _obstacle() -> str | None:
    if os.geteuid() != 0:
        return "it needs root"
    if why := why_not_now():
        return f"{why} (./inv test kube does that, once)"
    return None


@contextmanager
def _connected(cluster: RealCluster) -> Iterator[None]:
    before = os.environ.get("KUBECONFIG")
    os.environ["KUBECONFIG"] = str(cluster.kubeconfig)
    cluster.api.post("/api/v1/namespaces", yaml.safe_load(manifests.namespace_text(_SPACE)))
    eventually("pods can be made", lambda: cluster.api.get(f"/api/v1/namespaces/{_SPACE}/serviceaccounts/default"))
    try:
        yield
    finally:
        os.environ.pop("KUBECONFIG")
        if before is not None:
            os.environ["KUBECONFIG"] = before


def _figures(cluster: RealCluster, observer: Observer) -> Iterator[Figure]:
    load = os.getloadavg()[0]
    yield Figure("load average of this machine before", load, "")
    found = {_KERNEL: _Readings(), _PODS: _Readings(), _POD: _Readings()}
    sent = lost = 0
    trips: list[int] = []
    for number in range(_ROUNDS):
        for way in (_KERNEL, _PODS) if number % 2 == 0 else (_PODS, _KERNEL):
            with _up(way, found[way], observer) as lab:
                before = _crossed(lab)
                _read(lab, way, found[way], cluster)
                if way == _PODS:
                    after = _crossed(lab)
                    sent, lost = sent + after[0] - before[0], lost + after[1] - before[1]
                    trips += [trip.rtt_ns for each in carriers(lab) for trip in each.trips]
    with _up(_POD, found[_POD], observer) as lab:
        _read(lab, _POD, found[_POD], cluster)
    kernel, pods, pod = found.values()
    times, words = min(pods.up_s) / min(kernel.up_s), _both(kernel, pods, lambda r: min(r.up_s), "s")
    if load > (os.cpu_count() or 1):
        observer.warn("bench kubernetes: this machine is busy, so the time of up has no verdict")
        yield Figure("up zone", times, "x", words)
    else:
        yield at_most("up zone", times, "x", 2.0, words)
    yield Figure("up zone, one shard in a pod", min(pod.up_s) / min(kernel.up_s), "x", f"{min(pod.up_s):.2f} s")
    ratio = median(pods.busbw) / median(kernel.busbw)
    words = _both(kernel, pods, lambda r: 1e3 * median(r.busbw), "MB/s")
    yield at_most("busbw of all-reduce, the difference", 100 * abs(1 - ratio), "%", 5.0, words)
    yield from _memory(kernel, pods, pod)
    more = 1e3 * (median(pods.rtt_ms) - median(kernel.rtt_ms))
    yield Figure(
        "tunnel: round trip more than of a link", more, "us", _both(kernel, pods, lambda r: median(r.rtt_ms), "ms")
    )
    yield Figure("tunnel: round trip of carriers", median(trips) / 1e6, "ms")
    yield at_most("tunnel: frames lost", lost, "frames", 0, f"{sent:,} sent")
    yield from _failures(cluster, observer)


def _crossed(lab: Lab) -> tuple[int, int]:
    """Frames that tunnels have carried, and lost. Some are lost while one shard comes up before the other."""
    ends = tunnels(lab)
    return sum(each.sent for each in ends), sum(each.lost for each in ends)


def _both(kernel: _Readings, pods: _Readings, of: Callable[[_Readings], float], unit: str) -> str:
    """The two values behind a ratio."""
    return f"{of(kernel):.3g} {unit} in one kernel, {of(pods):.3g} {unit} in two shards"


def _memory(kernel: _Readings, pods: _Readings, pod: _Readings) -> Iterator[Figure]:
    """Own (anonymous) pages grow with switches; pages of files, and other processes, are there once a shard."""
    words = _both(kernel, pods, lambda r: r.switch_mb, "MB")
    versions = f"{kernel.version} and {pods.version}"
    yield at_most("memory of FRR a switch", pods.switch_mb / kernel.switch_mb, "x", 1.1, f"{words}; {versions}")
    plain = [each.switch_mb - each.frr.get("mgmtd", 0.0) for each in (pods, kernel)]
    yield at_most("memory of FRR a switch, without mgmtd", plain[0] / plain[1], "x", 1.1, "zebra and bgpd of both")
    yield at_most("memory of FRR a switch, same image", pods.switch_mb / pod.switch_mb, "x", 1.1, "one shard in a pod")
    for daemon, size in pods.frr.items():
        yield Figure(f"memory of {daemon} a switch, in shards", size, "MB", f"{kernel.frr.get(daemon, 0):.1f} MB")
    yield Figure("memory of FRR's files, a shard", pods.files_mb / 2, "MB", f"{kernel.files_mb:.1f} MB in one kernel")
    yield Figure("memory of other processes, a shard", pods.rest_mb / 2, "MB PSS")


@contextmanager
def _up(way: str, readings: _Readings, observer: Observer) -> Iterator[Lab]:
    """`zone` for a with block."""
    fabric = load_fabric("zone", name=_LAB, overrides=_RATES)
    shards = {_PODS: "2", _POD: "1"}.get(way, "")
    options = RenderOptions(target={"namespace": _SPACE, "shards": shards} if shards else {})
    try:
        result = labs.up(fabric, runtime="kubernetes" if shards else "netns", options=options, observer=observer)
        readings.up_s.append(result.seconds["total"])
        yield result.lab
    finally:
        labs.down(_LAB, observer)


def _read(lab: Lab, way: str, readings: _Readings, cluster: RealCluster) -> None:
    """Memory before the run, since a run adds to it; then a run, and round trips over a link that is cut."""
    own, files, readings.rest_mb = _sizes(lab, way, cluster)
    count = len(lab.fabric.switches)
    readings.frr = {daemon: size / count for daemon, size in own.items()}
    readings.files_mb = files
    said = lab.runtime.output(lab.name, lab.topology, "rtsw1", ["vtysh", "-c", "show version"])
    readings.version = " ".join(said.split()[:2])
    result = run(lab, _REDUCE, Silent())
    assert result.wrong == 0
    readings.busbw.append(result.largest.busbw)
    readings.rtt_ms.append(_round_trip_ms(lab, *_cut_link()))


def _cut_link() -> tuple[str, str]:
    """The ends of a link that is cut when `zone` is in two shards: `rtsw1:eth3` and its peer."""
    link = cut(load_fabric("zone").fabric, 2).links[0].link
    return ":".join(link.a), ":".join(link.b)


def _round_trip_ms(lab: Lab, near: str, far: str) -> float:
    """The shortest of 100 pings between the two ends of a link that is idle."""
    far_node, _, far_port = far.partition(":")
    node, _, port = near.partition(":")
    (facts,) = json.loads(in_network(lab, far_node, ["ip", "-json", "-6", "addr", "show", "dev", far_port]).out)
    address = next(each["local"] for each in facts["addr_info"] if each["scope"] == "link")
    said = in_network(lab, node, ["ping", "-q", "-c", "100", "-i", "0.01", f"{address}%{port}"]).out
    return float(said.rpartition(" = ")[2].partition("/")[0])


def _sizes(lab: Lab, way: str, cluster: RealCluster) -> tuple[dict[str, float], float, float]:
    """Own memory of each kind of daemon; pages of files of all daemons; all other processes in pods. MB."""
    spaces = {each.netns.stat().st_ino for each in lab.handles().values()} if way == _KERNEL else set()
    own, files, rest = dict.fromkeys(_DAEMONS, 0.0), 0.0, 0.0
    for proc in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ends meanwhile
            pid, name = int(proc.name), (proc / "comm").read_text().strip()
            here = (proc / "ns/net").stat().st_ino in spaces if spaces else "/kubepods" in (group := cgroup_of(pid))
            if not here or (not spaces and cluster.work.name not in group):
                continue
            size = _pss(proc)
            if name in own:
                own[name] += size["Pss_Anon"]
                files += size["Pss_File"]
            elif not spaces:
                rest += size["Pss"]
    return {daemon: each for daemon, each in own.items() if each}, files, rest


def _pss(proc: Path) -> Mapping[str, float]:
    """Pss, Pss_Anon and Pss_File of a process, MB."""
    rows = (line.split() for line in (proc / "smaps_rollup").read_text().splitlines()[1:])
    return {row[0].rstrip(":"): int(row[1]) * 1024 / 1e6 for row in rows}


def _failures(cluster: RealCluster, observer: Observer) -> Iterator[Figure]:
    """How soon the other end of a cut link has no carrier: when a port is set down, and when its pod is killed."""
    with _up(_PODS, _Readings(), observer) as lab:
        near, far = (each.partition(":") for each in _cut_link())
        seconds = []
        for _ in range(_CHANGES):
            begun = time.monotonic()
            in_network(lab, near[0], ["ip", "link", "set", "dev", near[2], "down"])
            seconds.append(_until(lambda: far[2] in down_of(lab, [far[0]])[far[0]]) - begun)
            in_network(lab, near[0], ["ip", "link", "set", "dev", near[2], "up"])
            _until(lambda: far[2] not in down_of(lab, [far[0]])[far[0]])
        yield at_most(
            "carrier: a port down, seen across a cut", 1e3 * max(seconds), "ms", 500, f"longest of {_CHANGES}"
        )
        yield at_most("carrier: the same, median", 1e3 * median(seconds), "ms", 50)
        shards = lab.runtime.shards(lab.name)
        assert shards is not None
        pod, begun = manifests.pod_name(lab.name, shards.of(near[0])), time.monotonic()
        cluster.kill_pod(pod, _SPACE)
        killed = _until(lambda: far[2] in down_of(lab, [far[0]])[far[0]]) - begun
        yield at_most("carrier: a killed pod, seen by its neighbour", killed, "s", 2.0)


def _until(true: Callable[[], bool]) -> float:
    """The time when it is so."""
    end = time.monotonic() + _PATIENCE_S
    while not true():
        assert time.monotonic() < end, "the carrier does not change"
        time.sleep(0.002)
    return time.monotonic()
