"""Content, BPF objects and the code are found in a checkout and in an installed wheel."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.base import resources
from heddle.base.problems import InputError, MachineError
from heddle.base.resources import Installation
from heddle.spec.load import find_fabric, presets

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = resources.CONTENT


def checkout(root: Path) -> Installation:
    """A checkout in small."""
    for folder in FOLDERS:
        (root / folder).mkdir(parents=True)
    (root / "tasks.py").touch()
    return _package(root)


def wheel(root: Path) -> Installation:
    """What pip makes of a wheel; beside it another package has a folder of the same name as one of ours."""
    (root / resources.TEMPLATES).mkdir(parents=True)
    for folder in FOLDERS:
        (root / "heddle" / "_content" / folder).mkdir(parents=True)
    for name in resources.BESIDE:
        (root / "heddle" / "_content" / name).parent.mkdir(exist_ok=True)
        (root / "heddle" / "_content" / name).touch()
    return _package(root)


def _package(root: Path) -> Installation:
    (root / "heddle/switch/bpf").mkdir(parents=True)
    (root / "heddle/switch/bpf/hash.o").touch()
    (root / "heddle/cli").mkdir()
    (root / "heddle/cli/__main__.py").touch()
    return Installation(root / "heddle")


@pytest.mark.parametrize(("make", "content"), [(checkout, ""), (wheel, "heddle/_content")])
def test_both_layouts_have_everything(make: Callable[[Path], Installation], content: str, tmp_path: Path) -> None:
    root = tmp_path / "a place"
    found = make(root)
    assert [found.content(folder) for folder in FOLDERS] == [root / content / folder for folder in FOLDERS]
    assert found.bpf_object("hash") == root / "heddle/switch/bpf/hash.o"
    assert found.python_path == root
    assert found.verbs == root / content / "tasks.py"


@pytest.mark.parametrize("make", [checkout, wheel])
def test_missing_files_are_a_problem_of_the_installation(make: Callable[[Path], Installation], tmp_path: Path) -> None:
    found = make(tmp_path)
    with pytest.raises(MachineError, match=r"pictures is missing from this installation\n.*install Heddle again"):
        found.content("pictures")
    with pytest.raises(MachineError, match=r"none\.o is missing from this installation"):
        found.bpf_object("none")


def test_only_a_checkout_has_a_root_and_the_program_starts_again_by_its_file(tmp_path: Path) -> None:
    assert checkout(tmp_path / "a").checkout("./inv test") == tmp_path / "a"
    with pytest.raises(InputError, match=r"\./inv test needs a checkout of Heddle"):
        wheel(tmp_path / "b").checkout("./inv test")
    # The program starts again by its file.
    assert checkout(tmp_path / "a").command() == [sys.executable, str(tmp_path / "a/tasks.py")]
    assert wheel(tmp_path / "b").command() == [sys.executable, "-P", str(tmp_path / "b/heddle/cli/__main__.py")]


def test_a_wheel_has_the_files_of_a_checkout_under_their_names(tmp_path: Path) -> None:
    found = wheel(tmp_path)
    (tmp_path / "heddle/_content/topologies/tiny.yml").touch()
    names = {"heddle/switch/bpf/hash.o", "heddle/cli/__main__.py", "topologies/tiny.yml", *resources.BESIDE}
    assert set(found.as_checkout()) == names
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
