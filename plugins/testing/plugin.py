"""The pytest plugin: the marker `fabric`, four fixtures, and options. docs/pytest-api.md lists them.

pytest finds it by its entry point where Heddle is installed; in a checkout, `-p heddle.testing.plugin` or
`pytest_plugins` loads it. Entry point and module have the same name, so that both at once load it once.

    import pytest
    from heddle.testing import assert_paths_agree

    @pytest.mark.fabric("tiny", routing={"ecmp": "e-ecmp"})
    def test_every_path_is_proven(heddle_run, heddle_paths):
        heddle_run(sizes="1M", qps=16)
        assert_paths_agree(heddle_paths())
"""

from __future__ import annotations

import os
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import pytest

from heddle.base import resources
from heddle.base.problems import HeddleError, Problem
from heddle.runtimes.registry import HERE
from heddle_plugins.testing.assertions import ACCEPTED
from heddle_plugins.testing.calls import PathsCall, QueuesCall, RunCall
from heddle_plugins.testing.pool import MOST, Pool
from heddle_plugins.testing.testsession import FAILED, FIXTURES, LAB_OF_TEST, HeddleSession, fail

if TYPE_CHECKING:
    from heddle.lab.lab import Lab
    from heddle.proof.verdict import PathsResult
    from heddle.runs.runrecord import RunRecord

_SESSION: Final = pytest.StashKey[HeddleSession]()
_MARKER: Final = (
    "fabric(preset_or_path, **keys): the fabric of heddle_lab; keys are those of a fabric file, as "
    'routing={"ecmp": "e-ecmp"}'
)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of the group heddle."""
    group = parser.getgroup("heddle", "emulated fabrics (Heddle)")
    group.addoption("--heddle-runtime", choices=HERE, default="netns", help="where labs run (default: netns)")
    group.addoption(
        "--heddle-keep", action="store_true", help="leave the lab of a failed test up, and print how to look"
    )
    group.addoption(
        "--heddle-pcap",
        nargs="?",
        const="heddle-pcap",
        metavar="DIR",
        help="capture at the fabric's ports during each test, and keep the file of a failed one in DIR "
        "(default: heddle-pcap)",
    )
    group.addoption(
        "--heddle-labs", type=int, default=MOST, metavar="N", help=f"labs that are up at once (default: {MOST})"
    )
    group.addoption(
        "--heddle-accept-unreliable", action="store_true", help="assertions may rest on runs that the host CPU limited"
    )
    group.addoption(
        "--heddle-no-skip", action="store_true", help="fail a test that this machine cannot run, instead of skipping it"
    )


def pytest_configure(config: pytest.Config) -> None:
    """The marker, and the options of this session."""
    config.addinivalue_line("markers", _MARKER)
    session = config.stash[_SESSION] = HeddleSession.of(config)
    ACCEPTED.clear()
    if config.getoption("--heddle-accept-unreliable"):
        ACCEPTED.add("unreliable")
    if session.pcap is not None:
        from heddle_plugins.testing.testsession import check_tcpdump

        try:
            check_tcpdump()
        except HeddleError as error:
            raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A marker with mistakes is an error of its file's collection, with all of them and without a traceback."""
    report = yield
    if report.passed and isinstance(collector, pytest.Module | pytest.Class):
        session = collector.config.stash[_SESSION]
        problems = [each for item in report.result or () for each in _marker_problems(session, item)]
        if problems:
            report.outcome = "failed"
            report.longrepr = "\n".join(dict.fromkeys(map(str, problems)))
            report.result = []
    return report


def _marker_problems(session: HeddleSession, item: pytest.Item | pytest.Collector) -> tuple[Problem, ...]:
    """What is wrong with the fabric of a test that uses the plugin's own fixture."""
    if not isinstance(item, pytest.Function) or not set(FIXTURES).intersection(item.fixturenames):
        return ()
    if _replaced_at(item) and item.get_closest_marker("fabric") is None:
        return ()  # the user's own fixture may need none
    if _replaced_at(item) and "heddle_lab" not in _definitions(item)[-1].argnames:
        return ()  # and its marker may be another one
    try:
        session.request(item)
    except HeddleError as error:
        return error.problems
    return ()


def _definitions(item: pytest.Function) -> list[Any]:
    """pytest's definitions of heddle_lab for a test; the last one counts."""
    return list(item._fixtureinfo.name2fixturedefs.get("heddle_lab", ()))


