"""Content and code are found in a checkout and in a wheel, and a module that is missing is a sentence."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base import resources
from heddle.base.extras import EXTRAS, Extra, HowInstalled, how_installed, missing_module, require
from heddle.base.problems import InputError, MachineError
from heddle.base.resources import Installation
from heddle.cli.endings import ended
from heddle.spec.load import find_fabric, presets
from tests.wheels import InstalledWheel, install

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = resources.CONTENT


def checkout(root: Path) -> Installation:
    """A checkout in small."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True)
    (root / "tasks.py").touch()
    (root / "plugins").mkdir()
    (root / "heddle_plugins").symlink_to("plugins")
    return _package(root)


def wheel(root: Path) -> Installation:
    """What pip makes of a wheel; beside it another package has a folder of the same name as one of ours."""
    (root / resources.TEMPLATES).mkdir(parents=True)
    for folder in FOLDERS:
        (root / "heddle" / "_content" / folder).mkdir(parents=True)
    for name in resources.BESIDE:
        (root / "heddle" / "_content" / name).parent.mkdir(exist_ok=True)
        (root / "heddle" / "_content" / name).touch()
    (root / "heddle_plugins").mkdir()
    return _package(root)


def _package(root: Path) -> Installation:
    (root / "heddle/switch/bpf").mkdir(parents=True)
    (root / "heddle/switch/bpf/hash.o").touch()
    (root / "heddle/cli").mkdir()
    (root / "heddle/cli/__main__.py").touch()
    (root / "heddle_plugins/packets").mkdir()
    (root / "heddle_plugins/packets/verbs.py").touch()
    return Installation(root / "heddle")


@pytest.mark.parametrize(("make", "content"), [(checkout, ""), (wheel, "heddle/_content")])
def test_both_layouts_have_everything(make: Callable[[Path], Installation], content: str, tmp_path: Path) -> None:
    root = tmp_path / "a place"
    found = make(root)
    assert [found.content(folder) for folder in FOLDERS] == [root / content / folder for folder in FOLDERS]
    assert found.bpf_object("hash") == root / "heddle/switch/bpf/hash.o"
    assert found.python_path == root
    assert (found.plugins / "packets/verbs.py").is_file()
    assert found.verbs == root / content / "tasks.py"


@pytest.mark.parametrize("make", [checkout, wheel])
def test_missing_files_are_a_problem_of_the_installation(make: Callable[[Path], Installation], tmp_path: Path) -> None:
    found = make(tmp_path)
    with pytest.raises(MachineError, match=r"pictures is missing from this installation\n.*install Heddle again"):
        found.content("pictures")
    with pytest.raises(MachineError, match=r"none\.o is missing from this installation"):
        found.bpf_object("none")


def test_only_a_checkout_has_a_root(tmp_path: Path) -> None:
    assert checkout(tmp_path / "a").checkout("./inv test") == tmp_path / "a"
    with pytest.raises(InputError, match=r"\./inv test needs a checkout of Heddle"):
        wheel(tmp_path / "b").checkout("./inv test")


def test_the_program_starts_again_by_its_file(tmp_path: Path) -> None:
    assert checkout(tmp_path / "a").command() == [sys.executable, str(tmp_path / "a/tasks.py")]
    assert wheel(tmp_path / "b").command() == [sys.executable, "-P", str(tmp_path / "b/heddle/cli/__main__.py")]


def test_a_wheel_has_the_files_of_a_checkout_under_their_names(tmp_path: Path) -> None:
    found = wheel(tmp_path)
    (tmp_path / "heddle/_content/topologies/tiny.yml").touch()
    names = {"heddle/switch/bpf/hash.o", "heddle/cli/__main__.py", "heddle_plugins/packets/verbs.py"}
    assert set(found.as_checkout()) == names | {"topologies/tiny.yml", *resources.BESIDE}
    (tmp_path / "heddle/_content/inv").unlink()
    with pytest.raises(MachineError, match="inv is missing from this installation"):
        found.as_checkout()


def test_presets_are_the_fabric_files_of_topologies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = checkout(tmp_path)
    for name in ("pod.yml", "brought.clab.yml", "notes.txt", "examples/other.yml"):
        path = made.content(resources.TOPOLOGIES) / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    monkeypatch.setattr(resources, "HERE", made)
    assert presets() == ["pod"]
    assert find_fabric("pod")[0] == tmp_path / "topologies/pod.yml"


