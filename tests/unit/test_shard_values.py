"""What goes between a coordinator and its shards: values as JSON, marked functions, datagrams of carriers, losses."""

from __future__ import annotations

import json
from ipaddress import ip_interface, ip_network
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from heddle.base import values
from heddle.base.problems import Problem
from heddle.lab.snapshot import LabPart
from heddle.lab.spread import concat, operation, spread
from heddle.shards.carrier import SILENT_S, FarShard, opened, sealed
from heddle.switch.links.cuts import CutCount, TunnelUse, tunnel_uses
from heddle.switch.queues.cells import LAYOUTS


def again(value: Any) -> Any:
    return values.load(json.loads(json.dumps(values.dump(value))))


@pytest.mark.parametrize(
    "value",
    [
        None, True, 7, 0.5, "a text", b"\0\xff", [1, [2]], (1, "a", (2,)), {(1, "a"): {2, 3}}, frozenset({"x"}),
        Path("/a b/c"), ip_network("10.0.0.0/24"), ip_interface("fd00::1/64"), LabPart.FIBS | LabPart.DROPS,
        Problem("where", "what", "why", "hint"),
    ],
)  # fmt: skip
def test_a_value_is_the_same_on_the_other_side(value: Any) -> None:
    found = again(value)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("name", [*LAYOUTS])
def test_so_is_an_array_with_its_layout(name: str) -> None:
    table = np.zeros(5, LAYOUTS[name])
    table.view(np.uint8)[:] = np.arange(table.nbytes) % 251
    found = again(table)
    assert found.dtype == table.dtype and (found == table).all()


@pytest.mark.parametrize(
    "data",
    [
        {"!": "data", "of": "os:environ", "fields": []},
        {"!": "data", "of": "heddle.base.process:run", "fields": [["argv", ["true"]]]},
        {"!": "data", "of": "heddle.base.values:Path", "fields": []},
        {"!": "data", "of": "heddle.lab.lab:Lab.snapshot", "fields": []},
        {"!": "enum", "of": "heddle.base.problems:Problem", "value": 1},
        {"!": "array", "of": "|O", "size": 8, "shape": [1], "text": ""},
        {"!": "nothing"}, {"of": "x"},
    ],
)  # fmt: skip
def test_a_text_that_names_anything_else_is_refused(data: Any) -> None:
    with pytest.raises(ValueError, match=r"is not|is another"):
        values.load(data)


def test_what_is_no_value_is_not_sent() -> None:
    with pytest.raises(TypeError, match="cannot be sent"):
        values.dump(object())


@spread(concat, nodes=lambda names: names)
def _named(lab: Any, names: list[str]) -> list[str]:
    return [f"{lab.name}:{name}" for name in names]


def test_a_marked_function_runs_here_or_once_in_each_shard() -> None:
    asked: list[Any] = []

    def call(name: str, nodes: Any, args: Any, kwargs: Any) -> list[list[str]]:
        asked.append((name, nodes, args, kwargs))
        return [["s1"], ["s2"]]

    here = SimpleNamespace(name="x", runtime=SimpleNamespace(shards=lambda _: None))
    apart = SimpleNamespace(name="x", runtime=SimpleNamespace(shards=lambda _: SimpleNamespace(call=call)))
    assert _named(here, ["a", "b"]) == ["x:a", "x:b"] and asked == []
    assert _named(apart, ["a"]) == ["s1", "s2"]
    assert asked == [(f"{__name__}:_named", ["a"], (["a"],), {})]
    assert operation(_named) is not None and operation(test_what_is_no_value_is_not_sent) is None


def test_a_datagram_needs_the_key_and_is_taken_once() -> None:
    key, data = bytes(32), {"boot": "a", "number": 1, "down": [3], "sent_ns": 5, "echo_ns": 0, "held_ns": 0}
    datagram = sealed(key, data)
    assert opened(key, datagram) == data
    assert opened(bytes(31) + b"x", datagram) is None and opened(key, datagram[:-1] + b" ") is None
    far = FarShard(0.0)
    assert far.alive(10) and far.hear(data, 10.0) and far.down == {3}
    assert not far.hear(data, 11.0), "a copy"
    assert far.hear({**data, "boot": "b", "number": 1, "down": []}, 11.0) and far.down == frozenset()
    assert not far.hear({**data, "number": 9}, 11.5), "of a process that was replaced"
    assert far.alive(11 + SILENT_S - 0.1) and not far.alive(11 + SILENT_S)


def test_losses_of_a_tunnel_have_bounds_from_readings_at_different_times() -> None:
    def reading(sent: int, received: int) -> list[CutCount]:
        return [CutCount("a:eth1", "b:eth1", sent, 0, 7, 0), CutCount("b:eth1", "a:eth1", 7, 0, received, 0)]

    quiet = tunnel_uses([reading(10, 8), reading(10, 8)])
    assert quiet == [TunnelUse("a:eth1", 10, 2), TunnelUse("b:eth1", 7, 0)]
    assert tunnel_uses([reading(10, 9), reading(12, 11)])[0] == TunnelUse("a:eth1", 12, 0, 3), "on their way, or lost"
    assert tunnel_uses([reading(10, 9), reading(12, 11), reading(12, 11)])[0] == TunnelUse("a:eth1", 12, 1)
