"""Extras of a checkout: a verb installs the packages of its extra, and no other, when it may. No network is used."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import shutil
import subprocess
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import pytest

from heddle.base.extras import HowInstalled
from heddle.base.problems import MachineError
from heddle.base.resources import EXTRAS_LOCK, HERE
from heddle.host import lockedpackages
from heddle.host.lockedpackages import absent, closure, ensure_locked, pins
from tests.wheels import ROOT, InstalledWheel, environment_without, install, small_wheel

MISSING = f"heddle-has-no-such-package==1 --hash=sha256:{'0' * 64}\n"
# A verb that needs an extra, and goes on with it.
VERB = """
from heddle.cli.verbs import verb
@verb(extras=["plot"])
def draw(out):
    "Draw."
    import matplotlib, kiwisolver
    out.result({"version": matplotlib.__version__}, matplotlib.__version__ + " " + kiwisolver.__version__)
"""
NAMES = ("matplotlib", "kiwisolver", "cycler", "mpl_toolkits", "pylab")


def of_real_lock(*names: str) -> set[str]:
    return {pin.name for pin in closure(pins(HERE.beside(EXTRAS_LOCK)), names)}


def test_an_extra_has_what_its_packages_need_and_no_more() -> None:
    assert of_real_lock("paramiko") == {"paramiko", "bcrypt", "cffi", "cryptography", "pycparser", "pynacl"}
    assert of_real_lock("pytest") == {"pytest", "iniconfig", "packaging", "pluggy"}, "colorama is for Windows"
    assert {"contourpy", "pillow"} < of_real_lock("matplotlib")
    # These tests run with all of them, by the marker of this Python.
    assert absent(pins(HERE.beside(EXTRAS_LOCK))) == []


def test_tools_that_are_as_pinned_need_nothing(tmp_path: Path) -> None:
    lock = tmp_path / "requirements-some.lock"
    windows = MISSING.replace("==1", "==1 ; sys_platform == 'win32'")
    lock.write_text(f"pytest=={version('pytest')} ; python_version > '3' \\\n    --hash=sha256:00\n{windows}")
    said: list[str] = []
    ensure_locked(lock, "the tools", said.append)
    assert said == []


@pytest.mark.parametrize("pin", ["pytest==0.0.1 --hash=sha256:00\n", MISSING])
def test_another_version_or_none_is_installed_and_a_failure_is_named(
    tmp_path: Path, pin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    # The environment of the tests may be one that HEDDLE_VENV names: nothing is installed in it, either.
    monkeypatch.setattr(lockedpackages, "how_installed", lambda: HowInstalled(ROOT / ".venv", ROOT, pip=True))
    lock = tmp_path / "requirements-some.lock"
    lock.write_text(f"iniconfig=={version('iniconfig')} --hash=sha256:00\n{pin}")
    said: list[str] = []
    with pytest.raises(MachineError, match=r"requirements-some\.lock could not be installed"):
        ensure_locked(lock, "the tools", said.append)
    assert said == ["installing the tools of requirements-some.lock"]


class Clone:
    """A copy of this checkout with a verb `draw`, small packages in its lock file, and a .venv without them."""

    def __init__(self, place: Path) -> None:
        self.root, self.wheels = place / "a clone", place / "wheels"
        self.wheels.mkdir()
        self.root.mkdir()
        for name in ("heddle", "plugins"):
            shutil.copytree(ROOT / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__"))
        (self.root / "heddle_plugins").symlink_to("plugins")
        for name in ("topologies", "templates", "traffic", "labs", "docs", "LICENSE"):
            (self.root / name).symlink_to(ROOT / name)
        for name in ("inv", "pyproject.toml", "requirements.lock"):
            shutil.copy(ROOT / name, self.root / name)
        text = (ROOT / "tasks.py").read_text()
        (self.root / "tasks.py").write_text(text.replace("\ntyped = typed_to", f"{VERB}\ntyped = typed_to", 1))
        self.venv: InstalledWheel = environment_without(NAMES, self.root / ".venv")
        stamp = hashlib.sha256((self.root / "requirements.lock").read_bytes()).hexdigest()
        (self.root / ".venv/heddle-stamp").write_text(f"{stamp}\n")

    def lock(self, matplotlib: str = "9.1") -> None:
        """Write the lock file: what `plot` needs are matplotlib and kiwisolver, and cycler is for another extra."""
        pinned = (("cycler", "9.3", "kubernetes"), ("kiwisolver", "9.2", "matplotlib"))
        lines = ""
        for name, number, asker in (*pinned, ("matplotlib", matplotlib, "heddle-fabric (pyproject.toml)")):
            digest = small_wheel(self.wheels, name, number)
            lines += f"{name}=={number} ; python_version > '3' \\\n    --hash=sha256:{digest}\n    # via {asker}\n"
        lines += f"colours==1 ; sys_platform == 'win32' \\\n    --hash=sha256:{'0' * 64}\n    # via matplotlib\n"
        (self.root / EXTRAS_LOCK).write_text(lines)

    def reset(self) -> None:
        """Remove what was installed."""
        for path in self.venv.packages.iterdir():
            if path.name.startswith(NAMES):
                shutil.rmtree(path)

    @property
    def installed(self) -> set[str]:
        """The names of the small packages that are there."""
        return {name for name in NAMES if (self.venv.packages / name).exists()}

    def env(self, **more: str) -> dict[str, str]:
        """The environment of a call: pip sees the small wheels only."""
        kept = {name: value for name, value in os.environ.items() if name not in ("CI", "HEDDLE_VENV")}
        return {**kept, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": self.wheels.as_uri(), **more}

    def inv(self, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `./inv` without a terminal."""
        argv = [str(self.root / "inv"), *words]
        return subprocess.run(
            argv, env=self.env(**env), stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, cwd="/"
        )


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Clone:
    return Clone(tmp_path_factory.mktemp("set up"))


