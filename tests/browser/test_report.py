"""The report in a browser: its parts are there, the mouse and the keyboard reach links, screen and paper, axe-core.

Pictures to look at: ./inv test browser -- -k report --screenshots DIR.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from heddle.base.events import Silent
from heddle.lab.lab import Lab
from heddle.lab.rehash import set_hashing
from heddle.runs.compare import compare
from heddle.runs.run import run
from heddle.runs.store import History, open_runs
from heddle.traffic.options import RunOptions
from heddle.views.report.page import report_html, sections
from tests.unit import run_samples as samples
from tests.unit.kept_runs import keep

if TYPE_CHECKING:
    from tests.browser.chromium import Browser

READY = "document.documentElement.dataset.ready === 'yes'"


@pytest.fixture(scope="module")
def pages(borrow: Callable[..., Lab], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of real runs: an all-reduce of several sizes, an incast with pauses, and a comparison."""
    lab = borrow("zone", "racks=2", "queues.pfc.enabled=true")
    run(lab, RunOptions(sizes=(16384, 65536, 262144), qps=4, iters=4, bucket_ns=2 * 10**6), Silent())
    run(lab, RunOptions(collective="incast", sizes=(262144,), qps=4, iters=3, bucket_ns=2 * 10**6), Silent())
    set_hashing(lab, "e-ecmp")
    run(lab, RunOptions(sizes=(16384, 65536, 262144), qps=4, iters=4, bucket_ns=2 * 10**6), Silent())
    directory = History.of(lab).directory
    ring, incast, other = open_runs([str(directory / name) for name in ("0001", "0002", "0003")])
    place = tmp_path_factory.mktemp("a report")
    texts = {
        "ring": report_html([ring]),
        "incast": report_html([incast]),
        "compare": report_html([ring, other], compare(ring, other)),
    }
    for name, text in texts.items():
        (place / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: place / f"{name}.html" for name in texts}


@pytest.fixture
def old_page(tmp_path: Path) -> Path:
    """Of runs that carry little: an older Heddle's, a failed one, an interrupted one."""
    runs = [
        keep(tmp_path, 1, around=None),
        keep(tmp_path, 2, samples.failed()),
        keep(tmp_path, 3, samples.interrupted()),
    ]
    path = tmp_path / "old.html"
    path.write_text(report_html(runs), encoding="utf-8")
    return path


def opened(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.wait_for(READY)


@pytest.mark.root
def test_every_section_and_every_chart_is_drawn(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["ring"])
    assert [each.text for each in browser.all("article h3")] == [section.title for section in sections()]
    assert len(browser.all("svg.fabric g.link")) == 2 * 4 + 4
    assert len(browser.all("svg.fabric g.node")) == 2 + 4 + 4
    assert len(browser.all("figure.chart")) == 2
    assert browser.run("return [...document.querySelectorAll('.plot')].every(p => p.querySelector('svg path'))")
    assert any("Proven" in each.text for each in browser.all(".verdict")), "of paths; a diagnosis has one, too"
    assert browser.run("return document.documentElement.scrollWidth") <= 1280


@pytest.mark.root
@pytest.mark.parametrize(("page", "scheme"), [("incast", "dark"), ("compare", "light")])
def test_the_page_is_accessible(
    browser: Browser, pages: dict[str, Path], page: str, scheme: Literal["light", "dark"]
) -> None:
    browser.media(scheme)
    opened(browser, pages[page])
    browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    browser.assert_accessible()
    browser.screenshot(f"report-{page}-{scheme}")


@pytest.mark.root
def test_a_link_shows_its_numbers_to_the_mouse_and_to_the_keyboard(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["ring"])
    numbers = browser.one("[data-numbers]")
    browser.hover('.reach[data-port="rtsw2:eth1"]')
    assert numbers.text.startswith("link rtsw2:eth1 to ctsw1:eth2: rtsw2:eth1 sent ")
    assert "% of line rate" in numbers.text
    browser.run("document.querySelector('.link[tabindex=\"0\"]').focus()")
    first = browser.focused.get_attribute("id")
    assert numbers.text.startswith("link host1:eth1 to rtsw1:eth5")
    browser.press("ARROW_RIGHT")
    second = browser.focused.get_attribute("id")
    assert second != first
    assert numbers.text.startswith("link host2:eth1 to rtsw1:eth6")
    browser.press("END")
    assert numbers.text.startswith("link rtsw2:eth4 to ctsw4:eth2")
    browser.press("HOME")
    assert browser.focused.get_attribute("id") == first
    assert len(browser.all('.link[tabindex="0"]')) == 1
    assert (
        browser.run("return getComputedStyle(document.activeElement.querySelector('.reach')).strokeOpacity") == "0.45"
    )


@pytest.mark.root
def test_everything_is_reached_by_the_keyboard_alone(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["incast"])
    browser.press("TAB")
    assert browser.focused.get_attribute("class") == "skip"
    browser.press("ENTER", "TAB")
    assert browser.run("return document.querySelector('main').contains(document.activeElement)")
    seen = set()
    for _ in range(40):
        seen.add(browser.run("return document.activeElement.tagName.toLowerCase()"))
        browser.press("TAB")
    assert {"g", "summary", "div", "pre"} <= seen
    browser.run("document.querySelector('summary').focus()")
    browser.press("ENTER")
    assert browser.run("return document.querySelector('details').open")


@pytest.mark.root
def test_charts_have_the_colours_of_the_scheme_and_follow_it(browser: Browser, pages: dict[str, Path]) -> None:
    opened(browser, pages["ring"])

    def colours() -> list[str]:
        words = "document.querySelector('.plot svg text'), document.body"
        found = browser.run(f"return [{words}].map(each => getComputedStyle(each)).map((s, i) => i ? s.color : s.fill)")
        return [str(each) for each in found]

    assert colours() == ["rgb(31, 41, 51)", "rgb(31, 41, 51)"]
    browser.media("dark")
    browser.wait_for("getComputedStyle(document.querySelector('.plot svg text')).fill === 'rgb(230, 235, 240)'")
    assert colours() == ["rgb(230, 235, 240)", "rgb(230, 235, 240)"]


@pytest.mark.root
def test_on_paper_everything_is_open_and_within_the_page(browser: Browser, pages: dict[str, Path]) -> None:
    browser.media("dark")
    opened(browser, pages["incast"])
    browser.run(
        "addEventListener('beforeprint', () => {"
        " window.shut = document.querySelectorAll('details:not([open])').length })"
    )
    paper = browser.printed("report-incast")
    assert paper.read_bytes().startswith(b"%PDF")
    assert browser.run("return window.shut") == 0, "all is open on paper"
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0, "as it was before"
    browser.media("light", print_=True)
    browser.size(690, 1000)
    assert not browser.one("nav").is_displayed()
    assert browser.style("body", "background-color") == "rgb(255, 255, 255)"


@pytest.mark.root
def test_a_narrow_screen_needs_no_sideways_scroll(browser: Browser, pages: dict[str, Path]) -> None:
    browser.size(390, 844)
    opened(browser, pages["compare"])
    assert browser.run("return document.documentElement.scrollWidth") <= 390
    browser.screenshot("report-compare-phone")


def test_runs_that_carry_little_say_so_in_place(browser: Browser, old_page: Path) -> None:
    opened(browser, old_page)
    said = [each.text for each in browser.all(".missing")]
    assert any("fabric.json is missing" in each for each in said)
    assert any("the run failed, so it has no paths" in each for each in said)
    browser.assert_accessible()
    browser.screenshot("report-old")
