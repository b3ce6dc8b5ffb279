"""NCCL's tuner file and its measurements: what is chosen, what noise explains, and what the plugin can read."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from heddle.cli.tuner_verb import _wanted
from heddle.host.capacity import Cause
from heddle.runs.parts.machine import MachineUse
from heddle.runs.runrecord import RunRecord
from heddle.runs.runtable import SizeRow, figures
from heddle.runs.tuning import ANY, TunerPoint, TunerSetting, Tuning, _choice
from heddle.views.runstext import tuning_text
from tests.answers import Answers
from tests.unit import run_samples as samples
from tests.unit.run_samples import having

SIZES = (1 << 16, 1 << 18, 1 << 20)
RING, TREE = (TunerSetting(each, ANY, 1) for each in ("ring", "tree"))
RING_4, TREE_4 = (replace(each, qps=4) for each in (RING, TREE))


def run(times: Sequence[float], machine: MachineUse | None = None) -> RunRecord:
    """A run with a time for each size, ms, in which iterations differ by 0.2 %."""
    rows = [
        SizeRow.of(
            size,
            figures(size, 3, 1.5, [3 * ms / 1e3] * 4, 0, [[ms / 1e3 * (1 + each / 1000) for each in (-1, 0, 1)]] * 4),
        )
        for size, ms in zip(SIZES, times, strict=True)
    ]
    return having(replace(samples.result(), rows=tuple(rows)), machine=machine)


def measured(times_ms: Mapping[TunerSetting, tuple[float, float, float]], machine: MachineUse | None = None) -> Tuning:
    return Tuning.of({setting: run(times, machine) for setting, times in times_ms.items()})


def as_the_plugin_reads(conf: str) -> list[list[str]]:
    """Lines of fields, by the rules of plugin.c: 8 to 10 fields, at most 255 letters a line, # at the beginning."""
    assert max(map(len, conf.splitlines())) < 255
    found = [line.split(",") for line in conf.splitlines() if line and not line.startswith("#")]
    assert {len(each) for each in found} <= {8, 9, 10}
    return found


def test_each_size_gets_its_best_algorithm_and_ranges_meet_halfway() -> None:
    found = measured({RING: (20, 40, 100), TREE: (10, 30, 150)})
    assert as_the_plugin_reads(found.conf()) == [
        ["allreduce", "0", "655360", "tree", "simple", "-1", "4", "4", "-1", "-1"],
        ["allreduce", "655361", "1048576", "ring", "simple", "-1", "4", "4", "-1", "-1"],
    ]
    assert [(each.best.setting.algorithm, each.verdict) for each in found.best()] == [
        ("tree", "differs"), ("tree", "differs"), ("ring", "differs"),
    ]  # fmt: skip
    assert [round(each.margin or 0, 3) for each in found.best()] == [1.0, 0.333, 0.5]
    assert "k = 4000" in found.conf() and "not on hardware" in found.conf() and "Fabric tiny" in found.conf()


def test_a_size_where_noise_explains_the_difference_gets_no_line() -> None:
    found = measured({RING: (20, 40, 100), TREE: (10, 40.5, 150)})
    assert [each[1:4] for each in as_the_plugin_reads(found.conf())] == [
        ["0", "163840", "tree"], ["655361", "1048576", "ring"],
    ]  # fmt: skip
    assert "no difference beyond noise" in tuning_text(found)
    alone = measured({RING: (20, 40, 100), RING_4: (10, 20, 50)})
    assert as_the_plugin_reads(alone.conf()) == [] and "The file has no lines" in tuning_text(alone)


def test_where_channels_make_no_difference_the_algorithm_is_chosen_without_them() -> None:
    one, two = (replace(RING, channels=each) for each in (1, 2))
    found = measured({one: (20, 40, 50), two: (20.1, 20, 50.1), TREE: (10, 60, 150)})
    assert [each[1:6] for each in as_the_plugin_reads(found.conf())] == [
        ["0", "163840", "tree", "simple", "-1"], ["163841", "655360", "ring", "simple", "2"],
        ["655361", "1048576", "ring", "simple", "-1"],
    ]  # fmt: skip


