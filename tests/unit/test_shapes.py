"""Files of a shape with other keys and words: every check is made, by those words; a fabric of one switch; and a shape
whose levels have other facts.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import ip_network
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Literal

import pytest
from pydantic import Field

from heddle.base.events import Silent
from heddle.base.families import FAMILIES, Network
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.builder import FabricBuilder
from heddle.fabric.fabricfile import LoadedFabric, checked, load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.fabric.wiring import Level
from heddle.offline.forecast import Ask, forecast
from heddle.offline.result import Prediction
from heddle.predict.polarisation import polarisation
from heddle.predict.predict import predict
from heddle.proof.evidence import Evidence
from heddle.proof.linkuse import Mmr
from heddle.proof.verdict import PathsResult, prove
from heddle.spec.plain import dump_spec, load_spec
from heddle.spec.routingpolicy import HashOptions
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes import SHAPES
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.switch.hashing.maps import steering_of
from heddle.switch.queues.classes import budget_of
from heddle.traffic.flow import Flow, Sent
from heddle.views.fabricsvg import fabric_svg
from heddle.views.forecasttext import render
from heddle.views.heatmap import draw as draw_heatmap
from heddle.views.pathstext import paths_text, uplinks
from heddle.views.picturelayout import PictureLayout
from tests.answers import Answers
from tests.unit.test_paths_report import fibs, snapshot
from tests.unit.test_statistics import fibs_of


class PairSpec(FabricSpec):
    """Leaves under spines, and one host a leaf."""

    synonyms: ClassVar = {**FabricSpec.synonyms, "tor": "leaf", "rtsw": "leaves"}
    levels: ClassVar = ("leaf", "spine")

    shape: Literal["pair"] = "pair"
    leaves: int = Field(ge=1, le=64, examples=[4])
    spines: int = Field(ge=1, le=64, examples=[2])


def draw(spec: PairSpec) -> Fabric:
    host, fabric = spec.link.host, spec.link.fabric
    levels = (
        Level("host", "hosts", "server", host),
        Level("leaf", "Leaf", "leaf", fabric, is_edge=True, counts_uplinks=True, boxed=True),
        Level("spine", "Spine", "spine", above_edge=True),
    )
    drawing = FabricBuilder(spec, levels)
    subnets: Iterator[Network] = spec.addressing.network.subnets(new_prefix=spec.addressing.rack_prefix)
    prefixes = list(islice(subnets, spec.leaves))
    for n, prefix in enumerate(prefixes, 1):
        drawing.switch(1, n, 4_200_001_000 + n, (("pod", n),), prefix)
    for n in range(1, spec.spines + 1):
        drawing.switch(2, n, 4_200_000_000, ())
    for n, prefix in enumerate(prefixes, 1):
        drawing.host(n, (("pod", n),))
        for spine in range(1, spec.spines + 1):
            drawing.join(f"leaf{n}", f"spine{spine}")
        base = int(prefix.network_address)
        drawing.join(f"host{n}", f"leaf{n}", (spec.ip.end(base + 1), spec.ip.end(base)))
    return drawing.fabric(box="pod", area="", sizes=("leaves",))


@pytest.fixture(autouse=True)
def pair(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    builder = ModuleType("heddle.fabric.shapes.pair")
    builder.build = draw  # type: ignore[attr-defined]
    monkeypatch.setitem(SHAPES.core, "pair", PairSpec)
    monkeypatch.setitem(sys.modules, builder.__name__, builder)


HEAD = "name: p\nshape: pair\nleaves: 3\nspines: 2\n"


def load(text: str) -> LoadedFabric:
    Path("p.yml").write_text(text)
    return load_fabric("p.yml")


def refused(text: str) -> list[str]:
    """Every problem on a line of its own, hints behind them."""
    with pytest.raises(InputError) as caught:
        load(text)
    return [re.sub(r"\n +hint:", ";", str(problem)) for problem in caught.value.problems]


def test_a_shape_is_its_spec_its_builder_and_one_line() -> None:
    loaded = load(f"{HEAD}queues: {{buffer: {{leaf: 3MB}}}}\n")
    assert isinstance(loaded.spec, PairSpec)
    assert [node.name for node in loaded.fabric.switches] == ["leaf1", "leaf2", "leaf3", "spine1", "spine2"]
    queues = loaded.fabric.policy.queues
    leaf, spine = (loaded.fabric.by_name[name] for name in ("leaf1", "spine1"))
    assert budget_of(loaded.fabric, leaf, queues).buffer == 3_000_000
    deep = budget_of(loaded.fabric, spine, queues)
    assert deep.buffer - deep.headroom == 3 * 1_000_000, "what is no leaf is deep"
    shallow = budget_of(loaded.fabric, leaf, load(HEAD).fabric.policy.queues)
    assert shallow.buffer - shallow.headroom == 3 * 150_000
    assert load_spec(dump_spec(loaded.spec)) == loaded.spec


@pytest.mark.parametrize("word", FAMILIES)
def test_both_ends_of_a_link_are_what_each_is_alone(word: str) -> None:
    family = FAMILIES[word]
    first = int(ip_network(family.pool).network_address) + 254
    alone = (family.end(first + 1), family.end(first))
    for end, other in zip(family.ends(first), alone, strict=True):
        assert (type(end), str(end), end.ip, end.network, hash(end)) == (
            type(other), str(other), other.ip, other.network, hash(other)
        )  # fmt: skip


def test_each_shape_names_its_levels_as_its_builder_does() -> None:
    for shape, model in SHAPES.items():
        needed = {key: field.examples[0] for key, field in model.model_fields.items() if field.examples}
        spec = model.model_validate({"shape": shape, **needed})
        assert spec.levels == tuple(level.word for level in build(spec).levels[1:])


def test_a_value_that_does_not_fit_is_reported_by_line_in_the_words_of_the_shape(answers: Answers) -> None:
    answers(lambda text: "\n".join(refused(f"{HEAD}{text}\n")))


def test_all_errors_are_reported_at_once_without_follow_up_errors(answers: Answers) -> None:
    """Of an unknown shape, the rest is read as of the nearest one."""
    answers(lambda text: "\n".join(refused(f"name: p\n{text}\n")).replace(", ".join(SHAPES), "SHAPES"))


def test_a_spec_that_a_program_has_made_is_checked_too() -> None:
    spec = PairSpec.model_validate({"name": "p", "leaves": 2, "spines": 2, "link": {"exceptions": {"leaf9": "5mbit"}}})
    with pytest.raises(InputError, match=r"^link.exceptions.leaf9 is not a node of this fabric"):
        checked(spec)


def star() -> Fabric:
    spec = ClosSpec(name="star", racks=1, ctsw=1)  # what is not of the shape
    drawing = FabricBuilder(
        spec, (Level("host", "hosts", "server", spec.link.host), Level("hub", "hub", "leaf", is_edge=True))
    )
    pool: Network = spec.addressing.network
    prefix: Network = ip_network(f"{pool.network_address}/24")
    drawing.switch(1, 1, 4_200_001_001, (("star", 1),), prefix)
    for host in range(1, 5):
        drawing.host(host, (("star", 1),))
        base = int(prefix.network_address) + 2 * host
        drawing.join(f"host{host}", "hub1", (spec.ip.end(base + 1), spec.ip.end(base)))
    return drawing.fabric(box="star", area="", sizes=())


def found(plan: str, **asked: str | int) -> Prediction:
    return forecast(star(), load_workload(plan).workload, Ask(**asked), Silent())  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["flow", "pinned", "spray"])
def test_a_prediction_has_the_links_of_hosts_alone(mode: str) -> None:
    text = render(found("ring", mode=mode, trials=2))
    assert "MMR" not in text
    assert "hub1:eth1     host1:eth1" in text
    assert all(line == line.rstrip() for line in text.splitlines())


def test_a_fabric_of_one_switch_has_no_uplinks_to_draw() -> None:
    with pytest.raises(InputError, match="star has no link between switches"):
        draw_heatmap("svg", found("ring"))
    # No table of uplinks is there.
    paths = PathsResult(True, (), (), Mmr(None, None), {}, "hub", {}, ())
    assert uplinks(paths) == ["no switch has uplinks: every path is one port"]
    # An incast is as slow as the last link.
    result = found("incast:3")
    assert result.roofline.what == "hub1:eth1"
    assert result.modes[0].ratio == 1
    # Seconds fit their column.
    lines = [line.split() for line in render(found("incast:1,size=4")).splitlines()]
    (row,) = (line for line in lines if line[:2] == ["hub1:eth1", "host1:eth1"])
    assert row[3:6] == ["82", "6.56e-06", "s"]  # a frame of one element


def hall() -> Fabric:
    """Two pods, each of two edge switches and two switches above these. Only the uplinks of the latter count."""
    spec = ClosSpec(name="hall", racks=1, ctsw=1)  # what is not of the shape
    host, fabric = spec.link.host, spec.link.fabric
    levels = (
        Level("host", "hosts", "server", host),
        Level("tor", "ToR", "leaf", fabric, is_edge=True, boxed=True),
        Level("agg", "Agg", "spine", fabric, above_edge=True, counts_uplinks=True, boxed=True),
        Level("core", "Core", "superspine"),
    )
    drawing = FabricBuilder(spec, levels)
    subnets: Iterator[Network] = spec.addressing.network.subnets(new_prefix=24)
    prefixes = list(islice(subnets, 4))
    pods = [(1, 1), (2, 1), (3, 2), (4, 2)]
    for n, pod in pods:
        drawing.switch(1, n, 4_200_001_000 + n, (("pod", pod),), prefixes[n - 1])
    for n, pod in pods:
        drawing.switch(2, n, 4_200_000_000 + pod, (("pod", pod),))
    for n in (1, 2):
        drawing.switch(3, n, 4_200_000_900, ())
    for n, pod in pods:
        drawing.host(n, (("pod", pod),))
        base = int(prefixes[n - 1].network_address)
        drawing.join(f"host{n}", f"tor{n}", (spec.ip.end(base + 1), spec.ip.end(base)))
        for agg in (2 * pod - 1, 2 * pod):
            drawing.join(f"tor{n}", f"agg{agg}")
        for core in (1, 2):
            drawing.join(f"agg{n}", f"core{core}")
    return drawing.fabric(box="pod", area="", sizes=())


def hashing_of(fabric: Fabric) -> dict[str, SwitchHashing]:
    return {node.name: SwitchHashing(node.name, "flow", node.hash_seed or 1, 3, 0x37) for node in fabric.switches}


def test_a_picture_has_all_boxed_levels_in_the_boxes() -> None:
    fabric = hall()
    layout = PictureLayout(fabric)
    assert sorted(layout.boxes) == [1, 2]
    heights = [
        {layout.at[node.name][1] for node in fabric.nodes if fabric.level_of(node) is row} for row in fabric.levels
    ]
    assert [len(each) for each in heights] == [1, 1, 1, 1]
    hosts, tors, aggs, cores = (each.pop() for each in heights)
    assert hosts < tors < aggs == layout.box_top < cores == layout.area_row
    for node in fabric.nodes:
        if node.group("pod"):
            left, width = layout.box[node.group("pod") or 0]
            assert left < layout.at[node.name][0] < left + width
    text = fabric_svg(layout, title="x")
    assert all(f">{row.title}</text>" in text for row in fabric.levels)
    assert [box.text.words for box in layout.frames() if box.text] == ["pod 1", "pod 2"]


def test_polarisation_asks_for_flows_by_the_switches_above_the_edge() -> None:
    fabric = hall()
    alike = {name: replace(each, seed=7) for name, each in hashing_of(fabric).items()}
    found = polarisation(fabric, fibs_of(fabric), alike).pairs
    assert [pair.polarised for pair in found if pair.switch.startswith("agg")] == [True] * 4
    assert not any(pair.polarised for pair in polarisation(fabric, fibs_of(fabric), hashing_of(fabric)).pairs)
    # By pinned slices all next hops are used: the switches above the edge turn them, by the number of the edge.
    turned = [[rule.slice for rule in steering_of(fabric, fabric.by_name[name], HashOptions()).prefixes.values()]
              for name in ("tor1", "agg1")]  # fmt: skip
    assert turned == [[0, 0, 0], [2, 3]]


def test_a_verdict_measures_the_uplinks_of_the_levels_that_count_them() -> None:
    fabric = hall()
    hashing = hashing_of(fabric)
    one, other = (str(fabric.by_name[name].ports[0].address).partition("/")[0] for name in ("host1", "host3"))
    flow = Flow("host1", "host3", one, other, 50_000, 7, "tor1:eth1")
    (path,) = predict(fabric, fibs(fabric), hashing, [flow])
    assert [ref.partition(":")[0][:-1] for ref in path] == ["tor", "agg", "core", "agg", "tor"]
    counters = {node.name: SwitchCounters(node.name, (), (), 0) for node in fabric.switches}
    for ref in path:
        switch, _, port = str(ref).partition(":")
        counters[switch] = SwitchCounters(switch, (FlowCount(port, *flow.key, 10, 1000),), (), 0)
    states = snapshot(fibs(fabric), hashing), snapshot(fibs(fabric), hashing, counters)
    result = prove(fabric, Evidence(*states, (Sent(flow, 10, 1000),), (path,)))
    assert result.agree, paths_text(result)
    assert result.leaf_word == "agg" and [*result.per_leaf] == ["agg1", "agg2", "agg3", "agg4"]
    upward = {port.ref for node in fabric.switches for port in node.ports if port.peer_node.startswith("core")}
    assert {link.port for link in result.links if link.uplink} == upward
    assert result.per_leaf[str(path[1]).partition(":")[0]] == Mmr(2.0, 2.0)


def test_a_shape_without_edge_switches_is_refused() -> None:
    levels = (Level("host", "hosts", "server"), Level("a", "A", "leaf"))
    with pytest.raises(ValueError, match="needs a level of edge switches"):
        FabricBuilder(ClosSpec(name="none", racks=1, ctsw=1), levels)


def test_hosts_are_at_edge_switches_and_levels_above_these_say_so() -> None:
    for shape, model in SHAPES.items():
        needed = {key: field.examples[0] for key, field in model.model_fields.items() if field.examples}
        fabric = build(model.model_validate({"shape": shape, **needed}))
        for link in fabric.links:
            low, high = (fabric.level_of(fabric.by_name[name]) for name, _ in (link.a, link.b))
            assert high.is_edge == (low is fabric.host_level or low.prepends > 0)
            assert high.above_edge == (low.is_edge and low is not high)
