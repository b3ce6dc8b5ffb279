"""`plot marking`: the lab's own program, and the kernel's RED where it has it, on one picture with the configured line.

Distances from the line: a range of depth has 800 packets, whose share of marks has a standard error of at most 0.018.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from heddle.base.ethernet import CLASSES
from heddle.lab.lab import Lab
from heddle.switch.queues import markers, red
from heddle.switch.queues.cells import LabQueues
from tests.typed import typed

pytestmark = pytest.mark.root

NO_RED: Final = red.missing()
FAR: Final = 0.08  # four to six standard errors, for the largest of 40 distances


def plotted(lab: Lab, path: Path, *words: str) -> dict[str, Any]:
    done = typed("plot", "marking", "--lab", lab.name, "--out", str(path), "--format", "json", *words)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def of_no_port(lab: Lab) -> list[bytes]:
    """The rows of port 0, which belong to no port of the lab: the measurement uses them."""
    with LabQueues.pinned(lab.fabric) as live:
        return [live.links[:1].tobytes(), live.cells[:CLASSES].tobytes(), live.rules[: 2 * CLASSES].tobytes()]


def test_the_program_marks_the_configured_line_and_nothing_of_the_lab_changes(tiny: Lab, tmp_path: Path) -> None:
    before = of_no_port(tiny)
    data = plotted(tiny, tmp_path / "marking.svg")
    ecn = tiny.fabric.policy.queues.ecn
    assert (data["class"], data["curve"]) == (3, {"kmin": ecn.kmin, "kmax": ecn.kmax, "pmax": ecn.pmax})
    program = data["markers"][0]
    assert (program["marker"], program["packets"]) == ("bpf", 800 * markers.RANGES)
    assert program["worst"] < FAR
    shares = dict(zip(program["depths"], program["shares"], strict=True))
    half = program["depths"][0]
    assert {share for depth, share in shares.items() if depth + half <= ecn.kmin} == {0.0}
    assert {share for depth, share in shares.items() if depth - half >= ecn.kmax} == {1.0}
    assert sum(0 < share < 1 for share in shares.values()) > markers.RANGES / 2
    assert of_no_port(tiny) == before
    assert (tmp_path / "marking.svg").read_text().count("ECN markers") > 0


@pytest.mark.skipif(not NO_RED, reason="this kernel has sch_red")
def test_without_red_the_verb_says_so_and_draws_what_there_is(tiny: Lab, tmp_path: Path) -> None:
    data = plotted(tiny, tmp_path / "marking.svg")
    assert [each["marker"] for each in data["markers"]] == ["bpf"]
    assert data["missing"] == "this kernel has no sch_red"
    said = typed("plot", "marking", "--lab", tiny.name, "--out", str(tmp_path / "again.svg"))
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == f"wrote {tmp_path / 'again.svg'}"
    assert lines[2] == "RED (ecn.marker: red): not measured, this kernel has no sch_red; add --place vm"
    assert "RED not measured: this kernel has no sch_red" in (tmp_path / "again.svg").read_text()


@pytest.mark.deep
@pytest.mark.skipif(bool(NO_RED), reason=NO_RED)
def test_both_markers_mark_the_configured_line(tiny: Lab, tmp_path: Path) -> None:
    """RED's own curve is above the line by at most 0.006 for pmax 0.2 (docs/queues.md)."""
    data = plotted(tiny, tmp_path / "marking.svg")
    assert [each["marker"] for each in data["markers"]] == ["bpf", "red"]
    assert data["missing"] == ""
    curve = red.Curve(**data["curve"])
    for each in data["markers"]:
        assert each["packets"] >= 800 * markers.RANGES
        assert each["worst"] < FAR, each["marker"]
    kernel = data["markers"][1]
    step = kernel["depths"][1] - kernel["depths"][0]
    for depth, share in zip(kernel["depths"], kernel["shares"], strict=True):
        if all(abs(depth - edge) > step for edge in (curve.kmin, curve.kmax)):
            assert share == pytest.approx(curve.fraction(depth), abs=FAR), depth
    assert {
        share for depth, share in zip(kernel["depths"], kernel["shares"], strict=True) if depth + step <= curve.kmin
    } == {0.0}
    assert "RED (ecn.marker: red), measured" in (tmp_path / "marking.svg").read_text()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--port", "rtsw1:eth1"], "--port rtsw1:eth1 is not for plot marking"),
        (["--run", "1"], "--run 1 is not for plot marking"),
        (["--class", "6"], "--class 6 is not one class that is marked\n  hint: one of 0, 3"),
        (["--class", "three"], "--class three is not one class that is marked"),
        (["--class", "0", "--class", "3"], "--class 0,3 is not one class that is marked"),
        (["--out", "marking.txt"], "--out marking.txt has no suffix of a picture"),
    ],
)
def test_wrong_words_are_refused(tiny: Lab, tmp_path: Path, words: list[str], why: str) -> None:
    done = typed("plot", "marking", "--lab", tiny.name, *words, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert why in done.stderr
    assert not list(tmp_path.iterdir())


def test_a_lab_that_does_not_mark_has_nothing_to_measure(borrow: Any, tmp_path: Path) -> None:
    lab = borrow("tiny", "queues.ecn.enabled=false")
    done = typed("plot", "marking", "--lab", lab.name, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"plot marking has nothing to measure: {lab.name} does not mark" in done.stderr
