"""Names of files that cannot be looked at: no permission, too long, a loop of links, the `~` of no user."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from heddle.base.files import absent, expanded, is_dir, is_file
from heddle.base.problems import HeddleError, InputError
from heddle.cli.program import main
from heddle.endpoints.workloadfile import files_of, load_workload
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.imported.choose import files_of as files_of_topology
from heddle.lab.imported.choose import is_topology
from heddle.lab.imported.imported import import_topology
from heddle.runs.curve import read_curve
from heddle.runs.store import open_runs
from heddle.traffic.traces import trace_files
from heddle.views.graph import write_file
from heddle_plugins.experiments.changes import fabric_files
from heddle_plugins.experiments.finding import files_of_experiment, find_experiment
from heddle_plugins.experiments.folders import load_folder
from heddle_plugins.packets.capturefile import open_capture
from tests.machine import open_checkout

ROOT = Path(__file__).parents[2]
LONG = "x" * 300


def topology_with(bound: str) -> object:
    Path("t.clab.yml").write_text(
        f"name: x\ntopology: {{nodes: {{a: {{kind: linux, binds: ['{bound}:/x']}}, b: {{kind: linux}}}}, "
        "links: [{endpoints: ['a:e1', 'b:e1']}]}\n"
    )
    files_of_topology("t.clab.yml")
    return import_topology(Path("t.clab.yml"), "netns", None)


def experiment_with(workload: str) -> object:
    Path("e.yml").write_text(f"title: x\nfabric: tiny\nruns: {{a: {{workload: {workload}}}}}\nchecks: {{}}\n")
    files_of_experiment("e.yml")
    return load_fabric("e.yml")


READERS: dict[str, Callable[[str], object]] = {
    "a workload": load_workload,
    "a trace": lambda name: load_workload(f"{name}.et"),
    "the files of a trace": trace_files,
    "the files of a workload": files_of,
    "an experiment": find_experiment,
    "the files of an experiment": files_of_experiment,
    "a workload of an experiment": experiment_with,
    "a folder": load_folder,
    "fabrics": lambda name: fabric_files(name).__enter__(),
    "a fabric": load_fabric,
    "a topology": is_topology,
    "a bind": topology_with,
    "a capture": lambda name: open_capture(Path(name), name),
    "a curve": read_curve,
    "a run": lambda name: open_runs([name]),
    "a drawing": lambda name: write_file(Path(name), b"x", name),
}


@contextmanager
def as_nobody() -> Iterator[None]:
    """Files are those of user nobody, who may not enter a directory of root, and reads this checkout."""
    open_checkout()
    os.setegid(65534)
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.mark.parametrize("what", READERS)
@pytest.mark.parametrize("name", [LONG, f"{LONG}/x", "loop", "loop/x", "~nouser/x.yml", "~nouser/x"])
def test_a_name_that_cannot_be_looked_at_is_an_error_with_its_reason(
    what: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("loop").symlink_to("loop")
    try:
        READERS[what](name)
    except HeddleError as error:
        assert len(str(error.problems[0].why)) > 5


@pytest.mark.root
@pytest.mark.parametrize("what", [each for each in READERS if each not in ("a bind", "a workload of an experiment")])
def test_a_file_in_a_directory_without_permission_is_an_error_with_its_reason(what: str, home_of_nobody: Path) -> None:
    inner = home_of_nobody / "closed"
    inner.mkdir()
    os.chown(inner, 0, 0)
    inner.chmod(0o700)
    (inner / "f").write_text("x")
    with as_nobody():
        try:
            READERS[what](str(inner / "f"))
        except HeddleError as error:
            assert "Permission denied" in str(error) or what in ("the files of an experiment", "a run")
        READERS["a topology"](str(inner / "f"))


@pytest.mark.root
def test_the_reason_is_that_of_the_system(home_of_nobody: Path, tmp_path: Path) -> None:
    inner = home_of_nobody / "closed"
    inner.mkdir(mode=0o700)
    (tmp_path / "file").write_text("")
    with as_nobody():
        assert absent(inner / "f") == "cannot be used: Permission denied"
        with pytest.raises(InputError, match=r"f cannot be used: Permission denied\n  hint: name another file"):
            is_file(inner / "f", "f")
    assert absent(tmp_path / LONG) == "cannot be used: File name too long"
    assert {absent(tmp_path / each) for each in ("x", "file/x", "a\0", "\ud800")} == {"does not exist"}
    assert (absent(tmp_path / "file"), is_file(tmp_path / "file", ""), is_dir(tmp_path, "")) == ("", True, True)
    assert not is_dir(tmp_path / "file", "") and not is_file(tmp_path, "") and not is_file(tmp_path / "x", "")


def test_a_tilde_of_no_user_stays_and_only_one_place_replaces_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert (str(expanded("~nouser/x")), str(expanded("~/x"))) == ("~nouser/x", "/home/me/x")
    found = subprocess.run(
        ["grep", "-rlE", r"expanduser\(", "heddle"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert [each for each in found.stdout.split() if each.endswith(".py")] == ["heddle/base/files.py"]


@pytest.mark.parametrize(
    "words",
    [
        ["predict", "tiny", "--workload", "NAME"], ["compare", "NAME", "NAME"], ["capture", "--read", "NAME"],
        ["experiment", "NAME"], ["reproduce", "NAME"],
        ["impact", "--base", "tiny", "--head", "tiny", "--workload", "NAME"],
        ["impact", "--base", "tiny", "--head", "tiny", "--workload", "ring", "--junit", "NAME"],
        ["predict", "tiny", "--workload", "ring", "--csv", "NAME"],
        ["predict", "tiny", "--workload", "ring", "--heatmap", "NAME.svg"],
    ],
)  # fmt: skip
@pytest.mark.parametrize("name", [LONG, "~nouser/x.yml", "looped"])
def test_a_verb_ends_with_one_sentence(
    words: list[str], name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import tasks

    monkeypatch.chdir(tmp_path)
    for link in ("looped", "looped.svg"):
        Path(link).symlink_to(link)
    code = main(vars(tasks), ["inv", *(word.replace("NAME", name) for word in words)])
    said = capsys.readouterr().err
    assert code == 2 and re.search("File name too long|no(t| such| user)|No such|Too many levels", said), said
