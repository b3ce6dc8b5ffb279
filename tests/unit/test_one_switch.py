"""A fabric of one switch: no link joins switches, so nothing is chosen, and no table or picture of uplinks is there."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from heddle.base.events import Silent
from heddle.base.families import Network
from heddle.base.problems import InputError
from heddle.fabric.builder import FabricBuilder
from heddle.fabric.model import Fabric, Level
from heddle.forecast.forecast import Ask, forecast
from heddle.forecast.planfile import load_plan
from heddle.forecast.result import Prediction
from heddle.proof.linkuse import Mmr
from heddle.proof.verdict import PathsResult
from heddle.spec.shapes.clos import ClosSpec
from heddle.views.forecasttext import render
from heddle.views.heatmap import draw
from heddle.views.pathstext import uplinks


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


def test_an_incast_is_as_slow_as_the_last_link() -> None:
    result = found("incast:3")
    assert result.roofline.what == "hub1:eth1"
    assert result.modes[0].ratio == 1


def test_a_heatmap_has_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="star has no link between switches"):
        draw("svg", found("ring"))


def test_no_table_of_uplinks_is_there() -> None:
    result = PathsResult(True, (), (), Mmr(None, None), {}, "hub", {}, ())
    assert uplinks(result) == ["no switch has uplinks: every path is one port"]


def test_seconds_fit_their_column() -> None:
    lines = [line.split() for line in render(found("incast:1,size=4")).splitlines()]
    (row,) = (line for line in lines if line[:2] == ["hub1:eth1", "host1:eth1"])
    assert row[3:6] == ["82", "6.56e-06", "s"]  # a frame of one element
