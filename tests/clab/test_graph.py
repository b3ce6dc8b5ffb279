"""`./inv graph` in the kinds that containerlab draws, by the containerlab and the engine that are installed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.shapes import build
from heddle.host.engine.docker import docker
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes.clos import ClosSpec
from heddle.views.graph import DRAWIO_IMAGE, drawing

pytestmark = pytest.mark.usefixtures("engine")
FABRICS = [load_fabric("tiny").spec, load_fabric("zone").spec, ClosSpec(name="rails", racks=1, ctsw=2, nics_per_host=2)]


@pytest.mark.parametrize("spec", FABRICS, ids=lambda spec: str(spec.name))
def test_mermaid_has_every_link_in_the_order_of_names(spec: FabricSpec) -> None:
    fabric = build(spec)
    text = drawing("mermaid", fabric).decode()
    assert text.startswith(f"---\ntitle: {spec.name}\n---\ngraph ")
    links = re.findall(r"^  (\w+)---(\w+)$", text, re.MULTILINE)
    drawn = sorted(tuple(sorted(link)) for link in links)
    assert drawn == sorted(tuple(sorted((link.a[0], link.b[0]))) for link in fabric.links)
    assert drawing("mermaid", fabric).decode() == text, "the same fabric gives the same text"


def test_dot_has_every_node_in_its_group_and_every_link() -> None:
    fabric = load_fabric("zone").fabric
    text = drawing("dot", fabric).decode()
    groups = dict(re.findall(r"^\t(\w+) \[.*group=(\w+)", text, re.MULTILINE))
    assert groups == {n.name: ("server", "leaf", "spine")[n.level] for n in fabric.nodes}
    drawn = sorted(tuple(sorted(link)) for link in re.findall(r"^\t(\w+)--(\w+)", text, re.MULTILINE))
    assert drawn == sorted(tuple(sorted((link.a[0], link.b[0]))) for link in fabric.links)


def test_drawio_draws_or_names_the_missing_image() -> None:
    fabric = load_fabric("tiny").fabric
    before = docker(["container", "ls", "--all", "--quiet"]).out
    try:
        text = drawing("drawio", fabric).decode()
    except MachineError as error:
        assert DRAWIO_IMAGE in error.problems[0].why
        assert "--kind svg" in error.problems[0].hint
    else:
        assert all(node.name in text for node in fabric.nodes)
    assert docker(["container", "ls", "--all", "--quiet"]).out == before


def test_without_containerlab_the_command_that_installs_it_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEDDLE_CONTAINERLAB", str(tmp_path / "none"))
    with pytest.raises(MachineError, match="is not a program"):
        drawing("mermaid", load_fabric("tiny").fabric)
