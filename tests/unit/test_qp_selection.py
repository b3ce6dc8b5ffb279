"""Which QPs `./inv paths` shows: 16 of many, all, or those that --qp, --host and --port choose; names of NICs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from heddle.base.problems import InputError
from heddle.cli.paths_verb import Shown
from heddle.fabric.fabricfile import load_fabric
from heddle.fabric.model import Fabric
from heddle.fabric.naming import NicNames
from heddle.proof.linkuse import Mmr
from heddle.proof.measure import Count, Measured
from heddle.proof.selection import QpSelection, read_selection
from heddle.proof.verdict import FlowProof, PathsResult
from heddle.traffic.flow import Flow, Sent
from heddle.views.pathstext import paths_text
from tests.unit.test_paths_report import FABRIC, evidence, flow, judge

RAIL = load_fabric("rail").fabric
MANY = [Sent(flow(50_000 + i, 256 + i), 10, 1000) for i in range(40)]


def result() -> PathsResult:
    return judge(MANY, evidence(MANY))


def select(fabric: Fabric = FABRIC, qp: str = "", host: str = "", port: str = "") -> QpSelection:
    return read_selection(fabric, [qp] if qp else [], [host] if host else [], [port] if port else [])


def numbers(found: PathsResult, selection: QpSelection) -> list[int]:
    return [proof.flow.qpn for proof in selection.shown(found)]


def rail_result(*ends: tuple[str, str]) -> PathsResult:
    """Proven QPs between NICs (`host1:eth2`) of one leaf of the preset rail."""
    ports = {port.ref: port for host in RAIL.hosts for port in host.ports}
    proofs = []
    for number, (src, dst) in enumerate(ends, 17):
        a, b = ports[src], ports[dst]
        assert a.address is not None and b.address is not None
        made = Flow(a.node, b.node, str(a.address.ip), str(b.address.ip), 50_000, number, a.peer_ref)
        path = (b.peer_ref,)
        proofs.append(FlowProof(Sent(made, 5, 500), path, path, Measured(((Count(path[0], 5, 500),),)), ""))
    return PathsResult(True, tuple(proofs), (), Mmr(None, None), {}, "leaf", {}, (), nics=NicNames.of(RAIL))


def test_some_of_many_are_shown_and_a_selection_shows_all_that_match() -> None:
    text = paths_text(result())
    assert "16 of 40 QPs are shown; --all shows all, and --qp, --host, --port select some" in text
    assert sum(line.startswith("host1 ") for line in text.splitlines()) == 16
    everything = paths_text(result(), rows=None)
    assert sum(line.startswith("host1 ") for line in everything.splitlines()) == 40
    assert "are shown" not in everything
    # A selection shows all that match and leaves the use of links out.
    found = result()
    text = paths_text(found, select(qp="257-280,0x121"))
    assert "25 of 40 QPs match --qp 257-280 --qp 0x121" in text
    assert sum(line.startswith("host1 ") for line in text.splitlines()) == 25
    assert text.splitlines()[0] == "prediction, oracle and counters agree on the paths of all 40 QPs"
    assert "uplink" not in text and "5-tuples" not in text


@pytest.mark.parametrize(
    ("word", "chosen"), [("256", [256]), ("0x100-0x102", [256, 257, 258]), ("257,290-400", [257, *range(290, 296)])]
)
def test_qps_are_chosen_by_number_and_by_range(word: str, chosen: list[int]) -> None:
    assert numbers(result(), select(qp=word)) == chosen


def test_a_port_chooses_what_crosses_its_link_either_way() -> None:
    found = result()
    first = {proof.flow.qpn for proof in found.flows if proof.measured[0] == "rtsw1:eth1"}
    assert 0 < len(first) < 40
    for word in ("rtsw1:eth1", "ctsw1:eth1", "ctsw1"):  # ctsw1 leads from rtsw1 to rtsw2
        assert set(numbers(found, select(port=word))) == first, word
    for word in ("host1:eth1", "rtsw1:eth3", "rtsw2:eth3", "rtsw1", "host2"):  # all come in here, and leave there
        assert len(numbers(found, select(port=word))) == 40, word


def test_filters_choose_what_all_of_them_match_and_exclude_all() -> None:
    found = result()
    crossing = numbers(found, select(port="rtsw1:eth1"))
    assert numbers(found, select(port="rtsw1:eth1", qp=f"{crossing[0]}-{crossing[1]}", host="host2")) == crossing[:2]
    # All and a filter exclude each other.
    with pytest.raises(InputError, match="--all and --port exclude each other"):
        Shown(True, port=["rtsw1"]).selection(FABRIC)
    assert not Shown(True).selection(FABRIC)


def test_nics_of_hosts_with_several_are_named_everywhere() -> None:
    found = rail_result(("host1:eth2", "host3:eth2"), ("host1:eth1", "host2:eth1"))
    text = paths_text(found)
    assert "host1:eth2 host3:eth2       17" in text
    row = found.to_json()["flows"][0]
    assert (row["src"], row["src_nic"], row["dst_nic"]) == ("host1", "host1:eth2", "host3:eth2")
    assert numbers(found, select(RAIL, host="host1:eth2")) == [17]
    assert numbers(found, select(RAIL, host="host1")) == [17, 18]
    assert numbers(found, select(RAIL, host="host[23]:eth1")) == [18]
    single = result()
    assert paths_text(single).splitlines()[-2].startswith("host1     host2")
    assert single.to_json()["flows"][0]["src_nic"] == "host1:eth1"


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        (lambda: select(qp="99"), ["0 of 40 QPs match --qp 99; the run has", "  QP numbers: 256 to 295"]),
        (
            lambda: select(qp="99", port="rtsw2:eth1"),
            ["0 of 40 QPs match --qp 99 --port rtsw2:eth1; the run has", "  QP numbers: 256 to 295",
             "  ports that QPs leave by: ctsw1:eth2, ctsw2:eth2, rtsw1:eth1, rtsw1:eth2, rtsw2:eth3"],
        ),
    ],
)  # fmt: skip
def test_a_filter_that_matches_nothing_says_what_exists(chosen: Callable[[], QpSelection], said: list[str]) -> None:
    lines = paths_text(result(), chosen()).splitlines()
    assert lines[-len(said) :] == said


@pytest.mark.parametrize(
    ("flag", "word", "said"),
    [
        ("qp", "x", "--qp x is no QP number and no range"),
        ("qp", "9-3", "--qp 9-3 ends below its start"),
        ("qp", "0x1000000", "is above 16777215, the largest QP number"),
        ("host", "hots1", "--host hots1 is not a host of made, nor one of its NICs\n  hint: did you mean host1?"),
        ("port", "rtsw1:eth9", "--port rtsw1:eth9 is not a port of made\n  hint: did you mean rtsw1:eth"),
        ("port", "rack1", "--port rack1 is not a port of made"),
    ],
)
def test_words_that_match_nothing_are_refused(flag: str, word: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        read_selection(FABRIC, *([word] if flag == each else [] for each in ("qp", "host", "port")))
    assert said in str(caught.value)


def test_qps_that_are_not_proven_come_first_and_are_not_hidden_by_a_selection() -> None:
    found = evidence(MANY, (9, 9, 9))  # the first flow's path, for all
    judged = judge(MANY, found)
    wrong = [proof for proof in judged.flows if proof.why]
    assert len(wrong) == 40
    text = paths_text(judged, select(qp="256"))
    assert "39 QPs that are not proven are not shown" in text
    assert "10 packets were sent, the first hop counted 9" in text


def test_a_spread_qp_crosses_the_ports_that_counted_it() -> None:
    fan = ("rtsw1:{eth1,eth2}", "{ctsw1:eth2,ctsw2:eth2}", "rtsw2:eth3")
    steps = tuple((Count(port, 10, 1000),) for port in ("rtsw1:eth1", "ctsw1:eth2", "rtsw2:eth3"))
    proof = FlowProof(MANY[0], fan, fan, Measured(steps), "")
    for spread, ports in ((proof, {"rtsw1:eth1"}), (replace(proof, seen=Measured(())), {"rtsw1:eth1", "rtsw1:eth2"})):
        found = replace(result(), flows=(spread,))
        crossed = {port for port in ("rtsw1:eth1", "rtsw1:eth2") if numbers(found, select(port=port))}
        assert crossed == ports
