"""The examples of topologies/examples: each is explained in its first lines, and is what Heddle accepts."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heddle.fabric.fabricfile import load_fabric
from heddle.lab.imported.choose import files_of
from heddle.lab.imported.imported import import_topology
from heddle.spec.load import presets

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "topologies/examples"
TOPOLOGIES = sorted(EXAMPLES.glob("*.clab.yml"))
FABRICS = sorted(set(EXAMPLES.glob("*.yml")) - set(TOPOLOGIES))


@pytest.mark.parametrize("path", [*TOPOLOGIES, *FABRICS], ids=lambda path: path.name)
def test_an_example_says_what_it_is_for_and_what_to_type(path: Path) -> None:
    lines = path.read_text().split("\nname:")[0].splitlines()
    assert all(line.startswith("#") for line in lines)
    typed = [line for line in lines if line.startswith("#   ./inv ")]
    assert any(f"topologies/examples/{path.name}" in line for line in typed)


@pytest.mark.parametrize("path", FABRICS, ids=lambda path: path.name)
def test_an_example_fabric_is_one(path: Path) -> None:
    assert len(load_fabric(str(path)).fabric.hosts) >= 4
    assert path.stem not in presets(), "examples are named by their paths"


@pytest.mark.parametrize("runtime", ["netns", "containerlab"])
@pytest.mark.parametrize("path", TOPOLOGIES, ids=lambda path: path.name)
def test_an_example_topology_can_be_brought(path: Path, runtime: str) -> None:
    fabric = import_topology(path, runtime, None).fabric
    assert len(fabric.switches) == 4
    assert len(fabric.hosts) >= 2


def test_every_file_beside_an_example_is_used_by_one() -> None:
    used = {Path(name) for path in TOPOLOGIES for name in files_of(None, str(path))}
    assert {path for path in EXAMPLES.rglob("*") if path.is_file()} - set(FABRICS) == used


def test_configurations_belong_to_the_node_they_are_named_after() -> None:
    for config in EXAMPLES.glob("*/*.conf"):
        if config.name != "vtysh.conf":
            text = config.read_text()
            assert re.search(rf"^hostname {config.stem}$", text, re.MULTILINE), config
            assert text.startswith(f"! {config.stem}: "), config
