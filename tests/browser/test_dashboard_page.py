"""The dashboard's page in a browser: a live lab drawn, its buttons, its looks, its keyboard."""

from __future__ import annotations

import re
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heddle.base.events import Silent
from heddle.lab.daemons import ESTABLISHED
from heddle.lab.faults import orders
from heddle.lab.lab import Lab
from heddle.lab.linkstate import state_of
from heddle.lab.queues import read_queues
from heddle.runs.run import run
from heddle.traffic.options import RunOptions
from heddle.views.fabricsvg import fabric_svg
from heddle.views.loadscale import COLOURS, step
from heddle.views.picturelayout import PictureLayout
from tests.conftest import Borrow
from tests.webclient import TOKEN, WebClient, dashboard

if TYPE_CHECKING:
    from tests.browser.chromium import Browser


@pytest.fixture(scope="module")
def lab(borrow: Borrow) -> Lab:
    """Preset zone, slow enough for the page to be seen at work, after a run."""
    lab = borrow("zone", "link.host=20mbit", "link.fabric=20mbit")
    run(lab, RunOptions(collective="incast", ranks=4, sizes=(1 << 16,), iters=1, warmup=0), Silent())
    return lab


@pytest.fixture(scope="module")
def server() -> Iterator[WebClient]:
    with dashboard() as found:
        yield found


def opened(browser: Browser, server: WebClient, lab: Lab) -> None:
    """The page, drawn and with figures."""
    browser.open(server.page.replace("#", f"?lab={lab.name}#"))
    browser.wait_for("document.querySelectorAll('#drawing .half').length > 0")
    browser.wait_for("document.querySelector('#total-bgp').textContent.includes('of')")


def wait_long(browser: Browser, script: str, seconds: float = 120) -> None:
    """Wait for what a busy machine may need long for: a run, BGP."""
    end = time.monotonic() + seconds
    while not browser.run(f"return {script}"):
        assert time.monotonic() < end, script
        time.sleep(0.1)


def places_of(points: str) -> list[float]:
    """The numbers of a polygon's corners."""
    return [float(number) for number in re.findall(r"-?[0-9.]+", points)]


def hex_of(colour: str) -> str:
    """`rgb(31, 41, 51)` as `#1f2933`."""
    return "#" + "".join(f"{int(each):02x}" for each in re.findall(r"\d+", colour)[:3])


def text(browser: Browser, css: str) -> str:
    return str(browser.one(css).text)


def show(browser: Browser, port: str) -> None:
    """Type a port's name, as a user of the keyboard does."""
    browser.run(f"document.querySelector('#pick-port').value = '{port}'")
    browser.run("document.querySelector('#pick-port').focus()")
    browser.press("ENTER")
    browser.wait_for(f"document.querySelector('#port-title').textContent.startsWith('Link {port} ')")


@pytest.mark.root
def test_a_lab_is_drawn_in_light_and_dark_without_a_fault(browser: Browser, server: WebClient, lab: Lab) -> None:
    opened(browser, server, lab)
    assert len(browser.all("#drawing .half")) == 2 * len(lab.fabric.links)
    assert len(browser.all("#drawing .node")) == len(lab.fabric.nodes)
    # Places and colours are those of a report.
    lines = ET.fromstring(fabric_svg(PictureLayout(lab.fabric), title="")).iter("{http://www.w3.org/2000/svg}polygon")
    wanted = {each.get("data-port", ""): each.get("points", "") for each in lines if "half" in each.get("class", "")}
    halves = "[...document.querySelectorAll('#drawing .half')]"
    places = f"Object.fromEntries({halves}.map((half) => [half.dataset.port, half.getAttribute('points')]))"
    found: dict[str, str] = browser.run(f"return {places}")
    assert found.keys() == wanted.keys()
    for port, points in wanted.items():  # widths are those of the window, so corners are a little elsewhere
        assert places_of(found[port]) == pytest.approx(places_of(points), abs=3)
    assert hex_of(browser.style("#loads .u5", "fill")) == COLOURS["u5"][0]
    assert text(browser, "#total-bgp") == "32 of 32"
    assert text(browser, "#total-down") == "0"
    assert f"emulated: k = {lab.fabric.policy.k}" in text(browser, "#scale")
    show(browser, "rtsw1:eth1")
    browser.wait_for("document.querySelectorAll('#port-queues thead th').length === 4")
    browser.assert_accessible()
    browser.screenshot("dashboard-light")
    light = browser.style("body", "background-color")
    browser.one("#theme").click()
    assert browser.style("body", "background-color") != light
    time.sleep(0.5)  # colours of links change in 0.3 s, and axe judges what it sees
    assert hex_of(browser.style("#loads .u5", "fill")) == COLOURS["u5"][1]
    browser.assert_accessible()
    browser.screenshot("dashboard-dark")
    browser.one("#large").click()
    assert browser.style("html", "font-size") == "22px"
    browser.screenshot("dashboard-large")
    browser.one("#large").click()
    browser.one("#theme").click()
    browser.size(390, 844)
    wide = (
        "return [...document.querySelectorAll('body *')].filter((e) => e.getBoundingClientRect().right > innerWidth + 1"
    )
    wide += " && !e.closest('.scroll, #drawing, pre, .skip')).map((e) => e.tagName + '#' + e.id)"
    assert browser.run(wide) == []
    browser.screenshot("dashboard-narrow")
    browser.size(1280, 900)


