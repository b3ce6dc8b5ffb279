"""Everything that a person sees, as pictures to look at: ./inv docs --screenshots DIR

README and pages of the site in light, dark and on a phone, the output of the demo, and of a small lab of their own a
report, the dashboard and a plot of queues. The lab goes down at the end. Root, and Chromium, are needed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from heddle.base.events import Silent
from heddle.fabric.fabricfile import load_fabric
from heddle.lab import lifecycle as labs
from heddle.lab.lab import Lab
from heddle.runs.run import run
from heddle.runs.store import History, open_runs
from heddle.traffic.options import RunOptions
from heddle.views.report.page import report_html
from tests.bench.demopicture import picture
from tests.browser.chromium import DESKTOP, PHONE, Browser, Scheme, start
from tests.webclient import dashboard

ROOT: Final = Path(__file__).resolve().parents[2]
_LAB: Final = "screenshots"
_PAGES: Final = ("index", "trust")  # of the site: its home, and a page with tables
_LOOKS: Final[tuple[tuple[str, Scheme, tuple[int, int]], ...]] = (
    ("light", "light", DESKTOP),
    ("dark", "dark", DESKTOP),
    ("phone", "light", PHONE),
)
_DRAWN: Final = "document.querySelectorAll('#drawing .half').length > 0"
_STYLE: Final = (
    ":root{color-scheme:light dark}"
    "body{font:16px/1.5 sans-serif;max-width:62rem;margin:auto;padding:1rem}img{max-width:100%}"
    "pre{overflow:auto;background:#8882;padding:.5rem}table{border-collapse:collapse;display:block;overflow:auto}"
    "td,th{border:1px solid #888;padding:.2rem .6rem}"
)


def looks(browser: Browser, page: Path | str, name: str, ready: str = "true") -> Iterator[Path]:
    """NAME-light.png, NAME-dark.png and NAME-phone.png of a page. ready: JavaScript that is true when it is drawn."""
    for look, scheme, size in _LOOKS:
        browser.size(*size)
        browser.media(scheme)
        browser.open("about:blank")  # else an address with # is the same document, which is not loaded again
        browser.open(page)
        browser.wait_for(ready)
        yield browser.screenshot(f"{name}-{look}")


def readme(scratch: Path) -> Path:
    """README.md as a page of HTML, with the pictures of the checkout."""
    argv = [sys.executable, "-m", "markdown", "-x", "tables", "-x", "fenced_code", str(ROOT / "README.md")]
    body = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    page = scratch / "readme.html"
    head = f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><base href="{ROOT.as_uri()}/">'
    page.write_text(f"<!doctype html><html>{head}<style>{_STYLE}</style>{body}</html>", encoding="utf-8")
    return page


def demo(browser: Browser, scratch: Path) -> Iterator[Path]:
    """The output of `./inv demo`."""
    done = subprocess.run([str(ROOT / "inv"), "demo"], stdout=subprocess.PIPE, text=True, check=True)
    drawn = scratch / "demo.svg"
    drawn.write_text(picture(done.stdout), encoding="utf-8")
    browser.size(*DESKTOP)
    browser.open(drawn)
    yield browser.screenshot("demo")


def of_lab(lab: Lab, browser: Browser, scratch: Path) -> Iterator[Path]:
    """The report, the dashboard and the plot of an incast."""
    result = run(lab, RunOptions(collective="incast", sizes=(1 << 20,), qps=4), Silent())
    (whole,) = open_runs([str(History.of(lab).directory / result.id)])
    page = scratch / "report.html"
    page.write_text(report_html([whole]), encoding="utf-8")
    yield from looks(browser, page, "report", "document.documentElement.dataset.ready === 'yes'")
    plot = browser.screenshots / "plot-queues.png"
    argv = [str(ROOT / "inv"), "plot", "queues", "--lab", lab.name, "--out", str(plot)]
    subprocess.run(argv, stdout=subprocess.DEVNULL, check=True)
    yield plot
    with dashboard() as server:
        yield from looks(browser, server.page.replace("#", f"?lab={lab.name}#"), "dashboard", _DRAWN)
        browser.open("about:blank")


def main(out: Path, site: Path) -> Iterator[Path]:
    """Write all pictures to `out`, and give the path of each. site: the directory of the built site."""
    os.environ["SE_OFFLINE"] = "true"
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        driver = start(scratch / "profile")
        before = os.environ.get("HEDDLE_STATE_DIR")
        os.environ["HEDDLE_STATE_DIR"] = str(scratch / "state")
        try:
            browser = Browser(driver, out)
            yield from looks(browser, readme(scratch), "readme")
            for page in _PAGES:
                yield from looks(browser, site / f"{page}.html", f"site-{page}")
            yield from demo(browser, scratch)
            lab = labs.up(load_fabric("zone", name=_LAB, overrides=["queues.pfc.enabled=true"]), rollback=True).lab
            try:
                yield from of_lab(lab, browser, scratch)
            finally:
                labs.down(_LAB)
        finally:
            driver.quit()
            os.environ.pop("HEDDLE_STATE_DIR")
            if before is not None:
                os.environ["HEDDLE_STATE_DIR"] = before
