"""Proofs of queue pairs that go several ways, and proofs on a kernel that the prediction does not hold for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from heddle.fabric.policy import HashOptions
from heddle.predict import selftest
from heddle.predict.predict import predict
from heddle.predict.selftest import SelfTest, remember, verdict
from heddle.proof.evidence import Evidence
from heddle.proof.verdict import PathsResult, prove
from heddle.runs.moved import moved_of
from heddle.switch.counters import FlowCount, SwitchCounters
from heddle.switch.hashing.hashing import SwitchHashing
from heddle.views.pathstext import paths_text
from tests.unit.test_paths_report import FABRIC, SENT, evidence, fibs, snapshot

SPRAY = {s.name: SwitchHashing(s.name, "spray", s.hash_seed or 1, 1, 0x37) for s in FABRIC.switches}
FLOW = SENT[0].flow
Counts = dict[str, tuple[tuple[str, int], ...]]
WHOLE: Counts = {
    "rtsw1": (("eth1", 6), ("eth2", 4)),
    "ctsw1": (("eth2", 6),),
    "ctsw2": (("eth2", 4),),
    "rtsw2": (("eth3", 10),),
}


def sprayed(counts: Counts, drops: dict[str, int] | None = None) -> Evidence:
    """Ten packets of one QP, spread over both CTSWs."""
    tables = {
        switch.name: SwitchCounters(
            switch.name,
            tuple(FlowCount(port, *FLOW.key, n, n * 100) for port, n in counts[switch.name]),
            (),
            0,
        )
        for switch in FABRIC.switches
    }
    path = predict(FABRIC, fibs(), SPRAY, [FLOW])[0]
    return Evidence(snapshot(fibs(), SPRAY), snapshot(fibs(), SPRAY, tables, drops), tuple(SENT), (path,))


def judge(found: Evidence) -> PathsResult:
    return prove(FABRIC, found)


def test_spread_packets_within_the_next_hops_are_a_proof() -> None:
    result = judge(sprayed(WHOLE))
    assert result.agree, paths_text(result)
    proof = result.flows[0]
    assert proof.predicted == ("rtsw1:{eth1,eth2}", "{ctsw1:eth2,ctsw2:eth2}", "rtsw2:eth3")
    row = proof.to_json()
    assert row["spread"] and row["counted"] == [10, 10, 10]
    assert row["by_port"] == {"rtsw1:eth1": 6, "rtsw1:eth2": 4, "ctsw1:eth2": 6, "ctsw2:eth2": 4, "rtsw2:eth3": 10}
    assert "1 QP is spread" in paths_text(result) and max(map(len, paths_text(result).splitlines())) <= 100
    # A fan with a single used port is a proof.
    one: Counts = {"rtsw1": (("eth2", 10),), "ctsw1": (), "ctsw2": (("eth2", 10),), "rtsw2": (("eth3", 10),)}
    result = judge(sprayed(one))
    assert result.agree and result.flows[0].measured == ("rtsw1:eth2", "ctsw2:eth2", "rtsw2:eth3")


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"rtsw1": (("eth1", 6), ("eth2", 3))}, "10 packets were sent, the first hop counted 9"),
        ({"ctsw1": (("eth2", 7),)}, "more packets after rtsw1:eth1 than at it"),
        ({"ctsw2": (("eth2", 2),)}, "2 packets vanished after rtsw1:eth2, whose queue dropped 0 of class 3"),
        ({"rtsw2": (("eth3", 9),)}, "1 packets vanished after ctsw1:eth2, whose queue dropped 0 of class 3"),
        ({"rtsw1": (("eth1", 6), ("eth3", 4)), "ctsw2": ()}, "seen at rtsw1:eth3, outside rtsw1:{eth1,eth2}"),
        ({"rtsw2": (("eth1", 10),)}, "the counters saw another path"),
        ({"rtsw2": ()}, "the counters saw another path"),
    ],
)
def test_packets_outside_the_next_hops_or_wrong_sums_are_no_proof(changed: Counts, why: str) -> None:
    result = judge(sprayed({**WHOLE, **changed}))
    assert not result.agree
    assert why in result.flows[0].why


def test_a_loss_after_two_ports_is_attributed_to_the_queue_that_counted_it() -> None:
    counts = {**WHOLE, "rtsw2": (("eth3", 8),)}
    result = judge(sprayed(counts, {"ctsw2:eth2": 2}))
    assert result.agree, paths_text(result)
    assert result.lost == {"ctsw2:eth2": 2}
    assert not judge(sprayed(counts, {"ctsw2:eth2": 1})).agree


@pytest.fixture
def another_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SelfTest]:
    """A machine on which the self-test has found that the kernel chooses differently."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    verdict.cache_clear()
    found = SelfTest("differs", "7.99", 16, "14 of 16 flows under IPv4, policy 3")
    remember(found)
    yield found
    verdict.cache_clear()


def test_where_the_kernel_differs_the_oracle_replaces_the_prediction_and_no_third_source_is_claimed(
    another_kernel: SelfTest,
) -> None:
    assert verdict() == another_kernel
    found = evidence(SENT)
    result = judge(found)
    assert result.agree and result.sources == ("oracle", "counters")
    assert paths_text(result).splitlines()[0] == "oracle and counters agree on the paths of all 1 QPs"
    assert "kernel 7.99 chooses differently from the prediction" in " ".join(paths_text(result).split())
    data = result.to_json()
    assert data["flows"][0]["predicted"] is None and data["selftest"]["state"] == "differs"
    other = replace(found, oracle=(("rtsw1:eth9", *found.oracle[0][1:]),))
    assert not judge(other).agree, "the oracle is still held against the counters"


def test_a_verdict_holds_for_one_boot_one_kernel_and_one_version(
    another_kernel: SelfTest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selftest, "_CODE", ("hashes.py",))
    verdict.cache_clear()
    assert verdict(keep=False).state != "differs", "other arithmetic is compared again"
    monkeypatch.undo()
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    (tmp_path / "selftest.json").write_text("[1, 2")
    verdict.cache_clear()
    assert verdict(keep=False).state != "differs", "a damaged file is no verdict"


def test_spread_flows_have_no_single_path_that_could_move() -> None:
    result = judge(sprayed(WHOLE))
    routing = snapshot(fibs(), SPRAY)
    moved = moved_of(FABRIC, routing, routing, [FLOW], ([result.flows[0].expected], result))
    assert (moved.flows, moved.spread, moved.moved, moved.gone) == (0, 1, 0, 0)
    assert moved.share(moved.moved) == 0.0 and "1 more are spread" in moved.text()
    mixed = {**SPRAY, "rtsw2": replace(SPRAY["rtsw2"], options=HashOptions(resilient=True))}
    assert moved_of(FABRIC, routing, snapshot(fibs(), mixed), [FLOW], ([()], result)).in_force == "mixed"
