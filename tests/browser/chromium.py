"""Chromium of the distribution, headless, steered by its own chromedriver through selenium.

A page is a file or comes from loopback. The browser can reach nothing else: every other name and address fails to
resolve, and a request for one fails the test (`Browser.check`).
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

from heddle.base.process import find_program
from tests.browser import axe

Scheme = Literal["light", "dark"]
DESKTOP: Final = (1280, 900)
PHONE: Final = (390, 844)
PATIENCE: Final = 20.0  # seconds that a wait may take; a page of the suite is there in one
_MARGIN: Final = 10  # CSS pixels around an element in its screenshot
_HOME: Final = frozenset({"localhost", "127.0.0.1", "::1"})
_INSIDE: Final = frozenset({"file", "data", "blob", "about", "chrome"})
_ARGUMENTS: Final = (
    "--headless=new",
    "--disable-gpu",
    "--disable-dev-shm-usage",  # /dev/shm of a container has 64 MB
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--no-proxy-server",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost, EXCLUDE 127.0.0.1, EXCLUDE [::1]",
)


def start(profile: Path) -> Chrome:
    """A headless Chromium with a new profile in this directory."""
    binary, driver = find_program("chromium"), find_program("chromedriver")
    assert binary is not None
    assert driver is not None
    options = ChromeOptions()
    options.binary_location = binary
    for word in (*_ARGUMENTS, f"--user-data-dir={profile}"):
        options.add_argument(word)
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium's sandbox does not work as root; our own pages are shown
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    return Chrome(options=options, service=Service(executable_path=driver))


class Browser:
    """One empty page, and what a test does with it."""

    def __init__(self, driver: Chrome, screenshots: Path) -> None:
        self.driver = driver
        self.screenshots = screenshots
        self._console: list[str] = []
        self._requests: list[str] = []
        driver.get("about:blank")
        driver.execute_cdp_cmd("Network.clearBrowserCookies", {})
        for log in ("browser", "performance"):
            driver.get_log(log)
        self.size(*DESKTOP)
        self.media("light")

    # -- where and how ------------------------------------------------------------------------------------------

    def open(self, page: Path | str) -> None:
        """Load a file or an address of loopback, in a page whose storage is empty."""
        address = page.resolve().as_uri() if isinstance(page, Path) else page
        parts = urlsplit(address)
        if parts.netloc:
            where = {"origin": f"{parts.scheme}://{parts.netloc}", "storageTypes": "all"}
            self.driver.execute_cdp_cmd("Storage.clearDataForOrigin", where)
        self.driver.get(address)

    def size(self, width: int, height: int) -> None:
        """The window's size in CSS pixels."""
        numbers = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", numbers)

    def media(self, scheme: Scheme, *, print_: bool = False, reduced_motion: bool = True) -> None:
        """What the page's media queries see: prefers-color-scheme, prefers-reduced-motion, screen or print."""
        features = [
            {"name": "prefers-color-scheme", "value": scheme},
            {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else "no-preference"},
        ]
        words = {"media": "print" if print_ else "", "features": features}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", words)

    # -- elements -----------------------------------------------------------------------------------------------

    def all(self, css: str) -> list[WebElement]:
        """The elements that match a CSS selector."""
        return list(self.driver.find_elements(By.CSS_SELECTOR, css))

    def one(self, css: str) -> WebElement:
        """The only element that matches."""
        found = self.all(css)
        assert len(found) == 1, f"{css} matches {len(found)} elements"
        return found[0]

    def wait_for(self, script: str, what: str = "") -> Any:
        """The value of a JavaScript expression, as soon as it is true."""
        waiting = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05)
        return waiting.until(lambda driver: driver.execute_script(f"return {script}"), what or script)

    def run(self, script: str, *words: Any) -> Any:
        """What JavaScript returns: `browser.run("return document.title")`."""
        return self.driver.execute_script(script, *words)

    def style(self, css: str, name: str) -> str:
        """The computed value of a style of the only element that matches."""
        return str(
            self.run("return getComputedStyle(arguments[0]).getPropertyValue(arguments[1])", self.one(css), name)
        )

    # -- keyboard and mouse -------------------------------------------------------------------------------------

    def press(self, *keys: str) -> None:
        """Type keys at what has the focus: names of selenium's Keys ("TAB", "ENTER", "ARROW_DOWN") or characters."""
        chain = ActionChains(self.driver)
        for key in keys:
            chain.send_keys(getattr(Keys, key) if len(key) > 1 else key)
        chain.perform()

    def hover(self, css: str) -> None:
        """Move the mouse onto the only element that matches; the page scrolls to it."""
        element = self.one(css)
        self.run("arguments[0].scrollIntoView({block: 'center'})", element)
        ActionChains(self.driver).move_to_element(element).perform()

    @property
    def focused(self) -> WebElement:
        """The element with the focus."""
        return self.driver.switch_to.active_element

    # -- what was seen ------------------------------------------------------------------------------------------

    def screenshot(self, name: str, css: str = "") -> Path:
        """Write NAME.png to the directory of `--screenshots`: the whole page, or the only element that matches.

        The directory is the test run's own when the option is not given.
        """
        box = self.run("return [0, 0, document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
        if css:
            script = "const r = arguments[0].getBoundingClientRect(); const m = arguments[1];"
            script += "return [r.x + scrollX - m, r.y + scrollY - m, r.width + 2 * m, r.height + 2 * m]"
            box = self.run(script, self.one(css), _MARGIN)
        clip = dict(zip(("x", "y", "width", "height"), box, strict=True), scale=1)
        words = {"format": "png", "captureBeyondViewport": True, "clip": clip}
        found = self.driver.execute_cdp_cmd("Page.captureScreenshot", words)
        self.screenshots.mkdir(parents=True, exist_ok=True)
        path = self.screenshots / f"{name}.png"
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def printed(self, name: str) -> Path:
        """Write NAME.pdf beside the screenshots: the page as it is printed on A4."""
        words = {"printBackground": True, "paperWidth": 8.27, "paperHeight": 11.69}
        found = self.driver.execute_cdp_cmd("Page.printToPDF", words)
        self.screenshots.mkdir(parents=True, exist_ok=True)
        path = self.screenshots / f"{name}.pdf"
        path.write_bytes(base64.b64decode(found["data"]))
        return path

    def violations(self) -> list[str]:
        """What axe-core complains of in the page as it is now, one paragraph for each element."""
        self.driver.execute_script(axe.source())
        self.driver.set_script_timeout(120)
        found = self.driver.execute_async_script(axe.RUN)
        assert "error" not in found, found["error"]
        assert found["passes"], "axe-core has checked nothing"
        return axe.sentences(found["violations"])

    def assert_accessible(self) -> None:
        """Fail with what axe-core complains of."""
        found = self.violations()
        assert not found, f"{len(found)} accessibility violations\n" + "\n".join(found)

    def console(self) -> list[str]:
        """Errors of the console since the last call; a test that expects some takes them with this."""
        self._read_logs()
        found, self._console = self._console, []
        return found

    def requests(self) -> Sequence[str]:
        """Every address that the page has asked for."""
        self._read_logs()
        return self._requests

    def check(self) -> None:
        """Fail on an error in the console, and on a request that left this machine."""
        outside = [each for each in self.requests() if not _inside(each)]
        assert not outside, f"the page asked for {outside}"
        errors = self.console()
        assert not errors, f"{len(errors)} errors in the browser's console\n" + "\n".join(errors)

    def _read_logs(self) -> None:
        for entry in self.driver.get_log("browser"):
            if entry["level"] == "SEVERE":
                self._console.append(entry["message"])
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                self._requests.append(message["params"]["request"]["url"])


def _inside(address: str) -> bool:
    parts = urlsplit(address)
    return parts.scheme in _INSIDE or parts.hostname in _HOME
