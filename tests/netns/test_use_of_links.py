"""Runs on live fabrics: the use of links is time, NICs report what they took, and racks without ranks do not count."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.runs.store import load, paths_of
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from heddle.views.usage import usage_of
from tests.conftest import FabricLab
from tests.netns.static_fabric import dropping
from tests.typed import typed

ROOT = Path(__file__).resolve().parents[2]
SLOW = 20_000_000


def options(**changed: object) -> RunOptions:
    defaults: dict[str, object] = {"sizes": (1 << 18,), "iters": 2, "warmup": 1}
    return RunOptions(**{**defaults, **changed})  # type: ignore[arg-type]


@pytest.fixture
def four_racks(fabric_lab: FabricLab) -> Lab:
    """Four racks; rtsw1:eth2 is slow."""
    link = {"host": "50mbit", "fabric": "50mbit", "exceptions": {"rtsw1:eth2": f"{SLOW}bit"}}
    return fabric_lab(racks=4, ctsw=2, hosts_per_rack=2, link=link, routing={"ecmp": "e-ecmp"})


def test_ranks_in_two_racks_of_four(four_racks: Lab, tmp_path: Path) -> None:
    lab = four_racks
    assert usage_of(lab) is None
    done = typed("graph", lab.name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"wrote {lab.name}.svg: no run yet, so links have no load\n")
    result = run(lab, options(qps=8, placement="host1,host3,host2,host4", ranks=4), Silent())
    assert result.wrong == 0
    paths = paths_of(lab)
    text = paths_text(paths)
    assert paths.agree, text

    # MMR: the uplinks of racks 1 and 2 only.
    assert paths.uplinks.switches == ("rtsw1", "rtsw2") and paths.uplinks.left_out == 4
    carried = [link.bytes for link in paths.links if link.uplink and link.port.startswith(("rtsw1:", "rtsw2:"))]
    assert paths.mmr.bytes == pytest.approx(max(carried) * 4 / sum(carried), abs=1e-4)
    assert "uplinks of 2 RTSWs with ranks; 4 without ranks are left out" in text

    # Use: bytes / rate / seconds of the run, at all levels; no port sends for longer than the run takes.
    seconds = load(lab).evidence.seconds
    assert seconds is not None and 0 < seconds < 60
    for link in paths.links:
        rate = SLOW if link.port == "rtsw1:eth2" else 50_000_000
        assert link.rate_bps == rate or link.port == "ctsw2:eth1"
        assert link.utilisation == pytest.approx(link.bytes * 8 / link.rate_bps / seconds)
        assert 0 <= (link.utilisation or 0) <= 1.02
    used = {link.direction for link in paths.links if link.bytes}
    assert used == {"RTSW to CTSW", "CTSW to RTSW", "RTSW to hosts"}

    # NICs: what they took is what the last ports counted, for each QP.
    for proof, flow in zip(paths.flows, result.flows, strict=True):
        assert proof.seen.received == flow.received == proof.counted[-1] > 0
    assert paths.delivery is not None and paths.delivery.received == paths.delivery.counted
    assert f"the receiving NICs got {paths.delivery.counted:,} of the {paths.delivery.counted:,} packets" in text

    # The picture goes by the same measure, and what came into a switch left it again.
    usage = usage_of(lab)
    assert usage is not None
    by_port = {load.a: load for load in usage.loads}
    links = {link.port: link for link in paths.links}
    assert by_port["rtsw1:eth2"].seconds[0] == pytest.approx(links["rtsw1:eth2"].seconds)
    assert not by_port["rtsw4:eth1"].ranked and by_port["rtsw1:eth1"].ranked
    balance = dict.fromkeys(("rtsw1", "rtsw2"), 0)
    for each in usage.loads:
        assert (each.b_packets, each.b_bytes) == (links[each.b].packets, links[each.b].bytes)
        for ref, change in ((each.a, each.b_bytes - each.a_bytes), (each.b, each.a_bytes - each.b_bytes)):
            if (switch := ref.partition(":")[0]) in balance:
                balance[switch] += change
    assert set(balance.values()) == {0}
    drawn = json.loads(typed("graph", lab.name, "--format", "json", cwd=tmp_path).stdout)
    assert (drawn["run_id"], drawn["links"]) == (usage.run_id, [each.to_json() for each in usage.loads])
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / f"{lab.name}.svg").read_text())
    assert usage.caption in texts
    mmr = f"max/mean {paths.mmr.bytes:.2f},"
    assert any(words.startswith("RTSW to CTSW: ") and mmr in words for words in texts)

    done = typed("paths", "--lab", lab.name, "--format", "json")
    data = json.loads(done.stdout)
    assert data["mmr"]["over"] == {"links": 4, "switches": ["rtsw1", "rtsw2"]}
    assert data["delivery"]["received"] == paths.delivery.received
    assert all({"utilisation", "seconds", "direction", "rate_bps"} <= set(row) for row in data["links"])


@pytest.mark.deep
def test_drops_of_the_last_queue_are_behind_the_last_counter_and_explained(fabric_lab: FabricLab) -> None:
    """An incast overfills the port to its receiver: packets that its counter saw, and no NIC."""
    lab = fabric_lab(racks=2, ctsw=2, hosts_per_rack=2, queues=dropping("40KB"))
    run(lab, options(collective="incast", qps=4, iters=1), Silent())
    past = load(lab)
    paths = past.needed(past.proof)
    assert paths.delivery is not None and paths.delivery.received is not None
    last = {proof.measured[-1] for proof in paths.flows if proof.measured}
    missing = paths.delivery.counted - paths.delivery.received
    assert missing == sum(past.evidence.class_drops(port, 3) or 0 for port in last) > 0
    assert missing == sum(paths.lost.get(port, 0) for port in last)
    assert paths.agree, paths_text(paths)
