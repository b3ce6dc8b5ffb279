"""Queues of a live lab as people see and set them: `queues`, `queues set`, `run`, `plot queues`, `validate`."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heddle.base import owners
from heddle.base.events import Silent
from heddle.base.problems import CheckError, InputError
from heddle.checks.validate import validate
from heddle.endpoints.runoptions import run_options
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.lab.queues import read_queues
from heddle.lab.thresholds import set_queues, wanted_policies
from heddle.runs.parts.queues import QueueUse
from heddle.runs.run import run
from heddle.runs.runrecord import RunRecord
from heddle.runs.store import History
from heddle.switch.pfc import control as pfc
from heddle.switch.queues.cells import LabQueues
from heddle.switch.queues.classes import policies_of, row
from tests.conftest import Borrow
from tests.machine import patience, until
from tests.netns.live import failed, in_node, started
from tests.readings import series_of
from tests.terminal import on_terminal
from tests.typed import typed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lab(borrow: Borrow) -> Lab:
    """Preset tiny, with headroom for a busy machine, and a host whose link is too slow for what all others send it."""
    return borrow("tiny", "queues.pfc.reaction=60ms", "link.exceptions.host1=25mbit")


@pytest.fixture(scope="module")
def ran(lab: Lab) -> RunRecord:
    """An incast of three hosts to one."""
    options = run_options(collective="incast", size="512K", iters=2, warmup=0, bucket="2ms")
    return run(lab, options, Silent())


def inv(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return typed(*words, "--lab", lab.name)


def test_a_run_tells_what_its_queues_did(lab: Lab, ran: RunRecord) -> None:
    assert ran.wrong == 0
    use = ran[QueueUse]
    assert use is not None
    assert use.dropped == 0
    assert use.pauses > 0 and use.paused_hosts > 0 and use.paused_ms > 0
    assert use.deepest > 60_000
    assert use.deepest_at == "rtsw1:eth3 class 3", "the port of the one that all send to"
    table = ran.table()
    assert f"deepest {use.deepest / 1000:.3g} KB at rtsw1:eth3 class 3" in table
    assert f"#queues   : {use.pauses:,} pause frames; {use.paused_ports} ports paused" in table
    assert ran.to_json()["queues"]["pfc_sent"] == use.pauses
    # The recorded series add up to the counters.
    kept = series_of(lab)
    series = kept.series
    assert kept.what == "incast over 4 ranks, 512 KiB, 1 QP"
    at = [label.name for label in kept.labels].index("rtsw1:eth3 class 3")
    # To rank 0 alone: every data packet of the run has left by its port, and between the barrier and the end.
    sent = sum(row.sent.bytes for row in ran.flows if row.sent.flow.dst == "host1")
    assert int(series.columns["out_bytes"][at].sum()) == pytest.approx(sent, rel=0.02)
    assert int(series.columns["peak"][at].max()) == use.deepest
    assert int(series.columns["depth"][at][-1]) == 0
    assert series.bucket_s > 0.0015 and series.readings > 1


def test_the_verb_says_the_same_as_its_document(lab: Lab, ran: RunRecord) -> None:
    data = json.loads(inv(lab, "queues", "--format", "json").stdout)
    rows = {(each["port"], each["class"]): each for each in data["ports"]}
    assert len(rows) == 16 * 3
    assert rows["rtsw1:eth3", 3]["high_water"] == max(each["high_water"] for each in data["ports"])
    assert sum(each["pfc_sent"] for each in data["ports"]) == sum(each["pfc_received"] for each in data["ports"]) > 0
    assert all(each["depth"] == 0 for (_, number), each in rows.items() if number != 6)
    slow, headroom = data["headroom"]
    assert (slow["rate_bps"], slow["ports"], headroom["ports"]) == (25_000_000, 1, 11)
    assert headroom["bytes"] == 100 * 10**6 // 8 * 60 // 1000 + 2 * 4214
    assert 0 < headroom["highest"] < headroom["bytes"]
    assert headroom["reactions"] > 0 and headroom["reaction_median_ms"] < headroom["reaction_max_ms"] + 1e-6
    assert data["agent"]["alive"]
    said = inv(lab, "queues", "--port", "rtsw1:eth3", "--class", "3").stdout
    assert "rtsw1:eth3  3 lossless" in said and "host1" not in said


def test_a_run_is_drawn(lab: Lab, ran: RunRecord, tmp_path: Path) -> None:
    out = tmp_path / "queues.svg"
    done = inv(lab, "plot", "queues", "--out", str(out), "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["panels"][0]["port"] == "rtsw1:eth3"
    picture = out.read_text()
    assert all(words in picture for words in ("Kmin 40 KB", "Xoff 60 KB", "rtsw1:eth3, class 3: egress queue"))


def test_watching_ends_by_time_and_by_ctrl_c(lab: Lab, ran: RunRecord) -> None:
    piped = inv(lab, "queues", "--watch", "--every", "0.1", "--seconds", "0.5")
    assert piped.returncode == 0, piped.stderr
    assert 2 <= piped.stdout.count(f"{lab.name}, after ") <= 6  # 5, but a busy processor shows fewer
    assert "\x1b" not in piped.stdout
    with on_terminal(
        [str(ROOT / "inv"), "queues", "--watch", "--lab", lab.name], {**os.environ, "TERM": "xterm"}
    ) as seen:
        seen.until("queues, ")
        seen.until("Ctrl-C ends")
        seen.type("\x03")
        assert seen.code() == 0


def set_in_run(lab: Lab, settings: list[str], switches: list[str]) -> list[str]:
    """Set thresholds, also where the run that begins changes the lab for a moment."""
    done: list[str] = []

    def can() -> bool:
        try:
            done[:] = set_queues(lab, settings, switches)
        except InputError as error:
            if "is being worked on by another Heddle" not in str(error):
                raise
        return bool(done)

    until(can)
    return done


def test_thresholds_change_under_a_run_and_no_packet_is_lost(lab: Lab) -> None:
    before = read_queues(lab)
    results: list[Any] = []
    options = run_options(collective="all-reduce", size="1M", iters=2, warmup=0)
    running = threading.Thread(target=lambda: results.append(run(lab, options, Silent())))
    running.start()
    changes = 0
    while running.is_alive():
        size = ("800KB", "160KB")[changes % 2]
        settings = [f"ecn.kmax={size}", f"pfc.xoff={'80KB' if changes % 2 else '60KB'}"]
        assert set_in_run(lab, settings, ["ctsw*"]) == ["ctsw1", "ctsw2"]
        changes += 1
        time.sleep(0.02)
    running.join()
    assert changes > 5
    (result,) = results
    assert result.wrong == 0
    assert result.queues.dropped == 0
    assert sum(row.dropped for row in read_queues(lab).rows) == sum(row.dropped for row in before.rows)
    set_queues(lab, ["ecn.kmax=800KB", "pfc.xoff=60KB"], ["ctsw*"])
    assert read_queues(lab).settings == {name: {"ecn.kmax": 800_000} for name in ("ctsw1", "ctsw2")}
    with LabQueues.pinned(lab.fabric) as live:
        kmax = {node: int(live.policies()[row(live.ids[node, "eth1"], 3)]["kmax"]) for node in ("ctsw1", "rtsw1")}
    assert kmax == {"ctsw1": 800_000, "rtsw1": 160_000}
    assert failed(lab, ["thresholds"]) == {}, "what was set is what should be"
    said = inv(lab, "queues", "set", "ecn.kmin=100KB", "--switch", "ctsw*")
    assert "ctsw1, ctsw2: class 3: PFC acts before ECN: pfc.xoff pauses a port from 60KB on" in said.stderr
    (checked,) = [each for each in validate(lab, {"thresholds"}) if each.name == "thresholds"]
    assert checked.ok and "ecn.kmin marks a queue from 100KB on" in "".join(checked.notes)
    set_queues(lab, ["ecn.kmax=160KB", "ecn.kmin=40KB"])
    assert read_queues(lab).settings == {}


def test_counters_can_be_reset_and_depths_stay_right(lab: Lab, ran: RunRecord) -> None:
    assert read_queues(lab).reactions.count > 0
    said = inv(lab, "queues", "reset")
    assert said.returncode == 0, said.stderr
    after = read_queues(lab)
    assert all(each.quiet for each in after.rows), said.stdout
    assert after.reactions.count == 0
    assert failed(lab, ["depths", "headroom"]) == {}
    with owners.lock(lab.name):
        busy = inv(lab, "queues", "reset")
    assert busy.returncode == 2
    assert "is being worked on by another Heddle" in busy.stderr


@pytest.mark.deep
def test_queues_of_a_failed_run_are_kept_and_labelled(lab: Lab) -> None:
    in_node(lab, "rtsw1", "ip link set eth3 down")
    try:
        with pytest.raises(CheckError):
            run(lab, run_options(collective="incast", size="64K", local_ack_timeout=8), Silent())
    finally:
        in_node(lab, "rtsw1", "ip link set eth3 up")
        lab.wait()
    kept, record = series_of(lab), History.of(lab).open().record
    assert kept.what == "incast over 4 ranks, 64 KiB, 1 QP (which failed)"
    assert not record.done and record.failure
    assert f"run {record.id} of lab {lab.name} failed, so it has no paths" in inv(lab, "paths").stderr


@pytest.fixture
def no_agent(lab: Lab) -> Iterator[None]:
    """No agent runs, which would remove packets lost behind a queue from the counters."""
    pfc.stop(lab.name)
    yield
    assert pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir)


@pytest.mark.deep
@pytest.mark.usefixtures("no_agent")
def test_validate_names_a_queue_that_is_not_empty_and_bytes_that_never_left(lab: Lab) -> None:
    def said() -> str:
        return failed(lab, ["depths"])["depths"]

    with LabQueues.pinned(lab.fabric) as live:
        at = row(live.ids["rtsw2", "eth1"], 0)
        live.cells["depth"][at] += 4200
        assert said() == "rtsw2:eth1, class 0: 4200 bytes wait, and nothing has left for 1 s"
        live.cells["depth"][at] -= 4200
        live.cells["in_bytes"][at] += 60
        assert "bytes in" in said()
        live.cells["in_bytes"][at] -= 60
        live.ingress["occupancy"][row(live.ids["ctsw1", "eth1"], 3)] += 90
        assert said() == "ctsw1:eth1, class 3: 90 bytes arrived here and have not left the switch"
        live.ingress["occupancy"][row(live.ids["ctsw1", "eth1"], 3)] -= 90
    assert failed(lab, ["depths"]) == {}


@pytest.mark.deep
def test_validate_names_unexpected_thresholds_and_missing_headroom(lab: Lab) -> None:
    other = replace(lab.fabric.policy.queues, alpha=0.5)
    with LabQueues.pinned(lab.fabric) as live:
        live.set_policies(policies_of(lab.fabric, own={"rtsw1": other}))
        assert failed(lab, ["thresholds", "queues"])["thresholds"].startswith(
            "rtsw1:eth1  class 0: alpha is 32768, not 65536"
        )
        live.set_policies(wanted_policies(lab))
        inward = live.ingress[row(live.ids["rtsw1", "eth1"], 3) :][:1]
        inward["drops"], inward["lost_high"] = 2, 8300
        said = "2 packets dropped because headroom was full, up to 8300 bytes short in one pause"
        assert failed(lab, ["thresholds", "headroom"]) == {"headroom": f"rtsw1:eth1, class 3: {said}"}
        inward["drops"] = inward["lost_high"] = 0


@pytest.mark.deep
def test_validate_names_a_closed_gate_and_an_agent_that_does_not_run(lab: Lab) -> None:
    def tbf(words: str) -> None:
        line = f"tc qdisc change dev eth1 parent 1:40 handle 40: tbf {words} limit 1073741824b"
        in_node(lab, "rtsw1", line)

    tbf("rate 8kbit burst 9000b")
    try:
        assert failed(lab, ["pauses"]) == {
            "pauses": "rtsw1:eth1, class 3: the gate is closed, but the PFC agent did not close it"
        }
    finally:
        tbf("rate 40gbit burst 100000b")
    state = pfc.alive(lab.name)
    assert state.agent is not None and state.keeper is not None
    pfc.stop(lab.name)
    assert failed(lab, ["pauses"])["pauses"].startswith("the PFC agent is not running, so pauses are neither sent")
    assert "agent: not running" in inv(lab, "queues").stdout
    assert pfc.restart(lab.name, lab.fabric, lab.handles(), lab.dir)
    assert failed(lab) == {}


@pytest.mark.deep
def test_watching_ends_with_its_lab(name: str) -> None:
    life.up(load_fabric("tiny", name=name, overrides=["racks=1", "ctsw=1"]))
    words = ("queues", "--watch", "--every", "0.2", "--seconds", "60", "--lab", name)
    with started(*words, errors=subprocess.PIPE) as watching:
        assert watching.stdout is not None
        assert watching.stdout.readline().startswith(f"{name}, after ")
        life.down(name)
        said = watching.communicate(timeout=patience(60))[1]
    life.down(name)
    assert watching.returncode == 2
    assert f"lab {name} was taken down" in said
