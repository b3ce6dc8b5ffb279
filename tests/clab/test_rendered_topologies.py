"""What is rendered, judged by the containerlab that is installed: every preset, shape and key that changes the file.

Dialects `linux` and `c9s` are judged by any version; c9s' is also deployed once, by Docker, since no cluster is here.
`kind: frr` came with 0.80: an older one, as 0.79, must refuse it, just as `up` says; its spellings of 0.80 and 0.81
follow the release notes of these, and are held by golden files (tests/golden/render/dialects).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from heddle.base.process import Done, run
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.shapes import build
from heddle.host.engine import binary
from heddle.host.engine.binary import installed_version
from heddle.host.engine.docker import docker
from heddle.render.dialects import FRR_KIND, RenderOptions
from heddle.render.render import render
from heddle.spec.load import presets
from heddle.spec.routingpolicy import RoutingPolicy
from heddle.spec.schema import FabricSpec
from heddle.spec.shapes import SHAPES
from heddle.spec.shapes.clos import ClosSpec
from tests.machine import until

Containerlab = Callable[..., Done]
E_ECMP = RoutingPolicy(ecmp="e-ecmp")
SIZES = {"clos": {"racks": 2, "ctsw": 3}, "rail": {"pods": 2, "spines": 6, "planes": 2}}  # others: as their examples


def examples(model: type[FabricSpec]) -> dict[str, object]:
    """The sizes that a shape's own keys give as examples."""
    own = {key: field.examples[0] for key, field in model.model_fields.items() if field.examples}
    return {key: size for key, size in own.items() if key not in FabricSpec.model_fields}


FABRICS = {
    **{f"preset-{name}": load_fabric(name).spec for name in presets()},
    **{
        f"shape-{shape}": model.model_validate({"name": "cut", "shape": shape, **SIZES.get(shape, examples(model))})
        for shape, model in SHAPES.items()
    },
    "smallest": ClosSpec(name="one", racks=1, ctsw=1, hosts_per_rack=1),
    "e-ecmp": ClosSpec(name="eecmp", racks=2, ctsw=2, hosts_per_rack=1, routing=E_ECMP),
    "rails": ClosSpec(name="rails", racks=2, ctsw=2, hosts_per_rack=2, nics_per_host=4),
    "large": ClosSpec(name="large", racks=64, ctsw=8, hosts_per_rack=2),
}
KEYS = ("preset-tiny", "shape-rail", "rails")
WAYS = {
    "linux": RenderOptions(),
    "linux-bare": RenderOptions(mgmt="none"),
    "linux-bare-0.75": RenderOptions(mgmt="none", version=(0, 75, 0)),
    "c9s": RenderOptions(dialect="c9s"),
}


@pytest.fixture
def containerlab(engine: None, tmp_path: Path) -> Containerlab:
    """The installed containerlab, whose lab directories are made where this test can lose them."""
    program = str(binary.find() or binary.require())
    settings = [f"CLAB_LABDIR_BASE={tmp_path / 'labs'}", "CLAB_VERSION_CHECK=disable"]
    (tmp_path / "labs").mkdir()
    return lambda *words: run(["env", *settings, program, *words], check=False, stdin="")


def present() -> list[str]:
    """Containers and networks of the engine."""
    return [docker([kind, "ls", "--quiet"]).out for kind in ("container", "network")]


# Each fabric in the default dialect; the others write the same fields, so a few fabrics have all their keys.
CASES = [(fabric, way) for fabric in sorted(FABRICS) for way in sorted(WAYS) if way == "linux" or fabric in KEYS]


@pytest.mark.parametrize(("fabric", "way"), CASES)
def test_containerlab_takes_what_is_rendered(fabric: str, way: str, containerlab: Containerlab, tmp_path: Path) -> None:
    topology = str(render(build(FABRICS[fabric]), tmp_path / "out", WAYS[way]))
    done = containerlab("validate", "--topo", topology)
    assert done.code == 0, done.err
    size = f"nodes={len(build(FABRICS[fabric]).nodes)} links={len(build(FABRICS[fabric]).links)}"
    assert size in done.err + done.out
    if fabric in KEYS:
        before = present()
        done = containerlab("deploy", "--dry-run", "--topo", topology)
        assert done.code == 0, done.err
        assert present() == before, "a dry run makes nothing"


def test_a_key_that_containerlab_does_not_know_is_refused(containerlab: Containerlab, tmp_path: Path) -> None:
    topology = render(load_fabric("tiny").fabric, tmp_path / "out")
    data = yaml.safe_load(topology.read_text())
    data["topology"]["nodes"]["rtsw1"]["daemon"] = ["bgpd"]
    topology.write_text(yaml.safe_dump(data))
    done = containerlab("validate", "--topo", str(topology))
    assert done.code != 0, "what this file's other tests rest on"
    assert "daemon" in done.err + done.out


@pytest.mark.parametrize("fabric", ["preset-tiny", "rails"])
def test_the_frr_kind_is_taken_from_0_80_on_and_refused_before(
    fabric: str, containerlab: Containerlab, tmp_path: Path
) -> None:
    version = installed_version()
    assert version is not None
    options = replace(RenderOptions(dialect="frr"), version=version if version >= FRR_KIND else None)
    done = containerlab("validate", "--topo", str(render(build(FABRICS[fabric]), tmp_path / "out", options)))
    assert (done.code == 0) == (version >= FRR_KIND), done.err


def test_the_c9s_dialect_is_the_same_fabric(
    containerlab: Containerlab, lab_name: Callable[[], str], tmp_path: Path
) -> None:
    name = lab_name()
    fabric = load_fabric("tiny", name=name, overrides=("routing.loopbacks=true",)).fabric
    path = render(fabric, tmp_path / "out", RenderOptions(dialect="c9s"))
    data = yaml.safe_load(path.read_text())
    data["mgmt"]["network"] = f"heddle-{name}"  # the dialect names none, and Docker's default one may be in use
    path.write_text(yaml.safe_dump(data))
    topology = str(path)

    def inside(node: str, *words: str) -> str:
        return docker(["exec", f"clab-{name}-{node}", *words], check=False).out

    try:
        done = containerlab("deploy", "--topo", topology, "--max-workers", "8")
        assert done.code == 0, done.err
        for node in fabric.nodes:
            found = {
                port.name: inside(node.name, "cat", f"/sys/class/net/{port.name}/address").strip()
                for port in node.ports
            }
            assert found == {port.name: port.mac for port in node.ports}
        until(lambda: inside("rtsw1", "ip", "route", "show", "10.0.1.0/24").count("nexthop") == 2)
        far = address_of(fabric, "host4")
        until(lambda: "1 received" in inside("host1", "ping", "-c", "1", "-W", "1", far))
        loopback = str(fabric.by_name["rtsw2"].loopback)
        for spine in ("ctsw1", "ctsw2"):  # each path, not just the one that a ping between these two hosts takes
            until(lambda at=spine: "1 received" in inside(at, "ping", "-c", "1", "-W", "1", loopback))  # type: ignore[misc]
    finally:
        gone = containerlab("destroy", "--cleanup", "--topo", topology)
    assert gone.code == 0, gone.err
    assert name not in docker(["container", "ls", "--all", "--format", "{{.Names}}"]).out
    assert name not in docker(["network", "ls", "--format", "{{.Name}}"]).out


def address_of(fabric: Fabric, host: str) -> str:
    address = fabric.by_name[host].ports[0].address
    assert address is not None
    return str(address.ip)
