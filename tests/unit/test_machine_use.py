"""When a run is unreliable because of its machine or its fabric: from the texts of the kernel to the verdict."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest
from pydantic import TypeAdapter

from heddle.host import capacity
from heddle.host.capacity import (
    Absences,
    Cause,
    MachineReading,
    OwnTime,
    PacketBudget,
    Phase,
    Processor,
    WorkerUse,
    parse_reading,
)
from heddle.lab.fabricstate import FabricReading, FabricState
from heddle.runs.parts.machine import MachineUse
from tests.answers import Answers
from tests.unit import run_samples as samples

CALM = WorkerUse(1.0, 0.3, 0.02)
BUDGET = PacketBudget(5_000, 10_000)


def stat(*idle: tuple[int, int], first: int = 0) -> str:
    """/proc/stat of processors with these ticks of idle and iowait; tick accounting claims that all were idle."""
    rows = [f"cpu{first + n} 5 0 5 {ticks} {io} 0 0 0 0 0" for n, (ticks, io) in enumerate(idle)]
    return "\n".join(["cpu  1 2 3 4 5 6 7 8 0 0", *rows, "intr 1 2 3", "ctxt 9"]) + "\n"


def softnet(*rows: tuple[int, int, int | None]) -> str:
    """/proc/net/softnet_stat: packets, drops, and the processor where the kernel writes it."""
    lines = []
    for packets, drops, number in rows:
        words = [packets, drops, *[0] * 10, *([number, 0, 0] if number is not None else [])]
        lines.append(" ".join(f"{word:08x}" for word in words))
    return "\n".join(lines) + "\n"


def test_readings_are_those_of_the_kernel() -> None:
    reading = parse_reading(7.0, stat((100, 20), (300, 0)), softnet((0x10, 1, 0), (0x20, 2, 1)))
    assert reading == MachineReading(
        7.0, {0: Processor(1.2, 16, user_s=0.05, system_s=0.05), 1: Processor(3.0, 32, user_s=0.05, system_s=0.05)}, 3
    )


def test_processors_that_are_or_went_offline_are_left_out() -> None:
    numbered = parse_reading(0.0, stat((1, 0), (2, 0), first=2), softnet((8, 0, 2), (9, 0, 3)))
    old = parse_reading(0.0, stat((1, 0), (2, 0), first=2), softnet((8, 0, None), (9, 0, None)))
    assert numbered == old
    assert [(number, each.packets) for number, each in old.processors.items()] == [(2, 8), (3, 9)]
    # A processor that went online or offline is left out.
    before = MachineReading(0.0, {0: Processor(1.0, 0), 1: Processor(1.0, 0)}, 0)
    after = MachineReading(1.0, {1: Processor(1.5, 10), 2: Processor(0.0, 0)}, 0)
    assert [use.number for use in Phase.between(8, before, after, (CALM,)).processors] == [1]


def test_this_machine_can_be_read_and_time_passes() -> None:
    first, own = capacity.read(), capacity.own_time()
    while capacity.own_time().ran_s - own.ran_s < 0.02:
        pass
    second = capacity.read()
    assert set(first.processors) == set(second.processors) >= os.sched_getaffinity(0)
    assert second.at_s > first.at_s
    assert all(second.processors[n].idle_s >= each.idle_s for n, each in first.processors.items())
    assert first.backlog_drops <= capacity.backlog_drops()


def phase(
    seconds: float = 1.0,
    idle: tuple[float, ...] = (0.5, 0.5),
    packets: tuple[int, ...] = (500, 500),
    drops: int = 0,
    workers: tuple[WorkerUse, ...] = (CALM, CALM),
) -> Phase:
    """The phase between a reading and one of so many seconds later, with shares of idle time by processor."""
    before = MachineReading(100.0, {n: Processor(50.0, 1000) for n in range(len(idle))}, 7)
    after = {
        n: Processor(50.0 + share * seconds, 1000 + count)
        for n, (share, count) in enumerate(zip(idle, packets, strict=True))
    }
    return Phase.between(1 << 16, before, MachineReading(100.0 + seconds, after, 7 + drops), workers)


def test_the_causes_of_a_size_follow_from_readings(answers: Answers) -> None:
    def causes(readings: dict[str, Any]) -> str:
        """The workers' use as the numbers of WorkerUse."""
        if "workers" in readings:
            readings["workers"] = tuple(WorkerUse(*use) for use in readings["workers"])
        found = phase(**readings).causes()
        assert all(each.size == 1 << 16 and each.text for each in found)
        return "\n".join(f"{each.cause} {each.number}, sure: {each.sure}: {each.text}" for each in found)

    answers(causes)


