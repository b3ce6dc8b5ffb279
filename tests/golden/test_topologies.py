"""The exact error of each user-supplied topology that Heddle cannot use, and the notes and warnings of others.

topologies/NAME.clab.yml is the file, topologies/NAME.RUNTIME.log the text for a runtime.
`./inv test golden -- --regen-goldens` rewrites the texts.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from heddle.base.problems import InputError
from heddle.lab.imported.imported import import_topology

HERE = Path(__file__).parent / "topologies"
CASES = sorted(HERE.glob("*.clab.yml"))
READERS = ("netns", "containerlab")  # other runtimes read a topology as containerlab does


@pytest.mark.parametrize("runtime", READERS)
@pytest.mark.parametrize("case", CASES, ids=lambda p: p.name.partition(".")[0])
def test_what_cannot_be_honoured_is_listed_in_exactly_these_words(
    case: Path, runtime: str, regen_goldens: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(case.parent)
    try:
        made = import_topology(Path(case.name), runtime)
        lines = [
            f"{kind}: {line}" for kind, found in (("note", made.notes), ("warning", made.warnings)) for line in found
        ]
    except InputError as error:
        lines = [str(error)]
    said = "\n".join([*lines, ""]).replace(str(HERE), "HERE")
    log = HERE / f"{case.name.partition('.')[0]}.{runtime}.log"
    if regen_goldens:
        log.write_text(said)
    assert said == log.read_text()


def test_every_text_has_its_file() -> None:
    logs = {p.name for p in HERE.glob("*.log")}
    assert logs == {f"{p.name.partition('.')[0]}.{runtime}.log" for p in CASES for runtime in READERS}
