"""What a run's options are read from: texts as users type them. ValueError has `reason; hint`.

In:  `64K:16M:x2`, `list:50000,50001`, `128K`, `10ms`, `rtsw1:eth3,loss=1/256`. Out: the values of RunOptions.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from heddle.base.declared import Wrong
from heddle.base.units import parse_duration, parse_size
from heddle.spec.impairments import parse_run_faults

ELEMENT_BYTES: Final = 4  # float32
MAX_SIZE: Final = 1 << 28  # of a run; a prediction may have MOST_SIZE
MOST_SIZE: Final = 1 << 40
FIXED_SPORT: Final = 49152  # OTG's default
_BUCKETS_NS: Final = (10**6, 10**8)  # a bucket of the queues' record; shorter ones cost too much


@dataclass(frozen=True, slots=True)
class SourcePorts:
    """How a NIC chooses UDP source ports.

    qpn: from both QP numbers, as Linux does. own-qpn: from the sender's own QP number. rxe: from a hash of it, as
    soft-RoCE does for queue pairs without a flow label. fixed: one port. list: `ports` in turn.
    """

    mode: Literal["qpn", "own-qpn", "rxe", "fixed", "list"] = "qpn"
    ports: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        """As typed: `list:50000,50001`."""
        return f"{self.mode}:{','.join(map(str, self.ports))}" if self.ports else self.mode


_BY_NUMBER: Final = {"qpn": SourcePorts(), "own-qpn": SourcePorts("own-qpn"), "rxe": SourcePorts("rxe")}


def parse_sizes(text: str) -> tuple[int, ...]:
    """`8`, `64K:16M`, `64K:16M:x2` or `64K:1M:64K` (nccl-tests' -b, -e, -f, -i); ValueError with the reason.

    Bytes as typed; `build_plan` rounds them to those that the collective uses.
    """
    parts = text.split(":")
    if len(parts) > 3:
        raise ValueError("has too many parts; write 64K, or 64K:16M:x2")
    low = parse_size(parts[0])
    if len(parts) == 1:
        sizes = [low]
    else:
        high = parse_size(parts[1])
        sizes = _series(low, high, parts[2] if len(parts) == 3 else "x2")
    for size in sizes:
        if size < ELEMENT_BYTES:
            raise ValueError(f"has {size} bytes, which is below {ELEMENT_BYTES} (one float32)")
        if size > MOST_SIZE:
            raise ValueError("is above 1 TiB")
    return tuple(sizes)


def _series(low: int, high: int, step: str) -> list[int]:
    if high < low:
        raise ValueError("ends below its start; write 64K:16M:x2")
    sizes = [low]
    if step.startswith("x"):
        if not re.fullmatch(r"x[0-9]+", step) or int(step[1:]) < 2:
            raise ValueError(f"has the factor {step}, which must be x2 or more")
        while sizes[-1] * int(step[1:]) <= high and len(sizes) <= 64:
            sizes.append(sizes[-1] * int(step[1:]))
    else:
        width = parse_size(step)
        if width < 1:
            raise ValueError("has a step of 0")
        while sizes[-1] + width <= high and len(sizes) <= 64:
            sizes.append(sizes[-1] + width)
    if len(sizes) > 64:
        raise ValueError("gives more than 64 sizes")
    return sizes


def parse_source_ports(text: str) -> SourcePorts:
    """`qpn`, `own-qpn`, `rxe`, `fixed`, `fixed:50000` or `list:50000,50001`; ValueError with the reason."""
    if text in _BY_NUMBER:
        return _BY_NUMBER[text]
    mode, _, rest = text.partition(":")
    if mode == "fixed":
        return SourcePorts("fixed", (_port(rest) if rest else FIXED_SPORT,))
    if mode == "list" and rest:
        return SourcePorts("list", tuple(_port(p) for p in rest.split(",")))
    raise ValueError("is not one of qpn, own-qpn, rxe, fixed, fixed:PORT and list:PORT,PORT,...")


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"has {text or 'an empty word'}, which is not a UDP port; use ports from 1 to 65535")
    return int(text)


def parse_chunk(text: str) -> int:
    """Bytes of a message; ValueError with the reason."""
    size = parse_size(text)
    if not 4096 <= size <= 1 << 24 or size % 128:
        raise ValueError("is not a multiple of 128 bytes between 4K and 16M; try 128K, the chunk of NCCL")
    return size


def parse_bucket(text: str) -> int:
    """Nanoseconds; ValueError with the reason."""
    if not _BUCKETS_NS[0] <= (found := parse_duration(text)) <= _BUCKETS_NS[1]:
        raise ValueError("is outside 1ms to 100ms")
    return found


def check_faults(texts: Sequence[str], wrong: Wrong) -> tuple[str, ...]:
    """The texts of `--fault`, or InputError; whether the lab has their ports is checked before the run."""
    from heddle.lab.faults.registry import KEYS

    parse_run_faults(texts, KEYS)
    return tuple(texts)
