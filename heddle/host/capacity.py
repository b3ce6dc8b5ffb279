"""What this machine can carry, and what it carried: so that a result is not mistaken for the fabric's when it is not.

Everything here is a reading of /proc or a few milliseconds of arithmetic.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What one 4 KB data packet costs all in all (made, shaped, four times forwarded, checked, reduced) in units of the time
# that zlib takes for a CRC over 4 KB, measured as `./inv bench budget` does.
PACKET_COST_CRCS: Final = 140.0


__MEMINFO: Final = Path("/proc/meminfo")
_SOFTNET: Final = Path("/proc/net/softnet_stat")
_SCHEDSTAT: Final = Path("/proc/self/schedstat")  # of the main thread: ns that it ran, ns that it waited, ...


@dataclass(frozen=True, slots=True)
class CpuCounters:
    """Processor time in ticks, and packets lost in the processors' backlogs."""

    busy: int
    total: int
    backlog_drops: int


def read() -> CpuCounters:
    """The counters as they are now."""
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    return CpuCounters(sum(fields) - idle, sum(fields), backlog_drops())


def backlog_drops() -> int:
    """Packets that the machine's CPUs have dropped because netdev_max_backlog was reached, since boot.

    A packet that crosses a veth waits in the receiving CPU's backlog; what is lost there is lost by the machine, and in
    no namespace's counters.
    """
    return sum(int(line.split()[1], 16) for line in _SOFTNET.read_text().splitlines())


def waited_s() -> float:
    """Seconds that this process could have run and had no processor, since its start; 0 where no kernel counts them."""
    try:
        return int(_SCHEDSTAT.read_text().split()[1]) / 1e9
    except OSError:
        return 0.0


def cpu_share(before: CpuCounters, after: CpuCounters) -> float:
    """Share of all processors' time that was used in between, 0 to 1."""
    return (after.busy - before.busy) / max(1, after.total - before.total)


def crc_seconds() -> float:
    """What zlib takes for a CRC over 4 KB here and now: the best of five looks of 1 ms."""
    block = bytes(4096)
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(200):
            zlib.crc32(block)
        best = min(best, (time.perf_counter() - start) / 200)
    return best


def budget_pps() -> int:
    """How many data packets a second all processors together can carry end to end."""
    return int(len(os.sched_getaffinity(0)) / (PACKET_COST_CRCS * crc_seconds()))


def memory_bytes(sizes: Sequence[int], ranks: int, workers: int, in_place: bool = True) -> int:
    """What the arrays of a run take: an input and two buffers a rank, all sums a worker, and some room.

    in_place: ranks receive into what they send from; otherwise they have two buffers more.
    """
    return (3 if in_place else 5) * max(sizes) * ranks + workers * (sum(sizes) + 5 * max(sizes))


def free_bytes() -> int:
    """What the kernel would give before it swaps or kills (MemAvailable)."""
    words = next(line.split() for line in __MEMINFO.read_text().splitlines() if line.startswith("MemAvailable:"))
    return int(words[1]) * 1024


def wanted_pps(rates_bps: list[int], payload: int, overhead: int) -> int:
    """Data packets a second when all these NICs send at line rate; payload and overhead in bytes a packet."""
    return int(sum(rates_bps) / (8 * (payload + overhead)))