def test_the_file_is_for_one_number_of_qps_and_so_are_its_measurements() -> None:
    found = measured({RING: (20, 40, 90), TREE: (10, 30, 150), RING_4: (20, 40, 50), TREE_4: (12, 33, 60)})
    assert (found.qps, found.best()[0].best.setting) == (4, TREE)
    assert "NCCL_IB_QPS_PER_CONNECTION=4" in found.conf() and "NCCL_IB_QPS_PER_CONNECTION=4" in tuning_text(found)
    rows = list(csv.DictReader(io.StringIO(found.csv())))
    # The columns that optimize_config.py takes from each row, and what it finds in them.
    assert {"collective", "algorithm", "protocol", "pipeOps", "regBuff"} <= rows[0].keys()
    numbers = ("size_bytes", "channels", "nodes", "ranks", "bandwidth_gbps", "latency_us")
    assert [float(rows[0][each]) for each in numbers] == [65536, -1, 4, 4, 0.008192, 12000]
    best = {row["size_bytes"]: row["algorithm"] for row in sorted(rows, key=lambda row: -float(row["latency_us"]))}
    assert best == {"65536": "tree", "262144": "tree", "1048576": "ring"} and len(rows) == 6


def test_what_the_host_may_have_limited_is_not_chosen() -> None:
    use = MachineUse(0.9, 0.9, 0, 0, 0, 1, 1, unreliable=(Cause("processor", SIZES[2], None, sure=True, text="busy"),))
    found = measured({RING: (20, 40, 100), TREE: (10, 30, 150)}, use)
    assert [each[1:4] for each in as_the_plugin_reads(found.conf())] == [["0", "655360", "tree"]]
    assert "not known at 1 MiB: ring, 1 QP: UNRELIABLE: busy" in tuning_text(found)


def test_no_setting_is_preferred_by_noise() -> None:
    """Iterations of one run share its paths: where packets of a QP take several, only equal runs show the noise."""
    times = {RING: (20.0, 40.0, 100.0), TREE: (10.0, 30.0, 150.0)}
    spread = replace(run(times[RING]), proof=replace(samples.PROOF, spread=8))
    sprayed = Tuning.of({each: replace(spread, rows=run(times[each]).rows) for each in times})
    assert [each.verdict for each in sprayed.best()] == ["unknown"] * 3 and not as_the_plugin_reads(sprayed.conf())
    assert "several paths" in tuning_text(sprayed)
    for wide, verdict in ((0.5, "noise"), (0.001, "differs")):
        equal = {each: [run(tuple(ms * (1 + wide * at) for ms in times[each])) for at in (0, 1, -1)] for each in times}
        known = Tuning.of({each: replace(spread, rows=run(times[each]).rows) for each in times}, equal)
        assert {each.verdict for each in known.best()[:2]} == {verdict}, wide
        assert bool(as_the_plugin_reads(known.conf())) == (verdict == "differs")


def test_of_numbers_of_qps_that_do_not_differ_the_smallest_is_taken_and_that_is_said() -> None:
    close = measured({RING: (20, 40, 100), RING_4: (19.9, 39.8, 99)})
    assert (close.qps, close.decided) == (1, False)
    assert "NCCL_IB_QPS_PER_CONNECTION=1, not decided" in close.conf()
    assert "which is not decided: no difference beyond noise" in " ".join(tuning_text(close).split())
    apart = measured({RING: (20, 40, 100), RING_4: (19.9, 39.8, 80)})
    assert (apart.qps, apart.decided) == (4, True)


def known(times_ms: Mapping[TunerSetting, Sequence[float]]) -> Tuning:
    """Settings with several equal runs each; the last is the one that is shown."""
    runs = {setting: [run((ms,) * 3) for ms in times] for setting, times in times_ms.items()}
    return Tuning.of(
        {setting: each[-1] for setting, each in runs.items()},
        runs,
    )


