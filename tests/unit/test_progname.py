"""The name that texts have for the program; what the demo says of itself, and its picture in the README."""

from __future__ import annotations

import html
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heddle.base import progname
from heddle.base.problems import InputError, Problem
from heddle.base.tables import written
from heddle.base.units import emulated_words
from heddle.cli.console import Console, PlainObserver, RichObserver
from heddle.cli.demo import ACTS, DemoResult, Played
from heddle.cli.program import main
from heddle.cli.verbs import become_root
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import Cause
from heddle.runs.parts.machine import MachineUse
from tests.answers import Answers
from tests.bench.demopicture import picture
from tests.unit.run_samples import having, result


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(progname.VARIABLE, progname.INSTALLED)


def test_a_checkout_keeps_its_texts() -> None:
    assert progname.program() == "./inv"
    assert progname.as_started("./inv up zone") == "./inv up zone"


@pytest.mark.usefixtures("installed")
def test_it_is_replaced_as_a_word(answers: Answers) -> None:
    answers(progname.as_started)


@pytest.mark.usefixtures("installed")
def test_behind_sudo_it_is_a_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "a b" / "heddle"
    program.parent.mkdir()
    program.touch()
    monkeypatch.setattr(sys, "argv", [str(program), "up"])
    assert progname.as_started("sudo ./inv doctor tries it") == f"sudo '{program}' doctor tries it"
    monkeypatch.setattr(sys, "argv", ["-c"])
    monkeypatch.setattr(sys, "executable", str(tmp_path / "a b/python"))
    assert progname.as_started("sudo ./inv doctor") == f"sudo '{program}' doctor"
    program.unlink()
    assert progname.as_started("sudo ./inv doctor") == "sudo heddle doctor"


@pytest.mark.usefixtures("installed")
def test_whatever_is_printed_has_that_name_and_steers_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    problem = Problem("\x9b", "./inv test", "is\u202e wrong", "./inv --help\n./inv\x1b[2J doctor")
    assert str(problem) == "?  heddle test is? wrong\n   hint: heddle --help\n         heddle?[2J doctor"
    assert str(InputError(problem)) == str(problem)
    written("./inv runs lists\tthem\x1b[31m\n")
    Console().result({}, "#run:\x7f ./inv r\u00fcns")
    Console().show("./inv paths")
    Console("json").result({"fix": ["./inv image"], "nodes": [{"node": "./inv x", "stdout": "./inv", "n": 1}]})
    out = capsys.readouterr().out
    assert out.startswith("heddle runs lists\tthem?[31m\n#run:? heddle r\u00fcns\nheddle paths\n")
    nodes = [{"node": "heddle x", "stdout": "./inv", "n": 1}]
    assert json.loads(out.partition("paths\n")[2]) == {"fix": ["heddle image"], "nodes": nodes}
    for observer in (PlainObserver(stream := io.StringIO()), RichObserver(live := io.StringIO())):
        observer.say("./inv image \x1b]0;builds it")
        observer.warn("./inv down")
    for text in (stream.getvalue(), live.getvalue()):
        assert text.splitlines() == ["heddle image ?]0;builds it", "warning: heddle down"]


@pytest.mark.usefixtures("installed")
def test_help_and_errors_have_that_name(capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    verbs = [task.verb.name for task in vars(tasks).values() if hasattr(task, "verb")]
    for words in ([], ["--list"], *([verb, "--help"] for verb in verbs), ["upp"], ["--lsit"], ["up", "a", "b", "c"]):
        main(vars(tasks), ["heddle", *words])
        output = capsys.readouterr()
        assert "./inv" not in output.out + output.err, words
        assert "heddle" in (output.out + output.err).lower() or words == ["--list"]


@pytest.mark.usefixtures("installed")
def test_the_name_goes_through_sudo(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run: list[list[str]] = []
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/sudo")
    monkeypatch.setattr(subprocess, "run", lambda argv, **_: subprocess.CompletedProcess(argv, 0))
    monkeypatch.setattr(os, "execv", lambda _, argv: run.append(argv))
    monkeypatch.setattr(sys, "argv", ["heddle", "up", "a b"])
    become_root("up")
    assert f"{progname.VARIABLE}=heddle" in run[0]
    assert run[0][-2:] == ["up", "a b"]


PICTURE = Path(__file__).resolve().parents[2] / "docs" / "demo.svg"


def text_of(svg: str) -> str:
    return html.unescape(svg).replace("\N{NO-BREAK SPACE}", " ")


def test_the_picture_shows_a_run_of_the_preset() -> None:
    shown = text_of(PICTURE.read_text(encoding="utf-8"))
    k = load_fabric("demo").fabric.policy.k
    assert shown.count(f"k = {k}: {emulated_words(k)}") == 2
    for act in ACTS:
        assert f"── {act.title} ──" in shown
    assert "warning" not in shown


def test_a_picture_is_drawn_from_what_a_run_prints() -> None:
    heads = [f"── {act.title} ──" for act in ACTS]
    svg = picture("\n".join([heads[0], "# first", heads[1], "# second", heads[2], "rtsw1:eth1  ███", "ran 2 times"]))
    shown = text_of(svg)
    for line in (*heads, "# first", "███", "ran 2 times"):
        assert line in shown
    assert "# second" not in shown
    assert "url(http" not in svg


MAYBE, SURE = Cause("processor", 8, 1, False, ""), Cause("worker", 8, 0, True, "")


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ((), ""),
        ((MAYBE,), "(The host CPU may have been the bottleneck in at least one run"),
        ((MAYBE, SURE), "(The host CPU was the bottleneck in at least one run"),
    ],
)
def test_a_machine_that_was_busy_is_named_after_the_lesson(causes: tuple[Cause, ...], said: str) -> None:
    use = MachineUse(0.5, 0.5, 0.0, 0, 0, wanted_pps=6000, budget_pps=10_000, unreliable=causes)
    found = having(result(), machine=use)
    run: Any = SimpleNamespace(busbw=1.0, overrun=found.overrun, limited=found.limited)
    paths: Any = SimpleNamespace(mmr=SimpleNamespace(bytes=2.0))
    played = tuple(Played(act, run, paths) for act in ACTS)
    remarks = [line for line in DemoResult(played, 1.0)._lesson() if "CPU" in line]
    assert len(remarks) == bool(said)
    assert not said or remarks[0].startswith(said)
