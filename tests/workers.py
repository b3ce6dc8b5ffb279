"""How pytest-xdist shares the suites among its workers, and the progress that it shows meanwhile.

In:  `-n N` (`./inv test` adds it for whole suites). Out: which worker runs which tests, and one line a module, as
without workers. Tests that measure live fabrics are one unit: one worker runs them in file order, so they share one
pool of labs and never measure beside each other. So are those in containers, in a browser, and with guests. Every
other module is a unit of its own.
"""

from __future__ import annotations

import re
import shutil
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadScopeScheduling
    from xdist.workermanage import WorkerController

LIVE: Final = "live fabrics"
CONTAINERS: Final = "containers"
# Modules of tests/netns whose verdicts follow from states, texts, files and counters, never from a rate, a depth or a
# delay. They may run beside a fabric that measures, and beside each other. The longest ones are first.
BESIDE: Final = tuple(
    f"tests/netns/{plugin}{slash}test_{name}.py"
    for plugin, slash, name in (each.rpartition("/") for each in (
        "workshop/workshop_units", "places/place_ssh", "testing/plugin", "bring_your_own",
        "engineering/facts_everywhere", "soak", "machine_faults", "runtime_contract", "faults", "transports_live",
        "trouble_midrun", "tour", "fault_kinds_live", "engineering/te_live", "public_topologies",
        "wheel_job", "example_pipeline",
        "dashboard/dashboard_live", "places/place_refusals", "places/place_jumps", "rail", "programs",
        "lab_trouble", "mcp", "runs_kept", "repair", "own_files",
        "testing/pool", "lab_life", "killed", "validate", "inspect", "ipv6", "trees",
        "forecast_live", "hashing_modes", "runs_with_link_faults", "run_wiring", "capture", "second_transport",
        "fault_verb", "refusals", "bpf_modes", "prediction_exact", "paths_modes", "link_keys_live", "paths_proof",
        "wrong_paths",
        "owners", "steps_live", "link_faults", "cut_program", "packets/craft", "bridged_hosts",
        "queue_program", "bpf_programs", "pause_program",
    ))
)  # fmt: skip
# The order in which units start: those that take longest first; tests without a fabric, which fail soon, before BESIDE.
_UNITS: Final = (LIVE, "tests/vm/", CONTAINERS, "tests/browser/")
_IN_A_CONTAINER: Final = re.compile(r"\[(.*-)?containerlab(-.*)?\]$")
_PATIENCE_S: Final = 20.0  # a module that takes longer shows what it has so far
_PERCENT: Final = len(" [100%]")
_MARKUP: Final[dict[str, dict[str, bool]]] = {
    "passed": {"green": True}, "failed": {"red": True}, "error": {"red": True},
}  # fmt: skip


def unit_of(nodeid: str) -> str:
    """The unit of a test: tests of one unit run on one worker, in order. Guests, engines and browsers are shared."""
    path = nodeid.partition("::")[0]
    if path.startswith("tests/clab/") or _IN_A_CONTAINER.search(nodeid):
        return CONTAINERS
    if path.startswith("tests/netns/"):
        return path if path in BESIDE else LIVE
    return next((unit for unit in _UNITS if path.startswith(unit)), path)


def rank_of(unit: str) -> int:
    """Which units start first."""
    order = (*_UNITS, "", *BESIDE)
    return order.index(unit if unit in order else "")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    """Units for every `--dist` but `each`, so that `-n 4` alone is safe, too."""
    if config.getoption("dist") == "each":
        return None
    from xdist.scheduler import LoadScopeScheduling

    class Units(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
        def _split_scope(self, nodeid: str) -> str:
            return unit_of(nodeid)

        def _assign_work_unit(self, node: WorkerController) -> None:
            self.workqueue.move_to_end(min(self.workqueue, key=rank_of), last=False)
            super()._assign_work_unit(node)

    return Units(config, log)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Lines of modules, where workers run the tests and neither -v nor -q chose another form."""
    terminal = config.pluginmanager.getplugin("terminalreporter")
    distributes = getattr(config.option, "dist", "no") != "no" and bool(getattr(config.option, "tx", None))
    if terminal is not None and distributes and config.get_verbosity() == 0 and not config.option.collectonly:
        config.pluginmanager.register(ModuleLines(config, terminal), "heddle-module-lines")


@dataclass(slots=True)
class _Module:
    """left: tests that have not ended. outcomes: of pytest_report_teststatus, not yet shown. since: of the first."""

    left: int
    outcomes: list[tuple[str, str]] = field(default_factory=list)
    since: float = 0.0


@dataclass(slots=True, weakref_slot=True)
class ModuleLines:
    """`tests/unit/test_load.py ....  [ 12%]` when a module has ended, or has been silent for a while.

    When a signal ends the session, the tests that were running are named: one of them may be what did not end.
    """

    config: pytest.Config
    terminal: Any  # pytest.TerminalReporter
    modules: dict[str, _Module] = field(default_factory=dict)
    begun: dict[str, float] = field(default_factory=dict)  # the tests that run
    total: int = 0
    ended: int = 0
    _asking: bool = False
    _running: bool = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: WorkerController, ids: list[str]) -> None:
        """Count the tests of each module; all workers collect the same."""
        if not self.modules:
            self.modules = {path: _Module(n) for path, n in Counter(each.partition("::")[0] for each in ids).items()}
            self.total = len(ids)

    @pytest.hookimpl(wrapper=True)
    def pytest_report_teststatus(self, report: Any) -> Any:
        """No letter at once: it would stand between letters of other modules."""
        status = yield
        if self._running and not self._asking and hasattr(report, "node"):
            return status[0], "", ""
        return status

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the letter for the module's line."""
        self._asking = True
        category, letter, _ = self.config.hook.pytest_report_teststatus(report=report, config=self.config)
        self._asking = False
        if letter:
            module = self.modules[report.nodeid.partition("::")[0]]
            module.since = module.since or time.monotonic()
            module.outcomes.append((category, letter))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Since when a test runs."""
        self.begun[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Show what has ended, and what has waited for too long."""
        self.begun.pop(nodeid, None)
        path = nodeid.partition("::")[0]
        self.modules[path].left -= 1
        self.ended += 1
        late = time.monotonic() - _PATIENCE_S
        for name, module in self.modules.items():
            if module.outcomes and ((name == path and module.left <= 0) or module.since < late):
                self._show(name, module)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """Show the rest: the session may have been interrupted."""
        for name, module in self.modules.items():
            if module.outcomes:
                self._show(name, module)
        self._running = False

    def pytest_terminal_summary(self) -> None:
        """Only a session that was interrupted has tests that run."""
        for nodeid, since in self.begun.items():
            self.terminal.line(f"STILL RAN {nodeid}, for {time.monotonic() - since:.0f} s", red=True)

    def _show(self, name: str, module: _Module) -> None:
        width = max(shutil.get_terminal_size().columns - _PERCENT, 40)
        self.terminal.ensure_newline()
        self.terminal.write(f"{name} ")
        at = len(name) + 1
        for category, letter in module.outcomes:
            if at >= width:
                self.terminal.write("\n")
                at = 0
            self.terminal.write(letter, **_MARKUP.get(category, {"yellow": True}))
            at += 1
        percent = self.ended * 100 // max(self.total, 1)
        self.terminal.write(f"{' ' * (width - at)} [{percent:3d}%]\n", flush=True, cyan=True)
        module.outcomes.clear()
        module.since = 0.0
