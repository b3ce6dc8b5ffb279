"""The picture of a lab shows its last run: the links' numbers are those of `paths`, and what hosts sent arrived."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.runs.lookup import paths_of
from heddle.runs.run import run
from heddle.traffic.options import run_options
from heddle.views.usage import usage_of
from tests.conftest import FabricLab
from tests.typed import typed

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def lab(fabric_lab: FabricLab) -> Lab:
    return fabric_lab(racks=2, ctsw=2, hosts_per_rack=1, nics_per_host=2)


def graph(lab: Lab, where: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return typed("graph", lab.name, *words, cwd=where)


def test_before_a_run_and_after_it(lab: Lab, tmp_path: Path) -> None:
    assert usage_of(lab) is None
    done = graph(lab, tmp_path)
    assert (done.returncode, done.stdout) == (0, f"wrote {lab.name}.svg: no run yet, so links have no load\n")

    run(lab, run_options(collective="all-reduce", size="64K", qps=4, iters=2), Silent())
    usage = usage_of(lab)
    assert usage is not None
    loads, caption = usage.loads, usage.caption
    assert caption.startswith("ring all-reduce of 64 KiB on 4 ranks, 4 QPs per connection")

    links = {use.port: use for use in paths_of(lab).links}
    for load in loads:
        assert (load.b_packets, load.b_bytes) == (links[load.b].packets, links[load.b].bytes)
    into = dict.fromkeys(("rtsw1", "rtsw2"), 0)
    out = dict(into)
    for load in loads:
        for ref, sent, came in ((load.a, load.a_bytes, load.b_bytes), (load.b, load.b_bytes, load.a_bytes)):
            if (switch := ref.partition(":")[0]) in into:
                out[switch] += sent
                into[switch] += came
    assert into == out, "what came into an RTSW left it again"
    assert all(count > 0 for count in into.values())

    done = graph(lab, tmp_path, "--format", "json")
    assert json.loads(done.stdout)["run_id"] == usage.run_id == "0001"
    assert json.loads(done.stdout)["links"] == [load.to_json() for load in loads]
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", (tmp_path / f"{lab.name}.svg").read_text())
    assert caption in texts
    mmr = paths_of(lab).mmr.bytes
    assert any(text.startswith("RTSW to CTSW: ") and f"max/mean {mmr:.2f}," in text for text in texts)
