"""Questions and their exact answers as files below tests/golden/answers: one test asks all questions of its file.

    def test_wrong_words_are_named(answers: Answers) -> None:
        answers(lambda line: parse(VERB, line.split()))

`tests/golden/answers/MODULE/TEST.txt` has a paragraph for each question. `pytest --regen-goldens` writes the answers:

    # nccl-tests has this flag, too
    $ --size 8 --itres 5
      InputError: --itres is not an option of run
        hint: did you mean --iters?

`$ TEXT` is an argument of the function, and so is `$= JSON`: a value, or a text that a line cannot show. The answer is
what the function returns (a text unchanged, another value as Python writes it) or the type and text of its error.

Texts of a test that have names need no function: `answers({"in short": run.table(short=True), "whole": run.table()})`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

Answers = Callable[[Callable[..., object] | Mapping[str, object]], None]
HERE: Final = Path(__file__).parent
FILES: Final = HERE / "golden/answers"


def file_of(test: Path, name: str) -> Path:
    """The file of a test: golden/answers/unit/test_cli/wrong_words.txt of test_wrong_words in unit/test_cli.py."""
    return FILES / test.relative_to(HERE).with_suffix("") / f"{name.removeprefix('test_')}.txt"


def questions_in(text: str) -> list[list[str]]:
    """The lines of each question, with comments before them."""
    found: list[list[str]] = []
    ended = True
    for line in text.splitlines():
        if line.startswith(("$", "#")):
            if ended:
                found.append([])
            found[-1].append(line)
        ended = not line.startswith(("$", "#"))
    return found


def argument(line: str) -> Any:
    """The argument that a line of a question has."""
    return json.loads(line[3:]) if line.startswith("$= ") else line[2:]


def answered(question: list[str], answer: Callable[..., object], place: str) -> str:
    """One paragraph: a question and what `answer` returns or raises. place: a directory that is TMP in the answer."""
    try:
        result = answer(*(argument(line) for line in question if line.startswith("$")))
        said = result if result and isinstance(result, str) else repr(result)
    except AssertionError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    if place and place in said:
        said = re.sub(r"\n +", "\n  ", said.replace(place, "TMP"))
    said = re.sub(r"(?m)^ *hint: ", "  hint: ", said)  # it stands below what comes after a path, however long it is
    return "\n".join([*question, *(f"  {line}".rstrip() for line in said.splitlines())])


@pytest.fixture
def answers(request: pytest.FixtureRequest, regen_goldens: bool) -> Answers:
    """Ask all questions of the test's file and compare the answers with it. The test's own directory is TMP there."""
    path = file_of(request.path, request.node.originalname)

    def ask(answer: Callable[..., object] | Mapping[str, object]) -> None:
        before = path.read_text(encoding="utf-8") if path.exists() else ""
        if isinstance(answer, Mapping):
            questions, answer = [[f"$ {name}"] for name in answer], answer.__getitem__
        else:
            questions = questions_in(before)
        place = str(request.getfixturevalue("tmp_path")) if "tmp_path" in request.fixturenames else ""
        now = "\n\n".join(answered(each, answer, place) for each in questions) + "\n"
        if regen_goldens:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(now, encoding="utf-8")
        assert questions, f"{path} has no question"
        assert now == before or regen_goldens, f"{path.relative_to(HERE)} differs; if you meant it: --regen-goldens"

    return ask
