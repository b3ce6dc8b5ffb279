"""Runs on disk: written whole or not at all, found by short words, bounded; damaged ones are named with the reason."""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.base.owners import held, late
from heddle.base.problems import CheckError, InputError, MachineError, Problem
from heddle.fabric.model import Fabric
from heddle.predict.selftest import SelfTest
from heddle.proof import verdict
from heddle.proof.evidence import Evidence
from heddle.proof.verdict import PathsResult
from heddle.runs import store, writer
from heddle.runs.measured import EVIDENCE, read_evidence, write_evidence
from heddle.runs.runrecord import RECORD, plain_record
from heddle.runs.store import KEEP_BYTES, KEEP_RUNS, History
from heddle.runs.surroundings import read_surroundings
from tests.answers import Answers
from tests.machine import child
from tests.unit import run_samples as samples
from tests.unit.history_runs import a_lab, keep

ROOT = Path(__file__).resolve().parents[2]


def entries(history: History) -> list[str]:
    return sorted(each.name for each in history.directory.iterdir() if each.name != ".next.json")


def test_a_run_is_read_as_it_was_written(history: History) -> None:
    assert keep(history) == "0001"
    kept = history.open()
    assert kept.record == replace(samples.record(), id="0001")
    assert read_evidence(kept.path) == (samples.result().flows, samples.evidence())
    assert kept.bytes == sum(path.stat().st_size for path in kept.path.iterdir())
    assert json.loads((history.directory / "last" / RECORD).read_text())["format"] == 1
    sent = store.load(a_lab(history)).evidence.sent
    assert [(each.flow.src, each.flow.qpn, each.packets, each.bytes) for each in sent] == [
        ("host1", 266718, 7, 900), ("host1", 266719, 9, 900),
    ]  # fmt: skip
    keep(history, samples.failed())
    assert history.open("last").record == replace(samples.failed(), id="0002")


def test_a_run_is_named_by_number_id_or_last(history: History, answers: Answers) -> None:
    for _ in range(12):
        keep(history)
    answers(history.find)


def test_the_beginning_of_an_id_is_enough_and_without_a_run_the_error_names_the_command(history: History) -> None:
    with pytest.raises(InputError, match=r"lab zone has no run yet\n.*./inv run --lab zone"):
        history.open()
    with pytest.raises(InputError, match=r"run 7 is not a run of lab zone\n.*has no run yet"):
        history.open("7")
    assert history.runs() == []
    # The beginning of an id is enough where one run has it.
    keep(history)
    assert history.find("00") == "0001"
    keep(history)
    with pytest.raises(InputError, match=r"run 00 matches several runs\n.*use one of 0001, 0002"):
        history.find("00")


class Stopped(BaseException):
    """As KeyboardInterrupt, which pytest would take for its own."""


def test_an_interrupted_run_changes_nothing(history: History) -> None:
    keep(history)
    with pytest.raises(Stopped), history.draft() as draft:
        (draft / EVIDENCE).write_text("half")
        raise Stopped
    assert entries(history) == ["0001", "last"]
    assert history.find() == "0001"
    assert keep(history) == "0002"


def test_an_interrupted_run_is_kept_and_last_stays_at_the_run_before(history: History) -> None:
    keep(history, samples.interrupted())
    assert not (history.directory / "last").exists()
    with pytest.raises(InputError, match=r"lab zone has no finished run: 0001 was interrupted"):
        history.find()
    assert keep(history) == "0002"
    keep(history, samples.interrupted())
    assert history.ids() == ["0001", "0002", "0003"]
    assert history.find("last") == history.find() == "0002"
    assert (history.directory / "last").readlink() == Path("0002")
    assert history.open("3").record == replace(samples.interrupted(), id="0003")
    assert store.has_run(a_lab(history)) and store.load(a_lab(history)).record.id == "0002"
    with pytest.raises(
        InputError, match=r"was interrupted, so it has no paths: interrupted after 1 of 2 sizes\n.*0002"
    ):
        store.load(a_lab(history), "3")


