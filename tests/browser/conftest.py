"""Fixture `browser`: one headless Chromium for the whole suite, an empty page for each test.

    def test_the_page_has_a_title(browser: Browser, tmp_path: Path) -> None:
        browser.open(page)                      # a file, or http://127.0.0.1:PORT/...
        assert browser.one("h1").text == "demo"
        browser.assert_accessible()             # axe-core
        browser.media("dark")
        browser.screenshot("demo-dark")         # ./inv test browser -- --screenshots DIR

After each test the fixture fails it for errors in the browser's console, and for requests that left this machine.
Tests that make a lab have the mark `root`. Modules import Browser for its type only: selenium is installed by
`./inv test browser`, and the module of the fixture is imported when the first test asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from heddle.host import packages

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

    from tests.browser.chromium import Browser


@pytest.fixture(scope="package")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """Headless Chromium with a new profile, until the last test of the suite."""
    if missing := packages.missing(packages.BROWSER):
        names = " ".join(part.packages[0] for part in missing)
        pytest.skip(f"needs {names} (apt-get install {names}, or ./inv test browser)")
    if find_spec("selenium") is None:
        pytest.skip("needs selenium (./inv test browser installs it)")
    os.environ["SE_OFFLINE"] = "true"  # selenium downloads no browser
    from tests.browser.chromium import start

    driver = start(tmp_path_factory.mktemp("chromium"))
    yield driver
    driver.quit()


@pytest.fixture
def browser(chromium: Chrome, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Browser]:
    """An empty page, 1280 x 900, light. After the test: no error in the console, no request that left this machine."""
    from tests.browser.chromium import Browser

    place = request.config.getoption("--screenshots")
    page = Browser(chromium, Path(place) if place else tmp_path / "screenshots")
    yield page
    page.check()
