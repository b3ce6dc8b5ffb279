"""What `queues` and a run say of a lab's maps: a row where something happened, sums over ports, what is missing."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from heddle.cli.queuelive import page
from heddle.cli.queues_verb import RowFilter, matching
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.lab.queues import AgentRow, QueuesResult, reactions_of, result_of
from heddle.runs.parts.queues import ClassUse, QueueUse
from heddle.runs.series import COLUMNS, QueueRecord, QueueTotals, Series
from heddle.switch.pfc.loop import reaction_bin
from heddle.switch.queues import cells
from heddle.switch.queues.cells import CAUSES, QueueState, ShardRows
from heddle.switch.queues.classes import policies_of, port_ids, row
from heddle.views.queuetext import amount, queues_text
from tests.answers import Answers

NOW = 5_000_000_000
RATES = ["link.host=100mbit", "link.fabric=100mbit"]
ALIVE = AgentRow(100, 101)


@dataclass
class Maps:
    """A fabric's maps in this process's memory, and what the fabric file says of them."""

    fabric: Fabric
    cells: Any
    ingress: Any
    gates: Any
    agent: Any
    switches: Any

    def at(self, ref: str, number: int = 3) -> int:
        node, _, port = ref.partition(":")
        return row(port_ids(self.fabric)[node, port], number)

    def result(self, agent: AgentRow = ALIVE, settings: Mapping[str, Mapping[str, Any]] | None = None) -> QueuesResult:
        return result_of(self.fabric, self.state(), policies_of(self.fabric), agent, settings or {})

    def state(self) -> QueueState:
        return QueueState(NOW, self.cells, self.ingress, self.gates, self.agent, self.switches)


@pytest.fixture
def maps() -> Maps:
    return empty()


def empty() -> Maps:
    """The maps of a fabric without traffic."""
    fabric = load_fabric("tiny", overrides=["queues.pfc.reaction=10ms", *RATES]).fabric
    rows = fabric.space[1] * 8
    table = {"cells": cells.CELL, "ingress": cells.INGRESS, "gates": cells.GATE, "agent": cells.AGENT}
    made = {name: np.zeros(rows, layout) for name, layout in table.items()}
    return Maps(fabric, **made, switches=np.zeros(len(fabric.nodes), cells.NODE))


def text(result: QueuesResult, wanted: RowFilter | None = None) -> str:
    wanted = wanted or RowFilter()
    rows, hidden = wanted.rows(result)
    return queues_text(result, rows, wanted.switches(result), hidden)


def a_queue_that_filled(maps: Maps) -> QueuesResult:
    cell = maps.cells[maps.at("rtsw1:eth3")]
    cell["depth"], cell["high_water"], cell["marks"], cell["ce_in"] = 120_000, 333_000, 1234, 505
    cell["drops"][:2] = 5, 12
    maps.switches[0]["used"], maps.switches[0]["high_water"] = 191_000, 412_000
    (row,) = (each for each in maps.result().to_json()["ports"] if each["port"] == "rtsw1:eth3" and each["class"] == 3)
    assert (row["marks"], row["ce_in"]) == (1234, 505)
    return maps.result()


def a_closed_gate_and_a_storm(maps: Maps) -> QueuesResult:
    at = maps.at("ctsw1:eth1")
    maps.gates[at]["pfc_received"] = 62
    maps.agent[at]["paused_ns"], maps.agent[at]["closed_since_ns"] = 812_000_000, NOW - 3_000_000
    maps.agent[at]["watchdog"], maps.agent[at]["storms"] = 1, 2
    (found,) = (each for each in maps.result().rows if not each.quiet)
    assert (found.paused, found.paused_ms, found.watchdog, found.storms) == (True, 815.0, "storm: drop", 2)
    return maps.result()


def headroom_that_was_too_small(maps: Maps) -> QueuesResult:
    inward = maps.ingress[maps.at("rtsw1:eth1")]
    inward["headroom_high"], inward["drops"], inward["lost_high"] = 133_428 + 4214, 12, 40_000
    (headroom,) = maps.result().headroom
    assert headroom.highest == 133_428 + 40_000  # the first packet that was dropped is counted once
    inward["headroom_high"] = 130_000
    result = maps.result()
    (headroom,) = result.headroom
    assert (headroom.highest, headroom.highest_at, headroom.missing_bytes) == (130_000 + 40_000, "rtsw1:eth1", 40_000)
    assert result.to_json()["headroom"][0]["missing"] == 40_000
    return result


def headroom_that_was_smaller_when_it_was_too_small(maps: Maps) -> QueuesResult:
    inward = maps.ingress[maps.at("rtsw1:eth1")]
    inward["headroom_high"], inward["drops"], inward["lost_high"] = 8_000, 12, 40_000
    return maps.result()


def a_reaction_slower_than_assumed(maps: Maps) -> QueuesResult:
    at = maps.at("rtsw2:eth1")
    maps.agent[at]["reactions"], maps.agent[at]["reaction_max_ns"] = 3, 25_000_000
    for reaction_ns in (100_000, 100_000, 25_000_000):
        maps.agent["spare"].view("<u4")[at, reaction_bin(reaction_ns)] += 1
    return maps.result()


def set_on_a_switch(maps: Maps, key: str, text: str, value: str | int) -> QueuesResult:
    own = {"ctsw1": load_fabric("tiny", overrides=[f"queues.{key}={text}", *RATES]).fabric.policy.queues}
    return result_of(maps.fabric, maps.state(), policies_of(maps.fabric, own=own), ALIVE, {"ctsw1": {key: value}})


CASES: Mapping[str, Callable[[Maps], QueuesResult]] = {
    "no traffic": lambda maps: maps.result(),
    "a queue that filled": a_queue_that_filled,
    "a closed gate, and a storm": a_closed_gate_and_a_storm,
    "headroom that was too small": headroom_that_was_too_small,
    "headroom that was smaller when it was too small": headroom_that_was_smaller_when_it_was_too_small,
    "a reaction slower than assumed": a_reaction_slower_than_assumed,
    "a reaction time set on one switch": lambda maps: set_on_a_switch(maps, "pfc.reaction", "20ms", "20ms"),
    "headroom set on one switch": lambda maps: set_on_a_switch(maps, "pfc.headroom", "300KB", 300_000),
    "no agent, and settings": lambda maps: maps.result(
        AgentRow(None, None), {"ctsw1": {"ecn.kmax": 800_000}, "ctsw2": {"ecn.kmax": 800_000}, "rtsw1": {}}
    ),
    "no keeper": lambda maps: maps.result(AgentRow(100, None)),
}


def test_what_is_said_of_a_labs_queues(golden: Callable[[str, str], None]) -> None:
    golden("runs/queues.txt", "\n".join(f"--- {name}\n{text(case(empty()))}\n" for name, case in CASES.items()))


def test_drops_by_missing_headroom_are_summed_over_ports(maps: Maps) -> None:
    for ref, drops, lacked in (("rtsw1:eth1", 12, 40_000), ("ctsw1:eth2", 5, 60_000)):
        inward = maps.ingress[maps.at(ref)]
        inward["drops"], inward["lost_high"] = drops, lacked
    (headroom,) = maps.result().headroom
    assert (headroom.drops, headroom.missing_bytes, headroom.highest_at) == (17, 60_000, "ctsw1:eth2")


@pytest.mark.parametrize(
    ("width", "gone"), [(120, []), (80, ["watchdog", "drops", "ingress"]), (50, ["watchdog", "drops", "ingress"])]
)
def test_a_narrow_terminal_leaves_columns_out_and_cuts_no_number(maps: Maps, width: int, gone: list[str]) -> None:
    for ref in ("rtsw1:eth3", "ctsw1:eth1"):
        cell, agent = maps.cells[maps.at(ref)], maps.agent[maps.at(ref)]
        cell["depth"], cell["high_water"], cell["marks"] = 120_000, 333_000, 1234
        maps.gates[maps.at(ref)]["pfc_received"], agent["paused_ns"] = 62, 2_812_000_000
    maps.switches[0]["used"] = maps.switches[1]["used"] = maps.switches[2]["used"] = 191_000
    result = maps.result()
    rows, hidden = RowFilter().rows(result)
    console = Console(width=width, height=24, file=io.StringIO(), color_system=None)
    console.print(page(result, rows, RowFilter().switches(result), hidden, 1.0, width, 24))
    lines = cast(io.StringIO, console.file).getvalue().splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= 24
    table = [line for line in lines[1:4] if line.strip()]
    assert len(table) == 3
    assert "…" not in "".join(table)
    assert not set(gone) & set(table[0].split())
    assert {"port", "depth", "paused"} <= set(table[0].split())
    assert all("120 KB" in line and "2,812.0 ms" in line for line in table[1:])
    assert (f"too narrow for {5 if width == 80 else 8} columns" in "\n".join(lines)) == bool(gone)


@pytest.mark.parametrize("seed", range(4))
def test_the_median_of_a_histogram_is_in_the_bin_of_the_true_one(seed: int) -> None:
    times = np.random.default_rng(seed).lognormal(12.5, 1, 501).astype(np.int64)
    agent = np.zeros(3, cells.AGENT)
    for each in times:
        agent["spare"].view("<u4")[1, reaction_bin(int(each))] += 1
    agent["reactions"][1], agent["reaction_max_ns"][1] = len(times), times.max()
    seen = reactions_of(agent)
    assert reaction_bin(seen.median_ns) == reaction_bin(int(np.median(times)))
    assert (seen.count, seen.max_ns) == (501, int(times.max()))


def test_the_document_has_a_row_a_port_and_class_which_patterns_choose(maps: Maps) -> None:
    data = maps.result().to_json()
    assert {"lab", "ports", "switches", "headroom", "agent"} <= set(data)
    assert maps.result(AgentRow(None, None)).to_json()["agent"] == {"agent": None, "keeper": None, "alive": False}
    assert len(data["ports"]) == 16 * 3
    promised = {"port", "class", "depth", "high_water", "marks", "drops", "pfc_sent", "pfc_received", "paused_ms"}
    assert promised <= set(data["ports"][0])
    assert [each["switch"] for each in data["switches"]] == ["rtsw1", "rtsw2", "ctsw1", "ctsw2"]
    assert data["switches"][0]["buffer"] == 4 * (150_000 + 133_428)
    # Rows are chosen by patterns and classes.
    result = maps.result()
    every = RowFilter(every=True)
    assert len(every.rows(result)[0]) == 48
    some = RowFilter(nodes=("ctsw*",), ports=("*:eth1",), classes=(3, 6), every=True)
    assert [(each.port, each.traffic_class) for each in some.rows(result)[0]] == [
        ("ctsw1:eth1", 3), ("ctsw1:eth1", 6), ("ctsw2:eth1", 3), ("ctsw2:eth1", 6),
    ]  # fmt: skip
    has = matching(["rtsw1,ctsw*:eth2"], ["3"])
    assert has is not None
    assert [has(ref, 3) for ref in ("rtsw1:eth4", "ctsw9:eth2", "ctsw1:eth1")] == [True, True, False]
    assert not has("rtsw1:eth1", 6)
    assert matching([], []) is None


def test_a_run_s_footer_is_a_line_or_two(answers: Answers) -> None:
    quiet = QueueUse(0, {}, 0, 0, 0, 0.0, 0, 0, "", 10.0)
    busy = QueueUse(
        1409, {"threshold": 2, "headroom": 10}, 4304, 7, 3, 18_439.2, 1, 511_000, "rtsw1:eth3 class 3", 10.0
    )
    assert busy.to_json()["drops"] == 12
    # By class where data use several.
    two = replace(quiet, classes=(ClassUse(0, 0, 7, 90_000), ClassUse(3, 12, 0, 511_000)), own=3)
    assert replace(two, classes=two.classes[:1]).lines() == quiet.lines()
    assert two.to_json()["classes"][0] == {"number": 0, "marks": 0, "drops": 7, "deepest": 90_000}
    answers({name: "\n".join(use.lines()) for name, use in (("quiet", quiet), ("busy", busy), ("two classes", two))})


def of_shard(maps: Maps, *nodes: str) -> QueueState:
    """The state that the shard with these nodes reads."""
    where, whole = ShardRows.of(maps.fabric.of_shard(nodes)), maps.state()
    assert where is not None
    tables = {name: getattr(whole, name)[where.ports] for name in ("cells", "ingress", "gates", "agent")}
    return replace(whole, **tables, switches=whole.switches[where.nodes], shard=where)


def test_moments_of_another_shard_are_on_the_clock_of_the_first() -> None:
    here, there = empty(), empty()
    at = there.at("rtsw2:eth1")
    there.agent[at]["closed_since_ns"] = 10 * NOW - 3_000_000  # its machine runs for longer
    there.agent[at]["paused_ns"] = 1_000_000
    here.agent[here.at("rtsw1:eth1")]["closed_since_ns"] = NOW - 5_000_000
    other = of_shard(there, "rtsw2", "ctsw2", "host3", "host4")
    joined = of_shard(here, "rtsw1", "ctsw1", "host1", "host2").joined([replace(other, taken_ns=10 * NOW)])
    rows = result_of(here.fabric, joined, policies_of(here.fabric), ALIVE, {}).rows
    assert {row.port: row.paused_ms for row in rows if row.paused} == {"rtsw1:eth1": 5, "rtsw2:eth1": 4}


@pytest.mark.parametrize(
    ("count", "said"), [(0, "-"), (812, "812 B"), (60_000, "60 KB"), (1_234_567, "1.23 MB"), (2_500_000_000, "2.5 GB")]
)
def test_bytes_are_written_as_a_fabric_file_has_them(count: int, said: str) -> None:
    assert amount(count) == said


def test_counts_are_of_the_run_alone_and_the_deepest_queue_is_a_switchs_by_its_highest_bucket(maps: Maps) -> None:
    rows = len(maps.cells)
    counts, drops = np.full((rows, len(COLUMNS)), 1000, np.int64), np.full((rows, len(CAUSES) + 1), 100, np.int64)
    before = QueueTotals(counts, drops, 7)
    after = QueueTotals(counts.copy(), drops.copy(), 9)
    host, near, far = (maps.at(ref) for ref in ("host1:eth1", "rtsw1:eth1", "ctsw1:eth1"))
    for place, name, more in (
        (host, "paused_ns", 3_000_000), (near, "paused_ns", 2_500_000), (near, "marks", 40), (far, "marks", 2),
        (far, "pfc_sent", 5), (near, "pfc_sent", 6),
    ):  # fmt: skip
        after.counts[place, COLUMNS.index(name)] += more
    after.drops[near, CAUSES.index("headroom")] += 11
    after.drops[far, CAUSES.index("headroom")] += 4
    after.drops[far, -1] += 2
    columns = {name: np.zeros((3, 2), np.int64) for name in COLUMNS}
    columns["peak"][:] = [[90_000, 10], [50_000, 60_000], [70_000, 1]]
    seen = Series(np.array([0.01, 0.02]), np.array([host, near, far], np.int32), columns, 0.01, 2, 0.0)
    found = QueueUse.of(maps.fabric, QueueRecord(before, after, seen))
    assert (found.marks, found.pauses, found.storms) == (42, 11, 2)
    assert (found.drops, found.dropped) == ({"headroom": 15, "lost": 2}, 17)
    assert (found.paused_ports, found.paused_hosts, found.paused_ms) == (2, 1, 5.5)
    assert (found.deepest, found.deepest_at, found.bucket_ms) == (70_000, "ctsw1:eth1 class 3", 10.0)
