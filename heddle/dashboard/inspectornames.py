"""Runs under the names of NCCL Inspector's Prometheus output, so that its Grafana dashboard shows them unchanged.

Names, labels, the text of message sizes and the means of samples of one bucket are those of NVIDIA/nccl,
plugins/profiler/inspector (README and inspector_prom.cc, release v2.30). `cluster` is the label that its dashboard also
selects by, which there Prometheus' configuration adds. Inspector reports each GPU; a run's record has the mean over its
ranks, so `node` and `gpu` are `all`.

Single sends and receives (nccl_p2p_...): NCCL carries out an all-to-all, and a gather, as such. Heddle measures whole
iterations. These are the time of one send only where a communicator has two ranks, so only such runs have samples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from statistics import fmean, geometric_mean
from typing import TYPE_CHECKING, Final

from prometheus_client.core import GaugeMetricFamily, Metric

from heddle.traffic.collectives import find_pattern
from heddle.traffic.collectives.pattern import chunk_range

if TYPE_CHECKING:
    from heddle.runs.runrecord import RunRecord
    from heddle.runs.runtable import SizeRow

BANDWIDTH: Final = "nccl_bus_bandwidth_gbs"
TIME: Final = "nccl_collective_exec_time_microseconds"
P2P_BANDWIDTH: Final = "nccl_p2p_bus_bandwidth_gbs"
P2P_TIME: Final = "nccl_p2p_exec_time_microseconds"
INSPECTOR: Final = (BANDWIDTH, TIME)
INSPECTOR_P2P: Final = (P2P_BANDWIDTH, P2P_TIME)  # of runs whose communicators have two ranks
_OF_JOB: Final = ("version", "cluster", "slurm_job_id", "node", "gpu", "comm_name", "n_nodes", "nranks")
COLLECTIVE_LABELS: Final = (*_OF_JOB, "collective", "message_size", "algo_proto")
P2P_LABELS: Final = (*_OF_JOB, "p2p_operation", "message_size")
_OPERATIONS: Final = ("Send", "Recv")
_PAIR: Final = 2
_AS_SENDS: Final = frozenset({"all-to-all", "incast"})  # NCCL has them as sends and receives of a chunk
_UNITS: Final = ("B", "KB", "MB", "GB", "TB")  # powers of 1024 there
_ALL: Final = "all"
_NAMES: Final = {"all-to-all": "AlltoAll"}


class _Buckets:
    """Two gauges with the same labels. Inspector takes the geometric mean of bandwidths, and the mean of times."""

    def __init__(self, bandwidth: str, time: str, what: str, labels: tuple[str, ...]) -> None:
        about = "emulated; mean over ranks"
        self._bandwidth = GaugeMetricFamily(bandwidth, f"NCCL {what}bus bandwidth in GB/s, {about}", labels=labels)
        self._time = GaugeMetricFamily(time, f"NCCL {what}execution time in microseconds, {about}", labels=labels)
        self._samples: defaultdict[tuple[str, ...], list[SizeRow]] = defaultdict(list)

    def add(self, labels: tuple[str, ...], row: SizeRow) -> None:
        """One measured size. Sizes of one bucket become one sample: Prometheus refuses equal labels in a scrape."""
        self._samples[labels].append(row)

    def families(self) -> Iterator[Metric]:
        """Both, if there are samples."""
        for labels, rows in self._samples.items():
            positive = [row.busbw for row in rows if row.busbw > 0]
            self._bandwidth.add_metric(labels, geometric_mean(positive) if positive else 0.0)
            self._time.add_metric(labels, fmean(row.time_us for row in rows))
        yield from (each for each in (self._bandwidth, self._time) if each.samples)


def inspector_families(runs: Iterable[RunRecord]) -> Iterator[Metric]:
    """The last run of each lab, a sample for each bucket of sizes; emulated."""
    whole = _Buckets(BANDWIDTH, TIME, "", COLLECTIVE_LABELS)
    single = _Buckets(P2P_BANDWIDTH, P2P_TIME, "P2P ", P2P_LABELS)
    for run in runs:
        o = run.header.options
        ranks, job = _ranks(run), _job(run)
        for row in run.outcome.rows if run.outcome else ():
            named = (collective_name(o.collective), message_size(row.size), f"{o.algorithm.title()}_simple")
            whole.add((*job, *named), row)
            if ranks == _PAIR and o.collective in _AS_SENDS:
                message = message_size(sent_bytes(o.collective, o.algorithm, row.size))
                for operation in _OPERATIONS:
                    single.add((*job, operation, message), row)
    yield from whole.families()
    yield from single.families()


def sent_bytes(collective: str, algorithm: str, size: int) -> int:
    """Bytes of the one message between two ranks, in an all-to-all or an incast of this size.

    The bus bandwidth of both is (n-1)/n x size / time: for two ranks it is that of this message.
    """
    pattern = find_pattern(collective, algorithm)
    low, high = chunk_range(1, _PAIR, pattern.whole(_PAIR, size // pattern.element_bytes))
    return (high - low) * pattern.element_bytes


def _ranks(run: RunRecord) -> int:
    """Of one communicator."""
    head = run.header
    return len(head.communicators[0]) if head.communicators else len(head.ranks)


def _job(run: RunRecord) -> tuple[str, ...]:
    """The labels that all samples of a run share. n_nodes: hosts of one communicator, of the one that has most."""
    head = run.header
    groups = head.communicators or (tuple(range(len(head.ranks))),)
    nodes = max(len({head.ranks[rank].host for rank in group}) for group in groups)
    about = (f"heddle-{run.heddle}", head.lab, f"{head.lab}-{run.id}", _ALL, _ALL, head.lab)
    return (*about, str(nodes), str(_ranks(run)))


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
