"""A fabric as plain data and back is the same fabric."""

from __future__ import annotations

import json

import pytest

from heddle.fabric.fabricdata import fabric_from_json, fabric_to_json
from heddle.fabric.fabricfile import load_fabric
from heddle.spec.load import presets


@pytest.mark.parametrize("name", presets())
def test_every_preset_comes_back_as_it_was(name: str) -> None:
    fabric = load_fabric(name).fabric
    again = fabric_from_json(json.loads(json.dumps(fabric_to_json(fabric))))
    assert again == fabric
    assert again.next_hop_groups == fabric.next_hop_groups


def test_data_of_another_version_is_refused() -> None:
    data = fabric_to_json(load_fabric("tiny").fabric)
    with pytest.raises((ValueError, LookupError, TypeError)):
        fabric_from_json({**data, "nodes": [{"name": "rtsw1"}]})
    with pytest.raises(LookupError):
        fabric_from_json({key: value for key, value in data.items() if key != "policy"})
