"""Fixtures of the project's own suites, above those of the plugin (docs/testing.md).

    @pytest.mark.fabric("tiny")
    def test_every_rack_has_two_paths(heddle_lab: Lab) -> None:             # fresh for this test
        routes = heddle_lab.output("rtsw1", ["ip", "route", "show", "10.0.1.0/24"])
        assert routes.count("nexthop") == 2

    def test_three_racks(fabric_lab: FabricLab) -> None:
        lab = fabric_lab(racks=3, ctsw=5, hosts_per_rack=1)                 # for the rest of the module
        assert "10.0.2.0/24" in lab.output("rtsw1", ["vtysh", "-c", "show ip route bgp"])

Both come from one pool: modules that ask for the same fabric share a lab, which is reset between them. A module with
a fabric of its own takes it so, and has it until its last test:

    @pytest.fixture(scope="module")
    def lab(borrow: Borrow) -> Lab:
        return borrow("zone", "racks=4", "routing.ecmp=e-ecmp")

`lab.handle(node)` gives the namespace, `lab.exec` and `lab.output` run commands in it, `lab.fabric` has what it was
built from. Labs of tests have names and a state directory of their own, so they run beside yours.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from heddle.base import state
from heddle.base.events import Silent
from heddle.base.problems import MachineError
from heddle.cli.console import PlainObserver
from heddle.fabric.fabricfile import load_fabric
from heddle.host import packages
from heddle.host.engine import binary, images
from heddle.host.engine import docker as docker_engine
from heddle.host.engine.setup import engine_running
from heddle.host.preflight import frr_dir
from heddle.lab import lifecycle as life
from heddle.lab.lab import Lab
from heddle.render.render import DEFAULT
from heddle.runtimes.registry import RUNTIMES, get_runtime, on_machine
from tests.away import left_out, plugins_away
from tests.leftovers import leftovers_of
from tests.machine import EMULATED, patience
from tests.wheels import build_wheel

if TYPE_CHECKING:
    from heddle_plugins.testing.pool import Pool

_AWAY = plugins_away()
_NO_POOL = "testing" in _AWAY  # then tests with labs are skipped
pytest_plugins = [*([] if _NO_POOL else ["heddle.testing.plugin"]), "tests.workers", "tests.again", "tests.answers"]
# Repositories of their own, which tests/netns/test_example_*.py copies and runs; tests of plugins that are not here.
collect_ignore = ["examples", *left_out(_AWAY)]

TESTS = Path(__file__).parent
GOLDEN = TESTS / "golden"
FabricLab = Callable[..., Lab]
Borrow = Callable[..., Lab]
KEPT = "HEDDLE_TEST_IGNORED_SIGNALS"
Up = Callable[..., life.UpResult]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--regen-goldens", action="store_true", help="rewrite tests/golden instead of comparing with it")
    parser.addoption("--fuzz-seed", metavar="SEED[:CASE]", default="1", help="the inputs of tests/fuzz, or one of them")
    parser.addoption("--screenshots", metavar="DIR", help="where tests/browser writes its screenshots of pages")
    parser.addoption("--needs-to", metavar="FILE", help="write the parts that marks `needs` of the chosen tests name")


def pytest_configure(config: pytest.Config) -> None:
    """A test's time limit is longer on an emulated processor, and no program that a test starts ignores signals.

    The latter also in a session that does (`nohup ./inv test`). An ignored signal stays ignored in a new program; one
    with a handler does not. `KEPT` is for xdist's workers.
    """
    if EMULATED and (limit := config.getini("timeout")):  # a session with another configuration has none
        os.environ.setdefault("PYTEST_TIMEOUT", f"{patience(float(limit)):g}")
    kept = set(filter(None, os.environ.get(KEPT, "").split(",")))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN or number.name in kept:
            signal.signal(number, lambda *_: None)
            kept.add(number.name)
    if kept:
        os.environ[KEPT] = ",".join(sorted(kept))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Thousands of tests and their modules stay to the end: the garbage collector looks at none of them."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests below tests/netns need root and FRR; without them they are skipped, and say why.

    A test with the mark `needs` is skipped where one of its parts (heddle/host/packages.py) is missing.
    """
    reason = "needs root" if os.geteuid() != 0 else ""
    frr = "" if frr_dir() else "needs FRR (apt-get install frr)"
    for item in items:
        clab = item.get_closest_marker("clab") is not None
        if not clab and (suite := _suite_of(item.path)):
            item.add_marker(suite)
            clab = suite == "clab"
        why = ""
        if clab or "netns" in item.path.parts or item.get_closest_marker("root"):
            item.add_marker(pytest.mark.root)
            why = reason or ("" if clab else frr)
        missing = packages.missing(sorted({part for mark in item.iter_markers("needs") for part in mark.args}))
        if missing and not why:
            names = [part.packages[0] for part in missing]
            why = f"needs {', '.join(names)} (apt-get install {' '.join(names)})"
        if why:
            item.add_marker(pytest.mark.skip(reason=why))


