"""Damaged and strange stored runs: every verb that reads one ends with its result, or names the file and what is wrong.

The corpus is a run of preset tiny with e-ecmp, changed queues, DCQCN, admission and a slow host.
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest

from heddle.base import state
from heddle.base.problems import CheckError, InputError
from heddle.base.version import VERSION
from heddle.cli.picture_verbs import _panels
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.lab import Lab
from heddle.lab.opening import blueprint_from, lab_of
from heddle.proof.selection import read_selection
from heddle.runs.compare import compare
from heddle.runs.explain import flow_of
from heddle.runs.exports import EXPORTS
from heddle.runs.exports.asked import Asked
from heddle.runs.runrecord import RECORD
from heddle.runs.store import History, load, open_runs
from heddle.views import graph, runpicture
from heddle.views.linkloads import describe_run, usage_of
from heddle.views.pathstext import paths_text
from heddle.views.queuepicture import draw
from heddle.views.report.page import report_html
from heddle.views.runstext import compare_text, runs_json, runs_text
from heddle_plugins.dashboard.labdesk import PathsOfRuns
from heddle_plugins.dashboard.news import RunList
from heddle_plugins.workshop.observe import run_facts
from tests.fuzz.cases import Fuzz
from tests.fuzz.mutate import damaged, odd_json
from tests.marks import deep

CORPUS: Final = Path(__file__).parent / "corpus" / "run"
LAB: Final = "corpus"
WHOLE, ODD = "0001", "0002"
QPN: Final = "74086"


def listed(lab: Lab, path: Path) -> None:
    """`runs`, the dashboard's list, and the facts of workshop units."""
    from heddle.runs.store import limits

    kept = {lab.name: History.of(lab).runs()}
    json.dumps(runs_json(kept, limits(), []))
    runs_text(kept, limits(), [])
    json.dumps(RunList(lab).read())
    for run in kept[lab.name]:
        if not run.damage and run.record.done:
            run_facts(run.record)


def compared(lab: Lab, path: Path) -> None:
    """`compare`, both ways."""
    whole, odd = open_runs([f"{LAB}:{WHOLE}", f"{LAB}:{ODD}"])
    for found in (compare(whole, odd), compare(odd, whole)):
        json.dumps(found.to_json())
        compare_text(found)


def paths(lab: Lab, path: Path) -> None:
    """`paths`, `paths --qp`, and the dashboard's paths."""
    stored = load(lab, ODD)
    result = stored.needed(stored.proof)
    chosen = read_selection(lab.fabric, [], ["host1"], [])
    paths_text(result, chosen)
    json.dumps([row for row, on in zip(result.to_json()["flows"], chosen.mask(result), strict=True) if on])
    json.dumps(result.to_json())
    describe_run(stored.record)
    PathsOfRuns().of(lab, 0)


def explained(lab: Lab, path: Path) -> None:
    """The look-up of `hashing --explain`."""
    flow_of(lab, QPN, ODD)


def graphed(lab: Lab, path: Path) -> None:
    """`graph`."""
    usage = usage_of(lab, ODD)
    assert usage is not None
    [each.to_json() for each in usage.loads]
    graph.drawing("svg", lab.fabric, usage.loads, usage.caption)


def plotted(lab: Lab, path: Path) -> None:
    """`plot queues`."""
    found = History.of(lab).open(ODD)
    recorded = found.needed(found.recorded)
    shown = _panels(found.id, recorded, [], [])
    json.dumps([each.to_json() for each in shown])
    draw("svg", recorded, shown, found.rates.value)


def exported(lab: Lab, path: Path) -> None:
    """`export --perfetto` and `--otg`."""
    (found,) = open_runs([str(path)])
    for name in ("perfetto", "otg"):
        json.loads(EXPORTS[name].written(found, Asked()))


def pictured(lab: Lab, path: Path) -> None:
    """`plot run`."""
    runpicture.draw("svg", open_runs([str(path)]))


def reported(lab: Lab, path: Path) -> None:
    """`report`, by directory: the verb of a run that was copied."""
    report_html(open_runs([str(path)]))


Reader = Callable[[Lab, Path], None]
LIGHT: Final[tuple[Reader, ...]] = (listed, compared, paths, explained, exported)
# They draw, which takes ten times as long as the others: a case has one of them at most, and thousands take minutes.
DRAWN: Final = 0.5  # of the cases
HEAVY: Final[tuple[Reader, ...]] = (graphed, plotted, pictured, reported)
PARTS: Final[Mapping[str, tuple[Reader, ...]]] = {
    "run.json": (listed, compared, paths, exported, *HEAVY),
    "fabric.json": (compared, paths, graphed, reported),
    "evidence.json": (paths, explained, exported, graphed, pictured, reported),
    "series.npz": (exported, plotted, pictured, reported),
    "rates.npz": (exported, plotted, reported),
    "timeline.npz": (exported, pictured),
}


@cache
def documents() -> dict[str, Any]:
    return {path.name: json.loads(path.read_text()) for path in CORPUS.glob("*.json")}


