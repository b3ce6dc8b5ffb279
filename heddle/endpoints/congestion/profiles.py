"""Profiles of DCQCN: complete sets of parameters, by name. `--cc-set` overrides single ones.

In:  what a NIC and its operator know before a run: line rate, size of a frame, longest round trip. Never the number of
senders. Out: values in units of the hardware, for the parameters that differ from NVIDIA's defaults (dcqcn.py).

`default` is ours, for transfers of some hundred microseconds of the hardware: an emulated fabric carries these in some
seconds. L is the line rate, F the time of a full frame at line rate, R the longest round trip. docs/cc-parameters.md
has the reason for each value.

| parameter | value |
|---|---|
| roce_cc_shaper_coalesce | 1 |
| init_cr, init_growth | L / 12, 10 % |
| rpg_time_reset | 48 F + R |
| rpg_byte_reset | 8 frames |
| rpg_threshold | 8 |
| rpg_hai_rate, rpg_ai_rate, rpg_min_rate | L / 300, L / 20000, L / 200 |
| rpg_gd, rpg_min_dec_fac | 10, 80 % |
| rate_reduce_monitor_period, min_time_between_cnps | 1 us + R, 2 us |
| clamp_tgt_rate_after_time_inc | 0 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from heddle.base.declared import Declared
from heddle.endpoints.congestion.ratecontrol import ControlOptions, NicFacts, Profile

CongestionProfile = Literal["default", "nvidia", "meta"]
_UNIT_BYTES: Final = 64  # of rpg_byte_reset


def _default(on: NicFacts) -> dict[str, float]:
    line = on.line_mbps
    return {
        "roce_cc_shaper_coalesce": 1,
        "init_cr": _rate(line / 12),
        "init_growth": 10,
        "rpg_time_reset": max(1, round(48 * on.frame_us + on.rtt_us)),
        "rpg_byte_reset": max(1, round(8 * on.frame_bytes / _UNIT_BYTES)),
        "rpg_threshold": 8,
        "rpg_hai_rate": _rate(line / 300),
        "rpg_ai_rate": _rate(line / 20_000),
        "rpg_gd": 10,
        "rpg_min_dec_fac": 80,
        "rate_reduce_monitor_period": max(1, round(1 + on.rtt_us)),
        "min_time_between_cnps": 2,
        "clamp_tgt_rate_after_time_inc": 0,
        "rpg_min_rate": _rate(line / 200),
    }


def _rate(mbps: float) -> int:
    """Parameters are whole numbers of Mb/s, at least 1."""
    return max(1, round(mbps))


PROFILES: Final[Mapping[CongestionProfile, Callable[[NicFacts], Profile]]] = {
    "default": lambda on: Profile("default", _default(on)),
    "nvidia": lambda on: Profile("nvidia"),
    "meta": lambda on: Profile("meta", ecn_factor=2),  # the difference is in the switches
}


@dataclass(frozen=True, slots=True)
class DcqcnOptions(ControlOptions):
    """What users choose of DCQCN alone."""

    congestion_profile: Annotated[CongestionProfile, Declared(
        "parameters of DCQCN: default (settles in short runs), nvidia, or meta (with doubled ECN thresholds)",
        "Congestion", word="cc_profile", unlike="is not a profile of dcqcn",
    )] = "default"  # fmt: skip

    def profile(self, on: NicFacts) -> Profile:
        return PROFILES[self.congestion_profile](on)