URL = "file:///home/u/my%20dist/heddle_fabric-1-py3-none-any.whl"
PLOT = EXTRAS["plot"].debian


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    place = tmp_path / "an env"
    place.mkdir()
    (place / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.13.1\n")
    return place


def test_pip_of_that_environment(prefix: Path) -> None:
    how = HowInstalled(prefix, None, pip=True, url=URL)
    assert how.installer == "pip"
    assert how.add("plot", ["ssh"], PLOT) == f"'{prefix}/bin/python' -m pip install 'heddle-fabric[plot]'"
    # No pyvenv.cfg: installed for the whole machine, or for a user.
    assert HowInstalled(Path("/usr"), None, pip=True).add("ssh", [], ()) == (
        "/usr/bin/python -m pip install 'heddle-fabric[ssh]'"
    )


@pytest.mark.parametrize(
    ("file", "tool"), [("pipx_metadata.json", "pipx"), ("uv-receipt.toml", "uv tool")], ids=["pipx", "uv tool"]
)
def test_pipx_and_uv_tool_replace_the_installation_and_keep_its_extras(prefix: Path, file: str, tool: str) -> None:
    (prefix / file).write_text("")
    how = HowInstalled(prefix, None, pip=False)
    assert how.installer == tool
    assert how.add("plot", [], PLOT) == f"{tool} install --force 'heddle-fabric[plot]'"
    local = HowInstalled(prefix, None, pip=False, url=URL)
    assert local.add("plot", ["ssh"], PLOT) == f"{tool} install --force 'heddle-fabric[plot,ssh] @ {URL}'"


def test_an_environment_of_uv_or_of_the_image_has_its_own_command(prefix: Path) -> None:
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.1\ninclude-system-site-packages = false\n")
    how = HowInstalled(prefix, None, pip=False, url=URL)
    assert how.add("plot", [], PLOT) == f"uv pip install --python '{prefix}' 'heddle-fabric[plot] @ {URL}'"
    # The image takes debians packages.
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    how = HowInstalled(prefix, None, pip=False)
    assert how.add("plot", [], PLOT) == "apt-get install python3-matplotlib"
    assert how.add("mcp", [], EXTRAS["mcp"].debian).startswith("install the wheel with pip, pipx or uv")
    assert HowInstalled(prefix, None, pip=True).installer == "pip"


def test_a_checkout_names_the_verb_for_its_own_environment_and_pip_for_another(tmp_path: Path) -> None:
    root = tmp_path / "a clone"
    own = HowInstalled(root / ".venv", root, pip=True)
    assert own.add("plot", [], PLOT) == "run ./inv setup extras: it installs all extras in .venv"
    other = HowInstalled(tmp_path, root, pip=True, url=URL)
    line = f"{tmp_path}/bin/python -m pip install --no-deps --require-hashes -r '{root}/requirements-extras.lock'"
    assert other.add("plot", [], PLOT) == line
    without_pip = HowInstalled(tmp_path, root, pip=False)
    assert without_pip.add("plot", [], PLOT) == f"start '{root}/inv': it makes .venv, and installs extras there"


def asked(made: InstalledWheel, cwd: Path) -> tuple[str, str]:
    """How the installed Heddle finds itself installed: installer and URL."""
    code = "import json; from heddle.base.extras import how_installed"
    code += "; found = how_installed(); print(json.dumps([found.installer, found.url]))"
    tool, url = json.loads(subprocess.check_output([str(made.python), "-P", "-c", code], cwd=cwd, text=True))
    return tool, url


def test_a_wheel_remembers_its_file_while_it_exists(wheel: Path, tmp_path: Path) -> None:
    copy = tmp_path / "with a space" / wheel.name
    copy.parent.mkdir()
    copy.write_bytes(wheel.read_bytes())
    made = install(copy, tmp_path / "env")
    assert asked(made, tmp_path) == ("pip", copy.as_uri())
    (made.place / "pipx_metadata.json").write_text("{}")
    output = made.heddle("plot", "queues", cwd=tmp_path, env={"HEDDLE_STATE_DIR": str(tmp_path / "state")})
    assert "no lab is running" in output.stderr, "the tests' packages are all there"
    copy.unlink()
    assert asked(made, tmp_path) == ("pipx", "")


@pytest.fixture
def absent(monkeypatch: pytest.MonkeyPatch) -> Extra:
    extra = Extra("plot", "nosuch", "heddle_has_no_such_module", "pictures")
    monkeypatch.setitem(EXTRAS, "plot", extra)
    return extra


def test_missing_packages_are_named_and_others_are_no_problem() -> None:
    for name in EXTRAS:
        require(name)
    # Any other module is not an extras.
    assert missing_module(ModuleNotFoundError("no", name="numpy.core")) is None
    assert missing_module(ModuleNotFoundError("no")) is None
    # This one is a checkout.
    assert how_installed().checkout == resources.HERE.root
    assert how_installed().installer == "checkout"


def test_missing_packages_are_named_with_their_command(absent: Extra) -> None:
    with pytest.raises(MachineError) as caught:
        require("plot")
    assert str(caught.value) == f"nosuch is not installed, and pictures need it\n  hint: {absent.hint}"
    assert "requirements-extras.lock" in absent.hint or "./inv setup extras" in absent.hint, "in a checkout"
    assert caught.value.exit_code == 3


def test_an_import_that_fails_late_says_the_same(absent: Extra, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        __import__(f"{absent.module}.figure")

    assert ended(work, ["inv", "plot"], as_json=False) == 3
    assert capsys.readouterr().err == f"{absent.problem}\n"
