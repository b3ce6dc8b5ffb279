"""The dashboard over live labs: its numbers, its buttons, its readers, its end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from heddle.base import owners, state
from heddle.base.events import Silent
from heddle.base.problems import InputError
from heddle.base.process import run as command
from heddle.base.resources import HERE
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.daemons import ESTABLISHED
from heddle.lab.faults import orders
from heddle.lab.health import repair
from heddle.lab.lab import Lab
from heddle.lab.linkstate import state_of
from heddle.lab.queues import read_queues
from heddle.lab.rehash import put_in_force, take_out
from heddle.lab.status import status
from heddle.lab.thresholds import set_queues
from heddle.runs.run import run
from heddle.runs.store import History, paths_of
from heddle.switch.queues.cells import LabQueues
from heddle.traffic.options import RunOptions
from heddle_plugins.dashboard import labwatch
from heddle_plugins.dashboard.metrics import INSPECTOR_P2P, NAMES
from tests.conftest import Borrow
from tests.machine import links, patience, until
from tests.webclient import EventStream, WebClient, dashboard


@pytest.fixture(scope="module")
def lab(borrow: Borrow) -> Lab:
    """Preset tiny, after a run that fills queues: three hosts to one."""
    lab = borrow("tiny", *links(50_000_000))
    run(lab, RunOptions(collective="incast", sizes=(1 << 19,), iters=2, warmup=0, qps=2), Silent())
    return lab


@pytest.fixture
def page(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebClient]:
    """A dashboard whose readers end soon after their last viewer."""
    monkeypatch.setattr(labwatch, "LINGER_S", 0.2)
    with dashboard() as found:
        yield found


@pytest.fixture
def viewer(page: WebClient, lab: Lab) -> Iterator[EventStream]:
    """A viewer of the lab."""
    stream = EventStream(page, lab.name)
    stream.wait_for("state", lambda found: found["up"])
    yield stream
    stream.close()


def plan_of(page: WebClient, lab: Lab) -> dict[str, Any]:
    return dict(page.get(f"/api/labs/{lab.name}/plan"))


def metrics_of(page: WebClient) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample of /metrics by its name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(page.get("/metrics"))
        for sample in family.samples
    }


def labels_of(lab: Lab, row: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """The labels of a queue in /metrics. row: of the document of `queues`."""
    node, _, port = row["port"].partition(":")
    return frozenset({"lab": lab.name, "node": node, "port": port, "class": str(row["class"])}.items())


def test_numbers_of_the_page_are_those_of_the_verbs(page: WebClient, viewer: EventStream, lab: Lab) -> None:
    first = viewer.wait_for("state", lambda found: found["up"])
    bgp = status(lab.name)[0].bgp
    assert (first["totals"]["established"], first["totals"]["expected"]) == (bgp.established, bgp.expected)
    assert first["missing"] == []
    rows = [each.to_json() for each in read_queues(lab).rows if each.kind == "lossless"]
    assert any(row["pfc_received"] for row in rows)
    assert any(row["marks"] for row in rows)
    plan = plan_of(page, lab)
    assert plan["plan"] == first["plan"]
    for row in rows:
        found = page.get(f"/api/labs/{lab.name}/ports/{row['port']}")
        assert row in found["rows"]
    by_ref = {each["ref"]: number for number, each in enumerate(plan["ports"], 1)}
    for row in rows:  # the queue of highest level decides, and no other class had more than the incast's
        assert first["rows"][by_ref[row["port"]]][2] >= row["high_water"]
    paths = paths_of(lab)
    qps = page.get(f"/api/labs/{lab.name}/qps")
    assert (qps["agree"], qps["run"]) == (paths.agree, History.of(lab).find())
    assert {(q["qpn"], q["sport"], q["src"], tuple(q["path"])) for q in qps["qps"]} == {
        (p.flow.qpn, p.flow.sport, paths.nics_of(p)[0], p.measured or p.expected) for p in paths.flows
    }
    record = History.of(lab).newest(1)[0].record
    assert record is not None and record.done
    shown = first["runs"]["last"][0]
    assert (shown["id"], shown["rows"][0][3]) == (record.id, record.rows[0].busbw)


def test_entries_of_traffic_engineering_are_shown_while_they_are_in_force(viewer: EventStream, lab: Lab) -> None:
    first = viewer.wait_for("state", lambda found: found["up"])
    assert first["te"] is None
    (prefix,) = (each for each, owner in lab.fabric.edge_prefixes.items() if owner == "rtsw2")
    put_in_force(lab, {"rtsw1": {(50_000, prefix): ("eth1", "eth2")}}, "te apply")
    found = viewer.wait_for("state", lambda found: found["te"] is not None)["te"]
    assert (found["by"], found["changes"]) == ("te apply", 1)
    assert [row[:2] for row in found["switches"]] == [["rtsw1", 1]]
    viewer.forget()
    take_out(lab, "te off")
    viewer.wait_for("state", lambda found: found["te"] is None and found["up"])


def test_metrics_are_the_counters_and_every_one_is_exported(page: WebClient, lab: Lab) -> None:
    found = metrics_of(page)
    names = {name for name, _ in found}
    ours = {name for name in names if name.startswith(("heddle_", "nccl_"))}
    assert ours == set(NAMES) - set(INSPECTOR_P2P)  # the run has four ranks, so no send was measured alone
    columns = {"bytes": "heddle_link_bytes_total", "marks": "heddle_ecn_marked_packets_total",
               "drops": "heddle_queue_dropped_packets_total", "pfc_received": "heddle_pfc_pauses_total",
               "pfc_sent": "heddle_pfc_pauses_sent_total", "high_water": "heddle_queue_high_water_bytes",
               "depth": "heddle_queue_depth_bytes", "occupancy": "heddle_ingress_occupancy_bytes"}  # fmt: skip
    for row in (each.to_json() for each in read_queues(lab).rows if each.kind == "lossless"):
        labels = labels_of(lab, row)
        for column, name in columns.items():
            assert found[name, labels] == row[column], (name, row["port"])
        assert found["heddle_pfc_paused_seconds_total", labels] == pytest.approx(row["paused_ms"] / 1e3, abs=1e-3)
    sessions = [value for (name, _), value in found.items() if name == "heddle_bgp_session_up"]
    assert sessions == [1.0] * 8
    (busbw,) = [value for (name, _), value in found.items() if name == "nccl_bus_bandwidth_gbs"]
    record = History.of(lab).newest(1)[0].record
    assert record is not None and record.done
    assert busbw == pytest.approx(record.rows[0].busbw)


def test_counters_do_not_go_back_when_a_user_resets_them(page: WebClient, lab: Lab) -> None:
    before = metrics_of(page)
    with LabQueues.pinned(lab.fabric) as live:
        live.forget()
    after = metrics_of(page)
    marks = {key: value for key, value in after.items() if key[0] == "heddle_ecn_marked_packets_total"}
    assert sum(marks.values()) > 0
    assert sum(row.marks for row in read_queues(lab).rows) == 0
    for key, value in before.items():
        if key[0].endswith("_total"):
            assert after[key] >= value, key


def test_a_link_that_a_button_takes_down_is_down_in_frr_and_comes_back(
    page: WebClient, viewer: EventStream, lab: Lab
) -> None:
    link = f"/api/labs/{lab.name}/link"
    try:
        status_code, _, action = page.post(link, {"port": "ctsw1:eth1", "state": "down"})
        assert (status_code, action["state"]) == (202, "running")
        done = viewer.wait_for("action", lambda found: found["state"] != "running")
        assert (done["state"], done["text"][:18]) == ("done", "ctsw1:eth1 is down")
        assert (lab.daemons.sessions("ctsw1") or {})["eth1"] != ESTABLISHED
        assert state_of(lab).dead == ("ctsw1:eth1",)
        found = viewer.wait_for("update", lambda found: found.get("totals", {}).get("established") == 3)
        assert found["totals"]["links_down"] == 1
        # BGP may notice it later at this end.
        until(lambda: page.get(f"/api/labs/{lab.name}/ports/rtsw1:eth1")["bgp"] != ESTABLISHED)
        assert page.get(f"/api/labs/{lab.name}/ports/rtsw1:eth1")["down"]
        viewer.wait_for("news", lambda items: any(item["text"] == "ctsw1:eth1 down" for item in items))
        viewer.forget()
        # By the other end: the end where it was taken down is set up.
        assert page.post(link, {"port": "rtsw1:eth1", "state": "up"})[0] == 202
        done = viewer.wait_for("action", lambda found: found["state"] != "running")
        assert done["state"] == "done"
        viewer.wait_for("update", lambda found: found.get("totals", {}).get("established") == 4)
        assert state_of(lab).dead == ()
        assert (lab.daemons.sessions("ctsw1") or {})["eth1"] == ESTABLISHED
    finally:
        orders.end_all(lab)


def test_a_fault_is_set_and_cleared_by_buttons_and_shown_with_its_effect(
    page: WebClient, viewer: EventStream, lab: Lab
) -> None:
    at = f"/api/labs/{lab.name}"
    assert page.get(f"{at}/faults")["faults"] == []
    wanted = {"kind": "slow-link", "where": "rtsw1:eth1", "values": "rate=50%"}
    assert page.post(f"{at}/fault", wanted)[0] == 202
    done = viewer.wait_for("action", lambda found: found["kind"] == "fault" and found["state"] != "running")
    assert (done["state"], done["text"][:40]) == ("done", "rtsw1:eth1: slow-link at 50% of its rate")
    (row,) = page.get(f"{at}/faults")["faults"]
    assert row["effect"].startswith("the kernel's shaper of rtsw1:eth1 has ")
    for wrong in (
        {"kind": "sloth", "where": "rtsw1"},
        {"kind": "slow-link", "where": 7},
        {**wanted, "values": "rate=9"},
    ):
        assert page.post(f"{at}/fault", wrong)[0] == 400
    viewer.forget()
    assert page.post(f"{at}/clear", {"where": ""})[0] == 202
    done = viewer.wait_for("action", lambda found: found["kind"] == "fault" and found["state"] != "running")
    assert done["text"] == "ended: rtsw1:eth1: slow-link at 50% of its rate"
    assert page.get(f"{at}/faults")["faults"] == []


def test_a_button_that_cannot_be_carried_out_says_why(page: WebClient, viewer: EventStream, lab: Lab) -> None:
    link = f"/api/labs/{lab.name}/link"
    assert page.post(link, {"port": "rtsw9:eth1", "state": "down"})[0] == 202
    done = viewer.wait_for("action", lambda found: found["state"] != "running")
    assert (done["state"], "is not a port" in done["text"]) == ("failed", True)
    for wrong in ({}, {"port": 1, "state": "down"}, {"port": "rtsw1:eth1", "state": "sideways"}):
        assert page.post(link, wrong)[0] == 400
    viewer.forget()
    with owners.lock(lab.name):  # as another command holds it
        assert page.post(link, {"port": "rtsw1:eth1", "state": "down"})[0] == 202
        done = viewer.wait_for("action", lambda found: found["state"] != "running")
    assert "is being worked on by another Heddle" in done["text"]
    assert state_of(lab).dead == ()


def test_a_run_of_the_page_is_a_run_of_the_verb_and_is_shown(page: WebClient, viewer: EventStream, lab: Lab) -> None:
    before = History.of(lab).find()
    asked = {"collective": "all-reduce", "size": "256K", "qps": 2, "iters": 2}
    assert page.post(f"/api/labs/{lab.name}/run", asked)[0] == 202
    assert page.post(f"/api/labs/{lab.name}/run", asked)[0] == 400  # one at a time
    done = viewer.wait_for("action", lambda found: found["state"] != "running", 120)
    assert done["state"] == "done", done
    assert any("all-reduce" in line for line in done["lines"])
    kept = History.of(lab).newest(1)[0]
    assert int(kept.id) == int(before) + 1
    assert kept.record is not None
    assert (kept.record.options.qps, kept.record.options.sizes) == (2, (262144,))
    viewer.wait_for("update", lambda found: found.get("runs", {}).get("last", [{}])[0].get("id") == kept.id)
    assert page.get(f"/api/labs/{lab.name}/qps")["run"] == kept.id


@pytest.mark.deep
def test_a_run_is_stopped_as_by_ctrl_c(page: WebClient, viewer: EventStream, lab: Lab) -> None:
    """A shell starts a job in the background of a script with SIGINT ignored, and its children inherit that."""
    asked = {"collective": "all-reduce", "size": "4M", "iters": 500}
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert page.post(f"/api/labs/{lab.name}/run", asked)[0] == 202
        viewer.wait_for("update", lambda found: found.get("runs", {}).get("running") is True, 60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert page.post(f"/api/labs/{lab.name}/stop", {})[2] == {"stopped": True}
    done = viewer.wait_for("action", lambda found: found["state"] != "running", 60)
    assert (done["state"], "exit code 130" in done["text"]) == ("failed", True)
    with owners.lock(lab.name):
        pass  # free again


def readings_of(page: WebClient, lab: Lab) -> float:
    return metrics_of(page)["heddle_dashboard_readings_total", frozenset({("lab", lab.name)})]


def _later(when: float, found: dict[str, float]) -> bool:
    return found["when"] > when


def _at(when: float, found: dict[str, float]) -> bool:
    return found["when"] == when


def test_a_second_viewer_costs_no_second_reading(page: WebClient, viewer: EventStream, lab: Lab) -> None:
    second = EventStream(page, lab.name)
    try:
        second.wait_for("hello", lambda found: found["up"])
        watching = [each.name for each in threading.enumerate() if each.name == f"watch-{lab.name}"]
        assert watching == [f"watch-{lab.name}"]
        for stream in (viewer, second):
            stream.forget()
        first = readings_of(page, lab)
        last = 0.0
        for _ in range(6):
            last = viewer.wait_for("update", partial(_later, last))["when"]
        made = readings_of(page, lab) - first  # scrapes make none while the reader runs
        viewer.wait_for("update", partial(_later, last))
        whens = [data["when"] for kind, data in viewer.events if kind == "update"]
        assert 5 <= made <= len(whens) + 1
        for when in whens[:6]:
            second.wait_for("update", partial(_at, when))  # the same reading
        viewers = metrics_of(page)["heddle_dashboard_viewers", frozenset({("lab", lab.name)})]
        assert viewers == 2
    finally:
        second.close()


def test_nothing_is_read_without_viewers(page: WebClient, lab: Lab) -> None:
    stream = EventStream(page, lab.name)
    stream.wait_for("update")
    stream.close()

    def watched() -> bool:
        return any(each.name == f"watch-{lab.name}" for each in threading.enumerate())

    until(lambda: not watched())
    before = readings_of(page, lab)  # this scrape reads once itself
    assert readings_of(page, lab) == before + 1
    again = EventStream(page, lab.name)
    again.wait_for("update")
    again.close()


@pytest.mark.deep
def test_a_lab_of_another_version_and_one_that_goes_and_comes_again_are_told_and_shown(
    page: WebClient, name: str
) -> None:
    loaded = load_fabric("tiny", name=name, overrides=["racks=1", "ctsw=1", "hosts_per_rack=1"])
    assert page.ask("GET", f"/api/labs/{name}/events")[0] == 400
    life.up(loaded)
    path = state.lab_dir(name) / "lab.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps(record | {"version": "0.0.9"}))
    (mine,) = [each for each in page.get("/api/labs")["labs"] if each["lab"] == name]
    assert (mine["state"], "Heddle 0.0.9" in mine["trouble"]) == ("unreadable", True)
    stream = EventStream(page, name)
    other = stream.wait_for("state", lambda found: "Heddle 0.0.9" in found["trouble"])
    stream.close()
    assert "hint:" in other["trouble"] and metrics_of(page)["heddle_lab_up", frozenset({("lab", name)})] == 0
    path.write_text(json.dumps(record))
    stream = EventStream(page, name)
    first = stream.wait_for("state", lambda found: found["up"])
    command(["ip", "netns", "delete", f"heddle-{name}-ctsw1"])
    missing = "ctsw1  its namespace is missing: it was removed"
    stream.wait_for("state", lambda found: not found["up"] and missing in found["trouble"])
    for _ in range(2):  # readings that fail; each says the same, so nothing is sent
        assert page.get("/metrics").count(f'heddle_lab_up{{lab="{name}"}} 0.0') == 1
        time.sleep(labwatch.EVERY_S)
    news = [item["text"] for kind, items in stream.events if kind == "news" for item in items]
    assert f"{name} is not up" in news and f"{name} is up again" not in news
    life.down(name)
    # A reading in the middle of `down` names an incomplete lab; the next one does not find it.
    gone = stream.wait_for("state", lambda found: not found["up"] and "is not running" in found["trouble"])
    assert "Traceback" not in gone["trouble"]
    stream.forget()
    life.up(load_fabric("tiny", name=name, overrides=["racks=2", "ctsw=1", "hosts_per_rack=1"]))
    back = stream.wait_for("state", lambda found: found["up"], 60)
    assert back["plan"] > first["plan"]
    assert page.get(f"/api/labs/{name}/plan")["svg"].count('<g class="node ') == 5
    assert back["totals"]["expected"] == 2
    stream.close()


def test_a_lab_that_is_repaired_or_changed_goes_on(page: WebClient, viewer: EventStream, lab: Lab) -> None:
    first = viewer.wait_for("state", lambda found: found["up"])
    command(["ip", "-n", lab.handle("rtsw1").netns.name, "link", "set", "eth1", "down"])  # by hand, not on purpose
    # Links and sessions are not read at one moment: a first reading may have the session alone.
    wanted = {"established": 3, "links_down": 1}
    viewer.wait_for("update", lambda found: wanted.items() <= found.get("totals", {}).items())
    viewer.forget()
    repair(lab, Silent())
    viewer.wait_for("update", lambda found: found.get("totals", {}).get("established") == 4)
    scale = {each["ref"]: each["scale"] for each in plan_of(page, lab)["ports"]}
    viewer.forget()
    try:
        set_queues(lab, ["ecn.kmax=321KB"], ["ctsw1"])
        changed = viewer.wait_for("state", lambda found: found["up"] and found["plan"] > first["plan"])
        now = {each["ref"]: each["scale"] for each in plan_of(page, lab)["ports"]}
        assert changed["totals"]["established"] == 4
        assert {ref for ref in now if now[ref] != scale[ref]} == {p.ref for p in lab.fabric.by_name["ctsw1"].ports}
        assert now["ctsw1:eth1"] == 321_000
    finally:
        set_queues(lab, ["ecn.kmax=160KB"], ["ctsw1"])


def is_free(lab: Lab) -> bool:
    try:
        with owners.lock(lab.name):
            return True
    except InputError:
        return False


@pytest.mark.deep
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_the_verb_ends_its_run_and_its_streams(lab: Lab, how: signal.Signals) -> None:
    argv = [*HERE.command(), "dashboard", lab.name, "--format=json"]
    with ExitStack() as ends:
        proc = ends.enter_context(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        ends.callback(proc.kill)
        assert proc.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = proc.stdout.readline()
            assert line, proc.stderr and proc.stderr.read()
            text += line
        url, _, token = json.loads(text)["url"].partition("#token=")
        assert url.endswith(f"/?lab={lab.name}")
        page = WebClient(int(re.findall(r":(\d+)/", url)[0]), token)
        stream = EventStream(page, lab.name)
        stream.wait_for("update")
        assert page.post(f"/api/labs/{lab.name}/run", {"size": "4M", "iters": 500})[0] == 202
        stream.wait_for("update", lambda found: found.get("runs", {}).get("running") is True, 60)
        proc.send_signal(how)
        out, err = proc.communicate(timeout=patience(60))
    assert stream.ended.wait(10)
    stream.close()
    assert (proc.returncode, out) == (0 if how == signal.SIGINT else -how, "")
    assert "Traceback" not in err
    until(partial(is_free, lab))  # the run that it had started has ended
    assert not History.of(lab).writing()