def test_one_full_size_among_idle_ones_is_found() -> None:
    """Over the whole run the processors were busy for a fifth of the time: an average would not notice."""
    calm, full = phase(seconds=8.0, idle=(0.9, 0.9)), phase(seconds=1.0, idle=(0.0, 0.0))
    use = MachineUse.of([replace(calm, size=1), full, replace(calm, size=2)], 0, BUDGET)
    assert use.cpu_share == pytest.approx((16 * 0.1 + 1) / 17)
    run = samples.having(samples.result(), machine=use)
    assert run.limited and not run.overrun
    assert use.doubt_lines()[0] == (
        "the host CPU may have been the bottleneck at 1 of 3 sizes: do not trust bandwidth or depths"
    )


def test_a_size_that_is_measured_in_place_too_is_one_size() -> None:
    full = phase(idle=(0.0, 0.0))
    assert " sizes" not in MachineUse.of([full, full], 0, BUDGET).doubt_lines()[0]
    two = MachineUse.of([full, full, *[replace(phase(), size=1)] * 2], 0, BUDGET)
    assert "at 1 of 2 sizes" in two.doubt_lines()[0]


def test_an_absence_is_a_late_end_of_a_wait_that_no_processor_time_explains() -> None:
    times = [OwnTime(0.0, 0.0, 0.0)]
    absences = Absences(lambda: times[-1])

    def look(due_s: float, now_s: float, ran_s: float, waited_s: float = 0.0) -> float:
        times.append(OwnTime(now_s, times[-1].ran_s + ran_s, times[-1].waited_s + waited_s))
        absences.look(now_s, due_s)
        return absences.seconds

    assert look(0.1, 0.1, 0.0) == 0.0  # nothing to do: a slow link
    assert look(0.2, 0.13, 0.0) == 0.0  # a packet came before the end of the wait
    assert look(0.2, 2.2, 0.001) == pytest.approx(1.999)  # stopped
    assert look(2.3, 4.3, 2.0) == pytest.approx(1.999)  # it ran
    assert look(4.4, 6.4, 0.5, 1.5) == pytest.approx(1.999)  # it waited for a processor
    assert look(6.5, 6.55, 0.0) == pytest.approx(1.999)  # a timer that was late
    assert look(6.6, 7.6, 0.1, 0.4) == pytest.approx(2.499)


def test_shares_of_workers_are_weighted_by_time() -> None:
    long = phase(seconds=3.0, workers=(WorkerUse(3.0, 0.2, 0.0), WorkerUse(3.0, 0.1, 0.08)))
    short = phase(seconds=1.0, workers=(WorkerUse(1.0, 0.6, 0.0), WorkerUse(1.0, 0.1, 0.0)))
    use = MachineUse.of([long, short], 0, BUDGET)
    assert use.worker_share == pytest.approx(0.3)
    assert use.waited_share == pytest.approx(0.06)
    # A worker reports time used and time waited.
    worker = WorkerUse.between(OwnTime(10.0, 1.0, 0.5), OwnTime(14.0, 3.0, 0.9))
    assert (worker.seconds, worker.busy) == (4.0, 0.5)
    assert worker.waited == pytest.approx(0.1)


def text_of(use: MachineUse) -> str:
    return samples.having(samples.result(), machine=use).table()


def test_the_table_reports_causes_below_the_bandwidths_and_some_of_many(answers: Answers) -> None:
    causes = phase(idle=(0.5, 0.0), workers=(CALM, WorkerUse(1.0, 0.7, 0.28))).causes()
    use = replace(MachineUse.of([phase()], 0, PacketBudget(20_000, 9_000)), unreliable=causes)
    lines = text_of(use).splitlines()
    at = lines.index("# Out of bounds values : 0 OK")
    assert not lines[at - 5].startswith("#")
    many = tuple(replace(phase(drops=1).causes()[0], size=1 << at) for at in range(10, 19))
    shown = replace(MachineUse.of([phase()], 0, BUDGET), unreliable=many).doubt_lines()
    answers({"two": "\n".join(lines[at - 4 : at]), "some of nine": "\n".join(shown)})


