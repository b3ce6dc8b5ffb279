"""The exact error of each mistake in a fabric file.

errors/NAME.yml is the file, errors/NAME.log the text. `./inv test golden -- --regen-goldens` rewrites the texts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.fabric.fabricfile import load_fabric

CASES = sorted((Path(__file__).parent / "errors").glob("*.yml"))


@pytest.mark.parametrize("case", CASES, ids=lambda p: p.stem)
def test_a_wrong_file_is_explained_in_exactly_these_words(
    case: Path, regen_goldens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.parent)
    with pytest.raises(InputError) as caught:
        load_fabric(case.name)
    said = f"{caught.value}\n"
    log = case.with_suffix(".log")
    if regen_goldens:
        log.write_text(said)
    assert said == log.read_text()


def test_every_text_has_its_file() -> None:
    logs = {p.stem for p in (Path(__file__).parent / "errors").glob("*.log")}
    assert logs == {p.stem for p in CASES}