def _replaced_at(item: pytest.Function) -> str:
    """`conftest.py:12`, where the user's own fixture replaces heddle_lab; empty where none does."""
    found = _definitions(item)
    function = found[-1].func if found else None
    if function is None or function.__module__ == __name__:
        return ""
    code = function.__code__
    return f"{code.co_filename}:{code.co_firstlineno}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note failures, since labs and captures of failed tests are kept; name the lab in the report.

    The text of a HeddleError is complete, so its traceback ends at the line of the test; --full-trace shows all.
    """
    if (error := call.excinfo) and isinstance(error.value, HeddleError) and not item.config.getoption("fulltrace"):
        call.excinfo = pytest.ExceptionInfo.from_exception(error.value.with_traceback(_without_package(error.tb)))
    report = yield
    if report.failed:
        item.stash[FAILED] = True
        if report.when == "call" and (text := item.config.stash[_SESSION].about(item)):
            report.sections.append(("heddle", text))
    return report


def _without_package(trace: TracebackType) -> TracebackType:
    """A traceback without Heddle's own lines, or the whole where no others are."""
    steps: list[TracebackType] = []
    step: TracebackType | None = trace
    while step is not None:
        if not Path(step.tb_frame.f_code.co_filename).is_relative_to(resources.HERE.package):
            steps.append(step)
        step = step.tb_next
    kept: TracebackType | None = None
    for each in reversed(steps):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept or trace


def pytest_keyboard_interrupt(excinfo: pytest.ExceptionInfo[BaseException]) -> None:
    """Labs are not reset for a next test when there is none."""
    for config in _configs:
        config.stash[_SESSION].interrupted = True
        if is_worker(config):  # Ctrl-C reaches it directly, by its controller, and by xdist
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_IGN)
        end_workers(config)


_configs: Final[list[pytest.Config]] = []  # of this process: the hook above gets none


def pytest_sessionstart(session: pytest.Session) -> None:
    """A session begins. A controller of workers handles signals from now on: labs may come up in its workers."""
    _configs.append(session.config)
    if session.config.pluginmanager.hasplugin("dsession"):  # it starts workers, and runs no test itself
        session.config.stash[_SESSION].signals.install()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """A worker of pytest-xdist has ended: its notes are for this process's summary."""
    node.config.stash[_SESSION].notes += getattr(node, "workeroutput", {}).get(_NOTES, ())  # none when it crashed


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Labs go down when all fixtures have ended."""
    ours = session.config.stash[_SESSION]
    ours.close()
    if is_worker(session.config):  # it sends its lines of the summary with its last message
        session.config.workeroutput[_NOTES] = list(ours.notes)  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Also where the session did not end as usual; and an interrupted removal is tried again."""
    session = config.stash.get(_SESSION, None)
    if session is not None:
        session.close()
        if config in _configs:
            _configs.remove(config)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Labs that were kept, built again or removed, and captures."""
    notes = config.stash[_SESSION].notes
    if notes:
        terminalreporter.section("heddle")
        for note in notes:
            terminalreporter.line(note)


@pytest.fixture(scope="session")
def heddle_pool(request: pytest.FixtureRequest) -> Pool:
    """The pool of labs of this session, for fixtures of your own: see plugins/testing/pool.py."""
    return request.config.stash[_SESSION].pool


@pytest.fixture
def heddle_lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A running lab of the fabric that the test's marker names, fresh for this test."""
    with request.config.stash[_SESSION].lab_of(request.node) as lab:
        yield lab


@pytest.fixture
def heddle_run(heddle_lab: Lab, request: pytest.FixtureRequest) -> Iterator[RunCall]:
    """Run a collective on the lab: heddle_run(collective="all-reduce", sizes="1M", qps=16) gives a RunRecord."""
    lab = _checked(heddle_lab, request)
    call = RunCall(lab)
    if (known := request.node.stash.get(LAB_OF_TEST, None)) is not None:
        known.runs = call.runs
    yield call
    record_runs(request.node, lab, call.runs, known.title if known is not None else "")


@pytest.fixture
def heddle_paths(heddle_lab: Lab, request: pytest.FixtureRequest) -> PathsCall:
    """The path of every queue pair of the last run: heddle_paths() gives a PathsResult."""
    return PathsCall(_checked(heddle_lab, request))


@pytest.fixture
def heddle_queues(heddle_lab: Lab, request: pytest.FixtureRequest) -> QueuesCall:
    """What the queues did since the test began: heddle_queues() gives a QueuesResult."""
    return QueuesCall(_checked(heddle_lab, request))


def _checked(lab: Any, request: pytest.FixtureRequest) -> Lab:
    """The lab, unless a fixture of the user's with the name heddle_lab gave something else."""
    from heddle.lab.lab import Lab

    if not isinstance(lab, Lab):
        why = f"replaces the fixture of Heddle, and gives a {type(lab).__name__} in place of a Lab"
        hint = "rename your fixture, or have it take heddle_lab as an argument and give that"
        fail(HeddleError(Problem(_replaced_at(request.node), "heddle_lab", why, hint)))
    return lab


_NOTES: Final = "heddle_notes"
_END_S: Final = 60  # for a worker to take its labs down; xdist allows 10 s