@pytest.fixture
def clone(shared: Clone) -> Iterator[Clone]:
    shared.lock()
    yield shared
    shared.reset()


NEEDED = "matplotlib is not installed, and pictures and reports (plot, graph, report, --heatmap) need it"


def test_without_consent_the_command_is_named_and_nothing_is_installed(clone: Clone) -> None:
    done = clone.inv("draw", "--format", "json")
    problem = json.loads(done.stdout)["error"]["problems"][0]
    assert (done.returncode, f"{problem['what']} {problem['why']}") == (3, NEEDED)
    assert problem["hint"].splitlines() == [
        "run ./inv setup extras: it installs all extras in .venv",
        "or let Heddle install it: run the same command again with --yes",
    ]
    assert f"2 packages of requirements-extras.lock in {clone.root}/.venv, and nowhere else: " in done.stderr
    assert clone.installed == set()


@pytest.mark.parametrize("way", ["--yes", "CI"])
def test_with_consent_the_verb_installs_its_extra_only_and_goes_on(clone: Clone, way: str) -> None:
    done = clone.inv("draw", CI="true") if way == "CI" else clone.inv("draw", way)
    assert (done.returncode, done.stdout) == (0, "9.1 9.2\n"), done.stderr
    said = "CI=true" if way == "CI" else way
    assert f"{said} allows this without a question" in done.stderr
    assert clone.installed == {"matplotlib", "kiwisolver"}
    again = clone.inv("draw")
    assert (again.returncode, again.stdout, again.stderr) == (0, "9.1 9.2\n", "")


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 3)])
def test_a_terminal_is_asked(clone: Clone, answer: str, code: int) -> None:
    master, slave = pty.openpty()
    os.write(master, f"{answer}\n".encode())
    argv = [str(clone.root / "inv"), "draw"]
    done = subprocess.run(argv, env=clone.env(), stdin=slave, stdout=subprocess.PIPE, stderr=slave, check=False)
    os.close(slave)
    shown = os.read(master, 1 << 16).decode()
    os.close(master)
    assert done.returncode == code, shown
    assert "Install matplotlib now? [y/N]" in shown
    assert clone.installed == ({"matplotlib", "kiwisolver"} if answer == "y" else set())


