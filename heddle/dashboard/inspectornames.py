"""Runs under the names of NCCL Inspector's Prometheus output, so that its Grafana dashboard shows them unchanged.

Names, labels and the text of message sizes are those of NVIDIA/nccl, plugins/profiler/inspector (README, release
v2.30); `cluster` is the label that its dashboard also selects by, which there Prometheus' configuration adds. Inspector
reports each GPU; a run's record has the mean over its ranks, so `node` and `gpu` are `all`. Its metrics of single sends
and receives (nccl_p2p_...) are not there: Heddle measures collectives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

if TYPE_CHECKING:
    from heddle.runs.runrecord import RunRecord

BANDWIDTH: Final = "nccl_bus_bandwidth_gbs"
TIME: Final = "nccl_collective_exec_time_microseconds"
INSPECTOR: Final = (BANDWIDTH, TIME)
_LABELS: Final = (
    "version", "cluster", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks", "collective",
    "message_size", "algo_proto",
)  # fmt: skip
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")  # powers of 1024 there
_ALL: Final = "all"
_NAMES: Final = {"all-to-all": "AlltoAll"}


def inspector_families(runs: Iterable[RunRecord]) -> Iterator[Metric]:
    """The last run of each lab, a sample a size; emulated."""
    width = GaugeMetricFamily(BANDWIDTH, "NCCL bus bandwidth in GB/s, emulated; mean over ranks", labels=_LABELS)
    time = GaugeMetricFamily(TIME, "NCCL execution time in microseconds, emulated; mean over ranks", labels=_LABELS)
    for run in runs:
        head, o = run.header, run.header.options
        group = len(head.communicators[0]) if head.communicators else len(head.ranks)
        hosts = {rank.host for rank in head.ranks}
        for row in run.outcome.rows if run.outcome else ():
            labels = [
                f"heddle-{run.heddle}", head.lab, f"{head.lab}-{run.id}", _ALL, _ALL, head.lab, str(len(hosts)),
                str(group), collective_name(o.collective), message_size(row.size), f"{o.algorithm.title()}_simple",
            ]  # fmt: skip
            width.add_metric(labels, row.busbw)
            time.add_metric(labels, row.time_us)
    yield from (each for each in (width, time) if each.samples)


def collective_name(collective: str) -> str:
    """`all-reduce` as NCCL writes it: `AllReduce`."""
    return _NAMES.get(collective) or "".join(word.title() for word in collective.split("-"))


def message_size(count: int) -> str:
    """Bytes as Inspector's bucket: `1-2MB` from 1 MiB to below 2 MiB."""
    unit = min(len(_UNITS) - 1, max(0, (count.bit_length() - 1) // 10)) if count else 0
    if not count:
        return "0B"
    whole = max(1, count >> 10 * unit)
    return f"{whole}-{whole + 1}{_UNITS[unit]}"
