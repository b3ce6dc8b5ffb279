"""The exact error of each mistake in a user's file.

errors/NAME.yml is a fabric file, errors/NAME.txt the text. Below errors/ each folder has files of another kind.
`./inv test golden -- --regen-goldens` rewrites the texts.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from heddle.base.problems import InputError
from heddle.cli.hashing_change import ExactRows, file_rows
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.offline.loads import traffic_of

HERE: Final = Path(__file__).parent / "errors"


def a_table(name: str) -> None:
    rows = ExactRows()
    rows.add(file_rows(name))
    rows.problems.raise_if_any()


def a_workload(name: str) -> None:
    traffic_of(load_fabric("zone").fabric, load_workload(name).workload)


READERS: Final[dict[str, Callable[[str], object]]] = {
    "errors": load_fabric, "hashing": a_table, "matrix": a_workload, "steps": a_workload, "workload": a_workload,
}  # fmt: skip
CASES: Final = sorted(path.with_suffix("") for path in HERE.rglob("*.txt"))


def files_of(case: Path) -> list[Path]:
    return [path for end in (".yml", ".csv") if (path := case.with_suffix(end)).exists()]


@pytest.mark.parametrize("case", CASES, ids=lambda path: str(path.relative_to(HERE)))
def test_a_wrong_file_is_explained_in_exactly_these_words(
    case: Path, regen_goldens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.parent)
    with pytest.raises(InputError) as caught:
        READERS[case.parent.name](files_of(case)[0].name)
    said = f"{caught.value}\n"
    text = case.with_suffix(".txt")
    if regen_goldens:
        text.write_text(said)
    assert said == text.read_text()


def test_every_file_has_its_text() -> None:
    wrong = {path.with_suffix("") for path in HERE.rglob("*.yml")}
    assert wrong <= {*CASES} and all(map(files_of, CASES))
