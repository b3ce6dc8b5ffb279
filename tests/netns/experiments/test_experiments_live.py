"""Experiments on a live fabric: one lab for all runs, live changes that are undone, and Ctrl-C."""

from __future__ import annotations

import json
import platform
import signal
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

import tasks
from heddle.base import state
from heddle.base.events import Silent
from heddle.cli.program import main
from heddle.runs.store import open_runs
from heddle_plugins.experiments.benchmarkreport import benchmark_report
from heddle_plugins.experiments.folders import FolderResult, load_folder
from heddle_plugins.experiments.loading import load_experiment
from heddle_plugins.experiments.running import Running
from tests.alteredworker import altered
from tests.machine import patience
from tests.netns.live import started

FILE: Final = """
title: Live changes
fabric: {use: tiny, set: {link.host: 100Mbit, link.fabric: 100Mbit}}
runs:
  plain: {run: {collective: all-reduce, size: 64K, iters: 1, warmup: 0, placement: cyclic, qps: 4}}
  seeded:
    hashing: {mode: e-ecmp, seed: shared}
    queues: {ecn.kmin: 8KB}
    run: {collective: all-reduce, size: 64K, iters: 1, warmup: 0, placement: cyclic, qps: [4, 8]}
  broken:
    down: [rtsw1:eth1]
    run: {collective: all-reduce, size: 64K, iters: 1, warmup: 0, placement: cyclic, qps: 4}
  engineered:
    hashing: e-ecmp
    te: true
    run: {collective: all-reduce, size: 64K, iters: 1, warmup: 0, placement: cyclic, qps: 4}
  again: {run: {collective: all-reduce, size: 64K, iters: 1, warmup: 0, placement: cyclic, qps: 4}}
  paper: {offline: true, run: {collective: all-reduce, size: 64K, placement: cyclic, qps: 4}}
checks:
  broken: {value: "links_used(broken, port='rtsw1:eth[12]')", sign: is 1}
  undone: {value: mmr(again) / mmr(plain), low: 1, high: 1}
  predicted: {value: mmr(paper) - mmr(plain), sign: is 0}
  planned: {value: mmr(engineered), sign: is 1}
  qps: {value: qps(seeded)}
  right: {value: max(wrong(seeded)) + wrong(broken), sign: is 0}
"""


def test_runs_share_a_lab_and_changes_last_for_one_run(tmp_path: Path) -> None:
    file = tmp_path / "live.yml"
    file.write_text(FILE)
    result = Running(load_experiment(file, "live.yml"), Silent(), None, tmp_path / "runs", accept_unreliable=True).run()
    rows = {row.name: row for row in result.rows}
    assert {name: row.state for name, row in rows.items()} == {
        "broken": "not known", "undone": "not known", "predicted": "not known", "planned": "not known",
        "qps qps=4": "shown", "qps qps=8": "shown", "right": "not known",
    }, "one repeat of each"  # fmt: skip
    means = {name: row.sample.mean for name, row in rows.items() if row.sample is not None}
    assert {name: means[name] for name in ("broken", "undone", "predicted", "planned", "right")} == {
        "broken": 1, "undone": 1, "predicted": 0, "planned": 1, "right": 0,
    }, {name: row.why for name, row in rows.items()}  # fmt: skip
    assert all(row.proven for row in rows.values()) and result.failed
    one, two = (rows[name].sample for name in ("qps qps=4", "qps qps=8"))
    assert one is not None and two is not None and two.mean == 2 * one.mean
    assert not [name for name in state.labs() if name.startswith("exp")]  # it was taken down
    copied = sorted((tmp_path / "runs").iterdir())
    assert [each.name for each in copied] == [
        "live-again-1", "live-broken-1", "live-engineered-1", "live-plain-1", "live-seeded-4-1", "live-seeded-8-1",
    ]  # fmt: skip
    (run,) = open_runs([f"{copied[1]}/"])
    assert run.proof.value is not None and run.proof.value.agree and "e-ecmp" not in run.record.ecmp


@pytest.mark.long
def test_a_published_result_is_in_its_bands_with_proven_paths() -> None:
    """In the gate: experiments live above, published ones offline in tests/unit/experiments/test_shipped.py."""
    (experiment,) = load_folder("sigcomm24").only(["02-same-five-tuple"]).experiments
    result = Running(experiment, Silent(), accept_unreliable=True).run()
    assert not result.failed and all(row.proven and row.state in ("in band", "sign only") for row in result.rows)


