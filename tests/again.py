"""A test that fails runs once more, with fixtures of its own. If it passes then, the session says so and goes on.

A machine that others use can pause for a second between any two steps of a test. Such a failure is named at the end of
the session, with its reason, and does not end it:

    FLAKY tests/netns/test_incast.py::test_x: AssertionError: 3 packets lost

More than MOST of these are a failure. HEDDLE_FLAKY names a file that counts them over several sessions (`.ci/run`).
All tests run once with --pdb, and with `-p no:tests.again`. The second run has the test's time limit again.
A second run that is skipped is a failure. The second run of a test without a lab still has what the first one left in
modules, so it must pass in a process of its own, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pytest
from _pytest.runner import runtestprotocol

MOST: Final = 4
FOLDERS: Final = frozenset({"netns", "clab", "browser", "vm", "kube"})
_PROPERTY: Final = "flaky"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Run a test, and once more if it fails. Only the last run is reported, with the first failure's reason."""
    if item.config.getoption("usepdb"):
        return None
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports = runtestprotocol(item, log=False, nextitem=nextitem)
    if failed := [report for report in reports if report.failed]:
        # Whatever the first run left in fixtures of its module or of the session is not used again.
        with suppress(Exception, pytest.fail.Exception), _limited(item):
            item.session._setupstate.teardown_exact(None)
        with _limited(item):
            again = runtestprotocol(item, log=False, nextitem=nextitem)
        if any(report.failed for report in again):
            reports = again
        elif not any(report.skipped for report in again) and _passes_alone(item):
            reports = again
            reports[-1].user_properties.append((_PROPERTY, f"{_reason(failed[0])}\n{failed[0].longreprtext}"))
    for report in reports:
        item.ihook.pytest_runtest_logreport(report=report)
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@contextmanager
def _limited(item: pytest.Item) -> Iterator[None]:
    """The test's time limit again: pytest-timeout ends its timer and its handler at every failure."""
    if (plugin := item.config.pluginmanager.get_plugin("timeout")) is None:
        yield
        return
    settings = plugin._get_item_settings(item)
    if settings.timeout:
        item.ihook.pytest_timeout_set_timer(item=item, settings=settings)
    try:
        yield
    finally:
        item.ihook.pytest_timeout_cancel_timer(item=item)


def _passes_alone(item: pytest.Item) -> bool:
    """Whether a test without a lab passes in a process of its own; True of a live test, whose fixtures were new."""
    if not FOLDERS.isdisjoint(item.path.relative_to(item.config.rootpath).parts):
        return True
    words = ["-q", "-p", "no:tests.again", "-p", "no:cacheprovider", "-p", "no:xdist", item.nodeid]
    argv = [sys.executable, "-m", "pytest", *words]
    with suppress(subprocess.TimeoutExpired):
        return not subprocess.run(
            argv, cwd=item.config.rootpath, capture_output=True, timeout=300, check=False
        ).returncode
    return False


def _reason(report: pytest.TestReport) -> str:
    """The message of a failure in one line."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else report.longreprtext.strip().rpartition("\n")[2]
    return " ".join(text.split())[:200] + (f" (in {report.when})" if report.when != "call" else "")


class FlakyTests:
    """Collects the tests that passed in their second run, and reports them when the session ends."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        name = os.environ.get("HEDDLE_FLAKY")
        self._file = Path(name) if name else None
        self._lines = self._file.read_text().splitlines() if self._file and self._file.exists() else []
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the line of a flaky test; show the first failure at once: it is the only record of it."""
        if report.failed:
            self._failed.add(report.nodeid)
        text = dict(report.user_properties).get(_PROPERTY)
        if not text or report.when != "teardown" or report.nodeid in self._failed:
            return
        reason, _, whole = str(text).partition("\n")
        self._lines.append(f"FLAKY {report.nodeid}: {reason}")
        if self._file is not None:
            self._file.write_text("".join(f"{line}\n" for line in self._lines))
        if (out := self._config.pluginmanager.get_plugin("terminalreporter")) is not None:
            out.ensure_newline()
            out.section(f"first run of {report.nodeid}, which then passed", sep="_")
            out.line(whole)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Too many are a failure: then the cause is not the machine."""
        if len(self._lines) > MOST and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """The list, before pytest's last line."""
        for line in self._lines:
            terminalreporter.line(line, yellow=True)
        if len(self._lines) > MOST:
            terminalreporter.line(f"more than {MOST} flaky tests: a failure", red=True)


def pytest_configure(config: pytest.Config) -> None:
    """The process that reports to the user collects; a worker of xdist sends its reports there."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FlakyTests(config), "heddle-flaky-tests")
