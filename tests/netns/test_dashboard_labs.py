"""The dashboard over other labs than those of test_dashboard_live.py: containers, and IPv6."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from heddle.base.events import Silent
from heddle.base.process import run as command
from heddle.dashboard import labwatch
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as life
from heddle.lab.outages import undo_all
from heddle.lab.queues import read_queues
from heddle.runs.run import run
from heddle.runs.store import paths_of
from heddle.traffic.options import RunOptions
from tests.conftest import Borrow
from tests.webclient import EventStream, WebClient, dashboard

pytestmark = pytest.mark.root


def packets(page: WebClient) -> dict[tuple[str, str], float]:
    """By port and class, what /metrics says was sent."""
    return {
        (f"{sample.labels['node']}:{sample.labels['port']}", sample.labels["class"]): sample.value
        for family in text_string_to_metric_families(page.get("/metrics"))
        for sample in family.samples
        if sample.name == "heddle_link_packets_total"
    }


def established(count: int, found: dict[str, Any]) -> bool:
    return bool(found.get("totals", {}).get("established") == count)


@pytest.mark.deep  # test_dashboard_live.py has the same in IPv4
@pytest.mark.containers
def test_sessions_queues_paths_and_buttons_in_containers_and_in_ipv6(runtime: str, borrow: Borrow) -> None:
    lab = borrow("tiny", *(("family=ipv6",) if runtime == "netns" else ()), runtime=runtime)
    with dashboard() as page:
        viewer = EventStream(page.port, lab.name)
        try:
            totals = viewer.wait_for("state", lambda found: found["up"])["totals"]
            assert (totals["established"], totals["expected"]) == (4, 4)
            run(lab, RunOptions(collective="incast", sizes=(1 << 17,), iters=2, warmup=0, qps=2), Silent())
            ended = time.time()
            viewer.wait_for("update", lambda found: found["when"] > ended)  # /metrics shows the last reading
            qps, paths = page.get(f"/api/labs/{lab.name}/qps"), paths_of(lab)
            assert qps["agree"]
            assert {tuple(qp["path"]) for qp in qps["qps"]} == {each.measured or each.expected for each in paths.flows}
            sent = packets(page)
            rows = [row for row in read_queues(lab).rows if row.kind == "lossless"]  # no BGP in these
            assert {(row.port, str(row.traffic_class)): row.packets for row in rows}.items() <= sent.items()
            assert sum(row.packets for row in rows) > 100
            link = f"/api/labs/{lab.name}/link"
            for port, state, sessions in (("ctsw1:eth1", "down", 3), ("rtsw1:eth1", "up", 4)):
                viewer.forget()
                assert page.post(link, {"port": port, "state": state})[0] == 202
                done = viewer.wait_for("action", lambda found: found["state"] != "running")
                assert done["state"] == "done", done
                viewer.wait_for("update", partial(established, sessions))
        finally:
            viewer.close()
            undo_all(lab, 60)


def test_a_lab_without_one_of_its_nodes_is_not_shown_as_up(lab_name: Callable[[], str]) -> None:
    name = lab_name()
    try:
        life.up(load_fabric("tiny", name=name, overrides=["racks=2", "ctsw=1", "hosts_per_rack=1"]))
        with dashboard() as page:
            viewer = EventStream(page.port, name)
            viewer.wait_for("state", lambda found: found["up"])
            command(["ip", "netns", "delete", f"heddle-{name}-ctsw1"])
            missing = "ctsw1  its namespace is missing: it was removed"
            viewer.wait_for("state", lambda found: not found["up"] and missing in found["trouble"])
            for _ in range(3):  # readings that fail; each says the same, so nothing is sent
                assert page.get("/metrics").count(f'heddle_lab_up{{lab="{name}"}} 0.0') == 1
                time.sleep(labwatch.EVERY_S)
            viewer.close()
            said = [item["text"] for kind, items in viewer.events if kind == "news" for item in items]
            assert f"{name} is not up" in said
            assert f"{name} is up again" not in said
    finally:
        life.down(name)
