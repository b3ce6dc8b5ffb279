"""The UDP source port that NICs choose: the only field of a queue pair that 5-tuple ECMP can use to spread load."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

_ENTROPY_STEP: Final = 2533
SPORTS: Final = range(0xC000, 0x10000)  # the source ports that a flow label can give


def flow_label_for_qps(lqpn: int, rqpn: int) -> int:
    """The 20-bit flow label of a pair of QP numbers, the same at both ends (Linux rdma_calc_flow_label)."""
    v = (lqpn * rqpn) & 0xFFFFFFFFFFFFFFFF
    v ^= v >> 20
    v ^= v >> 40
    return v & 0xFFFFF


def sport_for_flow_label(label: int) -> int:
    """The UDP source port, 49152..65535, of a flow label (Linux rdma_flow_label_to_udp_sport)."""
    return 0xC000 | ((label & 0x3FFF) ^ ((label & 0xFC000) >> 14))


def sport_for_qps(lqpn: int, rqpn: int) -> int:
    """The UDP source port of a queue pair with flow label 0, NCCL's default (Linux rdma_get_udp_sport)."""
    return sport_for_flow_label(flow_label_for_qps(lqpn, rqpn))


def sport_of_rxe(qpn: int) -> int:
    """The UDP source port that soft-RoCE derives from its own QP number (rxe_qp.c: hash_32 to 14 bits)."""
    return 0xC000 + (((qpn * 0x61C88647) & 0xFFFFFFFF) >> 18)


def sport_of_own_qpn(qpn: int) -> int:
    """The UDP source port of a NIC that uses the lower 14 bits of its own QP number.

    Sequential QP numbers give sequential ports. The peer does not matter, so the two directions have different ports.
    """
    return 0xC000 | (qpn & 0x3FFF)


def entropy_sports(base: int, count: int) -> tuple[int, ...]:
    """`count` different source ports for one queue pair that sprays: `base`, then others in SPORTS. count: at most 256.

    Ports with equal distances of 2533, which is odd, so that none repeats, and which differ in many bits.
    """
    return (base, *(entropy_sport(base, step) for step in range(1, count)))


def entropy_sport(base: int, step: int) -> int:
    """The source port number `step` (1 to 255) of a queue pair whose first one is `base`. Also for uint64 arrays."""
    return 0xC000 | ((base + step * _ENTROPY_STEP) & 0x3FFF)


# The rules that compute a port from the QP numbers of the sender and of its peer. They also work on uint64 arrays.
SPORT_RULES: Final[Mapping[str, Callable[[int, int], int]]] = {
    "qpn": sport_for_qps,
    "own-qpn": lambda own, peer: sport_of_own_qpn(own),
    "rxe": lambda own, peer: sport_of_rxe(own),
}


def flow_label_for_sport(sport: int) -> int:
    """A flow label that gives this source port, and is not 0: 0 would mean that the QP numbers choose.

    ValueError for a port outside SPORTS.
    """
    if sport not in SPORTS:
        raise ValueError(f"no flow label gives the source port {sport}")
    return sport & 0x3FFF or 0x4001  # the two parts of 0x4001 cancel each other out
