"""The forecast of time against arithmetic, and what it says of bounds, faults and jobs beside each other."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.endpoints.runoptions import run_options
from heddle.endpoints.workloadfile import load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.fabricstate import FabricReading, FabricState
from heddle.offline.columns import cutting
from heddle.offline.forecast import Ask
from heddle.runs.runtable import SizeRow
from heddle.traffic.collectives.pattern import CREDIT_BYTES
from heddle.traffic.workload import Workload
from heddle_plugins.time import forecast as time_of
from heddle_plugins.time import tasks
from heddle_plugins.time.background import background_of
from heddle_plugins.time.calibration import calibration
from heddle_plugins.time.forecast import TimeForecast, time_forecast
from heddle_plugins.time.messages import file_of
from heddle_plugins.time.text import render
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep

RACKS = ("racks=2", "ctsw=2", "hosts_per_rack=4")


def forecast(words: str, *changes: str, ask: Ask | None = None, fabric: str = "tiny") -> TimeForecast:
    built = load_fabric(fabric, overrides=(*(RACKS if fabric == "tiny" else ()), *changes)).fabric
    return time_forecast(built, load_workload(words).workload, ask or Ask(), Silent())


def wire_s(found: TimeForecast, payload: int, qps: int = 1) -> float:
    """Seconds of a message at a NIC's rate, by the sizes of frames."""
    cut = cutting(found.fabric, qps, "split", 1 << 30)
    parts = np.array([payload // qps] * qps)
    return 8 * int(cut.frames(parts).sum()) / found.fabric.nics[0].rate_bps


def iteration(found: TimeForecast) -> float:
    return found.jobs[0].sizes[0].seconds


@pytest.mark.parametrize("waves", [False, True])
def test_times_equal_arithmetic(monkeypatch: pytest.MonkeyPatch, waves: bool) -> None:
    if waves:
        monkeypatch.setattr(tasks, "MOST_MESSAGES", 0)
    ring = forecast("ring,ranks=4,size=64K")
    assert iteration(ring) == pytest.approx(6 * wire_s(ring, 16384), rel=1e-9)
    assert ring.jobs[0].sizes[0].busbw == pytest.approx(1.5 * 65536 / iteration(ring) / 1e9, rel=1e-9)
    assert ring.jobs[0].end_s == pytest.approx(6 * iteration(ring), rel=1e-9), "5 iterations and a warm-up"
    several = forecast("ring,ranks=4,size=64K,qps=4")
    assert iteration(several) == pytest.approx(6 * wire_s(several, 16384, qps=4), rel=1e-9)
    incast = forecast("incast:3,ranks=4,size=64K")
    credit = 0.0 if waves else wire_s(incast, CREDIT_BYTES)  # with it the receiver grants the next iteration
    assert iteration(incast) == pytest.approx(3 * (wire_s(incast, 65536) + credit), rel=1e-9)
    every = forecast("all-to-all,ranks=4,size=64K")
    assert iteration(every) == pytest.approx(3 * wire_s(every, 65536), rel=1e-9)
    # Four NICs of a rack send over two uplinks of their rate, evenly: 2:1. With a link down, 4:1.
    shift = forecast("shift:4,size=64K", "routing.ecmp=spray")
    assert iteration(shift) == pytest.approx(2 * wire_s(shift, 65536), rel=1e-9)
    down = forecast("shift:4,size=64K", "routing.ecmp=spray", ask=Ask(down=("rtsw1:eth1",)))
    assert iteration(down) == pytest.approx(4 * wire_s(down, 65536), rel=1e-9)
    drained = forecast("shift:4,size=64K", "routing.ecmp=spray", ask=Ask(drain=("ctsw2",)))
    assert iteration(drained) == pytest.approx(iteration(down), rel=1e-9)


def test_twice_as_fast_saves_what_it_says() -> None:
    found = forecast("shift:4,size=64K", "routing.ecmp=flow")
    before, by_name = found.seconds, {each.links: each for each in found.gains}
    assert by_name["all links between RTSW and CTSW"].share > 0.2
    rate = found.wires.rate[found.wires.id_of["rtsw1:eth1"]]
    fast = forecast("shift:4,size=64K", "routing.ecmp=flow", f"link.fabric={2 * rate / 1e6:g}mbit")
    assert 1 - fast.seconds / before == pytest.approx(by_name["all links between RTSW and CTSW"].share, abs=1e-9)
    incast = forecast("incast:3,ranks=4,size=64K")
    first = incast.gains[0]
    assert first.single and "host1:eth1" in first.links and first.share == pytest.approx(0.5)
    assert len([each for each in incast.gains if each.single and "host1:eth1" in each.links]) == 1, "a link once"
    assert "nothing" not in render(incast).split("twice as fast")[1].splitlines()[1]
    assert "one of the 4 fullest links" in render(forecast("ring,ranks=4,size=64K"))


def test_jobs_overlap_by_event(tmp_path: Any) -> None:
    path = tmp_path / "jobs.yml"
    text = """
size: 64K
iters: 1
warmup: 0
share_nics: true
jobs:
  a: {collective: matrix, matrix: "0,1,64K", ranks: "0:2"}
  b: {collective: matrix, matrix: "0,1,64K", ranks: "0:2", start: %s}
  c: {collective: matrix, matrix: "0,1,64K", ranks: "0:2", after: b}
"""
    path.write_text(text % "0s")
    both = forecast(str(path))
    one, credit = wire_s(both, 65536), wire_s(both, CREDIT_BYTES)
    assert [job.end_s for job in both.jobs] == pytest.approx([(one + credit) * n for n in (2, 2, 3)], rel=1e-9)
    path.write_text(text % f"{one / 2:.9f}s")
    later = forecast(str(path))  # a has half of its bits left, and then half of the rate
    ends = [1.5 * one + credit, 2 * one + credit, 3 * one + 2 * credit]
    assert [job.end_s for job in later.jobs] == pytest.approx(ends, rel=1e-6)
    path.write_text(text.replace("after: b", "repeat: background") % "0s")
    third = forecast(str(path))
    assert third.jobs[2].end_s is None and third.jobs[0].end_s == pytest.approx(3 * (one + credit), rel=1e-9)


def test_faults_change_the_network_in_time(tmp_path: Any) -> None:
    path = tmp_path / "fault.yml"
    text = "matrix: shift:4\nsize: 64K\niters: 1\nwarmup: 0\nfault: ['rtsw1:eth1,down,from=%s']\n"
    plain = forecast("shift:4,size=64K,iters=1,warmup=0", "routing.ecmp=spray")
    half = iteration(plain) / 2
    path.write_text(text % f"{half:.9f}s")
    found = forecast(str(path), "routing.ecmp=spray")
    assert found.seconds == pytest.approx(half + 2 * half, rel=1e-6), "at half of the time, half of the links go"


def test_flows_without_a_path_are_named_and_waves_say_what_they_assume(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CheckError, match=r"have no path, so the job never ends: the first is host1:eth1 to"):
        forecast("shift:4,size=64K", ask=Ask(down=("host1",)))
    monkeypatch.setattr(tasks, "MOST_MESSAGES", 0)
    assert "the transfers of a step begin together" in render(forecast("ring,size=64K"))


def test_a_run_calibrates_forecasts_by_its_own(tmp_path: Any) -> None:
    options = run_options(size="64K", ranks=4)
    run = replace(samples.record(options), rows=(SizeRow(65536, 0.0, 0.01, 0.01, 0),), before=None)
    own = time_forecast(samples.FABRIC, Workload.of(options), Ask(mode="e-ecmp"), Silent(), gains=False)
    slower = replace(run, rows=(SizeRow(65536, 1.25e6 * iteration(own), 0.01, 0.01, 0),))
    found = calibration(str(keep(tmp_path, 1, slower).path))
    assert found.factor == pytest.approx(1.25) and "divided by 1.250: run 0001" in found.text
    ring = forecast("ring,ranks=4,size=64K")
    built = load_fabric("tiny", overrides=RACKS).fabric
    again = time_forecast(built, load_workload("ring,ranks=4,size=64K").workload, Ask(), Silent(), factor=1.25)
    assert iteration(again) == pytest.approx(1.25 * iteration(ring), rel=1e-9)
    good, bad = FabricReading((), ()), FabricReading(("rtsw1:eth1 is down",), ())
    lossy = FabricReading((), (), ("rtsw1:eth1 loses 1%",))
    kept = keep(tmp_path / "good", 2, replace(slower, fabric_state=FabricState(good, good)))
    assert calibration(str(kept.path)).factor == found.factor
    for wrong, why in (
        (replace(slower, beside=("b: ring",)), "was a job beside others"),
        (replace(slower, rows=(replace(slower.rows[0], wrong=3),)), "is not to be trusted: 3 wrong elements"),
        (replace(slower, fabric_state=FabricState(good, bad)), "ran on a fabric that was degraded"),
        (replace(slower, fabric_state=FabricState(good, good, ("ctsw1",))), "ran on a fabric that was changed"),
        (replace(slower, fabric_state=FabricState(lossy, lossy)), "ran with faults of links: rtsw1:eth1 loses 1%"),
        (replace(slower, options=replace(options, faults=("rtsw1:eth1,loss,rate=1%",))), "had faults"),
    ):
        with pytest.raises(InputError, match=why):
            calibration(str(keep(tmp_path / re.sub("[^a-z]", "", why), 2, wrong).path))


def test_a_slow_receiver_makes_victims_of_those_that_share_its_links(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    path = tmp_path / "pairs.yml"
    path.write_text(
        "collective: incast\nsplit: DIV 2\nsize: 2M\niters: 1\nwarmup: 0\nplacement: host5,host1,host6,host2\n"
    )
    fabric = ("ctsw=1", "link.host=25mbit", "link.fabric=100mbit", 'link.exceptions={"host5": "2mbit"}')
    paused = forecast(str(path), *fabric)
    slow = iteration(paused)
    # Live, on an idle machine: 4.23 s for the slow pair and 3.87 to 4.06 s for its victims; the mean of both.
    assert (4.23 + 3.87) / 2 < slow < (4.23 + 4.06) / 2 * 1.01 and "packets wait in queues" in render(paused)
    monkeypatch.setattr(time_of, "MOST_PACKETS", 1000)
    fluid = forecast(str(path), *fabric)
    slow = iteration(fluid)
    assert slow == pytest.approx(4.25, rel=0.01), "the steady state: victims are as slow"
    assert "are too many to follow: paused links are a steady state" in render(fluid).replace("\n", " ")
    free = forecast(str(path), *fabric, "queues.pfc.enabled=false")
    assert iteration(free) == pytest.approx((slow + slow * 2 / 25) / 2, rel=0.01), "the mean of both pairs"


def test_a_ring_of_pauses_and_several_lossless_classes_are_forecast_by_flows(tmp_path: Any) -> None:
    path = tmp_path / "ring.yml"
    pairs = ";".join(f"{src},{dst},1M" for src, dst in ((2, 14), (3, 15), (6, 10), (7, 11)))
    back = ";".join(f"{dst},{src},1M" for src, dst in ((2, 14), (3, 15), (6, 10), (7, 11)))
    path.write_text(f"matrix: '{pairs};{back}'\nranks: '0:24'\niters: 1\nwarmup: 0\nqps: 4\n")
    changes = ("groups=3", "queues.pfc.enabled=true", "queues.pfc.xoff=20K", "queues.pfc.xon=10K")
    said = "packets stop in a ring of pauses (PFC deadlock): sw2:eth4, sw6:eth3, sw8:eth4, sw4:eth2"
    found = forecast(str(path), *changes, fabric="dragonfly")
    assert f"{said}; the watchdog drops packets then, which is not modelled: paused links" in found.notes[-1]
    assert found.seconds > 0 and not found.packets and found.gains
    bare = forecast(str(path), *changes, "queues.pfc.watchdog.enabled=false", fabric="dragonfly")
    assert f"{said}; the job never ends then, which is not modelled" in bare.notes[-1]

    jobs = "size: 1M\niters: 1\nwarmup: 0\nshare_nics: true\njobs:\n"
    for name, pair, dscp in (("a", "0,4", 24), ("b", "1,5", 26)):
        jobs += f"  {name}: {{collective: matrix, matrix: '{pair},1M', ranks: '0:8', dscp: {dscp}}}\n"
    slow = ("ctsw=1", "link.fabric=100mbit", 'link.exceptions={"host5": "2mbit"}', "queues.lossless=[3, 4]")
    path.write_text(jobs)
    one, two = (forecast(str(path), *slow, f"queues.dscp.26={number}") for number in (3, 4))
    assert one.packets and not two.packets
    assert two.notes[-1].startswith("packets of several lossless classes are not followed") and two.notes != one.notes


def test_all_messages_are_flows_of_other_tools(tmp_path: Any) -> None:
    built = load_fabric("tiny", overrides=RACKS).fabric
    work = load_workload("ring,qps=2,ranks=8,size=64K,iters=1,warmup=0").workload
    found = time_forecast(built, work, Ask(), Silent(), gains=False, log=True)
    rows = found.messages
    assert rows is not None and len(rows.src) == 8 * 14 * 2 and int(rows.size.sum()) == 8 * 14 * 8192
    assert {*zip(rows.src.tolist(), rows.dst.tolist(), strict=True)} == {(at, (at + 1) % 8) for at in range(8)}
    k, last = built.policy.k, float((rows.start_s + rows.fct_s).max())
    assert last * k == pytest.approx(iteration(found), rel=1e-9)
    assert (rows.fct_s >= rows.standalone_s * (1 - 1e-9)).all() and (rows.fct_s > rows.standalone_s * 1.5).any()
    assert (
        len(file_of("a.fct.txt", rows, 4096).splitlines())
        == len(rows.src)
        == len(file_of("a.htsim", rows, 4096).splitlines())
    )
    work = load_workload("ring,qps=2,ranks=8,size=64K,iters=6,warmup=3").workload
    found = time_forecast(built, work, Ask(), Silent(), gains=False, log=True)
    assert found.messages is not None and len(found.messages.src) == 9 * len(rows.src), "of all iterations"
    ends = found.messages.start_s + found.messages.fct_s
    assert float(ends.max()) * k == pytest.approx(found.seconds, rel=1e-9)
    with pytest.raises(InputError, match="does not say what to write"):
        file_of("a.csv", rows, 4096)


def test_what_other_jobs_take_is_left_out_of_the_links_of_one(tmp_path: Any) -> None:
    path = tmp_path / "jobs.yml"
    head = "size: 1M\niters: 2\nwarmup: 0\nshare_nics: true\njobs:\n"
    one = '  a: {collective: matrix, matrix: "0,4,1M", ranks: "0:8"}\n'
    two = '  b: {collective: matrix, matrix: "0,5,1M;1,6,1M", ranks: "0:8", repeat: background}\n'
    path.write_text(head + one + two)
    built = load_fabric("tiny", overrides=(*RACKS, "ctsw=1", "routing.ecmp=flow")).fabric
    work = load_workload(str(path)).workload
    found = background_of(built, work, Ask(), "a", Silent())
    # Three flows share the only uplink of the rack, which is as fast as a NIC.
    assert found.left["rtsw1:eth1"] == pytest.approx(1 / 3, abs=0.01)
    faults = "".join(f"\n  - '{each}'" for each in found.faults)
    path.write_text(
        f"{head.replace('jobs:', f'fault:{faults}')}matrix: '0,4,1M'\nranks: '0:8'\n".replace("share_nics: true\n", "")
    )
    alone = time_forecast(built, load_workload(str(path)).workload, Ask(), Silent(), gains=False)
    assert alone.seconds == pytest.approx(found.seconds, rel=0.01)
    for name, why in (("c", "is not a job"), ("b", "never ends by itself")):
        with pytest.raises(InputError, match=why):
            background_of(built, work, Ask(), name, Silent())


def test_a_job_ends_with_its_last_rank() -> None:
    chain = forecast("broadcast,ranks=8,size=16K,iters=1,warmup=1", "routing.ecmp=spray")
    assert chain.seconds >= 7 * wire_s(chain, 16384) > 3 * iteration(chain), "a message passes all ranks in turn"


def test_links_carry_no_more_than_their_rate_and_nothing_while_they_are_down(tmp_path: Any) -> None:
    path = tmp_path / "bits.yml"
    path.write_text(
        "jobs:\n"
        '  a: {collective: all-gather, ranks: "0:2", size: 1000, iters: 2, warmup: 0}\n'
        '  b: {collective: all-reduce, algorithm: ring, ranks: "2:4", size: 1M, repeat: background}\n'
    )
    beside = forecast(str(path))
    assert beside.use.max() <= 1 + 1e-9
    assert beside.jobs[1].end_s is None and "-" in render(beside).splitlines()[6]
    path.write_text("matrix: shift:4\nsize: 4M\nchunk: 4M\niters: 1\nwarmup: 0\nfault: ['rtsw1:eth1,down,from=0.1s']\n")
    found = forecast(str(path), "routing.ecmp=flow", "ctsw=2")
    at = found.wires.id_of["rtsw1:eth1"]
    assert 0 < found.use[at] <= 0.1 / found.seconds + 1e-9


def test_waves_that_another_job_disturbs_are_not_repeated_as_they_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    path = tmp_path / "q.yml"
    path.write_text(
        "share_nics: true\niters: 1\nwarmup: 0\njobs:\n"
        '  a: {collective: all-reduce, algorithm: ring, ranks: "0:4", size: 8M}\n'
        '  b: {matrix: "shift:1", ranks: "0:4", size: 1M, start: 200ms}\n'
    )
    messages = forecast(str(path), "queues.pfc.enabled=false")
    monkeypatch.setattr(tasks, "MOST_MESSAGES", 0)
    waves = forecast(str(path), "queues.pfc.enabled=false")
    assert waves.jobs[0].end_s == pytest.approx(messages.jobs[0].end_s, rel=0.01)


def test_only_timed_iterations_count_beside_other_jobs(tmp_path: Any) -> None:
    path = tmp_path / "wu.yml"
    ring = 'collective: all-reduce, algorithm: ring, ranks: "0:4", size: 1M'
    path.write_text(
        f"share_nics: true\njobs:\n  a: {{{ring}, iters: 1, warmup: 9}}\n  b: {{{ring}, iters: 4, warmup: 0}}\n"
    )
    both, alone = forecast(str(path)), forecast("ring,ranks=4,size=1M")
    assert iteration(both) == pytest.approx(iteration(alone), rel=0.01), "b has ended when it is timed"