@pytest.mark.long("10 seconds and more")
def test_ctrl_c_takes_the_lab_down_and_prints_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "long.yml"
    file.write_text(
        "title: Long\nfabric: tiny\nrepeats: 2\nruns:\n"
        "  short: {run: {collective: all-reduce, size: 4K, iters: 1, warmup: 0}}\n"
        "  long: {run: {collective: all-reduce, size: 64K, iters: 10000}}\n"
        "checks: {short: busbw(short), long: busbw(long)}\n"
    )
    with started("experiment", str(file), "--format", "json", errors=subprocess.PIPE) as proc:
        assert proc.stderr is not None
        for line in proc.stderr:
            if "run 2 of 4: long" in line:
                break
        proc.send_signal(signal.SIGINT)
        out, said = proc.communicate(timeout=patience(120))
    assert proc.returncode == 130, said
    document = json.loads(out)
    assert document["interrupted"] and [each["run"] for each in document["runs"]] == ["short"]
    short, long = document["checks"]
    assert short["measured"]["mean"] > 0 and (long["state"], long["not_known"]) == ("not known", "no value")
    assert f"exp{proc.pid % 10**8}" not in state.labs()


CLAIMS: Final = """
title: Uplinks
fabric: {use: tiny, set: {hosts_per_rack: 1, link.host: 40Mbit, link.fabric: 40Mbit}}
repeats: 3
runs:
  pair: {hashing: e-ecmp, run: {collective: send-recv, size: 64K, iters: 1, warmup: 0, qps: 16, sport: fixed}}
checks:
  several:
    value: links_used_least(pair)
    low: 2
    high: 2
    exact: true
    broken_by: {why: the hash ignores queue pairs, runs: {pair: {hashing: flow}}}
  fast: {value: busbw(pair), sign: above 0.0001}
"""


@pytest.mark.long
def test_a_broken_hash_or_wrong_data_end_an_experiment_with_exit_code_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ended(text: str, *more: str) -> tuple[int, dict[str, Any]]:
        file = tmp_path / "claims.yml"
        file.write_text(text)
        code = main(vars(tasks), ["inv", "experiment", str(file), *more, "--accept-unreliable", "--format", "json"])
        return code, json.loads(capsys.readouterr().out)

    code, document = ended(CLAIMS)
    assert code == 0, document
    broken, document = ended(CLAIMS.replace("pair: {hashing: e-ecmp", "pair: {hashing: flow"), "--only", "several")
    (row,) = document["checks"]
    assert (broken, row["state"], row["measured"]["mean"], row["proven"]) == (1, "out of band", 1.0, True)
    code, document = ended(CLAIMS, "--break")  # nothing breaks the other one
    assert document["experiments"][0]["checks"][0]["state"] == "out of band"
    assert code == 1 and document["not_broken"] == {"claims: fast": "has no broken_by"}
    with altered("wrong data"):
        code, document = ended(CLAIMS.replace("repeats: 3", "repeats: 1"))
    assert code == 1 and [row["state"] for row in document["checks"]] == ["wrong data"] * 2
    assert "wrong element" in document["runs"][0]["unfit"]


BENCHMARK: Final = """
title: Around a cycle
claim: {text: a cyclic buffer dependency, source: "Section 7.4, PFC Storm and Deadlock Resilience"}
fabric: {use: tiny, set: {racks: 3, link.host: 100mbit, link.fabric: 100mbit}}
runs:
  cycle:
    run: {matrix: "4,0,64K", iters: 1, warmup: 0, fault: ["rtsw3:eth1,misroute,host=host1",
      "ctsw1:eth2,misroute,host=host1", "rtsw2:eth2,misroute,host=host1"]}
  load: {measure: soak, options: {seconds: 0, size: 4K}}
checks: {hops: "links_used(cycle, port='*tsw*')", wrong: wrong(cycle), ended: ended(load), slope: slope(load)}
"""


@pytest.mark.long
def test_the_report_of_a_benchmark_names_the_versions_and_the_trials(tmp_path: Path) -> None:
    (tmp_path / "index.yml").write_text("{title: T, source: the draft, statement: An emulation., report: bmwg}\n")
    (tmp_path / "cycle.yml").write_text(BENCHMARK)
    folder = load_folder(str(tmp_path))
    result = Running(folder.experiments[0], Silent(), copies=tmp_path / "runs").run()
    rows = {row.name: row for row in result.rows}
    assert not result.failed and rows["hops"].proven, {name: row.why for name, row in rows.items()}
    values = {name: row.sample.mean for name, row in rows.items() if row.sample is not None}
    assert values["hops"] == 5 + 3  # to host1 by two more switches, and credits straight back
    assert values["wrong"] == values["ended"] == 0
    text = benchmark_report(FolderResult(folder, (result,)))
    assert f"Linux {platform.release()}, FRR " in text and "| cycle | 2 | 2 |  | " in text
    assert "| load | ended | " not in text and "| cycle | ended | measure soak: DUT's host" in text