def test_a_failure_is_a_sentence_and_the_next_call_installs(clone: Clone) -> None:
    text = (clone.root / EXTRAS_LOCK).read_text()
    (clone.root / EXTRAS_LOCK).write_text(text.replace("sha256:", "sha256:0000"))
    for env in ({"PIP_FIND_LINKS": ""}, {}):  # no file, then files with other hashes
        done = clone.inv("draw", "--yes", **env)
        assert done.returncode == 3
        assert "matplotlib could not be installed (pip ended with 1)" in done.stderr
        assert "Traceback" not in done.stderr
        assert clone.installed == set()
    assert clone.inv("predict", "tiny", "--workload", "ring").returncode == 0
    clone.lock()
    assert clone.inv("draw", "--yes").stdout == "9.1 9.2\n"


def test_the_rest_of_an_interrupted_installation_and_new_versions_come_without_a_question(clone: Clone) -> None:
    assert clone.inv("draw", "--yes").returncode == 0
    for path in clone.venv.packages.glob("kiwisolver*"):
        shutil.rmtree(path)
    done = clone.inv("draw")
    assert (done.returncode, done.stdout) == (0, "9.1 9.2\n"), done.stderr
    assert "pip installs 1 package of requirements-extras.lock" in done.stderr
    clone.lock(matplotlib="9.10")
    assert clone.inv("draw").stdout == "9.10 9.2\n"


def test_two_verbs_at_once_install_once(clone: Clone) -> None:
    argv = [str(clone.root / "inv"), "draw", "--yes"]
    both = [subprocess.Popen(argv, env=clone.env(), stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [each.communicate(timeout=120) for each in both]
    assert [each.returncode for each in both] == [0, 0], said
    assert [out for out, _ in said] == [b"9.1 9.2\n"] * 2


def test_setup_extras_installs_all_of_them_and_names_what_fails(clone: Clone) -> None:
    done = clone.inv("setup", "extras", "--yes")
    assert done.returncode == 0, done.stderr
    assert "installed: cycler, kiwisolver, matplotlib" in done.stdout
    assert clone.installed == {"cycler", "kiwisolver", "matplotlib"}
    assert "all are installed" in clone.inv("setup", "extras").stdout
    assert clone.inv("setup", "extras", "--stop").returncode == 2


def test_an_environment_of_the_user_is_not_changed(clone: Clone, tmp_path: Path) -> None:
    theirs = environment_without(NAMES, tmp_path / "an env")
    done = clone.inv("draw", "--yes", HEDDLE_VENV=str(theirs.place))
    assert done.returncode == 3
    lock = clone.root / EXTRAS_LOCK
    line = f"'{theirs.python}' -m pip install --no-deps --require-hashes -r '{lock}'"
    assert done.stderr == f"{NEEDED}\n  hint: {line}\n"
    assert clone.installed == set()
    # Verbs of a checkout, which install what they need without a question.
    (clone.root / "requirements-docs.lock").write_text((clone.root / EXTRAS_LOCK).read_text())
    done = clone.inv("docs", "--yes", HEDDLE_VENV=str(theirs.place))
    assert done.returncode == 3
    why = "are not there as requirements-docs.lock pins them, and Heddle does not change this environment"
    named = f"mkdocs in {theirs.place} {why}: cycler, kiwisolver, matplotlib\n"
    assert done.stderr == f"{named}  hint: {line.replace(EXTRAS_LOCK, 'requirements-docs.lock')}\n"
    assert not [path for path in theirs.packages.iterdir() if path.name.startswith(NAMES)]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to another user")
def test_root_leaves_the_files_to_the_user_of_the_checkout(clone: Clone) -> None:
    venv = clone.root / ".venv"
    for path in (clone.root, venv, *venv.rglob("*")):
        os.chown(path, 12345, 12345, follow_symlinks=False)
    try:
        done = clone.inv("draw", "--yes")
        assert done.returncode == 0, done.stderr
        assert {path.lstat().st_uid for path in (venv, *venv.rglob("*"))} == {12345}
    finally:
        for path in (clone.root, venv, *venv.rglob("*")):
            os.chown(path, 0, 0, follow_symlinks=False)


def test_a_wheel_installs_nothing_itself(wheel: Path, tmp_path: Path) -> None:
    made = install(wheel, tmp_path / "env", without=NAMES)
    done = made.heddle("graph", "--fabric", "tiny", "--out", "x.png", "--yes", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"{NEEDED}\n  hint: {made.python} -m pip install 'heddle-fabric[plot]'\n"
