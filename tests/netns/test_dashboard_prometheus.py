"""A real Prometheus scrapes the dashboard, and evaluates every query of two Grafana dashboards: ours, and NVIDIA's.

Debian's package prometheus starts a server when it is installed, so suites do not install it: without the program this
module is skipped. `apt-get download prometheus`, `dpkg -x` and a PATH with its usr/bin are enough.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heddle.base.events import Silent
from heddle.dashboard.grafana import dashboard_json
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.runs.store import History
from heddle.traffic.communicators import parse_split
from heddle.traffic.options import RunOptions
from tests.conftest import Borrow
from tests.machine import patience
from tests.webclient import dashboard

pytestmark = [pytest.mark.root, pytest.mark.deep]

# Rows of the dashboard in NVIDIA/nccl v2.30, plugins/profiler/inspector/grafana: each has bandwidth and time,
# both for one node ("NVLink Only") and for several ("NET Only").
ROWS = {
    ("nccl_bus_bandwidth_gbs", "nccl_collective_exec_time_microseconds"): (
        'collective="AllReduce"', 'collective="AllGather"', 'collective="ReduceScatter"',
    ),
    ("nccl_p2p_bus_bandwidth_gbs", "nccl_p2p_exec_time_microseconds"): (
        'p2p_operation="Send"', 'p2p_operation="Recv"',
    ),
}  # fmt: skip
NODES = {'n_nodes="1"': "message_size, nranks", 'n_nodes!="1"': "message_size, nranks, n_nodes"}


def inspector_queries() -> list[str]:
    """The queries of all of its panels, with its variables cluster and jobid."""
    return [
        f'avg by({by}) ({metric}{{cluster="$cluster", slurm_job_id="$jobid", {row}, {nodes}}})'
        for metrics, rows in ROWS.items()
        for row in rows
        for metric in metrics
        for nodes, by in NODES.items()
    ]


@dataclass(frozen=True)
class Prometheus:
    """A server on loopback that scrapes one dashboard each second."""

    port: int

    def ask(self, path: str, **words: str) -> Any:
        """`data` of an answer of its HTTP API."""
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(words)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            found = json.load(answer)
        assert found["status"] == "success", found
        return found["data"]

    def samples(self, query: str) -> list[tuple[dict[str, str], float]]:
        """Labels and value of each series of an instant query."""
        found = self.ask("query", query=query)
        assert found["resultType"] == "vector", query
        return [(row["metric"], float(row["value"][1])) for row in found["result"]]

    def wait_for(self, query: str) -> None:
        """Until the query has data: after the scrapes that it needs."""
        end = time.monotonic() + patience(60)
        while not self.samples(query):
            assert time.monotonic() < end, f"no data: {query}; {self.ask('targets')['activeTargets']}"
            time.sleep(0.2)


@pytest.fixture(scope="module")
def lab(borrow: Borrow) -> Lab:
    return borrow("tiny", "link.host=50mbit", "link.fabric=50mbit")


@pytest.fixture(scope="module")
def prometheus(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (Debian's package prometheus has it)")
    place = tmp_path_factory.mktemp("prometheus")
    with dashboard() as page, socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()
        _write_config(place / "prometheus.yml", page.port)
        argv = [program, f"--config.file={place / 'prometheus.yml'}", f"--storage.tsdb.path={place / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
        with (place / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log) as server:
            try:
                found = Prometheus(port)
                _wait_until_ready(found, server, place / "log")
                yield found
            finally:
                server.terminate()


def _write_config(path: Path, port: int) -> None:
    job = {"job_name": "heddle", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}
    whole = {"global": {"scrape_interval": "1s", "scrape_timeout": "1s"}, "scrape_configs": [job]}
    path.write_text(json.dumps(whole), encoding="utf-8")  # JSON is YAML


def _wait_until_ready(server: Prometheus, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + patience(60)
    while True:
        assert process.poll() is None, log.read_text()
        try:
            server.ask("query", query="vector(1)")
        except urllib.error.URLError:  # not listening, or not ready (503)
            assert time.monotonic() < end, log.read_text()
            time.sleep(0.1)
        else:
            return


def _measure(lab: Lab, options: RunOptions) -> str:
    """A run, and its name in slurm_job_id."""
    run(lab, options, Silent())
    return f"{lab.name}-{History.of(lab).find()}"


def test_every_query_of_our_dashboard_has_data(prometheus: Prometheus, lab: Lab) -> None:
    _measure(lab, RunOptions(collective="incast", sizes=(1 << 19,), iters=2, warmup=0, qps=2))
    values = {"$lab": lab.name, "$__rate_interval": "10s", "$__interval": "5s"}
    prometheus.wait_for(f'heddle_run_time_seconds{{lab="{lab.name}"}}')
    prometheus.wait_for(f'rate(heddle_link_bytes_total{{lab="{lab.name}"}}[10s])')  # two scrapes
    queries = [target["expr"] for panel in json.loads(dashboard_json())["panels"] for target in panel["targets"]]
    assert len(queries) >= 13
    for name, value in values.items():
        queries = [query.replace(name, value) for query in queries]
    assert not [query for query in queries if "$" in query]
    assert [query for query in queries if not prometheus.samples(query)] == []
    assert lab.name in prometheus.ask("label/lab/values")
    marks = prometheus.samples(f'sum(heddle_ecn_marked_packets_total{{lab="{lab.name}"}})')
    assert marks[0][1] > 0


@pytest.mark.parametrize(
    ("options", "rows"),
    [(RunOptions(sizes=(1 << 16, 1 << 17), iters=2), {'collective="AllReduce"'}),
     (RunOptions(collective="incast", algorithm="direct", sizes=(1 << 17,), iters=2, split=parse_split("DIV 2")),
      {'p2p_operation="Send"', 'p2p_operation="Recv"'})],
    ids=["all-reduce", "pairs"],
)  # fmt: skip
def test_panels_of_nvidias_dashboard_show_what_was_run(
    prometheus: Prometheus, lab: Lab, options: RunOptions, rows: set[str]
) -> None:
    job = _measure(lab, options)
    prometheus.wait_for(f'nccl_bus_bandwidth_gbs{{slurm_job_id="{job}"}}')
    full = set()
    for query in inspector_queries():
        found = prometheus.samples(query.replace("$cluster", lab.name).replace("$jobid", job))
        assert len(found) in (0, len(options.sizes)), query
        assert all(value > 0 for _, value in found)
        if found:
            full.add(query)
    # Between hosts: panels "NET only". Heddle has no reduce-scatter and no all-gather.
    assert full == {query for query in inspector_queries() if 'n_nodes!="1"' in query and any(r in query for r in rows)}
    assert job in prometheus.ask("label/slurm_job_id/values")  # the variable jobid