def odd_archive(dice: random.Random, data: bytes) -> bytes:
    """An .npz file with damage to its bytes, or whole with other arrays."""
    if dice.random() < 0.4:
        return damaged(dice, data)
    with np.load(io.BytesIO(data)) as file:
        arrays: dict[str, Any] = {name: file[name] for name in file.files}
    name = dice.choice(list(arrays))
    if dice.random() < 0.5 or name == "about_json":
        about = odd_json(dice, json.loads(str(arrays["about_json"]))).decode(errors="replace")
        arrays["about_json"] = np.array(about)
    else:
        arrays[name] = dice.choice(_ODD_ARRAYS)(dice, arrays[name])
        if dice.random() < 0.1:
            del arrays[name]
    target = io.BytesIO()
    np.savez_compressed(target, **arrays)
    if dice.random() < 0.1:
        return _odd_header(dice, target.getvalue())
    return target.getvalue()


def _odd_number(dice: random.Random, array: Any) -> Any:
    flat = array.reshape(-1).copy()
    if flat.size:
        odd = (0, -1, 1 << 31, 1 << 62) if flat.dtype.kind == "i" else (0.0, -1.0, 1e300, np.nan, np.inf)
        with np.errstate(all="ignore"):
            flat[dice.randrange(flat.size)] = np.array(dice.choice(odd)).astype(flat.dtype)
    return flat.reshape(array.shape)


_ODD_ARRAYS: Final[tuple[Callable[[random.Random, Any], Any], ...]] = (
    lambda dice, array: array.astype(dice.choice(("f8", "i8", "U5", "?", "c16", "u8", "i1", "O"))),
    lambda dice, array: array.reshape(-1),
    lambda dice, array: array[..., : array.shape[-1] // 2] if array.ndim else array,
    lambda dice, array: np.concatenate([array, array]) if array.ndim else array,
    lambda dice, array: -array,
    lambda dice, array: np.zeros((0,) * max(1, array.ndim)),
    lambda dice, array: array[..., None],
    _odd_number,
    _odd_number,
)


def _odd_header(dice: random.Random, data: bytes) -> bytes:
    """An archive whose array claims another shape."""
    shape = dice.choice(("(10**12,)", "(1000000000000,)", "(-1,)", "(2, 99999999)", "(999999999, 999999999, 9999)"))
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(target, "w") as new:
        for number, name in enumerate(old.namelist()):
            content = old.read(name)
            if number == 1:
                at, end = content.find(b"'shape': ") + 9, content.find(b"}", 10)
                content = content[:at] + shape.encode() + content[end:]
            new.writestr(name, content)
    return target.getvalue()


def no_file(dice: random.Random, path: Path) -> None:
    """Something else in place of a file."""
    path.unlink()
    choice = dice.randrange(5)
    if choice == 0:
        path.mkdir()
    elif choice == 1:
        os.mkfifo(path)
    elif choice == 2:
        path.symlink_to(dice.choice(("/dev/zero", "/etc", path.name, "/dev/full")))
    elif choice == 3:
        path.write_bytes(b"")


@pytest.fixture
def lab(state_home: Path) -> Any:
    """A lab that is recorded and does not run: its runs are read."""
    loaded = load_fabric("tiny", name=LAB)
    blueprint = blueprint_from(loaded)
    record = state.Record(
        name=LAB, runtime="netns", source="tiny", spec=dict(blueprint.spec_data()), phase="running", version=VERSION,
    )  # fmt: skip
    state.write_record(record)
    found = lab_of(record)
    runs = found.dir / "runs"
    shutil.rmtree(runs, ignore_errors=True)
    shutil.copytree(CORPUS, runs / WHOLE)
    text = (CORPUS / RECORD).read_text()
    (runs / WHOLE / RECORD).write_text(json.dumps({**json.loads(text), "id": WHOLE}))
    yield found
    shutil.rmtree(found.dir)


@pytest.mark.timeout(0)
@pytest.mark.parametrize("count", [20, deep(3000)])
def test_stored_runs(fuzz: Fuzz, lab: Lab, count: int) -> None:
    def one(dice: random.Random, place: Path) -> None:
        path = lab.dir / "runs" / ODD
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(CORPUS, path)
        name = dice.choice(list(PARTS))
        file = path / name
        if dice.random() < 0.02:
            no_file(dice, file)
        elif name.endswith(".json"):
            file.write_bytes(odd_json(dice, documents()[name]))
        else:
            file.write_bytes(odd_archive(dice, file.read_bytes()))
        shutil.copytree(path, place / ODD, ignore=lambda *_: [] if file.is_file() else [name])
        drawing = dice.choice(HEAVY) if dice.random() < DRAWN else None
        for read in (each for each in PARTS[name] if each in LIGHT or each is drawing):
            try:
                read(lab, path)
            except CheckError as error:  # a policy or a seed that Linux has and the prediction does not know
                assert "not modelled" in str(error) or "random seed" in str(error)
            except InputError as error:
                said = str(error)
                assert ODD in said or name in said or str(path) in said, f"{read.__name__}: {said}"
                assert len(said) < 2000, f"{read.__name__}: a message of {len(said)} characters"

    fuzz.run(count, one)