def test_an_interrupted_run_never_drives_the_last_one_out(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEEP_RUNS, "1")
    keep(history)
    keep(history, samples.interrupted())
    keep(history, samples.interrupted())
    assert history.ids() == ["0001", "0003"]
    assert history.find() == "0001"
    keep(history)
    assert history.ids() == ["0004"]


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit])
def test_the_sizes_that_an_interrupted_run_had_measured_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    runtime = SimpleNamespace(name="netns", daemons_here=True)
    lab: Any = SimpleNamespace(name="zone", dir=tmp_path / "zone", fabric=samples.FABRIC, runtime=runtime)
    head = samples.header()
    with pytest.raises(end) as ended, writer.writing(lab, head):
        raise end  # before the first size: nothing to keep
    assert type(ended.value) is end and History.of(lab).ids() == []
    rows = samples.result().rows
    with pytest.raises(end) as ended, writer.writing(lab, head) as measured:
        measured.rows.append(rows[0])
        raise end
    kept = History.of(lab).open("0001")
    record = kept.record
    assert read_surroundings(kept.path).fabric == samples.FABRIC
    assert (record.interrupted, record.rows, record.done) == (True, rows[:1], False)
    assert isinstance(ended.value, writer.RunInterruptedError) == (end is KeyboardInterrupt)


