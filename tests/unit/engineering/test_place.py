"""`./inv schedule`: candidates, the search, other jobs and failures, the rank file, and the mistakes of users."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.forecast import Ask as Forecast
from heddle.offline.forecast import forecast
from heddle_plugins.engineering.placement import (
    EXPORTS,
    Candidate,
    PlacementAsk,
    Ranking,
    hostlist,
    rank_placements,
    render,
)
from tests.answers import Answers

OVERSUBSCRIBED = "topologies/examples/oversubscribed.yml"
Inv = Callable[..., tuple[int, str]]


def ranked(fabric: str, workload: str, ask: PlacementAsk | None = None, *settings: str) -> Ranking:
    built = load_fabric(fabric, overrides=settings).fabric
    return rank_placements(built, load_workload(workload).workload, ask or PlacementAsk(), Silent())


def first_line(ranking: Ranking) -> str:
    return render(ranking, ranking.found[0]).split("\n\n")[0].replace("\n ", "")


def racks(candidate: Candidate) -> list[int]:
    """The rack of each rank, in a fabric with two hosts a rack."""
    return [(int(nic.partition(":")[0].removeprefix("host")) + 1) // 2 for nic in candidate.nics]


@pytest.fixture
def inv(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Inv:
    """Exit code and output of a verb, run in an empty directory."""
    import tasks

    monkeypatch.chdir(tmp_path)

    def typed(*words: str) -> tuple[int, str]:
        code = main(vars(tasks), ["inv", *words])
        said = capsys.readouterr()
        return code, said.out + said.err * bool(code)

    return typed


def test_a_ring_is_packed_into_one_zone_and_the_first_line_says_why() -> None:
    found = ranked("dc", "ring", PlacementAsk(ranks=4))
    best = found.found[0]
    assert best.name == "packed"
    assert "min-cut" in best.same
    assert (best.boxes, best.areas, best.climbed["CTSW to ATSW"]) == (2, 1, 0)
    assert found.candidate("spread").areas == 2
    assert first_line(found).startswith("choice: packed, 4 ranks in 2 racks of 1 zone: ")
    assert f"{found.found[-1].name} takes " in first_line(found)


def test_an_all_to_all_on_few_uplinks_is_spread() -> None:
    found = ranked(OVERSUBSCRIBED, "all-to-all", PlacementAsk(ranks=8))
    assert found.found[0].name in ("spread", "min-cut")
    assert found.found[0].boxes == 4
    assert found.candidate("packed").seconds > found.found[0].seconds * 1.1


def test_of_equal_placements_the_one_in_fewer_racks_is_the_choice() -> None:
    assert first_line(ranked("zone", "incast:4", PlacementAsk(ranks=8))).endswith("in fewer racks")


def test_the_search_puts_ranks_that_exchange_bytes_into_one_rack(tmp_path: Path) -> None:
    rows = "0,9,1M;1,12,1M;2,7,1M;3,15,1M;4,8,1M;5,14,1M;6,11,1M;10,13,1M"
    (tmp_path / "pairs.yml").write_text(f'matrix: "{rows}"\nqps: 4\n')
    found = ranked("zone", str(tmp_path / "pairs.yml"))
    best = found.found[0]
    assert best.name == "min-cut"
    assert best.climbed["RTSW to CTSW"] == 0
    where = racks(best)
    assert all(where[int(a)] == where[int(b)] for a, b, _ in (row.split(",") for row in rows.split(";")))


def test_the_same_seed_gives_the_same_places() -> None:
    once, again = (ranked("zone", "permutation:3", PlacementAsk(seed=7)) for _ in range(2))
    assert once.found == again.found


def test_figures_are_those_of_a_prediction(tmp_path: Path) -> None:
    found = ranked("dc", "ring,qps=4", PlacementAsk(ranks=6))
    for each in found.found:
        (tmp_path / "ranks.txt").write_text("\n".join(each.nics))
        workload = load_workload(f"ring,qps=4,placement={tmp_path / 'ranks.txt'}").workload
        predicted = forecast(load_fabric("dc").fabric, workload, Forecast(trials=0), Silent())
        assert predicted.modes[0].busiest == predicted.wires.id_of[each.busiest]
        assert predicted.roofline.nic_s == pytest.approx(each.nic_s)
        for direction, carried in each.climbed.items():
            wires = predicted.wires
            number = next(d for d in wires.upward if wires.direction_name(d) == direction)
            assert predicted.modes[0].bytes[wires.direction == number].sum() == pytest.approx(carried)


def test_no_rank_is_placed_on_what_is_down_drained_or_taken() -> None:
    ask = PlacementAsk(job="b", ranks=5, down=["host2", "rtsw3"], drain=["rtsw8"])
    found = ranked("zone", "two-tenants", ask)
    assert [job.name for job in found.others] == ["a"]
    for each in found.found:
        if each.unreachable:
            assert each.name == "block", "the workload's own placement ignores failures"
            continue
        hosts = {int(nic.partition(":")[0].removeprefix("host")) for nic in each.nics}
        assert hosts <= {4, 8, 10, 12, 14}  # job a has the odd hosts
    assert 0 < found.found[0].own <= 1


def test_a_loaded_zone_is_avoided(tmp_path: Path) -> None:
    (tmp_path / "w.yml").write_text(
        "size: 4M\njobs:\n  old: {collective: all-to-all, ranks: [0, 2], repeat: background}\n"
        "  new: {collective: all-to-all, ranks: 2}\n"
    )
    found = ranked("dc", str(tmp_path / "w.yml"), PlacementAsk(job="new"))
    assert {nic.partition(":")[0] for nic in found.found[0].nics} in ({"host5", "host6"}, {"host7", "host8"})


def test_more_ranks_than_free_nics_are_an_error() -> None:
    with pytest.raises(InputError, match="--ranks 16 needs 16 NICs, but 14 are free and up"):
        ranked("zone", "ring", PlacementAsk(ranks=16, down=["rtsw1"]))


def test_mistakes_are_named(inv: Inv, answers: Answers) -> None:
    def said(line: str) -> str:
        code, text = inv("schedule", *line.split())
        return "\n".join([f"exit code {code}", *(row for row in text.splitlines() if ": done (" not in row)])

    answers(said)


def test_the_rank_file_is_taken_by_predict(inv: Inv, tmp_path: Path) -> None:
    code, text = inv("schedule", "zone", "--ranks", "6", "--choose", "spread", "--out", "ranks.txt")
    assert code == 0
    assert "wrote ranks.txt: ./inv run --placement ranks.txt --ranks 6" in text
    code, text = inv("predict", "zone", "--workload", "ring,placement=./ranks.txt", "--format", "json")
    assert code == 0
    assert json.loads(text)["workload"]["jobs"][0]["ranks"] == 6


def test_a_document_has_the_nics_of_every_candidate(inv: Inv) -> None:
    code, text = inv("schedule", "rail", "--ranks", "8", "--format", "json")
    said: dict[str, Any] = json.loads(text)
    assert (code, said["fabric"], said["choice"]) == (0, "rail", said["candidates"][0]["name"])
    assert all(len({*each["nics"]}) == 8 for each in said["candidates"])


def test_a_job_without_a_path_comes_last_and_gives_exit_code_1(inv: Inv) -> None:
    code, text = inv("schedule", "tiny", "--ranks", "4", "--down", "rtsw1:eth1,rtsw1:eth2")
    assert (code, text.splitlines()[0]) == (
        1, "choice: packed, but 2 flows of it have no path: 4 ranks in 2 racks",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("fabric", "kind", "lines"),
    [
        ("dc", "slurm", ["SwitchName=rtsw3 Nodes=host[5-6]", "SwitchName=zone2 Switches=rtsw[3-4]",
                         "SwitchName=fabric Switches=zone[1-2]"]),
        ("rail", "slurm", ["SwitchName=pod2 Nodes=host[3-4]", "SwitchName=fabric Switches=pod[1-2]"]),
        ("dc", "slurm-yaml", ['- topology: "dc"', '      - switch: "zone1"', '        children: "rtsw[1-2]"']),
        ("dc", "topograph", ['  name: "host8"', '    fabric.topograph.run/tier-0: "rtsw4"',
                             '    fabric.topograph.run/tier-1: "zone2"']),
    ],
)  # fmt: skip
def test_a_scheduler_gets_the_tree_of_switches(inv: Inv, fabric: str, kind: str, lines: list[str]) -> None:
    code, text = inv("schedule", fabric, "--export", kind)
    assert code == 0
    assert set(lines) <= {*text.splitlines()}


def test_names_that_yaml_would_read_as_values_stay_names() -> None:
    fabric = load_fabric("tiny").fabric
    host, switch = fabric.hosts[0], fabric.by_name[fabric.hosts[0].ports[0].peer_node]
    odd = {host.name: "0x1", switch.name: "off"}

    def renamed(name: str) -> str:
        return odd.get(name, name)

    nodes = tuple(
        replace(
            node,
            name=renamed(node.name),
            ports=tuple(replace(p, node=renamed(p.node), peer_node=renamed(p.peer_node)) for p in node.ports),
        )
        for node in fabric.nodes
    )
    strange = replace(fabric, name="1e3", nodes=nodes)
    (topology,) = yaml.safe_load("\n".join(EXPORTS["slurm-yaml"](strange)))
    assert topology["topology"] == "1e3"
    assert "off" in [each["switch"] for each in topology["tree"]["switches"]]
    labels = [*yaml.safe_load_all("\n".join(EXPORTS["topograph"](strange)))]
    (mine,) = [each["metadata"] for each in labels if each["metadata"]["name"] == "0x1"]
    assert "off" in mine["labels"].values()


def test_slurms_yaml_and_the_labels_are_yaml(inv: Inv, tmp_path: Path) -> None:
    assert inv("schedule", "zone", "--export", "slurm-yaml", "--out", "topology.yaml")[0] == 0
    (topology,) = yaml.safe_load((tmp_path / "topology.yaml").read_text())
    assert topology["tree"]["switches"][-1] == {"switch": "fabric", "children": "rtsw[1-8]"}
    assert len(topology["tree"]["switches"]) == 9
    nodes = [*yaml.safe_load_all(inv("schedule", "rail", "--export", "topograph")[1])]
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    assert labels["host3"] == {"fabric.topograph.run/tier-0": "pod2", "fabric.topograph.run/tier-1": "fabric"}


def test_names_become_a_list_of_slurm() -> None:
    assert hostlist(["host1", "host2", "host4", "gpu", "a7"]) == "host[1-2,4],gpu,a7"
    assert hostlist(["n08", "n09", "n10"]) == "n0[8-9],n10", "a zero in front stays in the name"


def test_the_order_of_a_real_job_is_a_candidate(inv: Inv, tmp_path: Path) -> None:
    channel = '<channel><net dev="0x{0}"/><gpu dev="0" rank="{1}"/><gpu dev="0x1" rank="{2}"/></channel>'
    for first in (0, 2):
        channels = channel.format(1, first, first + 1) + channel.format(0, first + 1, first)
        (tmp_path / f"n{first}.xml").write_text(f'<graphs version="1"><graph id="0">{channels}</graph></graphs>')
    words = ["rail", "--nccl", "n0.xml,n2.xml", "--choose", "nccl", "--out", "ranks.txt"]
    code, text = inv("schedule", *words)
    assert code == 0
    assert "ranks of nccl" in text
    lines = (tmp_path / "ranks.txt").read_text().splitlines()
    assert lines == ["# 4 ranks placed nccl by ./inv schedule, fabric rail",
                     "host1:eth2", "host1:eth1", "host2:eth2", "host2:eth1"]  # fmt: skip