# pytest-xdist: each worker is a session with a pool of its own; the controller has none, and reports for all. Nothing
# here imports xdist: without it, a session is neither.


def is_worker(config: pytest.Config) -> bool:
    """Whether this process is a worker of pytest-xdist."""
    return hasattr(config, "workerinput")


def end_workers(config: pytest.Config) -> None:
    """Interrupt the workers of an interrupted controller now: a signal may have reached the controller alone.

    Else xdist interrupts them after 5 s and kills them after 10 s, with their labs up.
    """
    manager = getattr(config.pluginmanager.getplugin("dsession"), "nodemanager", None)
    if manager is None:
        return
    manager.EXIT_TIMEOUT = _END_S
    for gateway in manager.group:
        # Workers on other machines have no process here.
        popen = getattr(getattr(gateway, "_io", None), "popen", None)
        if popen is not None and popen.poll() is None:
            with suppress(OSError):
                os.kill(popen.pid, signal.SIGINT)


Properties = Iterator[tuple[str, str]]


def record_runs(item: pytest.Item, lab: Lab, runs: Sequence[RunRecord], title: str = "") -> None:
    """Add the properties of these runs to the test. title: the fabric and its overrides, where they are known."""
    if not runs or not item.config.getoption("xmlpath", None):
        return
    shown = title.removeprefix(f"{item.config.rootpath}{os.sep}")
    item.user_properties += fabric_properties(lab.runtime.name, runs[0].k, shown)
    for number, run in enumerate(runs, 1):
        item.user_properties += run_properties(f"heddle.run{number}", run)
        item.user_properties += _proof_of(f"heddle.run{number}", lab, run)


def fabric_properties(runtime: str, k: int, title: str = "") -> Properties:
    """What all runs of a test have in common."""
    if title:
        yield "heddle.fabric", title
    yield "heddle.runtime", runtime
    yield "heddle.k", str(k)


# Figures that are properties of a run under their names (runs/figures.py).
_FIGURES: Final = ("wrong", "packets", "pauses", "paused_ms", "deepest")


def run_properties(name: str, run: RunRecord) -> Properties:
    """What was run, and what came of it. busbw is in GB/s, emulated; deepest is in bytes."""
    from heddle.base.conditions import fact_text
    from heddle.runs.figures import FIGURES
    from heddle.runs.parts.queues import QueueUse
    from heddle.runs.runrecord import unfit

    options = run.options
    yield f"{name}.id", run.id
    yield f"{name}.collective", options.collective
    yield f"{name}.ecmp", run.ecmp
    yield f"{name}.ranks", str(len(run.ranks))
    yield f"{name}.qps", str(options.qps)
    yield f"{name}.sizes", ",".join(str(row.size) for row in run.rows)
    yield f"{name}.busbw", f"{run.busbw:.6g}"
    if len(run.rows) > 1:
        yield from ((f"{name}.busbw.{row.size}", f"{row.busbw:.6g}") for row in run.rows)
    yield f"{name}.reliable", _word(not run.limited)
    if (found := unfit(run)) is not None:
        yield f"{name}.unfit", f"{found.kind}: {found.why}" + (" (accepted)" if found.kind in ACCEPTED else "")
    yield f"{name}.marked", str(sum(flow.ce for flow in run.flows))
    known = {figure: value for figure in _FIGURES if (value := FIGURES[figure].of(run)) is not None}
    yield from ((f"{name}.{figure}", fact_text(value)) for figure, value in known.items())
    if (used := run.part(QueueUse)) is not None:
        yield f"{name}.dropped", str(sum((run.lost or {}).values()))
        yield f"{name}.deepest_at", used.deepest_at


def paths_properties(name: str, paths: PathsResult) -> Properties:
    """The proof, the MMR, and the load of each uplink: bytes, queue pairs, and its use as a share of the run."""
    yield f"{name}.paths_agree", _word(paths.agree)
    for word, mmr in (("mmr", paths.mmr.bytes), ("mmr_flows", paths.mmr.flows)):
        if mmr is not None:
            yield f"{name}.{word}", f"{mmr:g}"
    for link in paths.uplinks.links:
        at = f"{name}.uplink.{link.port}"
        yield f"{at}.bytes", str(link.bytes)
        yield f"{at}.flows", str(link.flows)
        if (share := link.utilisation) is not None:
            yield f"{at}.utilisation", f"{share:.4f}"


def _proof_of(name: str, lab: Lab, run: RunRecord) -> Properties:
    """The same of a run that was kept; a reason where its evidence is gone, as after many runs in one test."""
    from heddle.runs.store import paths_of

    try:
        yield from paths_properties(name, paths_of(lab, run.id))
    except HeddleError as error:
        yield f"{name}.no_paths", str(error).partition("\n")[0]


def _word(true: bool) -> str:
    return "true" if true else "false"