def test_a_fresh_run_and_a_stored_one_are_judged_on_the_same_fabric_with_the_same_self_test(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged = []

    def prove(fabric: Fabric, evidence: Evidence, selftest: SelfTest | None = None) -> PathsResult:
        judged.append((fabric, evidence, selftest))
        raise CheckError(Problem("", "a verdict", "is not of this test"))

    monkeypatch.setattr(writer, "prove", prove)
    monkeypatch.setattr(verdict, "prove", prove)
    runtime = SimpleNamespace(name="netns", daemons_here=True)
    lab: Any = SimpleNamespace(name="zone", dir=tmp_path / "zone", fabric=samples.FABRIC, runtime=runtime)
    with writer.writing(lab, samples.header()) as measured:
        assert measured.proof(samples.evidence()) is None
        done = measured.finish(samples.result(), samples.evidence(), samples.result().flows)
    assert done.id == "0001"
    stored = History.of(lab).open()
    assert stored.proof.error is not None
    assert judged[0] == judged[1] and judged[0][2] is not None
    # The record has no fields of the table's head.
    assert set(json.loads((stored.path / RECORD).read_text())["header"]) == {
        "lab", "fabric", "when", "k", "ecmp", "options", "ranks", "qps", "communicators", "job", "recorded", "workload",
        "beside",
        "launch",
    }  # fmt: skip


_KILLED = """
import os, signal, sys
from pathlib import Path
from heddle.runs.store import History
with History("zone", Path(sys.argv[1])).draft() as draft:
    (draft / "evidence.json").write_text("half")
    print(draft.name, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_a_killed_run_are_no_run_and_are_removed_by_the_next_but_not_while_it_lives(history: History) -> None:
    keep(history)
    argv = [sys.executable, "-c", _KILLED, str(history.directory)]
    with child(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().strip()
        keep(history)
        assert entries(history) == [theirs, "0001", "0002", "last"]
        other.communicate("")
    assert other.returncode == -9
    assert (history.ids(), history.find()) == (["0001", "0002"], "0002")
    assert keep(history) == "0003"
    assert entries(history) == ["0001", "0002", "0003", "last"]


def test_a_removal_or_a_link_that_was_cut_short_changes_no_answer_and_the_next_run_finishes_it(
    history: History,
) -> None:
    keep(history)
    (history.directory / ".old-x").mkdir()
    (history.directory / ".old-x" / RECORD).write_text("{}")
    assert history.ids() == ["0001"]
    keep(history)
    assert entries(history) == ["0001", "0002", "last"]
    link = history.directory / "last"
    link.unlink()
    link.symlink_to("0001")  # killed between the two steps of keeping 0002
    assert history.find() == "0002"
    keep(history)
    assert link.readlink() == Path("0003")


def test_the_oldest_go_first_by_bytes_and_the_newest_stays(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEEP_BYTES, "250KB")
    for _ in range(4):
        keep(history, payload=100_000)
    assert history.ids() == ["0003", "0004"]
    keep(history, payload=400_000)
    assert history.ids() == ["0005"], "it is larger than the limit, and the newest"
    assert history.find() == "0005"


def test_an_unreadable_run_counts_and_is_removed_like_others(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(history)
    (history.directory / "0001" / RECORD).write_text("{")
    monkeypatch.setenv(KEEP_RUNS, "2")
    keep(history)
    assert history.ids() == ["0001", "0002"]
    keep(history)
    assert history.ids() == ["0002", "0003"]


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        (KEEP_RUNS, "0", "not a whole number of 1 or more"),
        (KEEP_RUNS, "many", "not a whole number of 1 or more"),
        (KEEP_BYTES, "a lot", "is not a size"),
        (KEEP_BYTES, "12parsec", "has the unit parsec"),
    ],
)
def test_a_wrong_limit_is_refused_before_the_run(
    history: History, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=f"{name}={value} .*{why}"), history.draft():
        pass
    assert not history.directory.exists()


def test_removed_runs_are_gone_and_their_numbers_are_not_used_again(history: History) -> None:
    for _ in range(4):
        keep(history)
    with pytest.raises(InputError, match="run 9 is not a run"):
        history.remove(["1", "9"])
    assert len(history.ids()) == 4, "a wrong word removes nothing"
    assert history.remove(["2", "last", "0004"]) == ["0002", "0004"]
    assert entries(history) == ["0001", "0003", "last"]
    assert (history.directory / "last").readlink() == Path("0003")
    assert keep(history) == "0005"
    assert history.remove(["1", "3", "5"]) == ["0001", "0003", "0005"]
    assert entries(history) == []
    (history.directory / ".next.json").write_text("damaged")
    assert keep(history) == "0001"


def test_a_directory_that_may_not_be_read_is_named(history: History, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(MachineError, match="cannot be read: Permission denied"):
        history.ids()


@pytest.mark.root
def test_under_sudo_the_files_belong_to_the_user_who_called(home_of_nobody: Path) -> None:
    history = History.named("zone")
    keep(history)
    owner = pwd.getpwnam("nobody").pw_uid
    for path in (history.directory, *history.directory.rglob("*")):
        assert path.lstat().st_uid == owner, path
    assert history.remove(["1"]) == ["0001"]


def test_a_lock_of_another_process_is_waited_for_in_bounded_time_and_no_other_user_can_have_it(
    history: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heddle.runs.store._LOCK_S", 0.1)
    keep(history)
    fd = os.open(history.directory, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)  # as any user can: the directory may be readable
    keep(history)
    os.close(fd)
    lock = history.directory / ".lock"
    with held(lock, late(lock, 0)):
        assert stat.S_IMODE(lock.stat().st_mode) == 0o600
        with pytest.raises(MachineError, match=f"has been locked for 0.1 s by process {os.getpid()}\\n.*kill"):
            history.remove(["1"])
    assert history.remove(["1"]) == ["0001"] and not lock.exists()


def as_format(number: object) -> str:
    return json.dumps({**plain_record(samples.record()), "format": number, "id": "0001"})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "run.json is missing"),
        ("{", "run.json is damaged: it is not valid JSON"),
        ("[]", "run.json is damaged: it is not a JSON object"),
        ("[" * 100_000, "run.json is damaged: it is not valid JSON"),
        ("{}", "run.json has format None, and this Heddle reads format 1"),
        (as_format(7), "run.json has format 7, and this Heddle reads format 1"),
        ('{"format": 1}', "run.json is damaged: header is missing"),
        (as_format(1).replace('"time_us": 1000.0', '"time_us": "long"'), "damaged: rows.0.time_us: "),
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


def test_a_link_or_a_file_is_no_run(history: History, tmp_path: Path) -> None:
    history.directory.mkdir()
    (history.directory / "0001").symlink_to(tmp_path)
    (history.directory / "0002").write_text("")
    assert history.ids() == []


@pytest.mark.parametrize("data", ["", "{", "[]", '{"received": []}', '{"received": [{"ce": 1}], "evidence": {}}'])
def test_damaged_evidence_is_named_and_no_traceback(history: History, data: str) -> None:
    with history.draft() as draft:
        write_evidence(draft, samples.result().flows, samples.evidence(flows=1))  # of fewer flows than the oracle
        history.keep(draft, samples.record())
    if data:
        (history.directory / "0001" / EVIDENCE).write_text(data)
    with pytest.raises(InputError, match=r"run 0001 of lab zone cannot be used: evidence.json is damaged"):
        store.load(a_lab(history))


def test_a_failed_run_has_no_paths_and_the_hint_names_one_that_has(history: History) -> None:
    keep(history, samples.failed())
    with pytest.raises(InputError, match=r"run 0001 of lab zone failed, so it has no paths: rank 1 .*\n.*./inv run "):
        store.load(a_lab(history))
    keep(history)
    keep(history, samples.failed())
    with pytest.raises(InputError, match=r"run 0003 of lab zone failed.*\n.*use --run 0002"):
        store.load(a_lab(history))
    assert store.load(a_lab(history), "2").record.id == "0002"
    assert store.has_run(a_lab(history))