def test_json_has_typed_causes_and_a_record_keeps_them() -> None:
    use = MachineUse.of([phase(seconds=0.1, idle=(0.0, 0.0)), phase(idle=(0.0, 0.5))], 4, PacketBudget(11, 10))
    document = json.loads(json.dumps(samples.having(samples.result(), machine=use).to_json()))
    assert [(each["cause"], each["size"], each["number"]) for each in document["unreliable"]] == [
        ("processor", 1 << 16, 0),
        ("sockets", None, None),
    ]
    assert [each["judged"] for each in document["machine"]["phases"]] == [False, True]
    assert document["machine"]["over_budget"] is True
    use_within = MachineUse.of([phase()], 0, PacketBudget(10, 10))
    assert samples.having(samples.result(), machine=use_within).to_json()["machine"]["over_budget"] is False
    assert PacketBudget(11, 10).exceeded and not PacketBudget(10, 10).exceeded
    assert TypeAdapter(tuple[Cause, ...]).validate_python(document["unreliable"]) == use.unreliable
    # A record keeps the reasons.
    use = MachineUse.of([phase(idle=(0.0, 0.5))], 0, BUDGET)
    adapter = TypeAdapter(MachineUse)
    assert adapter.validate_json(adapter.dump_json(use)) == use


def test_busy_time_has_softirqs_and_stolen_time() -> None:
    text = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 {user} {nice} {system} {idle} 0 {irq} {softirq} 0 0 0\n"
    start = text.format(user=10, nice=3, system=20, idle=100, irq=1, softirq=10)
    before = parse_reading(0.0, start, softnet((0, 0, 0)))
    end = text.format(user=14, nice=9, system=35, idle=110, irq=3, softirq=58)
    after = parse_reading(1.0, end, softnet((8, 0, 0)))
    assert after.processors[0].softirq_s == pytest.approx(0.61)
    first = Phase.between(4, before, after, ()).processors[0]
    assert first.busy == pytest.approx(0.9)
    assert (first.softirq, first.user, first.system) == pytest.approx((0.5, 0.1, 0.15))
    # Stolen time is a part of the busy time and is named.
    text = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 10 0 20 {idle} 0 1 2 {stolen} 0 0\ncpu1 0 0 0 {rest} 0 0 0 0 0 0\n"
    lines = softnet((0, 0, 0), (0, 0, 1))
    before = parse_reading(0.0, text.format(idle=100, stolen=5, rest=100), lines)
    after = parse_reading(1.0, text.format(idle=102, stolen=45, rest=200), softnet((8, 0, 0), (0, 0, 1)))
    assert after.processors[0].stolen_s == pytest.approx(0.45)
    found = Phase.between(4, before, after, ())
    assert found.processors[0].stolen == pytest.approx(0.4) and found.stolen == pytest.approx(0.2)
    (cause,) = found.causes()
    assert (
        cause.text
        == "processor 0: 98% busy (0% in softirqs, 40% taken by the hypervisor), 100% of the packets passed it"
    )
    # Time between ticks counts as busy: Softirqs between two ticks, and what a hypervisor took: only the idle field of
    # /proc/stat shows them.
    before = parse_reading(0.0, stat((1000, 0), (1000, 0)), softnet((0, 0, 0), (0, 0, 1)))
    after = parse_reading(1.0, stat((1098, 0), (1002, 0)), softnet((10, 0, 0), (90, 0, 1)))
    found = Phase.between(8, before, after, (CALM,))
    assert [(use.number, round(use.busy, 2), use.packets) for use in found.processors] == [
        (0, 0.02, 0.1),
        (1, 0.98, 0.9),
    ]
    (cause,) = found.causes()
    assert cause.text == "processor 1: 98% busy (0% in softirqs), 90% of the packets passed it"


