"""Where ranks are placed: orders of hosts, lists, fragments, and files with a line for each rank."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.offline.forecast import Ask, forecast
from heddle.traffic.placement import place
from tests.answers import Answers

RAIL = load_fabric("rail").fabric
ZONE = load_fabric("zone").fabric


def nics(fabric: Fabric, placement: str, ranks: int | None = None) -> list[str]:
    """The NICs of a placement, by rank, without `host`."""
    ends = place(fabric, placement, ranks)
    return [end.nic.removeprefix("host").replace(":eth", ".") for end in ends]


def test_orders_of_hosts_keep_or_part_the_nics_of_a_host() -> None:
    # rail: two pods, hosts with several NICs. Cyclic parts the NICs of a host, interleaved keeps them together.
    block, cyclic, interleaved = (nics(RAIL, word) for word in ("block", "cyclic", "interleaved"))
    assert sorted(block) == sorted(cyclic) == sorted(interleaved)
    half = len(block) // 2
    each = len(RAIL.nics_of["host1"])
    assert each > 1
    assert cyclic[::2] == block[:half] and cyclic[1::2] == block[half:]
    assert interleaved[: 2 * each] == block[:each] + block[half : half + each]
    one = nics(RAIL, "random:7")
    assert sorted(one) == sorted(block) and one != block
    assert one == nics(RAIL, "random:7") != nics(RAIL, "random:8") and nics(RAIL, "random") == nics(RAIL, "random:0")
    hosts = [nic.split(".")[0] for nic in one]
    assert all(hosts[at] == hosts[at + each - 1] for at in range(0, len(hosts), each))


def test_a_fragmented_placement_has_hosts_of_some_racks() -> None:
    assert nics(ZONE, "fragmented:2:2") == ["1.1", "2.1", "3.1", "4.1"]
    assert nics(ZONE, "fragmented:8:1", 3) == ["1.1", "3.1", "5.1"]
    seeded = nics(ZONE, "fragmented:3:2:9")
    assert seeded == nics(ZONE, "fragmented:3:2:9") != nics(ZONE, "fragmented:3:2:8")
    racks = Counter(ZONE.by_name[f"host{nic.split('.')[0]}"].group("rack") for nic in seeded)
    assert [*racks.values()] == [2, 2, 2]


def test_ranks_are_placed_by_a_list_or_by_the_lines_of_a_file(tmp_path: Path) -> None:
    assert nics(RAIL, "host2:eth2,host1") == ["2.2", *(f"1.{n + 1}" for n in range(len(RAIL.nics_of["host1"])))]
    file = tmp_path / "ranks.txt"
    file.write_text("# a line a rank\nhost3\nhost1:eth2  # this NIC\n\nhost3\nhost1\n")
    assert nics(RAIL, str(file)) == ["3.1", "1.2", "3.2", "1.1"]
    file.write_text("rank 1=host1 slot=0\nrank 0=host2 slot=1\n")
    assert nics(RAIL, str(file)) == ["2.2", "1.1"]
    assert nics(ZONE, str(file)) == ["2.1", "1.1"], "a slot is a processor where a host has one NIC"


def test_placements_that_are_not_possible_are_explained(answers: Answers) -> None:
    answers(lambda placement: place(ZONE, placement))


def test_wrong_lines_of_a_rank_file_are_all_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["host1", "hots2", "host1:eth1", "rank 9=host3 slot=0", "rank 9=host4 slot=0", "rank x", "+n0"]
    Path("ranks.txt").write_text("\n".join(lines))
    with pytest.raises(InputError) as caught:
        place(ZONE, "ranks.txt")
    assert [f"{each.where} {each.why}" for each in caught.value.problems] == [
        "ranks.txt:2 names hots2, which is not a host",
        "ranks.txt:3 places a rank on host1:eth1, as line 1 does",
        "ranks.txt:5 places rank 9 a second time",
        "ranks.txt:6 is not a line for a rank",
        "ranks.txt:7 names +n0, which is not a host",
    ]
    for text, error in {
        "# nothing\n": "ranks.txt  the rank file places no rank",
        "rank 0=host1 slot=0\nrank 2=host2 slot=0\n": "ranks.txt  rank 1 has no line",
    }.items():
        Path("ranks.txt").write_text(text)
        with pytest.raises(InputError, match=error):
            place(ZONE, "ranks.txt")
    with pytest.raises(InputError, match=r"nosuch\.txt does not exist"):
        place(ZONE, "nosuch.txt")
    Path("ranks.txt").write_text("rank 0=host1 slot=9\n")
    with pytest.raises(InputError, match="has slot 9, but host1 has"):
        place(RAIL, "ranks.txt")


@pytest.mark.parametrize("name", ["one-large-job", "many-small-jobs"])
def test_the_two_stages_of_a_cluster_differ_as_their_files_say(name: str) -> None:
    def over_roofline(keys: str) -> float:
        found = forecast(ZONE, load_workload(name + keys).workload, Ask(), Silent())
        return float(found.to_json()["completion"]["over_roofline"])

    assert over_roofline("") == pytest.approx(2.0, rel=0.01)
    assert over_roofline(",placement=block") == pytest.approx(1.0, rel=0.01)
