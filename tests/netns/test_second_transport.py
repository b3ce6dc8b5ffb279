"""A transport that Heddle does not have, added by one file and one line: it runs, is proven, and is reported."""

from __future__ import annotations

import json

import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.endpoints import crew
from heddle.endpoints.transports import TRANSPORTS
from heddle.lab.lab import Lab
from heddle.runs.results import RunResult
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from heddle.views.pathstext import paths_text
from tests import stopandwait
from tests.machine import rc_timeout
from tests.stopandwait import NAME, StopAndWait

FAILED = r"rank \d on host\d:eth1: QP 0x\w+ (to|from) rank \d on host\d:eth1: "
PACKETS = 2 * 3 * (1 << 16) // 4 // 4096  # of a rank in one ring all-reduce of 64 KiB over four ranks


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, and in the workers that a run starts. Worker, NIC and results are those of Heddle."""
    monkeypatch.setattr(crew, "_WORKER", stopandwait.__name__)
    monkeypatch.setitem(TRANSPORTS, NAME, StopAndWait)


def all_reduce(lab: Lab, **options: object) -> RunResult:
    defaults: dict[str, object] = {
        "sizes": (1 << 16,),
        "iters": 2,
        "warmup": 1,
        "transport": NAME,
        "timeout": rc_timeout(14),
    }
    return run(lab, RunOptions(**{**defaults, **options}), Silent())  # type: ignore[arg-type]


def test_it_runs_and_every_path_is_proven(tiny: Lab) -> None:
    result = all_reduce(tiny)
    assert (result.wrong, result.icrc_errors, result.stray) == (0, 0, 0)
    paths = paths_of(tiny)
    assert paths.agree, paths_text(paths)
    assert {flow.sent.packets for flow in result.flows} == {3 * PACKETS}
    assert all(proof.counted == (3 * PACKETS,) * len(proof.measured) for proof in paths.flows)
    assert all(flow.counters["pauses"] >= 3 * PACKETS - 1 for flow in result.flows), "its rate limiter has a timer"


def test_its_columns_are_reported_by_results_that_do_not_know_them(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopAndWait, "ignore_every", 10)
    result = all_reduce(tiny, qps=2, iters=1)
    assert result.wrong == 0
    again, ignored = (sum(flow.counters[key] for flow in result.flows) for key in ("again", "ignored"))
    assert again >= ignored > 0
    table = result.table()
    assert f"#packets  : {again} sent a second time, {ignored} ignored on purpose, 0 with a wrong ICRC" in table
    assert f"transport: {NAME}" in table
    document = json.loads(json.dumps(result.to_json()))
    assert document["transport"]["name"] == NAME
    assert document["transport"]["parameters"]["ignore_every"] == 10
    assert [column["key"] for column in document["transport"]["columns"]] == ["again", "ignored", "pauses"]
    assert list(document["flows"][0])[-7:] == ["packets", "bytes", "again", "ignored", "pauses", "ce", "received"]
    assert paths_of(tiny).agree


def test_it_may_refuse_options_before_anything_is_sent(tiny: Lab) -> None:
    with pytest.raises(InputError, match=f"--window 8 is not 1, as {NAME} needs"):
        all_reduce(tiny, window=8)


def test_the_reason_of_a_failed_queue_pair_ends_the_run(tiny: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StopAndWait, "ignore_every", 1)
    with pytest.raises(
        CheckError,
        match=rf"{FAILED}no acknowledgement after 200 retries",
    ):
        all_reduce(tiny, timeout=8)