def test_equal_runs_choose_not_the_last_one() -> None:
    lucky = known(
        {RING: [110, 111, 109, 110.5, 112, 108, 110, 100], TREE: [101, 101.1, 100.9, 101, 101, 101, 101, 101]}
    )
    best = lucky.best()[0]
    assert (best.best.setting, best.verdict) == (TREE, "differs") and best.margin == pytest.approx(0.09, abs=0.01)
    assert lucky.lines()[0][1] == TREE and "ring" not in "".join(map(str, as_the_plugin_reads(lucky.conf())))
    assert [row["algorithm"] for row in csv.DictReader(io.StringIO(lucky.csv()))][:2] == ["tree", "ring"]
    assert not lucky.assumed and "Assumed for single runs" in measured({RING: (1, 2, 3), TREE: (2, 3, 4)}).conf()


def test_the_best_must_beat_every_other_setting() -> None:
    one, two, third = (replace(RING, channels=each) for each in (1, 2, 4))
    near = {one: [100, 100.1, 99.9, 100, 100], two: [103, 103.1, 102.9, 103, 103]}
    assert known(near).lines()[0][1] == one
    for scattered in ([70, 140, 60, 150, 104], [60, 150, 100, 120, 110]):
        assert known({**near, third: scattered}).lines()[0][1] is None
    use = MachineUse(0.9, 0.9, 0, 0, 0, 1, 1, unreliable=(Cause("processor", SIZES[0], None, sure=True, text="busy"),))
    single = {one: run((10,) * 3), two: run((12,) * 3)}
    assert Tuning.of(single).lines()[0][1] == one
    unfit = Tuning.of({**single, third: run((12.5,) * 3, use)})
    assert unfit.lines()[0][1] is None and unfit.lines()[1][1] == one
    assert "ring, 4 channels, 1 QP: UNRELIABLE: busy" in " ".join(tuning_text(unfit).split())


@pytest.mark.parametrize(("runs", "spread"), [(1, 1.08), (3, 2.0), (5, 2.0)])
def test_eight_equal_settings_get_a_line_in_at_most_1_of_20_cases(runs: int, spread: float) -> None:
    """A single run by what is assumed: a deviation of 1.08 % is a difference of 3 % in 5 of 100 pairs."""
    draw, wrong, second = np.random.default_rng(10 + runs), 0, 0
    row = run((100.0,) * 3).rows[0]
    for _ in range(200):
        points = []
        for at in range(8):
            times = [float(each) for each in draw.normal(100, spread, runs)]
            ms = 100 / times[-1]
            shown = replace(row, time_us=row.time_us / ms, busbw=row.busbw * ms)
            shown = replace(shown, iteration_us=tuple(each / ms for each in row.iteration_us))
            equal = tuple(row.busbw * 100 / each for each in times)
            points.append(TunerPoint(replace(RING, channels=at + 1), shown, "", "", equal))
        points.sort(key=lambda each: each.time_us)
        wrong += _choice(points).verdict == "differs"
        second += _choice([points[0], points[-1]]).verdict == "differs"
    assert wrong / 200 <= 0.05
    assert second / 200 > 0.1, "this data would show a choice against one other setting alone"


def test_settings_are_multiplied_and_have_the_names_of_nccl() -> None:
    found = _wanted("broadcast", (), (), ("1,4", "16"), {"iters": 3})
    assert [(each.text, options.algorithm, options.qps, options.iters) for each, options in found.items()] == [
        ("ring, 1 QP", "chain", 1, 3), ("ring, 4 QPs", "chain", 4, 3), ("ring, 16 QPs", "chain", 16, 3),
    ]  # fmt: skip
    assert [each.algorithm for each in _wanted("all-reduce", (), (), ("1",), {})] == ["ring", "tree"]
    several = _wanted("all-reduce", (), ("1,2",), ("1",), {})
    assert [(each.text, dict(options.parameters).get("channels", 1)) for each, options in several.items()] == [
        ("ring, 1 channel, 1 QP", 1), ("ring, 2 channels, 1 QP", 2), ("tree, 1 QP", 1),
    ]  # fmt: skip


def test_what_a_tuner_file_cannot_have_is_refused(answers: Answers) -> None:
    answers(lambda *typed: _wanted(typed[0], typed[1], typed[2], typed[3], {}))
