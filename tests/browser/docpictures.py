"""The pictures of pages in docs/: how each is made, and whether one is older than what it shows.

`./inv docs --pictures` makes them from labs of their own; that needs root and Chromium. A picture shows figures of a
run, so it cannot be made again to be compared. Instead docs/site/pictures.json has two digests of each: of its file,
and of what the code draws from fixed figures (SHOWN). `./inv docs --check` compares both, without root.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

from heddle.base.events import Silent
from heddle.base.userfiles import give_to_caller
from heddle.cli.demo import ACTS, OPTIONS, DemoResult, Played, _scene
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.proof.linkuse import LinkUse, Mmr, UplinkSet
from heddle.runs.parts import PARTS
from heddle.runs.rates import Rates
from heddle.runs.run import run
from heddle.runs.store import History, open_runs
from heddle.runs.stored import StoredRun
from heddle.traffic.options import RunOptions
from heddle.views import queuepicture
from heddle.views.fabricsvg import fabric_svg, legend_svg, style
from heddle.views.linkloads import LinkLoad
from heddle.views.picturelayout import PictureLayout
from heddle.views.report.page import report_html
from tests.bench.demopicture import picture, shortened
from tests.unit import run_samples as samples
from tests.unit import test_queue_picture
from tests.webclient import dashboard

if TYPE_CHECKING:
    from tests.browser.chromium import Browser

ROOT: Final = Path(__file__).resolve().parents[2]
DOCS: Final = ROOT / "docs"
DIGESTS: Final = "site/pictures.json"  # below DOCS
MADE_BY: Final = "./inv docs --pictures"
_LAB: Final = "picture"
_PLAY_S: Final = 6.0  # of a run, so that there is a history to see
_PLAIN: Final = re.compile(r"^\s*//.*$|\s//\s.*$|/\*.*?\*/|^\s+", re.MULTILINE)  # comments and indents of scripts


def digest(content: str | bytes) -> str:
    """The digest of a file, or of what a picture shows."""
    return hashlib.sha256(content.encode() if isinstance(content, str) else content).hexdigest()[:16]


# -- what the code draws from fixed figures -------------------------------------------------------------------------


def _words(svg: bytes) -> str:
    """The texts and the colours of a drawing by matplotlib, whose coordinates are those of its version."""
    text = svg.decode()
    return "\n".join([*re.findall(r"<text[^>]*>([^<]*)</text>", text), *sorted(set(re.findall(r"#[0-9a-f]{6}", text)))])


def _texts(*files: str) -> str:
    return "\n".join(_PLAIN.sub("", (ROOT / file).read_text(encoding="utf-8")) for file in files)


def demo_text() -> str:
    """The output of the demo, and the names of all that could add a line to it."""
    links = [LinkUse(f"rtsw1:eth{n}", True, 9, n * 500_000, 1, rate_bps=10**8, run_s=0.1) for n in (1, 3)]
    proof: Any = SimpleNamespace(
        agree=True, flows=[None] * 16, notes=(), links=links, uplinks=UplinkSet.of(links), mmr=Mmr.of(links)
    )
    played = tuple(Played(act, samples.record(replace(OPTIONS, qps=act.qps), ecmp=act.ecmp), proof) for act in ACTS)
    shown = "\n".join([*map(_scene, played), DemoResult(played, 60.0).text()])
    return "\n".join([*PARTS, *shortened(shown.splitlines())])


def fabric_text() -> str:
    """A fabric with loads of every step, its legend, and how the report frames it."""
    fabric = load_fabric("zone").fabric
    loads = [
        LinkLoad(":".join(link.a), ":".join(link.b), 10, at * link.rate_bps // 320, 10, 0, 0.0, link.rate_bps, 1.0)
        for at, link in enumerate(fabric.links)
    ]
    parts = (fabric_svg(PictureLayout(fabric), loads, title="zone"), legend_svg(), style())
    return "\n".join([*parts, _texts("templates/report/fabric.html.j2", "templates/report/style.css")])


def queue_text(rates: Rates | None = None) -> str:
    """Queues over time."""
    found = test_queue_picture.recorded()
    return _words(queuepicture.draw("svg", found, queuepicture.panels(found), rates))


def rates_text() -> str:
    """The same with the rates of congestion control."""
    return queue_text(test_queue_picture.some())


def page_text() -> str:
    """The page of the dashboard with its fabric."""
    place = "plugins/dashboard/templates"
    return fabric_text() + _texts(
        *(f"{place}/{name}" for name in ("index.html", "dashboard.css", "dashboard.js", "drawing.js", "panels.js"))
    )


SHOWN: Final[Mapping[str, Callable[[], str]]] = {
    "demo.svg": demo_text,
    "report-fabric.png": fabric_text,
    "report-queue.png": queue_text,
    "dcqcn.png": rates_text,
    "dashboard.png": page_text,
    "trimming.png": rates_text,
}


def _kept() -> dict[str, dict[str, str]]:
    path = DOCS / DIGESTS
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def stale() -> dict[str, str]:
    """The pictures that must be made again, each with the reason."""
    kept, found = _kept(), {}
    there = {path.name for path in DOCS.iterdir() if path.suffix in (".png", ".svg")}
    for name in sorted(there | SHOWN.keys()):
        if name not in SHOWN:
            found[name] = "is made by no function of tests/browser/docpictures.py"
        elif name not in there:
            found[name] = "is missing"
        elif kept.get(name, {}).get("file") != digest((DOCS / name).read_bytes()):
            found[name] = f"is not the file that {MADE_BY} has written"
        elif kept[name]["shows"] != digest(SHOWN[name]()):
            found[name] = "is older than what it shows"
    return found


# -- how they are made ----------------------------------------------------------------------------------------------


def _ran(lab: Lab, options: RunOptions) -> StoredRun:
    result = run(lab, options, Silent())
    (whole,) = open_runs([str(History.of(lab).directory / result.id)])
    return whole


def of_demo(out: Path) -> Iterator[Path]:
    """The output of `./inv demo`."""
    done = subprocess.run([str(ROOT / "inv"), "demo"], stdout=subprocess.PIPE, text=True, check=True)
    path = out / "demo.svg"
    path.write_text(picture(done.stdout), encoding="utf-8")
    yield path


def report(lab: Lab, browser: Browser, scratch: Path) -> Iterator[Path]:
    """An incast with pauses: the use of links, and a queue over time."""
    whole = _ran(lab, RunOptions(collective="incast", sizes=(1 << 20,), qps=4, bucket_ns=5 * 10**6))
    page = scratch / "report.html"
    page.write_text(report_html([whole]), encoding="utf-8")
    browser.open(page)
    browser.wait_for("document.documentElement.dataset.ready === 'yes'")
    browser.hover(".reach[data-port='rtsw1:eth5']")
    yield browser.screenshot("report-fabric", f"#{whole.name}-fabric")
    yield browser.screenshot("report-queue", f"#{whole.name}-queues figure.chart:first-of-type")


def rates(lab: Lab, browser: Browser, _: Path) -> Iterator[Path]:
    """An incast with DCQCN: the rates, the two fullest egress queues, and an ingress buffer."""
    options = RunOptions(collective="incast", sizes=(48 << 20,), iters=1, warmup=0, congestion="dcqcn")
    whole = _ran(lab, options)
    recorded = whole.recorded.value
    assert recorded is not None, whole.recorded.why
    panels = queuepicture.panels(recorded)
    shown = [[each for each in panels if each.side == side] for side in ("egress", "ingress")]
    path = browser.screenshots / "dcqcn.png"
    path.write_bytes(queuepicture.draw("png", recorded, [*shown[0][:2], *shown[1][:1]], whole.rates.value))
    yield path


def of_trimming(out: Path) -> Iterator[Path]:
    """An incast with NSCC on switches that trim: windows per round trip, and the fullest queue with its trims."""
    fabric = load_fabric(str(ROOT / "topologies/examples/trimming.yml"), name=_LAB)
    lab = labs.up(fabric, rollback=True).lab
    try:
        options = RunOptions(
            collective="incast", sizes=(4 << 20,), iters=1, warmup=0, transport="srd", congestion="nscc"
        )
        whole = _ran(lab, options)
        recorded = whole.recorded.value
        assert recorded is not None, whole.recorded.why
        path = out / "trimming.png"
        path.write_bytes(queuepicture.draw("png", recorded, queuepicture.panels(recorded)[:1], whole.rates.value))
    finally:
        labs.down(_LAB)
    yield path


def live_page(lab: Lab, browser: Browser, _: Path) -> Iterator[Path]:
    """The dashboard during an all-to-all, with a port chosen."""
    with dashboard() as server:
        browser.size(1600, 1000)
        browser.open(server.page.replace("#", f"?lab={lab.name}#"))
        browser.wait_for("document.querySelectorAll('#drawing .half').length > 0")
        link = "document.querySelector('.reach[data-port=\"rtsw1:eth1\"]')"
        browser.run(f"{link}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
        asked = {"collective": "all-to-all", "size": "4M", "iters": 8}
        assert server.post(f"/api/labs/{lab.name}/run", asked)[0] == 202
        browser.wait_for("document.querySelectorAll('#drawing .half:not(.idle)').length > 4")
        time.sleep(_PLAY_S)
        yield browser.screenshot("dashboard")
        server.post(f"/api/labs/{lab.name}/stop", {})
        browser.open("about:blank")


OF_LAB: Final[tuple[Callable[[Lab, Browser, Path], Iterator[Path]], ...]] = (report, rates, live_page)


def _pictures(out: Path, scratch: Path) -> Iterator[Path]:
    from tests.browser.chromium import Browser, start

    yield from of_demo(out)
    yield from of_trimming(out)
    driver = start(scratch / "profile")
    try:
        lab = labs.up(load_fabric("zone", name=_LAB, overrides=["queues.pfc.enabled=true"]), rollback=True).lab
        try:
            browser = Browser(driver, out)
            for page in OF_LAB:
                yield from page(lab, browser, scratch)
        finally:
            labs.down(_LAB)
    finally:
        driver.quit()


def make() -> Iterator[Path]:
    """Make all pictures again, and give the path of each."""
    os.environ["SE_OFFLINE"] = "true"
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as state:
        before = os.environ.get("HEDDLE_STATE_DIR")
        os.environ["HEDDLE_STATE_DIR"] = state
        try:
            for path in _pictures(DOCS, Path(name)):
                kept = _kept() | {path.name: {"file": digest(path.read_bytes()), "shows": digest(SHOWN[path.name]())}}
                text = json.dumps({each: kept[each] for each in SHOWN if each in kept}, indent=1)
                (DOCS / DIGESTS).write_text(f"{text}\n", encoding="utf-8")
                for written in (path, DOCS / DIGESTS):
                    give_to_caller(written)
                yield path
        finally:
            os.environ.pop("HEDDLE_STATE_DIR")
            if before is not None:
                os.environ["HEDDLE_STATE_DIR"] = before
