"""htb_hysteresis: `up` sets it without a message, and the `down` of the last lab restores it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.base.process import Journal
from heddle.fabric.policy import QueuePolicy
from heddle.fabric.shapes import build
from heddle.host import doctor, limits
from heddle.host.limits import HYSTERESIS, MachineLimits, at_once, needs_of
from heddle.spec.shapes.clos import ClosSpec
from heddle.switch.queues.classes import burst_bytes, class_plan

NEEDS = {HYSTERESIS: 1}


class Messages(Silent):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.lines.append(text)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MachineLimits:
    """A machine on which HTB has been loaded."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    made = MachineLimits(tmp_path / "proc", tmp_path / "run", tmp_path / "sys")
    made.run.mkdir()
    parameter(made).parent.mkdir(parents=True)
    parameter(made).write_text("0\n")
    return made


def parameter(machine: MachineLimits) -> Path:
    return machine.sys / "module/sch_htb/parameters/htb_hysteresis"


def up(machine: MachineLimits, lab: str, messages: Messages, needs: dict[str, int] | None = None) -> str:
    journal = Journal()
    machine.raise_for(lab, NEEDS if needs is None else needs, lambda _: True, journal, messages)
    return journal.script()


def down(machine: MachineLimits, lab: str, messages: Messages) -> None:
    machine.release(lab, lambda _: True, messages)


def test_up_sets_it_and_the_last_down_restores_it_without_a_word(machine: MachineLimits) -> None:
    messages = Messages()
    assert "echo 1 > /sys/module/sch_htb/parameters/htb_hysteresis" in up(machine, "one", messages)
    assert machine.value(HYSTERESIS) == 1
    assert "echo" not in up(machine, "two", messages), "two labs need no more than one"
    assert machine.value(HYSTERESIS) == 1
    down(machine, "one", messages)
    assert machine.value(HYSTERESIS) == 1
    down(machine, "two", messages)
    assert machine.value(HYSTERESIS) == 0
    assert messages.lines == []
    assert list(machine.run.iterdir()) == []


def test_where_it_is_on_already_it_stays_on(machine: MachineLimits) -> None:
    parameter(machine).write_text("1\n")
    messages = Messages()
    assert "echo" not in up(machine, "one", messages)
    down(machine, "one", messages)
    assert machine.value(HYSTERESIS) == 1


def test_where_it_cannot_be_set_a_lab_comes_up_without_a_warning(
    machine: MachineLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, *_: object, **__: object) -> int:
        raise OSError(30, "Read-only file system")

    messages = Messages()
    with monkeypatch.context() as patch:
        write = Path.write_text
        patch.setattr(
            Path, "write_text", lambda self, *a, **k: (refuse if "module" in str(self) else write)(self, *a, **k)
        )
        up(machine, "one", messages)
    assert machine.value(HYSTERESIS) == 0
    assert messages.lines == []
    down(machine, "one", messages)
    assert messages.lines == []


def test_a_lab_whose_ports_send_single_packets_does_not_need_it() -> None:
    fabric = build(ClosSpec.model_validate({"name": "q", "racks": 2, "ctsw": 2, "queues": {"burst": 1}}))
    assert needs_of(fabric)[HYSTERESIS] == 0
    assert needs_of(build(ClosSpec(name="q", racks=2, ctsw=2)))[HYSTERESIS] == 1


def test_doctor_tells_what_up_does_with_it(machine: MachineLimits, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HERE", machine)
    monkeypatch.setattr(doctor, "_try", lambda name, detail, *_, **__: doctor.Check(name, True, detail))
    assert doctor.CHECKS["htb"]().detail.endswith("htb_hysteresis = 0; up sets it to 1: fewer timer interrupts")
    messages = Messages()
    up(machine, "one", messages)
    assert doctor.CHECKS["htb"]().detail.endswith(
        "htb_hysteresis = 1, until the last lab is down: fewer timer interrupts"
    )
    down(machine, "one", messages)
    monkeypatch.setattr(MachineLimits, "writable", lambda self, key: False)
    assert "read-only: every packet of a backlog has its own timer interrupt" in doctor.CHECKS["htb"]().detail
    parameter(machine).unlink()
    assert doctor.CHECKS["htb"]().detail.endswith("htb_hysteresis is not visible here")


@pytest.mark.parametrize("rate", [1_000_000, 33_300_000, 50_000_000, 100_000_000, 999_999_999, 10**9])
@pytest.mark.parametrize("packets", range(1, 17))
def test_htb_sends_as_many_packets_as_the_burst_has(packets: int, rate: int) -> None:
    """A model of htb_class_mode with hysteresis, in bytes: send until tokens are below -cburst, then wait for 0."""
    frame, mtu = 4170, 4200
    burst = burst_bytes(mtu, packets, rate) * 8_000_000 // rate * rate / 8_000_000  # tc: in whole microseconds
    groups = []
    tokens = 0.0
    for _ in range(5):
        sent = 0
        while tokens >= -burst:
            tokens -= frame
            sent += 1
        groups.append(sent)
        tokens = 0.0
    assert groups == [packets] * 5
    tokens, sent = burst, 0
    while tokens >= -burst:
        tokens -= frame
        sent += 1
    assert sent <= at_once(packets), "an idle port"
    assert class_plan(QueuePolicy(burst=packets)).burst == packets
