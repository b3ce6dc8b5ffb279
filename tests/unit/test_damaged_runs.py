"""A run that cannot be read, or that has no paths, is named with the reason; never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.runs import lookup
from heddle.runs.runevidence import EVIDENCE, write_evidence
from heddle.runs.runrecord import RECORD
from heddle.runs.store import History
from tests.unit import run_samples as samples
from tests.unit.history_runs import a_lab, keep


def as_format(number: object) -> str:
    return json.dumps({**samples.record().to_json(), "format": number, "id": "0001"})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "run.json is missing"),
        ("{", "run.json is damaged: it is not valid JSON"),
        ("[]", "run.json is damaged: it is not a JSON object"),
        ("[" * 100_000, "run.json is damaged: it is not valid JSON"),
        ("\x00\xff", "run.json is damaged: it is not valid JSON"),
        ("{}", "run.json has format None, and this Heddle reads format 1"),
        (as_format(7), "run.json has format 7, and this Heddle reads format 1"),
        (as_format("1"), "run.json has format '1', and this Heddle reads format 1"),
        ('{"format": 1}', "run.json is damaged: header: Field required"),
        (as_format(1).replace('"time_us": 1000.0', '"time_us": "long"'), "damaged: outcome.rows.0.time_us: "),
        (as_format(1).replace('"id": "0001"', '"id": "0009"'), "its record is that of run 0009"),
    ],
)
def test_a_run_that_cannot_be_read_is_listed_with_the_reason_and_refused(
    history: History, content: str | None, why: str
) -> None:
    keep(history)
    keep(history)
    path = history.directory / "0001" / RECORD
    path.unlink()
    if content is not None:
        path.write_text(content)
    bad, good = history.runs()
    assert good.damage == ""
    assert why in bad.damage
    with pytest.raises(InputError) as caught:
        history.open("1")
    assert why in str(caught.value)
    assert "./inv runs zone --remove 0001" in str(caught.value)
    assert history.open().id == "0002"


@pytest.mark.parametrize("name", ["0001", "0002"])
def test_a_link_or_a_file_is_no_run(history: History, tmp_path: Path, name: str) -> None:
    history.directory.mkdir()
    if name == "0001":
        (history.directory / name).symlink_to(tmp_path)
    else:
        (history.directory / name).write_text("")
    assert history.ids() == []


@pytest.mark.parametrize("data", ["{", "[]", '{"received": []}', '{"received": [{"ce": 1}], "evidence": {}}'])
def test_damaged_evidence_is_named_and_no_traceback(history: History, data: str) -> None:
    keep(history)
    (history.directory / "0001" / EVIDENCE).write_text(data)
    with pytest.raises(InputError, match=r"run 0001 of lab zone cannot be used: evidence.json is damaged"):
        lookup.load(a_lab(history))


def test_flows_and_oracle_must_fit_together(history: History) -> None:
    with history.draft() as draft:
        write_evidence(draft.path, samples.result().flows, samples.evidence(flows=1))
        draft.finish(samples.record())
    with pytest.raises(InputError, match=r"evidence.json is damaged"):
        lookup.load(a_lab(history))


def test_a_failed_run_has_no_paths_and_the_hint_names_one_that_has(history: History) -> None:
    keep(history, samples.failed())
    with pytest.raises(InputError, match=r"run 0001 of lab zone failed, so it has no paths: rank 1 .*\n.*./inv run "):
        lookup.load(a_lab(history))
    keep(history)
    keep(history, samples.failed())
    with pytest.raises(InputError, match=r"run 0003 of lab zone failed.*\n.*use --run 0002"):
        lookup.load(a_lab(history))
    assert lookup.load(a_lab(history), "2").record.id == "0002"
    assert lookup.has_run(a_lab(history))


def test_the_flows_of_a_run_are_those_that_its_senders_sent(history: History) -> None:
    keep(history)
    found = lookup.load(a_lab(history))
    sent = found.evidence.sent
    assert found.flows == samples.result().flows
    assert [(each.flow.src, each.flow.qpn, each.packets, each.bytes) for each in sent] == [
        ("host1", 266718, 7, 900), ("host1", 266719, 9, 900),
    ]  # fmt: skip
