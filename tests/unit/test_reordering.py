"""Which hashing of switches is named before a run: it reorders packets, and the transport needs them in order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heddle.endpoints.transports import find_transport
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.policy import DEFAULT_OPTIONS, HashOptions, Udf
from heddle.runs.run import reordering
from heddle.switch.hashing.hashing import hashing_of
from heddle.traffic.options import RunOptions
from heddle.traffic.plan import build_plan

FABRIC = load_fabric("tiny").fabric  # 100 Mb/s: a frame of 4,154 bytes takes 332 us
LOST = "counts packets that arrive out of order as lost"
USE = "use --transport srd, which accepts any order"
PSN = Udf("bth", 9, 3)


def said(mode: str, options: HashOptions = DEFAULT_OPTIONS, transport: str = "rc", switches: int = 4) -> list[str]:
    plan = build_plan(FABRIC, RunOptions(transport=transport))
    rows = {node.name: hashing_of(FABRIC, node, "e-ecmp") for node in FABRIC.switches}
    for node in FABRIC.switches[:switches]:
        rows[node.name] = hashing_of(FABRIC, node, mode, options)
    return reordering(rows, plan, find_transport(transport).of(plan))


@pytest.mark.parametrize("transport", ["rc", "uc"])
def test_spraying_switches_are_named(transport: str) -> None:
    assert said("spray", transport=transport) == [f"4 switches spray packets, but transport {transport} {LOST}: {USE}"]
    assert said("spray", transport=transport, switches=1)[0].startswith("1 switch sprays packets, but ")


@pytest.mark.parametrize("mode", ["flowlet", "adaptive"])
def test_a_gap_shorter_than_a_frame_is_named(mode: str) -> None:
    short, long = (replace(DEFAULT_OPTIONS, gap_ns=gap) for gap in (331_000, 333_000))
    assert said(mode, short) == [
        "4 switches begin a new flowlet after 331us, but packets at line rate are 332us apart: each may take another"
        f" path, and transport rc {LOST}; set a longer hash.gap, or {USE}"
    ]
    assert said(mode, long) == said(mode) == []


@pytest.mark.parametrize("mode", ["e-ecmp", "exact-match"])
def test_hashed_bytes_that_differ_from_packet_to_packet_are_named(mode: str) -> None:
    why = f"bytes that differ between packets of one QP (hash.udf), but transport rc {LOST}: {USE}"
    assert said(mode, replace(DEFAULT_OPTIONS, udf=PSN)) == [f"4 switches hash {why}"]


@pytest.mark.parametrize("mode", ["flow", "e-ecmp", "flowlet", "pinned", "exact-match", "adaptive"])
def test_nothing_is_said_of_modes_that_keep_order(mode: str) -> None:
    assert said(mode) == said(mode, replace(DEFAULT_OPTIONS, resilient=True)) == []


@pytest.mark.parametrize("mode", ["spray", "flowlet"])
def test_a_transport_that_accepts_any_order_needs_no_warning(mode: str) -> None:
    assert said(mode, replace(DEFAULT_OPTIONS, gap_ns=1000, udf=PSN), "srd") == []
