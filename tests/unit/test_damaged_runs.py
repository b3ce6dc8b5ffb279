"""Files of a stored run that are damaged or strange: refused at the door, with the file and what is wrong in it.

tests/fuzz/test_stored_runs.py does the same with random damage, for every verb.
"""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from heddle.runs.files import UnreadableError
from heddle.runs.measured import read_evidence
from heddle.runs.rates import read_rates
from heddle.runs.runrecord import read_record
from heddle.runs.series import read_series
from heddle.runs.store import open_runs
from heddle.runs.surroundings import read_surroundings
from heddle.runs.timeline import read_timeline
from tests.answers import Answers

CORPUS = Path(__file__).parents[1] / "fuzz" / "corpus" / "run"
READERS: dict[str, Callable[[Path], object]] = {
    "run.json": read_record, "fabric.json": read_surroundings, "evidence.json": read_evidence,
    "series.npz": read_series, "rates.npz": read_rates, "timeline.npz": lambda run: read_timeline(run, 4),
}  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Path(shutil.copytree(CORPUS, tmp_path / "0002"))


def said(run: Path, name: str) -> str:
    with pytest.raises(UnreadableError) as caught:
        READERS[name](run)
    assert str(caught.value).startswith(f"{name} ")
    return str(caught.value)


def test_a_run_of_this_format_is_read(run: Path) -> None:
    for read in READERS.values():
        assert read(run) is not None
    (stored,) = open_runs([str(run)])
    assert stored.proof.value is not None and stored.proof.value.agree


@contextmanager
def changed(run: Path, name: str, path: list[Any], value: Any) -> Iterator[None]:
    """A file of the run has another value at a path of keys."""
    text = (run / name).read_text()
    data = place = json.loads(text)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    (run / name).write_text(json.dumps(data))
    try:
        yield
    finally:
        (run / name).write_text(text)


def test_values_of_the_wrong_kind_are_named(run: Path, answers: Answers) -> None:
    def read(name: str, path: list[Any], value: Any) -> str:
        with changed(run, name, path, value):
            return said(run, name)

    answers(read)
    # A port that the fabric does not have: the proof says what differs.
    with changed(run, "evidence.json", ["evidence", "after", "nodes", 0, "counters", "flows", 0, 0], {}):
        read_evidence(run)
        assert open_runs([str(run)])[0].proof.value is not None


@pytest.mark.parametrize("key", ["seconds", "proof", "icrc_errors", "stray", "counters", "transport"])
def test_a_run_without_what_verdicts_rest_on_is_damaged(run: Path, key: str) -> None:
    data = json.loads((run / "run.json").read_text())
    del (data if key in data else data["outcome"])[key]
    (run / "run.json").write_text(json.dumps(data))
    assert said(run, "run.json") == f"run.json is damaged: {key} is missing"


@pytest.mark.parametrize(
    ("path", "value", "why"),
    [
        (["failure"], ["wrong data"], "it is done, and has a reason why it is not"),
        (["outcome", "proof", "unproven"], 3, "its paths agree, and some are not proven"),
        (["outcome", "stray"], -1, "it has fewer than 0 packets"),
        (["outcome", "machine"], None, "it does not say how busy the machine was"),
    ],
)
def test_a_run_that_looks_better_than_it_can_be_is_damaged(run: Path, path: list[Any], value: Any, why: str) -> None:
    with changed(run, "run.json", path, value):
        assert said(run, "run.json") == f"run.json is damaged: {why}"


def test_values_within_values_are_counted(run: Path) -> None:
    for nested in ("[" * 40 + "]" * 40, '{"x": ' * 400 + "1" + "}" * 400):
        text = (CORPUS / "fabric.json").read_text().replace('"spec": {', f'"spec": {{"x": {nested}, ', 1)
        (run / "fabric.json").write_text(text)
        assert "fabric.json is damaged: it has more than 32 values within values" in said(run, "fabric.json")


def test_evidence_that_does_not_fit_to_the_fabric_is_named(run: Path, answers: Answers) -> None:
    def judged(path: list[Any], value: Any) -> object:
        with changed(run, "evidence.json", ["evidence", *path], value):
            (stored,) = open_runs([str(run)])
            return stored.needed(stored.proof)

    answers(judged)


