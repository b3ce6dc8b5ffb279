"""The commands of the pages, typed as they stand there, print what the pages show and go in the direction they claim.

tests/unit/test_stories.py computes the ratios of the pages, and knows which test runs which block.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import pytest

from heddle.cli import run_verb
from heddle.cli.program import examples
from tests.pages import Block, blocks, text_of, unlike
from tests.typed import typed

FIRST = "docs/first-fabric.md"
_EXACT: Final = re.compile(r"^(?:rtsw\d+:eth\d+ +\d+ +[\d,]+ +[\d,]+ |MMR |5-tuples: ).*", re.MULTILINE)
_TIMES: Final = re.compile(r"(?<=[\d,]) +[\d.]+ +\d+% +█*$")
# Verbs whose first example works on a running lab, in an order that gives each what it needs.
ON_A_LAB: Final = (
    "inspect", "exec", "run", "hashing", "paths", "plot", "compare", "export", "report", "runs", "diagnose",
    "te", "craft", "launch", "perf", "tuner", "graph", "validate", "status", "fault", "down",
)  # fmt: skip


@pytest.fixture(autouse=True)
def only_the_labs_of_this_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Verbs of a page name no lab: one lab is there."""
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))


def printed(words: Sequence[str], preset: str, name: str, cwd: Path) -> str:
    """What a command prints. It must succeed. Its lab has another name than its preset, as a user's may be up."""
    verb, *rest = words
    if verb == "up":
        rest += ["--name", name]
    elif verb in ("status", "down"):
        rest = [name if word == preset else word for word in rest]
    done = typed(verb, *rest, cwd=cwd)
    assert done.returncode == 0, (words, done.stdout, done.stderr)
    return (done.stderr + done.stdout).replace(name, preset)


def exact(text: str) -> list[str]:
    """What is the same on every machine: flows, packets and bytes of uplinks, MMR, 5-tuples."""
    return [_TIMES.sub("", line) for line in _EXACT.findall(text)]


@pytest.mark.deep
def test_the_first_fabric_prints_what_its_page_shows(
    name: str,
    tmp_path: Path,
    leftovers: Callable[[str], list[str]],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(run_verb, "narrow_terminal", lambda: True)  # as the page has it
    said, ratios, busy_runs = "", list[float](), False
    for block in blocks(FIRST, "sh", "text"):
        if block.heading.startswith("1. "):
            continue  # rows of `doctor` are those of a machine
        if block.language == "sh":
            said = "".join(printed(each.words, "tiny", name, tmp_path) for each in block.commands())
            said += capfd.readouterr().out  # of programs in nodes
            ratios += map(float, re.findall(r"^#ideal .* ratio ([\d.]+):", said, re.MULTILINE))
            busy_runs |= "UNRELIABLE" in said
            continue
        # Where another program used the host's CPU in a run, times have no verdict.
        wanted = re.sub(r"(?m)^(busbw|job completion)(.*)differs$", r"\1\2not known", block.text)
        wanted = wanted if busy_runs else block.text
        assert not (lines := unlike(wanted, said)), f"{block.heading}: {lines}\n{said}"
        assert not (lines := [each for each in exact(block.text) if each not in exact(said)]), lines
    # One uplink carries twice what a NIC sends. Then the spread leaves nearly nothing to gain, if the CPU has time.
    before, after = ratios
    assert before > 1.95 and (after < 1.4 or busy_runs)
    assert leftovers(name) == []


def block_of(page: str, heading: str, begin: str) -> Block:
    (found,) = (each for each in blocks(page, "sh") if each.heading == heading and each.text.startswith(begin))
    return found


@pytest.mark.long
def test_pages_and_help_on_one_lab(name: str, tmp_path: Path, leftovers: Callable[[str], list[str]]) -> None:
    """The experiment of the researcher, what an engineer looks at and changes, and the first examples of help."""

    def run(words: Sequence[str]) -> str:
        return printed(words, "zone", name, tmp_path)

    for command in block_of("docs/for-researchers.md", "A repeatable experiment", "./inv up zone").commands():
        run(command.words)
    for command in block_of("docs/for-engineers.md", "For network engineers", "./inv exec").commands():
        if command.words[0] != "capture":  # until Ctrl-C: test_capture.py
            run(command.words)
    doctor = [row.split()[:2] for row in run(["doctor"]).splitlines()]
    shown = [row.split()[:2] for block in blocks(FIRST, "text")[:1] for row in block.text.splitlines()]
    assert len(shown) > 4 and [row for row in shown if row != ["..."] and row not in doctor] == []
    for verb in ON_A_LAB[:-1]:
        run([verb, *shlex.split(next(iter(examples()[verb])))])
    run(["fault", "clear"])
    changes = re.findall(r"^\| [^|]+ \| `\./inv ([^`]+)` \|$", text_of("docs/for-engineers.md"), re.MULTILINE)
    for change in changes:
        if not change.startswith("up "):
            run(shlex.split(change))
        if change.startswith("fault "):
            run(["fault", "clear"])
    assert len(changes) > 5
    run(["down", "zone"])
    assert leftovers(name) == []