def _suite_of(path: Path) -> str:
    """The folder of a test, which is its suite (heddle/cli/checkout_verbs.py); empty for a file of a user or a test."""
    parts = path.relative_to(TESTS).parts if path.is_relative_to(TESTS) else ()
    return parts[0] if len(parts) > 1 else ""


def pytest_collection_finish(session: pytest.Session) -> None:
    """For heddle/cli/checkout_verbs.py, which installs what the chosen tests need and nothing else."""
    if path := session.config.getoption("--needs-to"):
        parts = {part for item in session.items for mark in item.iter_markers("needs") for part in mark.args}
        Path(path).write_text("\n".join(sorted(parts)), encoding="utf-8")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test of fixture `runtime` runs in namespaces; with the mark `containers` it runs in every runtime of a machine.

    A module's MORE_RUNTIMES are those that only its tests have, which are `deep`. No test but those of tests/kube uses
    a cluster: the kubeconfig of this machine leads to a cluster in use.
    """
    if "runtime" not in metafunc.fixturenames:
        return
    if any("runtime" in mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")):
        return  # tests/clab: in containers only
    places, more = ["netns"], getattr(metafunc.module, "MORE_RUNTIMES", ())
    if metafunc.definition.get_closest_marker("containers"):
        places = [*(each for each in RUNTIMES if get_runtime(each).here), *more]
    marks = {"containerlab": [pytest.mark.clab], **{each: [pytest.mark.deep] for each in more}}
    marked = [pytest.param(each, marks=marks.get(each, [])) for each in places]
    metafunc.parametrize("runtime", marked, indirect=True, scope="module")


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> Iterator[None]:
    """SIGINT works, also where the suite was started in a script's background: ignored, it would be so in children."""
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a worker that was interrupted ignores it
        signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session", autouse=True)
def state_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory for this run of the tests: nothing of yours is listed, changed or removed."""
    before = os.environ.get("HEDDLE_STATE_DIR")
    # The same one after a test that ran again with new fixtures (tests/again.py): labs of the pool stay.
    path = tmp_path_factory.getbasetemp() / "state"
    path.mkdir(exist_ok=True)
    os.environ["HEDDLE_STATE_DIR"] = str(path)
    yield path
    os.environ.pop("HEDDLE_STATE_DIR")
    if before is not None:
        os.environ["HEDDLE_STATE_DIR"] = before


if _NO_POOL:

    @pytest.fixture(scope="session")
    def heddle_pool() -> None:
        """Skip the test: plugins/testing has the pool of labs."""
        pytest.skip("needs plugins/testing, which is not in this checkout")


@pytest.fixture(scope="session")
def lab_name(heddle_pool: Pool) -> Iterator[Callable[[], str]]:
    """Names that no other lab has, with claims as labs of the pool: SIGTERM ends this session as Ctrl-C does, and
    if this process is killed, a later session removes its labs.
    """
    from heddle_plugins.testing import pool as claims

    taken: list[str] = []

    def new() -> str:
        heddle_pool.on_first()
        taken.append(claims.new_name())
        claims.claim(taken[-1], state.state_dir())
        return taken[-1]

    yield new
    for each in taken:
        if not on_machine(each):
            claims.unclaim(each)


@pytest.fixture
def name(lab_name: Callable[[], str]) -> Iterator[str]:
    """The name of a lab that goes down with the test, whatever became of it."""
    chosen = lab_name()
    yield chosen
    life.down(chosen, force=True)


@pytest.fixture(scope="module")
def runtime(request: pytest.FixtureRequest) -> Iterator[str]:
    """Where labs run: namespaces in suite netns, containers in suite clab, and the module's MORE_RUNTIMES.

    Skipped with the reason where this machine cannot run it.
    """
    name = str(request.param)
    with pytest.MonkeyPatch.context() as patch:
        for key, place in getattr(request.module, "MORE_RUNTIMES", {}).items():
            patch.setitem(RUNTIMES.core, key, place)
        if name == "containerlab":
            request.getfixturevalue("engine")
        try:
            get_runtime(name).prepare(load_fabric("tiny").fabric, DEFAULT, Silent())
        except MachineError as error:
            pytest.skip(str(error))
        yield name


@pytest.fixture(scope="session")
def engine(state_home: Path, heddle_pool: Pool) -> Iterator[None]:
    """A container engine that answers, with Heddle's images in it; ended by this run when this run has started it.

    Skipped with the reason if this machine cannot do it; `./inv test clab` sets it up first.
    """
    wrong = docker_engine.trouble()
    if wrong is not None and not docker_engine.down():
        pytest.skip(str(wrong))
    if (wrong := binary.trouble()) is not None:
        pytest.skip(str(wrong))
    observer = PlainObserver(sys.stderr)
    with engine_running(observer):
        images.ensure_images(observer)
        yield
        heddle_pool.close()  # labs in containers need the engine for that


@pytest.fixture(scope="module")
def up(runtime: str) -> Up:
    """`up` in this module's runtime: up(name, "link.mtu=5000", observer=...) of preset tiny, or fabric="zone"."""

    def bring(name: str, *overrides: str, fabric: str = "tiny", **keys: Any) -> life.UpResult:
        return life.up(load_fabric(fabric, name=name, overrides=overrides), runtime=runtime, **keys)

    return bring