def rewritten(run: Path, name: str, change: Callable[[dict[str, Any]], None]) -> None:
    with np.load(run / name) as file:
        arrays = {key: file[key] for key in file.files}
    change(arrays)
    np.savez_compressed(run / name, **arrays)


def set_to(name: str, value: object) -> Callable[[dict[str, Any]], None]:
    return lambda arrays: arrays.update({name: np.array(value)})


@pytest.mark.parametrize(
    ("name", "change", "why"),
    [
        ("series.npz", set_to("depth", [1.0]), "depth has the type float64 and 1 dimensions"),
        ("series.npz", set_to("depth", [[1]]), "its arrays do not fit together"),
        ("series.npz", set_to("ends_s", [np.nan]), "ends_s has a number that is not finite"),
        ("series.npz", set_to("rows", np.array([None])), "rows has the type object"),
        ("series.npz", set_to("about_json", "{"), "series.npz is damaged: Expecting property name"),
        ("series.npz", set_to("about_json", '{"format": 7}'), "series.npz has another format"),
        ("rates.npz", set_to("counts", [-1, 1]), "its arrays do not fit together"),
        ("rates.npz", set_to("times_s", np.zeros(3) - 1), "its arrays do not fit together"),
        ("timeline.npz", set_to("messages_src", np.full(12, 4)), "a rank or a size that the run does not have"),
        ("timeline.npz", set_to("messages_src", np.zeros(3, np.int64)), "its messages do not fit together"),
        ("timeline.npz", set_to("iterations_end_s", np.zeros(12)), "a time ends before it begins"),
        ("rates.npz", lambda arrays: arrays.pop("counts"), "counts.npy' in the archive"),
    ],
)  # fmt: skip
def test_arrays_of_the_wrong_kind_are_named(
    run: Path, name: str, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    rewritten(run, name, change)
    assert why in said(run, name)


@pytest.mark.parametrize("name", READERS)
def test_a_file_that_is_missing_cut_or_another_is_named(run: Path, name: str) -> None:
    whole = (run / name).read_bytes()
    for data in (b"", b"{", b"PK", b"PK\x03\x04 not a zip", b"\x93NUMPY", whole[:-40], Path(__file__).read_bytes()):
        (run / name).write_bytes(data)
        assert said(run, name).startswith(f"{name} is damaged")
    (run / name).unlink()
    assert said(run, name).startswith(f"{name} is missing")


def test_damaged_archives_are_named(run: Path) -> None:
    whole = (run / "series.npz").read_bytes()
    for at in range(60, len(whole), 97):  # each byte of the compressed data may be the damaged one
        (run / "series.npz").write_bytes(whole[:at] + bytes([whole[at] ^ 0x55]) + whole[at + 1 :])
        try:
            read_series(run)  # a byte that is not read, such as a date
        except UnreadableError as error:
            assert str(error).startswith("series.npz is damaged: ")
    # An array that claims more than it has, and one that unpacks to more than any run has.
    for claimed in ("(10, 99999999999)", "(10, -1)"):
        target = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(whole)) as old, zipfile.ZipFile(target, "w") as new:
            for name in old.namelist():
                content = old.read(name)
                head = b"'shape': (" if name == "depth.npy" else b"nothing"
                start, end = content.find(head), content.find(b"), }")
                new.writestr(
                    name, content[: start + 9] + claimed.encode() + content[end + 1 :] if start > 0 else content
                )
        (run / "series.npz").write_bytes(target.getvalue())
        assert "series.npz is damaged: depth has" in said(run, "series.npz")
    with zipfile.ZipFile(run / "series.npz", "w", zipfile.ZIP_DEFLATED) as bomb:
        bomb.writestr("about_json.npy", bytes(300 << 20))
    assert "series.npz is damaged: it has more than 256 MiB" in said(run, "series.npz")


def test_a_fabric_that_is_damaged_or_missing_is_named(run: Path) -> None:
    (run / "fabric.json").write_text("{")
    assert open_runs([str(run)])[0].fabric.why == "fabric.json is damaged: it is not valid JSON"
    (run / "fabric.json").unlink()
    assert open_runs([str(run)])[0].fabric.why == "fabric.json is missing"
