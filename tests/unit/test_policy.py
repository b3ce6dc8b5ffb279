"""Fabric and Fabric.policy as plain data: the same value comes back from a record and from the file's syntax."""

from __future__ import annotations

import json

import pytest

from heddle.fabric.fabricdata import fabric_from_json, fabric_to_json
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.policydata import (
    dump_policy,
    load_policy,
    queue_policy,
    queues_as_file,
    routing_as_file,
    routing_policy,
)
from heddle.spec.load import presets
from heddle.spec.queuespec import QueuesSpec
from heddle.spec.routingspec import RoutingSpec

ODD = [
    "routing.ecmp=e-ecmp",
    "routing.seed=77",
    "routing.hash.udf.base=l4",
    "routing.hash.fields=[src, sport]",
    "queues.lossless=[3, 4]",
    "queues.weights={1: 2}",
    "queues.dscp={26: 1}",
    "queues.ecn.classes={3: {kmin: 10KB}, 1: {pmax: 0.5}}",
    "queues.pfc.quanta=100",
    "queues.pfc.watchdog.detect=1500ms",
    "queues.buffer={switch: 9MB, host: 2MB}",
]


def test_a_policy_in_file_syntax_equals_the_file() -> None:
    loaded = load_fabric("tiny", overrides=[*ODD, "queues.buffer.ctsw=11MB"])
    policy, words = loaded.fabric.policy, [level.word for level in loaded.fabric.levels[1:]]
    queues = QueuesSpec.model_validate(queues_as_file(policy.queues, words))
    assert queue_policy(queues, words) == policy.queues == queue_policy(loaded.spec.queues, words)
    routing = RoutingSpec.model_validate(routing_as_file(policy.routing))
    assert routing_policy(routing) == policy.routing == routing_policy(loaded.spec.routing)
    assert policy.queues.buffer.switches == (9_000_000, 11_000_000, 9_000_000)
    assert policy.queues.ecn.curve(3) == (10_000, 160_000, 0.2)
    assert policy.queues.numbers == (0, 1, 3, 4, 6)


def test_data_of_another_version_is_refused() -> None:
    data = fabric_to_json(load_fabric("tiny").fabric)
    with pytest.raises((ValueError, LookupError, TypeError)):
        fabric_from_json({**data, "nodes": [{"name": "rtsw1"}]})
    with pytest.raises(LookupError):
        fabric_from_json({key: value for key, value in data.items() if key != "policy"})


@pytest.mark.parametrize("preset", presets())
def test_a_fabric_and_its_policy_come_back_as_they_were(preset: str) -> None:
    for overrides in ([], ["family=ipv6"], ODD):
        fabric = load_fabric(preset, overrides=overrides).fabric
        again = fabric_from_json(json.loads(json.dumps(fabric_to_json(fabric))))
        assert again == fabric and again.next_hop_groups == fabric.next_hop_groups
        assert load_policy(json.loads(json.dumps(dump_policy(fabric.policy)))) == fabric.policy