@pytest.fixture(scope="module")
def borrow(heddle_pool: Pool, request: pytest.FixtureRequest) -> Iterator[Borrow]:
    """Labs from the pool for the rest of the module: borrow("demo", "link.host=1gbit"). Tests may damage theirs."""
    from heddle_plugins.testing.pool import FabricRequest

    taken: list[Lab] = []

    def take(fabric: str, *overrides: str, runtime: str = "netns") -> Lab:
        taken.append(heddle_pool.take(FabricRequest(fabric, overrides), runtime, user=request.node.nodeid))
        return taken[-1]

    try:
        yield take
    finally:
        for lab in taken:
            heddle_pool.release(lab)


@pytest.fixture(scope="module")
def fabric_lab(borrow: Borrow, runtime: str) -> FabricLab:
    """A factory: keys of a fabric file in, a converged lab out, in this module's runtime."""
    from heddle_plugins.testing.pool import request_of

    def make(**keys: Any) -> Lab:
        request = request_of(("tiny",), keys)
        return borrow(request.fabric, *request.overrides, runtime=runtime)

    return make


@pytest.fixture(scope="module")
def tiny_overrides() -> Sequence[str]:
    """Overrides of the preset for `tiny`; a module that needs some has a fixture of this name."""
    return ()


@pytest.fixture(scope="module")
def tiny(
    heddle_pool: Pool, runtime: str, tiny_overrides: Sequence[str], request: pytest.FixtureRequest
) -> Iterator[Lab]:
    """The preset tiny, running: 2 RTSW, 2 CTSW, 4 hosts. The module shares it, and leaves it as it was."""
    from heddle_plugins.testing.pool import FabricRequest, LeftoverWarning

    wanted = FabricRequest("tiny", tuple(tiny_overrides))
    with heddle_pool.borrow(wanted, runtime, user=request.node.nodeid) as (lab, left):
        yield lab
    if left:
        request.node.warn(LeftoverWarning(f"{request.node.nodeid} left in its lab: {'; '.join(left)}"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this checkout, built once; tests install it and leave the file as it is."""
    return build_wheel(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="session")
def leftovers() -> Callable[[str], list[str]]:
    """What of a lab is still on this machine: namespaces, processes, directories, pins, records. Empty: all is gone."""
    return leftovers_of


@pytest.fixture(scope="session")
def regen_goldens(request: pytest.FixtureRequest) -> bool:
    """True when golden files must be rewritten."""
    return bool(request.config.getoption("--regen-goldens"))


@pytest.fixture
def golden(regen_goldens: bool) -> Callable[[str, str], None]:
    """Compare a text with a file below tests/golden, or write it there: `pytest --regen-goldens`."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if regen_goldens:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.exists(), f"{path} is missing; pytest --regen-goldens writes it"
        assert text == path.read_text(encoding="utf-8"), f"{name} differs; if you meant it: pytest --regen-goldens"

    return compare


@pytest.fixture
def golden_dir(regen_goldens: bool) -> Callable[[str, dict[str, str]], None]:
    """Compare relative path -> text with a directory below tests/golden: the same files, the same bytes."""

    def compare(name: str, files: dict[str, str]) -> None:
        root = GOLDEN / name
        if regen_goldens:
            shutil.rmtree(root, ignore_errors=True)
            for relative, text in files.items():
                (root / relative).parent.mkdir(parents=True, exist_ok=True)
                (root / relative).write_text(text, encoding="utf-8")
        there = {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in root.rglob("*") if p.is_file()}
        assert sorted(files) == sorted(there), "other files than before; if you meant it: pytest --regen-goldens"
        for relative, text in files.items():
            assert text == there[relative], f"{name}/{relative} differs; if you meant it: pytest --regen-goldens"

    return compare