@pytest.mark.root
def test_a_run_is_started_shown_and_its_qps_have_paths(browser: Browser, server: WebClient, lab: Lab) -> None:
    opened(browser, server, lab)
    browser.run("document.querySelector('#size').value = '1M'; document.querySelector('#qps-count').value = 2;")
    browser.one("#start").click()
    browser.wait_for(
        "[...document.querySelectorAll('#drawing .half')].some((e) => / u[0-9]/.test(e.className.baseVal))"
    )
    browser.wait_for("document.querySelector('#run-output').textContent.includes('Collective test starting')")
    shown: Any = browser.run(
        "return [...document.querySelectorAll('#drawing .link')].flatMap((link) => [...link.querySelectorAll('.half')]"
        ".map((half, at) => [half.className.baseVal, link.querySelectorAll('title')[at].textContent]))"
    )
    assert len(shown) == 2 * len(lab.fabric.links)
    for classes, title in shown:
        use = int(title.partition(" %")[0].rpartition(" ")[2]) / 100  # to a whole percent
        assert classes.split()[1] in {step(max(0.0, use - 0.005)), step(min(1.0, use + 0.005))}, title
    browser.screenshot("dashboard-run")
    wait_long(browser, "document.querySelector('#run-outcome').textContent.includes('done in')")
    browser.wait_for("document.querySelector('#runs tbody').textContent.includes('all-reduce')")
    browser.wait_for("document.querySelector('#news').textContent.includes('all-reduce')")
    browser.one("#qp-form button").click()
    browser.wait_for("document.querySelectorAll('#qps tbody button').length === 32")
    assert "all paths agree" in text(browser, "#qp-note")
    browser.all("#qps tbody button")[3].click()
    path = text(browser, "#qp-path")
    marked = browser.run("return document.querySelectorAll('#drawing .half.chosen').length")
    assert marked == 2 * (path.count(" > ") + 2)  # both halves of each link, and of the host's
    browser.assert_accessible()
    browser.screenshot("dashboard-path")
    # No table is cut at the right, on this window and on a wide one; the output has the run's table.
    cut = "[...document.querySelectorAll('.scroll, pre')].filter((e) => e.scrollWidth > e.clientWidth + 1)"
    cut += ".map((e) => e.id || e.getAttribute('aria-label'))"
    assert "busbw" in text(browser, "#run-output")
    for width in (1280, 1600):
        browser.size(width, 900)
        assert browser.run(f"return {cut}") == [], width
    browser.size(390, 844)
    assert browser.run(f"return {cut}.includes('run-output')"), "where there is no room, it scrolls"
    browser.size(1280, 900)
    high = {each.port: each.high_water for each in read_queues(lab).rows if each.kind == "lossless"}
    deepest = max(high, key=lambda port: high[port])
    show(browser, deepest)
    browser.wait_for("document.querySelectorAll('#port-queues thead th').length === 4")
    rows = (
        "[...document.querySelectorAll('#port-queues tbody tr')].map((e) => [...e.children].map((c) => c.textContent))"
    )
    figures: Any = browser.run(f"return Object.fromEntries({rows}.map(([name, ...each]) => [name, each]))")
    shown = figures["packets"][1]
    (row,) = [each for each in read_queues(lab).rows if each.port == deepest and each.kind == "lossless"]
    assert int(str(shown)) == row.packets


