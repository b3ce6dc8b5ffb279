"""A running lab is switched from mode to mode: a story each, of real collectives and of where every queue pair went."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.checks.validate import validate
from heddle.lab import lifecycle as life
from heddle.lab import rehash
from heddle.lab.lab import Lab
from heddle.proof.verdict import PathsResult
from heddle.runs.runrecord import RunRecord
from heddle.spec.routingpolicy import HashOptions
from heddle.spec.shapes.clos import ClosSpec
from heddle.traffic.readers import parse_source_ports
from tests.conftest import FabricLab
from tests.marks import deep, long
from tests.netns.collectives import in_order, proven, ran
from tests.readings import read_hashing
from tests.typed import typed

RACK2 = ip_network("10.0.1.0/24")


@pytest.fixture(scope="module")
def lab(fabric_lab: FabricLab) -> Lab:
    """2 RTSW, 4 CTSW, 4 hosts."""
    return fabric_lab(racks=2, ctsw=4)


@pytest.fixture(autouse=True)
def back_to_the_file(lab: Lab) -> Iterator[None]:
    """Every story begins with what the file says."""
    yield
    rehash.set_hashing(lab, "flow", exact={node.name: {} for node in lab.fabric.switches})


def both(lab: Lab, **options: Any) -> tuple[RunRecord, PathsResult]:
    """A short all-reduce between the racks, with right sums, and where it went, proven three ways."""
    result = ran(lab, **{"qps": 8, "placement": "cyclic", **options})
    return result, proven(lab)


def healthy(lab: Lab) -> bool:
    checks = {check.name: check for check in validate(lab)}
    return all(checks[name].ok for name in ("sysctls", "hashing", "programs", "paths"))


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        deep("flow", HashOptions(policy="l3")),
        long("flow", HashOptions(policy="l4")),  # these two: test_prediction_exact.py
        long("flow", HashOptions(fields=0x03)),
        ("e-ecmp", HashOptions()),
        deep("e-ecmp", HashOptions(resilient=True)),
        ("pinned", HashOptions()),
        deep("exact-match", HashOptions()),
    ],
    ids=["l3", "l4", "addresses", "e-ecmp", "resilient", "pinned", "exact-match"],
)
def test_a_lab_that_is_switched_goes_by_the_new_rule_and_knows_it(lab: Lab, mode: str, options: HashOptions) -> None:
    rehash.set_hashing(lab, mode, options)
    result = in_order(both(lab)[0])
    assert result.ecmp == mode + (" resilient" if options.resilient else "")
    assert healthy(lab)


@pytest.mark.parametrize("choice", ["random", long("round-robin")])
def test_sprayed_packets_take_many_paths_and_the_sums_are_right(lab: Lab, choice: Any) -> None:
    rehash.set_hashing(lab, "spray", HashOptions(choice=choice))
    result, paths = both(lab, qps=2)
    assert result.ecmp == "spray" and healthy(lab)
    assert all(proof.spread for proof in paths.flows if proof.flow.first_hop.partition(":")[0] == "rtsw1")


@pytest.mark.parametrize("first", ["hash", long("load")])
def test_flowlets_run_and_their_totals_add_up(lab: Lab, first: Any) -> None:
    rehash.set_hashing(lab, "flowlet", HashOptions(gap_ns=500_000_000, first=first))
    result = in_order(both(lab)[0])
    assert result.ecmp == "flowlet" and healthy(lab)


@pytest.mark.deep
def test_some_switches_alone_can_be_switched_and_every_label_says_so(lab: Lab) -> None:
    rehash.set_hashing(lab, "pinned", switches=["rtsw1"])
    result, _ = both(lab)
    assert result.ecmp == "flow, rtsw1: pinned" and healthy(lab)


@pytest.mark.deep
def test_an_exact_match_table_overrides_bgp_for_what_it_names(lab: Lab) -> None:
    rehash.set_hashing(lab, "exact-match")
    for port in ("eth3", "eth1"):
        rehash.set_exact(lab, "rtsw1", {(50000, RACK2): (port,)})
        _, paths = both(lab, qps=2, source_ports=parse_source_ports("list:50000,50001"))
        first = {proof.measured[0] for proof in paths.flows if proof.flow.sport == 50000 and proof.flow.src == "host1"}
        assert first <= {f"rtsw1:{port}"} and healthy(lab)
        assert read_hashing(lab.name, lab.handle("rtsw1")).steering.exact == {(50000, RACK2): (port,)}


@pytest.mark.deep
def test_a_lab_that_was_switched_is_still_the_lab_of_its_file(lab: Lab, runtime: str) -> None:
    of_file: dict[str, Any] = {"name": lab.name, "racks": 2, "ctsw": 4, "link": {"delay": 0}}
    rehash.set_hashing(lab, "spray")
    assert not life.up(ClosSpec.model_validate(of_file), runtime=runtime).created
    assert rehash.label(lab) == "spray"
    other = ClosSpec.model_validate(of_file | {"routing": {"ecmp": "spray"}})
    with pytest.raises(InputError, match=r"routing\.ecmp: spray was requested"):
        life.up(other, runtime=runtime)


def test_the_verb_shows_sets_and_refuses(lab: Lab, tmp_path: Path) -> None:
    here = ("--lab", lab.name)
    shown = typed("hashing", "flowlet", "--set", "gap=5ms", "--set", "first=load", "--switch", "rtsw1,rtsw2", *here)
    assert shown.returncode == 0, shown.stderr
    assert "gap 5ms, by load" in shown.stdout
    rows = json.loads(typed("hashing", *here, "--format", "json").stdout)["switches"]
    assert [row["mode"] for row in rows if row["switch"].startswith("rtsw")] == ["flowlet", "flowlet"]
    assert {row["mode"] for row in rows if row["switch"].startswith("ctsw")} == {"flow"}

    table = tmp_path / "te.csv"
    table.write_text("switch,sport,prefix,port\nrtsw1,50000,10.0.1.0/24,eth2\nrtsw1,50001,10.0.1.0/24,eth3\n")
    assert typed("hashing", "exact-match", "--table", str(table), *here).returncode == 0
    assert typed("hashing", "exact-match", "--entry", "rtsw1 50001 10.0.1.0/24 eth4 eth1", *here).returncode == 0
    exact = {(50000, RACK2): ("eth2",), (50001, RACK2): ("eth4", "eth1")}
    assert read_hashing(lab.name, lab.handle("rtsw1")).steering.exact == exact

    again = tmp_path / "te.yml"
    again.write_text("entries:\n- {switch: rtsw1, sport: 50005, prefix: 10.0.1.0/24, port: eth1}\n")
    assert typed("hashing", "exact-match", "--table", str(again), *here).returncode == 0
    assert read_hashing(lab.name, lab.handle("rtsw1")).steering.exact == {(50005, RACK2): ("eth1",)}

    table.write_text("switch,sport,prefix,port\nrtsw1,5,10.0.1.0/24,eth1\nrtsw1,5,10.0.1.0/24,eth2\nrtsw1,x,y\n")
    wrong = typed("hashing", "exact-match", "--table", str(table), *here)
    assert wrong.returncode == 2
    assert f"{table}:3  rtsw1 5 10.0.1.0/24 is a duplicate of {table}:2" in wrong.stderr
    assert f"{table}:4  rtsw1 x y is not a row of switch, sport, prefix, port" in wrong.stderr
    assert read_hashing(lab.name, lab.handle("rtsw1")).steering.exact == {(50005, RACK2): ("eth1",)}
    assert typed("hashing", "exact-match", "--clear", *here).returncode == 0
    assert read_hashing(lab.name, lab.handle("rtsw1")).steering.exact == {}
