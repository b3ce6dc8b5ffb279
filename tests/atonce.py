"""Print a failure when it happens, not only at the end: -p tests.atonce, for suites that take hours."""

from __future__ import annotations

import pytest


class AtOnce:
    """The text of each failure, from the process that reports."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        out = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and out is not None:
            out.ensure_newline()
            out.section(f"{report.nodeid} ({report.when})", sep="_")
            out.line(report.longreprtext)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # a worker of xdist sends its reports to the first process
        config.pluginmanager.register(AtOnce(config))
