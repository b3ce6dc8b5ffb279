"""Progress of a step that waits: the reason in a log and on a terminal."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from heddle.cli.console import QUIET, UNCHANGED, PlainObserver, RichObserver
from heddle.fabric.shapes import build
from heddle.kernel.fib import Fib
from heddle.lab.daemons import Adjacency, _isis, _ospf6, awaited
from heddle.lab.imported.reachability import BgpSession, Look, Sessions
from heddle.spec.shapes.clos import ClosSpec

INIT = Adjacency("r1:eth1", "OSPF", "10.0.0.2", "is in Init, dead interval 40 s")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds, to be moved by the test."""
    now = [1000.0]
    monkeypatch.setattr("heddle.cli.console.time.monotonic", lambda: now[0])
    return now


def test_a_log_gets_a_line_when_the_reason_changes_but_not_too_often(clock: list[float]) -> None:
    out = io.StringIO()
    observer = PlainObserver(out)
    observer.begin("converge", 3)
    for tenth in range(int((QUIET + UNCHANGED + 2 * QUIET) * 10)):
        clock[0] = 1000 + tenth / 10
        observer.advance("converge", 1)
        observer.waiting("converge", "r1 -> 10.0.0.2 Active" if tenth < 400 else f"another reason, {tenth}")
    observer.end("converge", "ready")
    assert out.getvalue().splitlines() == [
        "converge: 1 of 3, r1 -> 10.0.0.2 Active",
        "converge: 1 of 3, r1 -> 10.0.0.2 Active",
        "converge: 1 of 3, another reason, 400",
        "converge: ready (44.9 s)",
    ]


def test_a_step_without_a_reason_is_reported_as_before(clock: list[float]) -> None:
    out = io.StringIO()
    observer = PlainObserver(out)
    observer.begin("create")
    for second in range(12):
        clock[0] = 1000.0 + second
        observer.advance("create", 7)
    assert out.getvalue().splitlines() == ["create: 7", "create: 7"]


def test_a_terminal_shows_the_reason_in_what_is_left_of_the_line() -> None:
    observer = RichObserver(io.StringIO())
    observer.begin("converge", 3)
    observer.advance("converge", 1)
    observer.waiting("converge", INIT.text())
    assert observer._progress is not None
    for width in (60, 120):
        shown = io.StringIO()
        Console(file=shown, width=width, highlight=False).print(observer._progress.get_renderable())
        line = shown.getvalue().splitlines()
        assert len(line) == 1
        assert "converge" in line[0]
        assert "1/3 r1:eth1 OSPF" in line[0]
        assert (INIT.text() in line[0]) == (width == 120)
    observer.close()


def test_a_reason_names_the_first_of_each_kind() -> None:
    fibs = {name: Fib(name, {}) for name in ("r1", "r2", "r3")}
    down = (BgpSession("r1", "10.0.0.2", "r2", "Active"), BgpSession("r2", "eth1", "r1", "Established"))
    unreached = (("r1", "10.1.2.2", "h2:eth1"), ("r3", "10.1.2.2", "h2:eth1"))
    now = Look(Sessions(down, (), tuple(fibs)), unreached, fibs)
    assert now.reason() == "r1 -> 10.0.0.2 Active; r1 (and 1 more) has no route to h2:eth1 (10.1.2.2)"
    assert replace(now, igp=(INIT,)).reason() == f"{INIT.text()}; r1 -> 10.0.0.2 Active; and 1 more"
    assert Look(Sessions((), ("r3",), tuple(fibs)), (), fibs).reason() == "r3 bgpd does not answer"


def test_a_neighbour_must_be_up_unless_one_end_of_the_link_is_passive() -> None:
    fabric = build(ClosSpec(name="k", racks=1, ctsw=2))
    wave = replace(INIT, port="rtsw1:eth1")
    alone = [replace(wave, port=port, neighbour="") for port in ("rtsw1:eth2", "ctsw1:eth1")]
    assert awaited(fabric, [wave, *alone]) == (wave, alone[1]), "its other end runs OSPF, too"
    other = replace(alone[0], port="ctsw2:eth1", protocol="IS-IS")
    assert awaited(fabric, [*alone, other]) == ()
    assert awaited(fabric, [alone[0], replace(other, protocol="OSPF", maybe=True)]) == (alone[0],)
    look = Look(Sessions((), (), ("r1",)), (), {}, (wave,), (wave,))
    assert not look.complete and look.lines() == [("rtsw1:eth1", wave.what, wave.why)]

    state = {"ospf6InterfaceState": "DR"}
    for ports, found in (
        ({"eth1": {**state, "timerPassiveIface": True}}, []),
        ({"eth1": {**state, "timerPassiveIface": False}}, [("eth1", False)]),
        ({"eth1": {"ospf6InterfaceState": "Down", "timerPassiveIface": False}}, [("eth1", True)]),
        ({"eth1": state, "eth2": {"ospf6InterfaceState": "Waiting"}}, [("eth1", True), ("eth2", False)]),
    ):
        answers = {"show ipv6 ospf6 interface json": ports, "show ipv6 ospf6 neighbor json": {}}
        assert [(each.port, each.maybe) for each in _ospf6(answers.__getitem__)] == found
    circuits = [{"interface": {"name": f"eth{n}", "is-passive": word}} for n, word in enumerate(("active", "passive"))]
    areas = {"areas": [{"circuits": circuits}]}
    assert [each.port for each in _isis(lambda words: areas if "interface" in words else {})] == ["eth0"]


def test_a_part_of_the_result_is_above_the_rows_and_a_dropped_step_prints_nothing() -> None:
    out = io.StringIO()
    plain = PlainObserver(out)
    plain.begin("run", 2)
    plain.aside(lambda: print("a row", file=out))
    plain.drop("run")
    plain.end("other", "ready")
    assert out.getvalue().splitlines() == ["a row", "other: ready (0.0 s)"]

    stream = io.StringIO()
    live = RichObserver(stream)
    live.console = Console(file=stream, force_terminal=True, width=60, highlight=False, _environ={"TERM": "xterm"})
    live.begin("run", 2)
    live.advance("run", 1)
    live.aside(lambda: print("a row", file=stream))
    assert live._progress is not None, "the bar goes on below the row"
    before, _, after = stream.getvalue().partition("a row\n")
    assert "1/2" in before and before.endswith("\x1b[2K"), "the bar is erased before the row is printed"
    assert "1/2" in after
    live.drop("run")
    live.close()
    assert "run: done" not in stream.getvalue()