def test_programs_of_a_lower_priority_give_way_and_do_not_make_a_run_unreliable(tmp_path: Path) -> None:
    """Also those that ended, if their parent has a low priority, too. Workers have a nice value, too.

    Only user code counts, as in the time that /proc/stat has by nice values. A name may have any bytes.
    """

    def process(number: int, nice: int, ticks: tuple[int, int, int, int]) -> None:
        (tmp_path / str(number)).mkdir(exist_ok=True)
        words = [*["S", "1", "1", "1", "0", "-1", "4194304", "0", "0", "0", "0"], *ticks, 20 + nice, nice, 1, 0, 99]
        text = f"{number} (a (b) c) {' '.join(map(str, words))}\n"
        (tmp_path / str(number) / "stat").write_bytes(text.encode().replace(b"c", b"\xc3"))

    process(1, 0, (900, 900, 900, 900))
    process(2, 5, (300, 0, 0, 0))  # a worker
    process(3, 10, (10, 5, 20, 0))
    assert capacity.lower_seconds(tmp_path, 0) == pytest.approx(0.30)
    assert capacity.lower_seconds(tmp_path, 10) == 0
    (tmp_path / "4").mkdir()  # a process that has ended
    text = "cpu  0 0 0 0 0 0 0 0 0 0\ncpu0 0 {nice} 0 {idle} 0 0 0 0 0 0\n"
    start = text.format(nice=100, idle=100), softnet((0, 0, 0))
    end = text.format(nice=190, idle=100), softnet((8, 0, 0))
    # Of 90 ticks with a nice value 60 were of a program that gives way; all of them are at most 90.
    for lower_s, busy, causes in ((0.6, 0.4, 0), (0.04, 0.96, 1), (0.0, 1.0, 1), (2.0, 0.1, 0)):
        found = Phase.between(4, parse_reading(0.0, *start, 5.0), parse_reading(1.0, *end, 5.0 + lower_s), (CALM,))
        (use,) = found.processors
        assert (use.busy, found.cpu, use.user) == pytest.approx((busy, busy, busy - 0.1))
        assert len(found.causes()) == causes


def test_the_time_of_a_running_program_of_low_priority_is_read(tmp_path: Path) -> None:
    code = "import os\nwhile os.times().user < 0.1: pass\nprint(flush=True)\ninput()"
    with subprocess.Popen(["nice", "-n", "19", sys.executable, "-c", code], stdin=PIPE, stdout=PIPE) as program:
        assert program.stdout is not None and program.stdout.readline()
        # Alone: another program of the machine may end between two readings.
        (tmp_path / str(program.pid)).symlink_to(f"/proc/{program.pid}")
        assert capacity.lower_seconds(tmp_path) >= 0.09
        program.communicate(b"\n")


FINE = FabricReading()
DOWN = FabricReading(("rtsw1:eth1  the link is down",), ("rtsw1:eth1 is down",))
LOST = FabricReading((), tuple(f"rtsw{n}: 10.0.0.0/24 has no next hop eth1" for n in range(1, 8)))


def outputs_of(before: FabricReading, after: FabricReading, *changed: str) -> tuple[str, dict[str, object]]:
    state = FabricState(before, after, changed)
    result = replace(samples.result(), before=state.before, fabric_state=state, warnings=tuple(state.warnings()))
    return result.table(), json.loads(json.dumps(result.to_json()))


def test_a_fabric_converged_all_the_time_has_no_warnings() -> None:
    text, data = outputs_of(FINE, FINE)
    assert "#fabric" not in text
    assert data["warnings"] == []
    assert data["fabric_state"] == {
        "state": "converged",
        "before": {"converged": True, "faults": [], "gaps": []},
        "after": {"converged": True, "faults": [], "gaps": []},
        "changed": [],
    }


def test_a_degraded_or_changed_fabric_is_named_above_and_below_the_figures(answers: Answers) -> None:
    short = replace(samples.result(), before=DOWN, fabric_state=FabricState(DOWN, DOWN)).table(short=True)
    assert "#fabric   : degraded before" in short
    cases: dict[str, tuple[FabricReading, FabricReading, tuple[str, ...]]] = {
        "degraded": (DOWN, DOWN, ()),
        "degraded during the run": (FINE, DOWN, ("rtsw1", "ctsw1")),
        "repaired during the run": (DOWN, FINE, ()),
        "changed during the run": (FINE, FINE, ("rtsw1",)),
        "with many gaps": (LOST, LOST, ()),
    }
    said = {}
    for name, (before, after, changed) in cases.items():
        text, data = outputs_of(before, after, *changed)
        lines = [line for line in text.splitlines() if line.startswith(("#fabric", "#warning", "#        (B)"))]
        said[name] = "\n".join([*lines, json.dumps([data["warnings"], data["fabric_state"]])])
    answers(said)
