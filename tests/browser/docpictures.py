"""The pictures of pages in docs/, from a lab of their own: .venv/bin/python -m tests.browser.docpictures docs

Needs root, and what `./inv test browser` installs. A page's pictures are a function here and its line in PAGES.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
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
from tests.browser.chromium import Browser, start
from tests.webclient import dashboard

_LAB: Final = "picture"
_PLAY_S: Final = 6.0  # of a run, so that there is a history to see


def report(lab: Lab, browser: Browser, scratch: Path) -> Iterator[Path]:
    """An incast with pauses: the use of links, and a queue over time."""
    result = run(lab, RunOptions(collective="incast", sizes=(1 << 20,), qps=4, bucket_ns=5 * 10**6), Silent())
    (whole,) = open_runs([str(History.of(lab).directory / result.id)])
    page = scratch / "report.html"
    page.write_text(report_html([whole]), encoding="utf-8")
    browser.open(page)
    browser.wait_for("document.documentElement.dataset.ready === 'yes'")
    browser.hover(".reach[data-port='rtsw1:eth5']")
    yield browser.screenshot("report-fabric", f"#{whole.name}-fabric")
    yield browser.screenshot("report-queue", f"#{whole.name}-queues figure.chart:first-of-type")


def live_page(lab: Lab, browser: Browser, scratch: Path) -> Iterator[Path]:
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


PAGES: Final[tuple[Callable[[Lab, Browser, Path], Iterator[Path]], ...]] = (report, live_page)


def main(out: Path) -> None:
    """Write all of them."""
    os.environ["SE_OFFLINE"] = "true"
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["HEDDLE_STATE_DIR"] = f"{scratch}/state"
        driver = start(Path(scratch, "profile"))
        lab = labs.up(load_fabric("zone", name=_LAB, overrides=["queues.pfc.enabled=true"]), rollback=True).lab
        try:
            browser = Browser(driver, out)
            for page in PAGES:
                for picture in page(lab, browser, Path(scratch)):
                    print(picture)
        finally:
            labs.down(_LAB)
            driver.quit()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
