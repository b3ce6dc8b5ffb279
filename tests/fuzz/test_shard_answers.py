"""Mutated answers of shards: each is the value of the asked type, or refused; nothing else happens."""

from __future__ import annotations

import json
import random
from ipaddress import ip_network
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from heddle.base import values
from heddle.base.problems import Problem
from heddle.lab.cutlinks import FarTrip, ShardCarrier
from heddle.lab.snapshot import LabPart
from heddle.switch.queues.cells import LAYOUTS
from tests.fuzz.cases import Fuzz
from tests.fuzz.mutate import damaged, odd_json
from tests.marks import deep

_ROOM: Final = 1 << 22
CORPUS: Final[list[tuple[Any, Any]]] = [
    (list[ShardCarrier], [ShardCarrier(True, (FarTrip("10.0.0.1", True, 5, 7),))]),
    (dict[str, Any], {"a": np.zeros(4, LAYOUTS["cells"]), "b": b"bytes", "c": {(1, "x"): frozenset({2})}}),
    (list[Problem], [Problem("where", "what", "why")]),
    (tuple[Path, LabPart], (Path("/a"), LabPart.FIBS | LabPart.DROPS)),
    (set[Any], {ip_network("10.0.0.0/24"), None, 0.5}),
]


@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [600, deep(100_000)])
def test_shard_answers(fuzz: Fuzz, count: int) -> None:
    documents = [values.dump(value) for _, value in CORPUS]

    def one(dice: random.Random, place: Path) -> None:
        at = dice.randrange(len(CORPUS))
        kind, document = CORPUS[at][0], documents[at]
        text = damaged(dice, json.dumps(document).encode()) if dice.random() < 0.3 else odd_json(dice, document)
        (place / "answer.json").write_bytes(text)
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            return
        try:
            assert values.conforms(values.load(data, kind, _ROOM), kind)
        except ValueError:
            return

    fuzz.run(count, one)
