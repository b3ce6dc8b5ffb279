"""The browser of this suite finds what it is there to find."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.browser.chromium import Browser

Page = Callable[[str], Path]
GOOD = "<main><h1>A page</h1><p>Text</p></main>"


@pytest.fixture
def page(tmp_path: Path) -> Page:
    """A file with this body."""

    def write(body: str) -> Path:
        path = tmp_path / "a page.html"
        path.write_text(
            '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Page</title>'
            f'<link rel="icon" href="data:,"></head><body>{body}</body></html>',
            encoding="utf-8",
        )
        return path

    return write


def test_axe_names_the_rule_the_element_and_what_to_do(browser: Browser, page: Page) -> None:
    browser.open(page(GOOD))
    assert browser.violations() == []
    browser.open(page('<main><h1>A page</h1><img src="data:,"><p style="color:#ccc">pale</p></main>'))
    found = browser.violations()
    assert any("image-alt (critical)" in each and "at img" in each for each in found)
    assert any("color-contrast (serious)" in each and "contrast of 1.6" in each for each in found)
    with pytest.raises(AssertionError, match="2 accessibility violations"):
        browser.assert_accessible()


def test_errors_of_the_console_are_found(browser: Browser, page: Page) -> None:
    browser.open(page(f"{GOOD}<script>console.error('first'); setTimeout(() => nosuch(), 0)</script>"))
    browser.wait_for("document.readyState === 'complete'")
    found: list[str] = []
    while len(found) < 2:
        found += browser.console()
    assert any("first" in each for each in found)
    assert any("nosuch is not defined" in each for each in found)
    browser.check()  # taken once, they are not found again


def test_a_request_that_leaves_the_machine_is_found_and_goes_nowhere(browser: Browser, page: Page) -> None:
    browser.open(page(f'{GOOD}<img alt="" src="http://192.0.2.7/x.png">'))
    with pytest.raises(AssertionError, match="the page asked for"):
        browser.check()
    errors = browser.console()
    assert len(errors) == 1
    assert "ERR_NAME_NOT_RESOLVED" in errors[0]
    browser._requests.clear()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """The address of a server on loopback with the files of tmp_path."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()
        thread.join()


def test_a_page_of_loopback_starts_with_empty_storage(browser: Browser, page: Page, served: str) -> None:
    name = page(GOOD).name
    for _ in range(2):
        browser.open(served + name)
        assert browser.run("return [document.cookie, localStorage.length]") == ["", 0]
        browser.run("document.cookie = 'a=b'; localStorage.setItem('a', 'b')")


def test_the_readme_is_a_page_with_all_its_pictures(browser: Browser, tmp_path: Path) -> None:
    """In the looks of `./inv docs --screenshots`."""
    from tests.browser.screenshots import looks, readme

    try:
        page = readme(tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("markdown comes with mkdocs: ./inv docs installs it")
    written = list(looks(browser, page, "readme"))
    assert [path.name for path in written] == ["readme-light.png", "readme-dark.png", "readme-phone.png"]
    assert browser.run("return [...document.images].filter((each) => each.naturalWidth === 0).length") == 0
    assert browser.run("return document.documentElement.scrollWidth") <= 390
