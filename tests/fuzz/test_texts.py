"""Mutated files of people: fabric files, topologies, SONiC configurations, traffic plans, matrices and traces."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.lab.imported.choose import blueprint_of
from heddle.offline.loads import traffic_of
from heddle.traffic.traces import Reading, read_trace
from heddle_plugins.readers.fabrics.importing import import_fabric
from heddle_plugins.readers.sonic.fromsonic import import_sonic
from tests.fuzz.cases import Fuzz
from tests.fuzz.mutate import damaged, odd_text
from tests.marks import deep

ROOT: Final = Path(__file__).resolve().parents[2]
FABRICS: Final = sorted([*(ROOT / "topologies").glob("*.yml"), ROOT / "topologies" / "examples" / "polarised.yml"])
TOPOLOGIES: Final = sorted(
    [*(ROOT / "topologies" / "examples").glob("*.clab.yml"), *(ROOT / "tests/golden/topologies").glob("*.clab.yml")]
)
ERRORS: Final = ROOT / "tests/golden/errors"
PLANS: Final = sorted([*(ROOT / "traffic").glob("*.yml"), *ERRORS.glob("*/*.yml")])
MATRICES: Final = sorted(ERRORS.glob("matrix/*.csv"))
GRAPHS: Final = sorted((ROOT / "tests/fuzz/corpus/fabrics").iterdir())
TRACES: Final = sorted((ROOT / "tests/fuzz/corpus/traces").iterdir())
WORDS: Final = (
    "demo",
    "clos",
    "rail",
    "e-ecmp",
    "100mbit",
    "64KB",
    "20ms",
    "[]",
    "{}",
    "[3, 6]",
    "~",
    "host1:eth1",
    "0.5%",
)


@cache
def demo() -> Fabric:
    return load_fabric("demo").fabric


def a_fabric(path: Path) -> None:
    load_fabric(str(path))


def a_topology(path: Path) -> None:
    blueprint_of(str(path), "netns")


def a_plan(path: Path) -> None:
    traffic_of(demo(), load_workload(str(path)).workload)


def a_matrix(path: Path) -> None:
    traffic_of(demo(), load_workload(f"{path},qps=1").workload)


def a_trace(path: Path) -> None:
    read_trace([str(path)], Reading(ranks=2))


def a_graph(path: Path) -> None:
    import_fabric(path.stem, str(path), None)


def a_switch(path: Path) -> None:
    import_sonic(str(path), "demo")


KINDS: Final[tuple[tuple[list[Path], str, Callable[[Path], None]], ...]] = (
    (FABRICS, "x.yml", a_fabric),
    (TOPOLOGIES, "x.clab.yml", a_topology),
    (PLANS, "x.yml", a_plan),
    (MATRICES, "x.csv", a_matrix),
    ([ROOT / "tests/golden/readers/sonic/config_db.json"], "x.json", a_switch),
    *(([graph], graph.name, a_graph) for graph in GRAPHS),
    *(([trace], trace.name, a_trace) for trace in TRACES),
)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [600, deep(30_000)])
def test_texts(fuzz: Fuzz, count: int) -> None:
    def one(dice: random.Random, place: Path) -> None:
        corpus, name, read = dice.choice(KINDS)
        text = dice.choice(corpus).read_text()
        file = place / name
        if dice.random() < 0.85:
            file.write_bytes(odd_text(dice, text, WORDS).encode(errors="surrogatepass"))
        else:
            file.write_bytes(damaged(dice, text.encode()))
        try:
            read(file)
        except InputError as error:
            assert len(str(error)) < 20_000, f"a message of {len(str(error))} characters"

    fuzz.run(count, one)
