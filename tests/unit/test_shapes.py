"""Files of a shape with other keys and words: every check is made, by those words; and a fabric of one switch."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from ipaddress import ip_network
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import ClassVar, Literal

import pytest
from pydantic import Field

from heddle.base.events import Silent
from heddle.base.families import Network
from heddle.base.problems import InputError
from heddle.fabric.builder import FabricBuilder
from heddle.fabric.fabricfile import LoadedFabric, checked, load_fabric
from heddle.fabric.model import Fabric, Level
from heddle.fabric.shapes import build
from heddle.forecast.forecast import Ask, forecast
from heddle.forecast.planfile import load_plan
from heddle.forecast.result import Prediction
from heddle.proof.linkuse import Mmr
from heddle.proof.verdict import PathsResult
from heddle.spec.plain import dump_spec, load_spec
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes import SHAPES
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.queues.classes import budget_of
from heddle.views.forecasttext import render
from heddle.views.heatmap import draw as draw_heatmap
from heddle.views.pathstext import uplinks


class PairSpec(FabricSpec):
    """Leaves under spines, and one host a leaf."""

    synonyms: ClassVar = {**FabricSpec.synonyms, "tor": "leaf", "rtsw": "leaves"}
    levels: ClassVar = ("leaf", "spine")

    shape: Literal["pair"] = "pair"
    leaves: int = Field(ge=1, le=64, examples=[4])
    spines: int = Field(ge=1, le=64, examples=[2])


def draw(spec: PairSpec) -> Fabric:
    host, fabric = spec.link.host, spec.link.fabric
    rows = [("host", "hosts", "server", host), ("leaf", "Leaf", "leaf", fabric), ("spine", "Spine", "spine", 0)]
    drawing = FabricBuilder(spec, [Level(*row) for row in rows])
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
    monkeypatch.setitem(SHAPES, "pair", PairSpec)
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
    assert budget_of(leaf, queues).buffer == 3_000_000
    deep = budget_of(spine, queues)
    assert deep.buffer - deep.headroom == 3 * 1_000_000, "what is no leaf is deep"
    shallow = budget_of(leaf, load(HEAD).fabric.policy.queues)
    assert shallow.buffer - shallow.headroom == 3 * 150_000
    assert load_spec(dump_spec(loaded.spec)) == loaded.spec


def test_each_shape_names_its_levels_as_its_builder_does() -> None:
    for shape, model in SHAPES.items():
        needed = {key: field.examples[0] for key, field in model.model_fields.items() if field.examples}
        spec = model.model_validate({"shape": shape, **needed})
        assert spec.levels == tuple(level.word for level in build(spec).levels[1:])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("queues: {buffer: {rtsw: 3MB}}", "queues.buffer.rtsw is not a key; allowed keys: leaf,"),
        ("queues: {buffer: {spin: 3MB}}", "queues.buffer.spin is not a key; did you mean spine?"),
        ("queues: {buffer: {tor: 3MB}}", "queues.buffer.tor is not a key; did you mean leaf?"),
        ("queues: {buffer: {spine: 20KB}}", "queues.buffer.spine: 20KB is below 1994498 bytes: headroom 633428 x 3"),
        ("queues: {buffer: 20KB}", "queues.buffer: 20KB is below 1994498 bytes: headroom 633428 x 3 ports of leaf"),
        ("queues: {pfc: {enabled: false}, reserve: 60KB}", "queues.reserve: 60KB x 3 classes x 3 ports of leaf"),
        ("link: {exceptions: {spine3: 5mbit}}", "link.exceptions.spine3: 5mbit is not a node of this fabric;"
         " use spine1 to spine2"),
        ("link: {exceptions: {'leaf1:eth4': 5mbit}}", "is not a port: a Leaf has 3 ports; use eth1 to eth3"),
        ("link: {exceptions: {ctsw1: 5mbit}}", "ctsw1: 5mbit is neither a node nor a port;"
         " write a node as spine2, a port as leaf1:eth3"),
        ("racks: 3", "racks is not a key; allowed: name, shape, family, link, scale, routing"),
        ("rtsw: 3", "rtsw is not a key; did you mean leaves?"),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_reported_by_line_in_the_words_of_the_shape(text: str, said: str) -> None:
    (found,) = refused(f"{HEAD}{text}\n")
    assert found.startswith("p.yml:5  ") and said in found


def test_all_errors_are_reported_at_once_without_follow_up_errors() -> None:
    text = "link: {host: 5, mtu: 1500, exceptions: {leaf9: 5mbit}}\nqueues:\n  buffer: {spin: 1MB}\n  control: six\n"
    heads = [each.split("; ")[0] for each in refused(HEAD + text)]
    assert heads == [
        "p.yml:5  link.host: 5 has no unit",
        "p.yml:5  link.exceptions.leaf9: 5mbit is not a node of this fabric",
        "p.yml:5  link.mtu: 1500 is below 4160: IB MTU 4096 and 64 bytes of headers",
        "p.yml:7  queues.buffer.spin is not a key",
        "p.yml:8  queues.control: six is not a whole number",
    ]
    # How large a buffer has to be follows from how many ports there are, and that is wrong itself.
    (found,) = refused("name: p\nshape: pair\nleaves: 0\nspines: 2\nqueues: {buffer: 20KB}\n")
    assert found.startswith("p.yml:3  leaves: 0 is below 1")


def test_an_unknown_shape_has_a_hint_and_the_rest_is_read_as_of_the_nearest() -> None:
    all_shapes = ", ".join(SHAPES)
    shape, leaves = refused("name: p\nshape: piar\nleaves: 0\nspines: 2\n")
    assert shape == f"p.yml:2  shape: piar is not one of {all_shapes}; did you mean pair?"
    assert leaves.startswith("p.yml:3  leaves: 0 is below 1")
    (number,) = refused("name: p\nshape: 3\nracks: 2\nctsw: 2\n")
    assert number == f"p.yml:2  shape: 3 is not one of {all_shapes}"
    (nothing,) = refused("name: p\nshape:\nracks: 2\nctsw: 2\n")
    assert nothing.startswith("p.yml:2  shape has no value")


def test_a_spec_that_a_program_has_made_is_checked_too() -> None:
    spec = PairSpec.model_validate({"name": "p", "leaves": 2, "spines": 2, "link": {"exceptions": {"leaf9": "5mbit"}}})
    with pytest.raises(InputError, match=r"^link.exceptions.leaf9 is not a node of this fabric"):
        checked(spec)


def star() -> Fabric:
    spec = ClosSpec(name="star", racks=1, ctsw=1)  # what is not of the shape
    drawing = FabricBuilder(spec, (Level("host", "hosts", "server", spec.link.host), Level("hub", "hub", "leaf")))
    pool: Network = spec.addressing.network
    prefix: Network = ip_network(f"{pool.network_address}/24")
    drawing.switch(1, 1, 4_200_001_001, (("star", 1),), prefix)
    for host in range(1, 5):
        drawing.host(host, (("star", 1),))
        base = int(prefix.network_address) + 2 * host
        drawing.join(f"host{host}", "hub1", (spec.ip.end(base + 1), spec.ip.end(base)))
    return drawing.fabric(box="star", area="", sizes=())


def found(plan: str, **asked: str | int) -> Prediction:
    return forecast(star(), load_plan(plan), Ask(**asked), Silent())  # type: ignore[arg-type]


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
