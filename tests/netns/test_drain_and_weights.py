"""Three tiers with unequal links, under the FRR of this machine and that of the images: weights, drains, losses."""

from __future__ import annotations

import pytest

from heddle.checks.validate import validate
from heddle.fabric.ucmp import RELEASES, weights_of
from heddle.host.preflight import frr_release
from heddle.kernel.fib import read_fib
from heddle.lab.convergence import ExpectedRoutes, gaps
from heddle.lab.lab import Lab
from heddle.lab.outages import drain, link_down
from heddle.lab.snapshot import LabPart
from tests.conftest import FabricLab


def weights(lab: Lab, switch: str, rack: int) -> dict[str, int]:
    return {hop.port: hop.weight for hop in read_fib(lab.handle(switch)).routes[lab.fabric.prefixes[rack]]}


@pytest.mark.containers
def test_weights_are_those_of_bandwidths_and_a_drained_switch_has_none(fabric_lab: FabricLab) -> None:
    link = {"host": "100mbit", "fabric": "100mbit", "exceptions": {"ctsw2": "30mbit"}}
    lab = fabric_lab(zones=2, racks=2, ctsw=2, atsw=2, hosts_per_rack=1, link=link, routing={"ucmp": True})
    here = frr_release() if lab.runtime.name == "netns" else None
    rights = [weights_of((100, 30), release) for release in ([here] if here else RELEASES)]
    assert tuple(weights(lab, "rtsw1", 3)[port] for port in ("eth1", "eth2")) in rights
    assert tuple(weights(lab, "atsw1", 1)[port] for port in ("eth1", "eth2")) in rights
    assert len(set(weights(lab, "atsw1", 3).values())) == 1
    with drain(lab, "ctsw2"):
        assert set(weights(lab, "rtsw1", 3)) == set(weights(lab, "atsw1", 1)) == {"eth1"}
    with link_down(lab, "ctsw1:eth3"):
        rest = [weights_of((30, 130), release) for release in ([here] if here else RELEASES)]
        assert tuple(weights(lab, "ctsw3", 1)[port] for port in ("eth3", "eth4")) in rest
        wanted = ExpectedRoutes.of(lab.fabric, ["ctsw1:eth3"])
        assert not gaps(lab.fabric, lab.snapshot(LabPart.FIBS).fibs, wanted, strict=True)
    assert not [check for check in validate(lab) if not check.ok]
