"""User-supplied images that start FRR themselves: containerlab runs them, and nothing is started twice."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base.process import run as command
from heddle.host.engine.docker import docker
from heddle.lab import lifecycle as life
from heddle.lab.imported.imported import import_topology
from heddle.lab.snapshot import LabPart
from heddle.render.dialects import image_names
from heddle.runtimes.containerlab import ContainerlabRuntime
from tests.own_topologies import mini_clos

pytestmark = pytest.mark.needs("procps")

# As FRR's own image does: the daemons first, then something that stays.
START = '["/bin/sh", "-c", "sleep 1; /usr/lib/frr/frrinit.sh start; exec sleep infinity"]'


@pytest.fixture
def image(engine: None, tmp_path: Path) -> Iterator[str]:
    """An image that starts FRR by itself."""
    name = f"heddle-test-own:{os.getpid()}"
    (tmp_path / "image").mkdir()
    (tmp_path / "image/Dockerfile").write_text(f"FROM {image_names()['switch']}\nENTRYPOINT {START}\n")
    docker(["build", "-t", name, str(tmp_path / "image")], timeout=120)
    yield name
    docker(["rmi", "-f", name], check=False)


def test_an_image_that_starts_frr_is_left_to_it(
    image: str, tmp_path: Path, name: str, leftovers: Callable[[str], list[str]]
) -> None:
    path = mini_clos(tmp_path, image=image)
    # Its hosts would start FRR as well: they are given Heddle's image.
    path.write_text(path.read_text().replace("    servers:\n", f"    servers:\n      image: {image_names()['host']}\n"))
    lab = life.up(import_topology(path, "containerlab", name), runtime="containerlab").lab
    assert isinstance(lab.runtime, ContainerlabRuntime)
    assert lab.blueprint.sessions(lab.snapshot(LabPart.SESSIONS)) == (4, 4)
    listed = lab.output("leaf-1", ["ps", "-eo", "comm"]).split()
    assert [listed.count(daemon) for daemon in ("zebra", "bgpd", "watchfrr")] == [1, 1, 1]
    assert str(lab.fabric.by_name["leaf-1"].port("eth1").address) == "10.0.1.1/31"
    life.down(name)
    assert leftovers(name) == []
    assert command(["docker", "ps", "-aq", "--filter", f"ancestor={image}"]).out == ""