@pytest.mark.root
def test_a_link_goes_down_and_up_by_the_keyboard(browser: Browser, server: WebClient, lab: Lab) -> None:
    opened(browser, server, lab)
    try:
        show(browser, "rtsw2:eth3")
        browser.wait_for("document.querySelector('#link-button')")
        browser.run("document.querySelector('#link-button').focus()")
        browser.press("ENTER")
        wait_long(browser, "document.querySelector('#link-outcome').textContent.includes('rtsw2:eth3 is down')")
        assert state_of(lab).dead == ("rtsw2:eth3",)
        assert (lab.daemons.sessions("rtsw2") or {})["eth3"] != ESTABLISHED
        browser.wait_for("document.querySelectorAll('#drawing .half.down').length === 2")
        browser.wait_for("document.querySelector('#total-bgp').textContent === '31 of 32'")
        browser.wait_for("document.querySelector('#link-button').textContent === 'Set link up'")
        browser.assert_accessible()
        browser.screenshot("dashboard-down")
        browser.run("document.querySelector('#link-button').focus()")
        browser.press("ENTER")
        wait_long(browser, "document.querySelector('#link-outcome').textContent.includes('rtsw2:eth3 is up')")
        browser.wait_for("document.querySelector('#total-bgp').textContent === '32 of 32'")
        assert state_of(lab).dead == ()
    finally:
        orders.end_all(lab)


@pytest.mark.root
def test_a_fault_is_set_shown_and_cleared(browser: Browser, server: WebClient, lab: Lab) -> None:
    opened(browser, server, lab)
    browser.wait_for("document.querySelector('#fault-kind').options.length > 5")
    for field, value in (("kind", "slow-link"), ("where", "rtsw1:eth1"), ("values", "rate=10%")):
        browser.run(f"document.querySelector('#fault-{field}').value = '{value}'")
    try:
        browser.run("document.querySelector('#fault-set').click()")
        wait_long(
            browser, "document.querySelector('#fault-outcome').textContent.includes('slow-link at 1/10 of its rate')"
        )
        wait_long(browser, "document.querySelector('#fault-rows tbody tr td').textContent === 'rtsw1:eth1'")
        browser.assert_accessible()
        browser.run("document.querySelector('#fault-rows button').click()")
        wait_long(browser, "document.querySelector('#fault-rows tbody tr td').textContent === 'no fault is set'")
        assert text(browser, "#fault-outcome").startswith("ended: rtsw1:eth1: slow-link")
    finally:
        orders.end_all(lab)


@pytest.mark.root
def test_a_click_on_a_link_shows_it(browser: Browser, server: WebClient, lab: Lab) -> None:
    opened(browser, server, lab)
    link = "document.querySelector('.reach[data-port=\"ctsw1:eth1\"]')"
    browser.run(f"{link}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    browser.wait_for("document.querySelector('#port-title').textContent === 'Link ctsw1:eth1 to rtsw1:eth1'")
    browser.wait_for("document.querySelector('#port-body svg.chart')")
    assert "Last two minutes" in str(browser.run("return document.querySelector('.chart').getAttribute('aria-label')"))


def test_without_a_lab_the_page_says_what_to_do(
    browser: Browser, server: WebClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path))
    browser.open(server.page)
    browser.wait_for("document.querySelector('#trouble').textContent.includes('./inv up zone')")
    assert text(browser, "#trouble").startswith("No lab is running.")
    browser.assert_accessible()


def test_the_token_of_the_address_opens_the_page_and_without_it_the_page_asks_for_it(browser: Browser) -> None:
    with dashboard() as locked:
        browser.open(locked.page)
        browser.wait_for("!location.hash")
        browser.wait_for("document.querySelector('#login').hidden")
        assert browser.run("return fetch('/api/labs').then((answer) => answer.status)") == 200
        browser.open("about:blank")
        browser.driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        browser.open(f"http://127.0.0.1:{locked.port}/")
        browser.wait_for("!document.querySelector('#login').hidden")
        browser.assert_accessible()
        browser.run("document.querySelector('#token').focus()")
        browser.press("x", "ENTER")
        browser.wait_for("document.querySelector('#login-outcome').textContent.includes('not the token')")
        browser.run("document.querySelector('#token').value = ''")
        browser.press(*TOKEN, "ENTER")
        browser.wait_for("document.querySelector('#login').hidden")
        assert all("401" in each for each in browser.console())
        browser.open("about:blank")
