"""A module that is not installed is a sentence, with the command that adds it to this installation."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from heddle.base import resources
from heddle.base.extras import EXTRAS, Extra, HowInstalled, how_installed, missing_module, require
from heddle.base.problems import MachineError
from heddle.cli.endings import ended
from tests.wheels import InstalledWheel, install

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


def test_an_environment_of_uv_has_no_pip(prefix: Path) -> None:
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\nuv = 0.9.1\ninclude-system-site-packages = false\n")
    how = HowInstalled(prefix, None, pip=False, url=URL)
    assert how.add("plot", [], PLOT) == f"uv pip install --python '{prefix}' 'heddle-fabric[plot] @ {URL}'"


def test_the_image_takes_debians_packages(prefix: Path) -> None:
    (prefix / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = true\n")
    how = HowInstalled(prefix, None, pip=False)
    assert how.add("plot", [], PLOT) == "apt-get install python3-matplotlib"
    assert how.add("report", [], EXTRAS["report"].debian).startswith("install the wheel with pip, pipx or uv")
    assert HowInstalled(prefix, None, pip=True).installer == "pip"


def test_a_checkout_has_all_extras_in_its_own_environment(tmp_path: Path) -> None:
    root = tmp_path / "a clone"
    own = HowInstalled(root / ".venv", root, pip=True)
    assert own.add("plot", [], PLOT) == f"rm -r '{root}/.venv', then start ./inv: it installs all extras again"
    other = HowInstalled(tmp_path, root, pip=True, url=URL)
    assert other.add("plot", [], PLOT) == f"start '{root}/inv': it installs all extras, in .venv"


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
    assert "it installs all extras" in absent.hint, "in a checkout"
    assert caught.value.exit_code == 3


def test_an_import_that_fails_late_says_the_same(absent: Extra, capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> None:
        __import__(f"{absent.module}.figure")

    assert ended(work, ["inv", "plot"], as_json=False) == 3
    assert capsys.readouterr().err == f"{absent.problem}\n"
