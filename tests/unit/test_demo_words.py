"""What the demo says of itself, and the picture of it in the README."""

from __future__ import annotations

import html
from pathlib import Path

import pytest

from heddle.base.units import emulated_words
from heddle.cli.demo import ACTS, DemoResult, Played
from heddle.fabric.fabricfile import load_fabric
from heddle.host.saturation import Cause
from heddle.runs.parts import MachineUse
from tests.bench.demopicture import picture

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


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ((), ""),
        ((Cause("processor", 8, 1, False, ""),), "(The host CPU may have been the bottleneck in at least one run"),
        (
            (Cause("processor", 8, 1, False, ""), Cause("worker", 8, 0, True, "")),
            "(The host CPU was the bottleneck in at least one run",
        ),
    ],
)
def test_a_machine_that_was_busy_is_named_after_the_lesson(causes: tuple[Cause, ...], said: str) -> None:
    use = MachineUse(0.5, 0.5, 0.0, 0, 0, wanted_pps=6000, budget_pps=10_000, unreliable=causes)

    class Run:
        busbw = 1.0
        machine = use

    class Mmr:
        bytes = 2.0

    class Paths:
        mmr = Mmr

    played = tuple(Played(act, Run(), Paths()) for act in ACTS)  # type: ignore[arg-type]
    remarks = [line for line in DemoResult(played, 1.0)._lesson() if "CPU" in line]
    assert len(remarks) == bool(said)
    assert not said or remarks[0].startswith(said)
