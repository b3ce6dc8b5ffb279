"""Two runs side by side: what is refused, which settings differ, and which differences noise and equal runs explain."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.base.problems import InputError
from heddle.cli.program import main
from heddle.fabric.fabricfile import load_fabric
from heddle.host.capacity import Cause
from heddle.lab.fabricstate import FabricReading, FabricState
from heddle.predict.statistics import interval
from heddle.runs.compare import Comparison, Ratio, compare, equal_runs, judged
from heddle.runs.parts.machine import MachineUse
from heddle.runs.parts.queues import QueueUse
from heddle.runs.runrecord import RunRecord
from heddle.traffic.options import RunOptions
from heddle.views.runstext import compare_text
from tests.unit import run_samples as samples
from tests.unit.kept_runs import AROUND, keep, row, with_rows

OPTIONS = RunOptions(sizes=(1 << 16, 1 << 20), qps=4)
STEADY_A = row(1 << 16, 1000, 1010, 990, 1005, 995)


def record(*rows_us: tuple[int, tuple[float, ...]], options: RunOptions = OPTIONS, ecmp: str = "flow") -> RunRecord:
    return with_rows(samples.record(options, ecmp=ecmp), *(row(size, *each) for size, each in rows_us))


def both(place: Path, a: RunRecord, b: RunRecord) -> Comparison:
    return compare(keep(place, 1, a), keep(place, 2, b))


def of(found: Comparison, figure: str, size: int | None = None) -> Ratio:
    return next(each for each in found.ratios if each.figure == figure and each.size == size)


def test_ratios_are_b_over_a_and_settings_that_differ_stand_on_top(tmp_path: Path) -> None:
    a = record((1 << 16, (1000, 1010, 990)), (1 << 20, (9000, 9100, 8900)))
    b = record(
        (1 << 16, (500, 505, 495)), (1 << 20, (9010, 9110, 8910)), options=replace(OPTIONS, qps=16), ecmp="e-ecmp"
    )
    found = both(tmp_path, a, b)
    assert {each.name: (each.a, each.b) for each in found.settings} == {
        "run.qps": ("4", "16"), "hashing": ("flow", "e-ecmp"),
    }  # fmt: skip
    quick = of(found, "busbw", 1 << 16)
    assert quick.ratio == pytest.approx(2.0)
    assert quick.verdict == "differs"
    assert of(found, "time", 1 << 16).ratio == pytest.approx(0.5)
    assert of(found, "busbw", 1 << 20).verdict == "noise"
    assert of(found, "MMR of flows").verdict == "same"
    assert of(found, "marks").verdict == "same"
    assert of(found, "processors busy").ratio == pytest.approx(1.0)


def test_another_profile_differs(tmp_path: Path) -> None:
    dcqcn = replace(OPTIONS, congestion="dcqcn")
    a = keep(
        tmp_path, 1, record((1 << 16, (1000, 1010, 990)), options=replace(dcqcn, own={"congestion_profile": "nvidia"}))
    )
    b = keep(tmp_path, 2, record((1 << 16, (1000, 1010, 990)), options=dcqcn))
    found = {each.name: (each.a, each.b) for each in compare(a, b).settings}
    assert found == {"run.congestion_profile": ("nvidia", "default")}


def test_noise_is_what_identical_runs_and_iterations_differ_by() -> None:
    assert judged(STEADY_A, row(1 << 16, 1020, 1020, 1020, 1020, 1020))[0] == "noise"
    assert judged(STEADY_A, row(1 << 16, 1040, 1040, 1040, 1040, 1040))[0] == "differs"
    # Iterations that differ much show neither a difference nor that there is none.
    wild = row(1 << 16, 700, 1500, 900, 1600, 1000)
    assert judged(STEADY_A, wild)[0] == "unknown"
    verdict, why = judged(STEADY_A, row(1 << 16, 1130, 1140, 1150, 1135, 1145))
    assert verdict == "differs"
    assert "means are 13.1% apart" in why


@pytest.mark.parametrize(("us", "verdict"), [(103.05, "differs"), (102.95, "noise")])
def test_the_verdict_does_not_depend_on_the_order(us: float, verdict: str) -> None:
    one, other = row(1 << 16, 100, 100, 100), row(1 << 16, us, us, us)
    assert judged(one, other) == judged(other, one)
    assert judged(one, other)[0] == verdict


def test_equal_runs_decide_before_iterations_and_the_rule_of_3_percent() -> None:
    one, other = row(1 << 16, 1000, 1000, 1000), row(1 << 16, 1029, 1029, 1029)
    busbw = one.busbw, other.busbw
    groups = [[value, *(value * (1 + 0.0005 * (-1) ** at) for at in range(9))] for value in busbw]
    assert judged(one, other)[0] == "noise", "2.9 % is noise where there are no equal runs"
    verdict, why = judged(one, other, groups)
    assert (verdict, why) == (
        "differs",
        "a factor of 1.03 apart; 10 and 10 equal runs, all of A are higher: p < 0.0001",
    )
    wide = [[value * (1 + 0.04 * (-1) ** at) for at in range(10)] for value in busbw]
    assert judged(one, row(1 << 16, 1040, 1041, 1042), wide)[0] == "noise", "iterations alone say that it differs"
    assert judged(one, row(1 << 16, 2000, 2001, 2002), [[one.busbw], [one.busbw / 2]], chance="a coin")[0] == "unknown"


@pytest.mark.parametrize("times", [(1200.0,), (1200.0, 1201.0)])
def test_with_few_iterations_the_noise_is_not_known(times: tuple[float, ...]) -> None:
    verdict, why = judged(STEADY_A, row(1 << 16, *times))
    assert verdict == "unknown"
    assert "too few" in why


def test_a_run_that_the_processors_limited_is_not_judged(tmp_path: Path) -> None:
    a, b = (record((1 << 16, (us, us + 1, us + 2)), (1 << 20, (us, us + 1, us + 2))) for us in (1000.0, 2000.0))
    cause = Cause("processor", 1 << 16, 1, sure=False, text="processor 1: 99% busy")
    b = samples.having(b, machine=replace(b[MachineUse], unreliable=(cause,)))
    found = both(tmp_path, a, b)
    assert of(found, "busbw", 1 << 16).verdict == "unknown"
    assert of(found, "busbw", 1 << 20).verdict == "differs"
    assert found.ok and "B: UNRELIABLE: processor 1: 99% busy" in found.notes
    told = of(compare(found.a, found.b, unreliable=True), "busbw", 1 << 16)
    assert (told.verdict, told.why[:47]) == ("differs", "despite B: UNRELIABLE: processor 1: 99% busy; m")
    # Figures that are the same say so, too.
    allowed = compare(found.a, found.b, unreliable=True)
    marks, text = of(allowed, "marks"), " ".join(compare_text(allowed).split())
    assert (marks.verdict, marks.why) == ("same", "despite B: UNRELIABLE: processor 1: 99% busy")
    assert "same: " in text and "marks" in text.partition("same: ")[2].partition("despite B")[0]


def test_wrong_data_and_unproven_paths_have_no_verdict_and_no_flag_gives_one(tmp_path: Path) -> None:
    a = with_rows(counted(ONE, 3), row(1 << 16, 1000, 1001, 1002))
    wrong = with_rows(a, replace(row(1 << 16, 2000, 2001, 2002), wrong=4096))
    unproven = with_rows(a, row(1 << 16, 2000, 2001, 2002))
    assert unproven.proof is not None
    unproven = replace(unproven, proof=replace(unproven.proof, agree=False, unproven=2))
    good = with_rows(a, row(1 << 16, 2000, 2001, 2002))
    first, *others = [keep(tmp_path, n, each) for n, each in enumerate((a, wrong, unproven, good), 1)]
    for run, why in zip(others, ("4,096 wrong elements", "2 of "), strict=False):
        for pair, name in (((first, run), "B"), ((run, first), "A")):
            found = compare(*pair, unreliable=True)
            assert not found.ok and not found.to_json()["ok"]
            assert {each.verdict for each in found.ratios} == {"unknown"}, "not even the same"
            assert all(each.why.startswith(f"{name}: {why}") for each in found.ratios)
            assert any(note.startswith(f"{name}: {why}") for note in found.notes)
    found = compare(first, others[2])
    assert found.ok and of(found, "busbw", 1 << 16).verdict == "differs"


def test_the_verb_fails_for_wrong_data_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import tasks

    good = with_rows(counted(ONE, 3), row(1 << 16, 1000, 1001, 1002))
    wrong = with_rows(good, replace(row(1 << 16, 2000, 2001, 2002), wrong=4096))
    one, other, bad = (str(keep(tmp_path, n, each).path) for n, each in enumerate((good, good, wrong), 1))
    assert main(vars(tasks), ["inv", "compare", one, other]) == 0
    capsys.readouterr()
    assert main(vars(tasks), ["inv", "compare", one, bad, "--accept-unreliable"]) == 1
    said = capsys.readouterr().out
    assert "note: B: 4,096 wrong elements" in said and "  differs\n" not in said and "  not known\n" in said


def test_wrong_data_of_an_interrupted_run_count_too(tmp_path: Path) -> None:
    b = samples.interrupted()
    b = replace(b, rows=tuple(replace(each, wrong=1) for each in b.rows))
    found = both(tmp_path, samples.record(), b)
    assert not found.ok and {each.verdict for each in found.ratios} <= {"unknown", "same"}


def test_the_interval_is_welchs() -> None:
    """NIST/SEMATECH e-Handbook 1.3.5.3 has the arithmetic; here by hand: s2/n of both."""
    one, other = [0.0, 2.0] * 500, [10.0, 14.0] * 500
    by_hand = 1.962339 * math.sqrt(1.001001 / 1000 + 4.004004 / 1000)  # many degrees of freedom: almost normal
    assert interval(one, other) == pytest.approx(by_hand, rel=1e-4)
    assert interval([1.0, 1.0, 1.0], [2.0, 2.0, 2.0]) == 0.0


def test_sizes_that_only_one_has_are_left_out_and_named(tmp_path: Path) -> None:
    a = record((1 << 16, (1000, 1001, 1002)), (1 << 20, (9000, 9001, 9002)))
    b = record((1 << 16, (1000, 1001, 1002)), (1 << 18, (3000, 3001, 3002)))
    found = both(tmp_path, a, b)
    assert {each.size for each in found.ratios} == {1 << 16, None}
    assert found.left_out == ("1 MiB (only A)", "256 KiB (only B)")


@pytest.mark.parametrize(
    ("b", "why"),
    [
        (
            record((1 << 16, (1.0,)), options=RunOptions(collective="incast")),
            r"different collectives \(all-reduce, incast\)",
        ),
        (
            replace(record((1 << 16, (1.0,))), k=8000),
            "k = 4000, k = 8000",
        ),
        (record((1 << 17, (1.0,))), "have no size in common: 64 KiB and 128 KiB"),
        (samples.failed(), "failed and has no figures: rank 1 on host2:eth1"),
    ],
)
def test_what_cannot_be_compared_is_refused_with_the_reason(tmp_path: Path, b: RunRecord, why: str) -> None:
    with pytest.raises(InputError, match=why):
        both(tmp_path, record((1 << 16, (1.0,))), b)


def test_an_interrupted_run_is_compared_by_the_sizes_that_it_has(tmp_path: Path) -> None:
    a = samples.record()
    found = both(tmp_path, a, samples.interrupted())
    assert [each.figure for each in found.ratios] == ["busbw", "time"]
    assert any("B was interrupted" in note for note in found.notes)


def test_settings_of_the_fabric_and_of_the_running_lab_are_compared(tmp_path: Path) -> None:
    other = load_fabric("tiny", overrides=["queues.ecn.kmax=200KB", "link.fabric=50mbit"]).fabric
    one = keep(tmp_path, 1, samples.record())
    found = compare(one, keep(tmp_path, 2, samples.record(), around=replace(AROUND, fabric=other)))
    names = {each.name for each in found.settings}
    assert {"fabric.queues.ecn.kmax", "rates of links (bit/s)"} <= names
    # A run without its fabric says that its settings are not compared.
    found = compare(keep(tmp_path / "1", 1), keep(tmp_path / "1", 2, around=None))
    assert any(
        note.startswith("B: settings of its fabric are not compared: fabric.json is missing") for note in found.notes
    )


def test_what_was_set_while_the_lab_ran_differs(tmp_path: Path) -> None:
    seed = AROUND.fabric.by_name["ctsw1"].hash_seed
    rule: dict[str, object] = {"mode": "e-ecmp", "seed": seed, "options": {"resilient": True}, "exact": []}
    live = replace(AROUND, queues={"rtsw1": {"ecn.kmax": 800_000}}, hashing={"ctsw1": rule, "ctsw2": {"seed": 7}})
    found = compare(keep(tmp_path, 1), keep(tmp_path, 2, around=live))
    told = {each.name: (each.a, each.b) for each in found.settings}
    assert told["live queues.ecn.kmax"] == ("-", "800,000 on rtsw1")
    assert told["live hashing.options.resilient"] == ("-", "yes on ctsw1")
    assert told["live hashing.seed"] == ("-", "7 on ctsw2")
    # Two fabrics of one policy, with the slow link at another place.
    slow = [load_fabric("tiny", overrides=[f"link.exceptions.rtsw{n}:eth1=50mbit"]).fabric for n in (1, 2)]
    runs = [keep(tmp_path / "slow", n, around=replace(AROUND, fabric=each)) for n, each in enumerate(slow, 1)]
    assert [each.name for each in compare(*runs).settings] == ["wiring and addresses"]


def on(
    state: FabricState, spread: int = 0, marks: int = 3, mmr: float = 1.3, ports: int = 1, **counters: int
) -> RunRecord:
    """A run on a fabric in that state. ports: source ports of each queue pair."""
    record = counted(ONE, marks)
    proof = replace(samples.PROOF, qps=record.qps * ports, spread=spread, mmr_flows=mmr, mmr_bytes=mmr)
    counts = {**dict.fromkeys(record.counters, 0), **counters}
    queues = replace(samples.USE, drops={}, marks=marks)
    return replace(samples.having(record, queues=queues), fabric_state=state, proof=proof, counters=counts)


FAULT = "rtsw1:eth3: 1/24 lost"
CLEAN = FabricState(FabricReading(), FabricReading())
LOSSY = FabricState(before=FabricReading(link_faults=(FAULT,)), after=FabricReading(link_faults=(FAULT,)))
DOWN, OTHER_DOWN = (
    FabricState(
        before=FabricReading(faults=(f"rtsw1:{port} is down",)), after=FabricReading(faults=(f"rtsw1:{port} is down",))
    )
    for port in ("eth1", "eth2")
)
CLEARED = FabricState(LOSSY.before, FabricReading())


@pytest.mark.parametrize(
    ("a", "b", "setting", "note"),
    [
        (CLEAN, LOSSY, ("faults of links", "none", FAULT), f"set on links: {FAULT}"),
        (LOSSY, CLEARED, ("faults of links", FAULT, f"{FAULT}, then none"), "then none"),
        (DOWN, OTHER_DOWN, ("faults of the fabric", "rtsw1:eth1 is down", "rtsw1:eth2 is down"), "was degraded"),
        (CLEAN, replace(CLEAN, changed=("ctsw1",)), ("changed during the run", "none", "ctsw1"), "was changed"),
    ],
)
def test_faults_of_links_and_of_the_fabric_are_settings(
    tmp_path: Path, a: FabricState, b: FabricState, setting: tuple[str, str, str], note: str
) -> None:
    first, same, other = (keep(tmp_path, n, on(each)) for n, each in enumerate((a, a, b), 1))
    found = compare(first, other)
    assert [(each.name, each.a, each.b) for each in found.settings] == [setting]
    assert any(each.startswith("B: ") and note in each for each in found.notes)
    assert (found.equal, set(equal_runs(first))) == ([2, 1], {first.path, same.path})
    assert compare(first, same).settings == ()


def test_mmr_is_judged_by_equal_runs_where_paths_or_packets_are_not_fixed(tmp_path: Path) -> None:
    def verdicts(place: str, *records: RunRecord) -> list[str]:
        first, *_, last = [keep(tmp_path / place, n, each) for n, each in enumerate(records, 1)]
        both = [compare(*pair) for pair in ((first, last), (last, first))]
        found = [[of(each, f"MMR of {what}").verdict for what in ("flows", "bytes")] for each in both]
        assert found[0] == found[1]
        return [*found[0]]

    assert verdicts("fixed", on(CLEAN), on(CLEAN, mmr=2.0)) == ["differs", "differs"]
    assert verdicts("spread", on(CLEAN, 64), on(CLEAN, 64, mmr=2.0)) == ["unknown", "unknown"]
    assert verdicts("many", *(on(CLEAN, 64, mmr=mmr) for mmr in (1.3, 1.9, 1.2, 2.0))) == ["noise", "noise"]
    assert verdicts("again", on(CLEAN, retransmitted=1), on(CLEAN, mmr=2.0)) == ["differs", "unknown"]
    assert verdicts("sprayed", on(CLEAN, ports=4), on(CLEAN, mmr=2.0, ports=4)) == ["differs", "unknown"]
    assert verdicts("lossy", on(LOSSY, retransmitted=9), on(CLEAN, mmr=2.0)) == ["differs", "unknown"]
    busy = Cause("processor", None, 1, sure=False, text="processor 1: 99% busy")
    there = on(CLEAN, mmr=2.0)
    there = samples.having(there, machine=replace(there[MachineUse], unreliable=(busy,)))
    assert verdicts("busy", on(CLEAN), there) == ["differs", "differs"]
    assert verdicts("busy and again", on(CLEAN, retransmitted=1), there) == ["differs", "unknown"]
    unproven = there
    assert unproven.proof is not None
    unproven = replace(unproven, proof=replace(unproven.proof, agree=False))
    assert verdicts("unproven", on(CLEAN), unproven) == ["unknown", "unknown"]


def test_times_are_not_judged_by_iterations_where_packets_of_a_qp_take_several_paths(tmp_path: Path) -> None:
    rows = [row(1 << 16, us, us + 1, us + 2) for us in (1000, 2000, 1010, 1990)]
    runs = [keep(tmp_path, n, with_rows(on(CLEAN, 64), each)) for n, each in enumerate(rows[:2], 1)]
    found = of(compare(*runs), "busbw", 1 << 16)
    assert (found.verdict, "packets of one QP took several paths" in found.why) == ("unknown", True)
    runs += [keep(tmp_path, n, with_rows(on(CLEAN, 64), each)) for n, each in enumerate(rows[2:], 3)]
    assert of(compare(*runs[:2]), "busbw", 1 << 16).verdict == "noise"


def test_busbw_of_other_numbers_of_ranks_is_judged_by_busbw(tmp_path: Path) -> None:
    """Twice the time for twice the work is the same bandwidth."""
    other = with_rows(counted(ONE, 3), replace(row(1 << 16, 2000, 2002, 2001), busbw=row(1 << 16, 1000).busbw * 0.999))
    a = keep(tmp_path, 1, with_rows(counted(ONE, 3), row(1 << 16, 1000, 1001, 1002)))
    found = compare(a, keep(tmp_path, 2, replace(other, ranks=other.ranks[:2])))
    assert of(found, "busbw", 1 << 16).verdict == "noise"
    assert not any(each.figure == "time" for each in found.ratios)


ONE, OTHER = RunOptions(sizes=(1 << 16,), qps=4), RunOptions(sizes=(1 << 16,), qps=16)


def counted(options: RunOptions, marks: int, pauses: int = 0) -> RunRecord:
    """A run with these counts."""
    record = samples.record(options)
    return samples.having(record, queues=replace(record[QueueUse], marks=marks, pauses=pauses))


def test_equal_runs_tell_which_difference_of_counts_is_noise(tmp_path: Path) -> None:
    for number, (marks, pauses) in enumerate([(100, 40), (104, 20), (96, 60)], 1):
        first = keep(tmp_path, number, counted(ONE, marks, pauses))
    found = compare(first, keep(tmp_path, 4, counted(OTHER, 160, 70)))
    assert found.equal == [3, 1]
    assert (of(found, "marks").verdict, of(found, "pause frames").verdict) == ("differs", "noise")
    # On the scale 2 sqrt(x + 3/8): s = 0.4 with 2 degrees of freedom; any of four runs may be the far one.
    assert of(found, "marks").why == "3 and 1 equal runs, all of B are higher: p = 0.03"
    shown = of(found, "marks")
    assert (shown.means, shown.b, round(shown.a or 0)) == (True, 160, 100), "the row has the means that decide"


def test_rows_have_the_means_that_decide_and_an_outlier_is_not_known(tmp_path: Path) -> None:
    """The last run of A is fast by chance: the sign of A and B alone is not that of their groups."""
    slow, fast = [110.0, 111.5, 108.5, 110, 112, 108, 110.5], [106.0, 107.5, 104.5, 106, 108, 104.5, 106.5, 108.5]
    for last, verdict in ((108.2, "differs"), (100.0, "unknown")):
        times = [[*slow, last], fast]
        ends = []
        for at, (group, options) in enumerate(zip(times, (ONE, OTHER), strict=True)):
            rows = [with_rows(counted(options, 3), row(1 << 16, us, us, us)) for us in group]
            ends.append([keep(tmp_path / f"{last}", 10 * at + n, each) for n, each in enumerate(rows)][-1])
        found = of(compare(*ends), "time", 1 << 16)
        assert (found.verdict, found.means) == (verdict, True) and found.ratio == pytest.approx(106.4 / 109.9, abs=0.01)
        assert ("A is an outlier" if last == 100 else "A and B themselves are the other way round") in found.why


@pytest.mark.parametrize("tiny", [{"busbw": 1e-320}, {"time_us": 1e-320}, {"busbw": 0.0}, {"iteration_us": (0.0,) * 3}])
def test_a_figure_that_no_run_can_have_is_not_known(tmp_path: Path, tiny: dict[str, Any]) -> None:
    good = row(1 << 16, 100, 101, 102)
    for pair in ((good, replace(good, **tiny)), (replace(good, **tiny), good)):
        assert judged(*pair)[0] == "unknown"
    try:
        found = both(tmp_path, with_rows(counted(ONE, 3), replace(good, **tiny)), with_rows(counted(OTHER, 3), good))
    except InputError as error:  # a reader refuses some
        assert "a time or a bandwidth that no run has" in str(error)
        return
    assert of(found, "busbw", 1 << 16).verdict == ("unknown" if "busbw" in tiny else "same")
    assert all(each.ratio is None or math.isfinite(each.ratio) for each in found.ratios)


def test_equal_runs_tell_which_difference_of_counts_is_noise_and_two_do_not(tmp_path: Path) -> None:
    found = compare(keep(tmp_path, 1, counted(ONE, 100)), keep(tmp_path, 2, counted(ONE, 104)))
    assert (of(found, "marks").verdict, found.equal) == ("unknown", [2])
    assert of(found, "marks").why == "one value per run, and too few equal runs in the history (2): repeat A or B"
    keep(tmp_path, 3, counted(ONE, 96))
    again = compare(keep(tmp_path, 4, counted(ONE, 98)), keep(tmp_path, 5, counted(ONE, 101)))
    assert (of(again, "marks").verdict, again.equal) == ("noise", [5])
    # Other sizes or a limited run are never judged.
    for number in range(1, 4):
        a = keep(tmp_path / "1", number, counted(ONE, 100 + number))
    b = keep(tmp_path / "1", 4, counted(replace(ONE, iters=ONE.iters + 1), 140))
    assert of(compare(a, b), "marks").why == "sizes or iterations differ"


def test_runs_that_are_not_equal_are_left_out(tmp_path: Path) -> None:
    mine = keep(tmp_path, 1, counted(ONE, 100))
    limited = counted(ONE, 500)
    cause = Cause("processor", None, 1, sure=False, text="processor 1: 99% busy")
    machine = replace(limited[MachineUse], unreliable=(cause,))
    keep(tmp_path, 2, samples.having(limited, machine=machine))
    keep(tmp_path, 3, counted(OTHER, 500))
    keep(tmp_path, 4, counted(ONE, 500), around=replace(AROUND, queues={"rtsw1": {"ecn.kmax": 800_000}}))
    keep(tmp_path, 5, samples.failed())
    same = keep(tmp_path, 6, counted(ONE, 101))
    assert set(equal_runs(mine)) == {mine.path, same.path}
