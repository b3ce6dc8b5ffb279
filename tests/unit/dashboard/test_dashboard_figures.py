"""What the live page and /metrics make of readings: differences, use, events, counters over resets, the drawing."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from heddle.base.ethernet import CLASSES
from heddle.base.plugins import folder
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.wiring import Port
from heddle.lab.daemons import ESTABLISHED
from heddle.lab.snapshot import LabPart, NodeSnapshot, Snapshot
from heddle.switch.queues.cells import AGENT, CELL, GATE, INGRESS, NODE, QueueState
from heddle.switch.queues.classes import numbered_ports, policies_of, row
from heddle.views.fabricsvg import fabric_svg, legend_svg
from heddle.views.loadscale import step
from heddle.views.picturelayout import PictureLayout
from heddle_plugins.dashboard.labdesk import Actions, Viewers, _run_flags, message
from heddle_plugins.dashboard.labwatch import plan_json
from heddle_plugins.dashboard.metrics import METRICS, NAMES, MonotonicCounters
from heddle_plugins.dashboard.news import NewsDesk
from heddle_plugins.dashboard.reading import KEPT, LiveHistory, LiveReading, PortFigures, PortFlag, added
from tests.answers import Answers

Cells = Mapping[tuple[str, str, int, str], int]  # map, port, class, field -> value


@pytest.fixture(scope="module")
def fabric() -> Fabric:
    return load_fabric("tiny").fabric


@pytest.fixture(scope="module")
def ports(fabric: Fabric) -> tuple[Port, ...]:
    return tuple(port for _, port in numbered_ports(fabric))


def reading(
    fabric: Fabric,
    at_s: float,
    cells: Cells | None = None,
    down: Mapping[str, bool] | None = None,
    lost: Sequence[str] = (),
    silent: Sequence[str] = (),
) -> LiveReading:
    """A reading in which nothing has happened but these. lost: ends of BGP sessions that are not established."""
    ids = {port.ref: number for number, (_, port) in enumerate(numbered_ports(fabric), 1)}
    rows = (len(ids) + 1) * CLASSES
    maps = {"cells": np.zeros(rows, CELL), "ingress": np.zeros(rows, INGRESS), "gates": np.zeros(rows, GATE),
            "agent": np.zeros(rows, AGENT), "switches": np.zeros(len(fabric.nodes), NODE)}  # fmt: skip
    for (name, port, traffic_class, field), value in (cells or {}).items():
        maps[name][field][row(ids[port], traffic_class)] = value
    nodes = {}
    for node in fabric.switches:
        mine = {ref.partition(":")[2]: here for ref, here in (down or {}).items() if ref.partition(":")[0] == node.name}
        states = {
            port.name: "Active" if port.ref in lost else ESTABLISHED
            for port in node.ports
            if not fabric.leads_to_host(port)
        }
        nodes[node.name] = NodeSnapshot(node.name, down=mine, sessions=None if node.name in silent else states)
    slow = Snapshot(fabric.name, LabPart.CARRIER | LabPart.SESSIONS, nodes)
    queues = QueueState(round(at_s * 1e9), **cast(Any, maps))
    return LiveReading(1000 + at_s, queues, np.zeros(len(ids) + 1, bool), slow)


def figures(
    fabric: Fabric, ports: Sequence[Port], before: LiveReading, after: LiveReading
) -> dict[str, dict[str, Any]]:
    """By port, what is not zero."""
    found = PortFigures.of(ports, before, after)
    names = ("use", "depth", "high_water", "marks", "drops", "pauses", "flags")
    return {
        port.ref: values
        for number, port in enumerate(ports, 1)
        if (values := {name: getattr(found, name)[number] for name in names if getattr(found, name)[number]})
    }


def test_counters_go_on_over_a_reset() -> None:
    assert added(np.array([5, 9, 3]), np.array([7, 9, 2])).tolist() == [2, 0, 2]
    # Counters of metrics never go back.
    counters = MonotonicCounters()
    values = [counters.of("zone", ("a", "b"), {"bytes": np.array(each)})["bytes"].tolist() for each in
              ([5, 1], [9, 1], [2, 4], [3, 4], [0, 0])]  # fmt: skip
    assert values == [[5, 1], [9, 1], [11, 4], [12, 4], [12, 4]]
    assert counters.of("other", ("a",), {"bytes": np.array([1])})["bytes"].tolist() == [1]
    assert counters.of("zone", ("a", "c"), {"bytes": np.array([1, 1])})["bytes"].tolist() == [1, 1]


def test_use_counts_and_levels_of_ports(fabric: Fabric, ports: tuple[Port, ...]) -> None:
    rate = ports[0].rate_bps
    sent = rate // 8 // 4  # of half a second half of the rate
    before = reading(fabric, 1, {("cells", "rtsw1:eth1", 3, "out_bytes"): 1000})
    after = reading(fabric, 1.5, {("cells", "rtsw1:eth1", 3, "out_bytes"): 1000 + sent // 2,
                                  ("cells", "rtsw1:eth1", 0, "out_bytes"): sent - sent // 2})  # fmt: skip
    found = figures(fabric, ports, before, after)
    assert list(found) == ["rtsw1:eth1"]
    assert found["rtsw1:eth1"]["use"] == pytest.approx(0.5)
    # Levels are those of now and counts those of the interval.
    before = reading(fabric, 1, {("cells", "ctsw1:eth2", 3, "marks"): 7, ("gates", "ctsw1:eth2", 3, "pfc_received"): 5})
    after = reading(fabric, 2, {
        ("cells", "ctsw1:eth2", 3, "marks"): 9, ("gates", "ctsw1:eth2", 3, "pfc_received"): 6,
        ("cells", "ctsw1:eth2", 3, "depth"): 4000, ("cells", "ctsw1:eth2", 0, "depth"): 100,
        ("cells", "ctsw1:eth2", 3, "high_water"): 9000, ("cells", "ctsw1:eth2", 3, "drops"): 1,
        ("agent", "ctsw1:eth2", 3, "closed_since_ns"): 10**9,
    })  # fmt: skip
    flags = PortFlag.PAUSED | PortFlag.MARKED | PortFlag.DROPPED | PortFlag.PAUSES
    wanted = {"depth": 4100, "high_water": 9000, "marks": 2, "drops": 7, "pauses": 1, "flags": flags}
    assert figures(fabric, ports, before, after) == {"ctsw1:eth2": wanted}
    assert after.columns["paused_ns"][row([port.ref for port in ports].index("ctsw1:eth2") + 1, 3)] == 10**9
    # Both ends of a link that is down are down.
    peer = fabric.by_name["rtsw1"].port("eth1").peer_ref
    found = figures(fabric, ports, reading(fabric, 1), reading(fabric, 2, down={"rtsw1:eth1": True, peer: False}))
    assert found == {"rtsw1:eth1": {"flags": PortFlag.DOWN}, peer: {"flags": PortFlag.DOWN}}


def lines(desk: NewsDesk, fabric: Fabric, ports: Sequence[Port], *readings: LiveReading) -> list[str]:
    """The texts of all news of some readings in order."""
    found: list[str] = []
    for before, after in pairwise(readings):
        found += [item.text for item in desk.compare(before, after, PortFigures.of(ports, before, after))]
    return found


def test_links_and_sessions_are_told_when_they_change(fabric: Fabric, ports: tuple[Port, ...]) -> None:
    peer = fabric.by_name["rtsw1"].port("eth1").peer_ref
    host = fabric.by_name["host1"].ports[0].peer_ref
    usual, cut = (
        reading(fabric, 1),
        reading(fabric, 2, down={"rtsw1:eth1": True, peer: False}, lost=["rtsw1:eth1", peer]),
    )
    without = reading(fabric, 4, down={host: False})
    silent = reading(fabric, 6, silent=["ctsw2"])
    ends = ", ".join(sorted(["rtsw1:eth1", peer]))
    assert lines(NewsDesk(ports), fabric, ports, usual, cut, cut, usual, without, usual, silent) == [
        "rtsw1:eth1 down", f"BGP lost at {ends}",
        "rtsw1:eth1 up", f"BGP established at {ends}",
        f"{host} down", f"{host} up", "bgpd of ctsw2 does not answer",
    ]  # fmt: skip
    assert NewsDesk(ports).compare(None, cut, PortFigures.of(ports, None, cut)) == []


def test_many_pauses_are_two_lines(fabric: Fabric, ports: tuple[Port, ...]) -> None:
    def paused(at: float, one: int, other: int) -> LiveReading:
        cells = {("gates", "rtsw1:eth1", 3, "pfc_received"): one, ("gates", "ctsw1:eth1", 3, "pfc_received"): other}
        return reading(fabric, at, cells)

    steps = [paused(0, 0, 0), paused(1, 5, 0), paused(2, 9, 1), paused(3, 9, 1), paused(4, 9, 1), paused(5, 9, 1)]
    assert lines(NewsDesk(ports), fabric, ports, *steps) == [
        "pause frames began at rtsw1:eth1",
        "pause frames ended: 10 in 1.0 s at 2 ports, most at rtsw1:eth1",
    ]


def test_metrics_follow_the_conventions_of_prometheus_and_are_documented() -> None:
    assert len(set(NAMES)) == len(NAMES)
    for spec in METRICS:
        assert spec.name.startswith("heddle_")
        assert spec.help.endswith(".")
        assert not spec.name.endswith(("_total", "_count", "_sum", "_ms", "_ns", "_kb", "_percent"))
        assert spec.shown.endswith("_total") == spec.counter
        assert not set(spec.labels) & set(spec.name.split("_")) - {"run", "lab", "port"}
    # Every metric is in the page about it and every one of the dashboard for grafana is exported.
    text = (Path(__file__).resolve().parents[3] / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert [name for name in NAMES if f"`{name}`" not in text] == []
    board = folder("dashboard") / "templates" / "grafana" / "heddle.json"
    panels = json.loads(board.read_text(encoding="utf-8"))["panels"]
    for target in (target for panel in panels for target in panel["targets"]):
        names = set(re.findall(r"\b(?:heddle|nccl)_[a-z_]+", target["expr"]))
        assert names, target
        assert names <= set(NAMES), target


@pytest.mark.parametrize("preset", ["tiny", "zone", "rail", "dc"])
def test_nothing_is_drawn_over_something_else(preset: str) -> None:
    fabric = load_fabric(preset).fabric
    layout = PictureLayout(fabric)
    boxes = [(*box.corner, *box.size) for box in layout.nodes()]
    assert len(boxes) == len(fabric.nodes)
    for at, (x, y, width, height) in enumerate(boxes):
        assert layout.left <= x <= layout.right - width
        assert layout.bottom <= y <= layout.top - height
        for left, low, wide, high in boxes[at + 1 :]:
            assert x + width <= left or left + wide <= x or y + height <= low or low + high <= y
    ends = [half.ends[0] for *_, halves in layout.links() for half in halves]
    assert len(set(ends)) == len(ends) == 2 * len(fabric.links)


def test_the_drawing_is_plain_data_and_history_keeps_two_minutes(fabric: Fabric, ports: tuple[Port, ...]) -> None:
    found = json.loads(json.dumps(plan_json(fabric, ports, policies_of(fabric))))
    assert [each["ref"] for each in found["ports"]] == [port.ref for port in ports]
    for each, port in zip(found["ports"], ports, strict=True):
        assert found["ports"][each["peer"] - 1]["ref"] == port.peer_ref
        assert each["scale"] > 0
    # The drawing, its colours and its legend are those of a report.
    assert found["svg"].splitlines()[1:] == fabric_svg(PictureLayout(fabric), title="").splitlines()[1:]
    assert found["svg"].count('class="half idle"') == len(ports)
    assert found["legend"] == legend_svg()
    for use in range(1300):
        assert [name for least, name in found["loads"] if use >= least][-1] == step(use / 1000)
    assert all(f">{level.title}</text>" in found["svg"] for level in fabric.levels[:3])
    # History keeps two minutes.
    history = LiveHistory()
    before = None
    for at in range(KEPT + 5):
        now = reading(fabric, at / 2, {("cells", "rtsw1:eth1", 3, "depth"): at})
        history.add(now, PortFigures.of(ports, before, now))
        before = now
    found = history.of([port.ref for port in ports].index("rtsw1:eth1") + 1)
    assert {len(values) for values in found.values()} == {KEPT}
    assert found["depth"][-1] == KEPT + 4
    assert found["when"][-1] - found["when"][0] == (KEPT - 1) / 2


def test_what_a_browser_asks_of_a_run_is_checked(answers: Answers) -> None:
    answers(lambda asked: Actions("nolab", lambda _: None).run(asked))


def test_flags_of_a_run_are_one_word_each() -> None:
    flags = _run_flags({"collective": "all-reduce", "size": "64K:1M:x2", "qps": 4})
    assert flags == ["--collective=all-reduce", "--size=64K:1M:x2", "--qps=4"]


def test_a_viewer_that_is_too_slow_gets_the_whole_state_instead_of_what_it_missed() -> None:
    async def story() -> tuple[list[bytes], bytes]:
        viewers = Viewers("nolab", asyncio.get_running_loop())
        stream = viewers.stream()
        first = await anext(stream)
        for number in range(100):
            viewers.send("update", str(number))
        await asyncio.sleep(0.2)
        got = [await anext(stream)]
        while len(got) < 50 and not got[-1].startswith(b"event: hello"):
            got.append(await anext(stream))
        viewers.end_streams()
        await asyncio.to_thread(viewers.watch.close)
        await stream.aclose()  # type: ignore[attr-defined]
        return got, first

    got, first = asyncio.run(story())
    assert first.startswith(b"event: hello\ndata: {")
    assert len(got) < 50, "the newest state has to come soon"
    assert message("update", "1") == b"event: update\ndata: 1\n\n"
