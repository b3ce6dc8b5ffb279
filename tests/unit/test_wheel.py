"""The wheel: what is in it, that it finds it, and that it needs neither a compiler nor a network."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from heddle.base import resources
from heddle.base.extras import EXTRAS
from heddle.base.plugins import parts
from heddle.base.version import VERSION
from tests.marks import deep
from tests.wheels import ROOT, InstalledWheel, install

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    """As `pip install heddle-fabric` makes it: no package of an extra can be imported."""
    extras = [each.module for each in EXTRAS.values()]
    others = (*extras, "pytest_timeout", "xdist", "execnet", "_pytest", "PIL", "mpl_toolkits")
    return install(wheel, tmp_path_factory.mktemp("with a space") / "the environment", without=others)


def test_every_file_of_the_checkout_that_programs_read_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    for folder in resources.CONTENT:
        files = {path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file()}
        files = {path for path in files if path.parent.name != "__pycache__"}
        assert {name for name in map(Path.as_posix, files) if f"heddle/_content/{name}" not in names} == set()
    packages = (path for package in ("heddle", "heddle_plugins") for path in (ROOT / package).rglob("*"))
    code = {path for path in packages if path.is_file() and path.parent.name != "__pycache__"}
    assert {path.relative_to(ROOT).as_posix() for path in code} - names == set()
    assert not any("__pycache__" in name for name in names)
    assert {f"heddle/_content/{name}" for name in resources.BESIDE} <= names


def test_the_build_of_the_image_gets_all_that_the_wheel_is_built_from() -> None:
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert {*wheel["packages"], *wheel["force-include"], "README.md"} == let_in


def test_the_wheel_is_for_every_machine_and_has_one_version(wheel: Path) -> None:
    assert wheel.name == f"heddle_fabric-{VERSION}-py3-none-any.whl", "nothing in it is compiled at installation"
    metadata = zipfile.ZipFile(wheel).read(f"heddle_fabric-{VERSION}.dist-info/METADATA").decode()
    assert f"\nName: heddle-fabric\nVersion: {VERSION}\n" in metadata
    assert "version" in PROJECT["project"]["dynamic"]
    assert {line.split()[1] for line in metadata.splitlines() if line.startswith("Provides-Extra:")} == set(EXTRAS)
    for name, extra in EXTRAS.items():
        assert PROJECT["project"]["optional-dependencies"][name][0].startswith(f"{extra.package}>=")


def test_it_lists_its_verbs_in_an_empty_directory(installed: InstalledWheel, tmp_path: Path) -> None:
    listed = installed.heddle("--list", cwd=tmp_path)
    assert (listed.returncode, listed.stderr) == (0, "")
    verbs = {line.split()[0] for line in listed.stdout.splitlines()[1:] if line}
    assert {"up", "run", "paths", "down", "doctor", *parts("verb")} <= verbs
    assert verbs & {"test", "lint", "bench", "soak"} == set(), "they work on a checkout"
    missing = installed.heddle("test", cwd=tmp_path)
    assert missing.returncode == 2
    assert "heddle test needs a checkout of Heddle, and this one is installed" in missing.stderr
    assert installed.heddle("--version", cwd=tmp_path).stdout == f"Heddle {VERSION}\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
def test_shells_complete_the_name_that_was_started(installed: InstalledWheel, tmp_path: Path) -> None:
    for shell in ("bash", "zsh", "fish"):
        script = installed.heddle("--print-completion-script", shell, cwd=tmp_path).stdout
        assert "heddle" in script
        assert "inv" not in script.split()
        assert "_complete_inv" not in script
    asked = "source <(heddle --print-completion-script bash); COMP_LINE='heddle up zo'; COMP_POINT=12; "
    asked += 'COMP_WORDS=(heddle up zo); COMP_CWORD=2; _complete_heddle heddle zo up; echo "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "--norc", "-c", asked], cwd=tmp_path, capture_output=True, text=True, check=True,
        env={"PATH": f"{installed.program.parent}:/usr/bin:/bin"},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("zone\n", "")


@pytest.mark.parametrize(
    ("words", "extra"),
    [
        (["plot", "queues"], "plot"),
        deep(["graph", "--fabric", "tiny"], "plot"),
        deep(["graph", "--fabric", "tiny", "--out", "x.png"], "plot"),
        deep(["predict", "tiny", "--workload", "ring", "--heatmap", "x.svg"], "plot"),
        (["dashboard"], "dashboard"),
        (["status", "--on", "ssh:lab.example.org"], "ssh"),
    ],
)
def test_a_verb_that_needs_a_missing_extra_says_which(
    installed: InstalledWheel, words: list[str], extra: str, tmp_path: Path
) -> None:
    output = installed.heddle(*words, "--format", "json", cwd=tmp_path)
    assert output.returncode == 3
    assert f"{EXTRAS[extra].package} is not installed" in output.stderr
    hint = f"{shlex.quote(str(installed.python))} -m pip install 'heddle-fabric[{extra}]'"
    assert f"hint: {hint}\n" in output.stderr
    assert "Traceback" not in output.stderr
    (problem,) = json.loads(output.stdout)["error"]["problems"]
    assert problem["hint"] == hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
def test_it_starts_again_by_a_path_that_needs_no_path_of_pythons(installed: InstalledWheel, tmp_path: Path) -> None:
    """As sudo does it: another environment, and a working directory with a folder of our package's name."""
    (tmp_path / "heddle").mkdir()
    (tmp_path / "heddle/__init__.py").write_text("raise SystemExit('the wrong heddle')\n")
    asked = "import json; from heddle.base.resources import HERE; print(json.dumps(HERE.command()))"
    argv = json.loads(subprocess.check_output([str(installed.python), "-P", "-c", asked], cwd=tmp_path))
    done = subprocess.run(
        ["env", "-i", "PATH=/usr/bin:/bin", *argv, "upp"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "heddle upp is not a verb\n  hint: did you mean up?\n")
    # The interpreter of root, whose site-packages has no Heddle: a user's own site-packages is added by its path.
    script = installed.packages / "heddle/cli/__main__.py"
    (tmp_path / "other").mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "other")], check=True)
    argv = [str(tmp_path / "other/bin/python"), "-P", str(script), "--version"]
    done = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == (f"Heddle {VERSION}\n", "")


def test_a_page_that_a_hint_names_can_be_read(installed: InstalledWheel, tmp_path: Path) -> None:
    wrong = installed.heddle("explain", "MMR", cwd=tmp_path)
    assert "more  heddle explain docs/paths.md#utilization\n" in wrong.stdout
    words = wrong.stdout.rpartition("heddle ")[2].split()
    shown = installed.heddle(*words, cwd=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith("## Utilization\n")
    (tmp_path / "empty.clab.yml").write_text("name: empty\ntopology: {}\n")
    hinted = installed.heddle("up", "empty.clab.yml", cwd=tmp_path).stderr
    assert "heddle explain docs/bring-your-own.md has an example" in hinted
    assert installed.heddle("explain", "docs/bring-your-own.md", cwd=tmp_path).stdout.startswith("# ")


def test_presets_plans_templates_and_programs_are_found_also_without_extras(
    installed: InstalledWheel, tmp_path: Path
) -> None:
    for words in (
        ["up", "tiny", "--dry-run"], ["render", "tiny", "--out", "out"],
        ["predict", "tiny", "--workload", "all-reduce-1qp"],
    ):  # fmt: skip
        output = installed.heddle(*words, cwd=tmp_path)
        assert (output.returncode, "not installed" in output.stderr) == (0, False), output.stderr
        assert words[0] != "up" or "heddle render FABRIC" in output.stdout
    assert (tmp_path / "out/tiny.clab.yml").is_file()
    asked = "from heddle.base.resources import HERE; HERE.bpf_object('hash'); HERE.fastpath('x86_64'); HERE.verbs"
    subprocess.run([str(installed.python), "-c", asked], cwd=tmp_path, check=True)
    report = json.loads(installed.heddle("doctor", "--format", "json", cwd=tmp_path).stdout)
    checks = {check["name"]: check for check in report["checks"]}
    assert [checks[name]["ok"] for name in ("plot", "ssh")] == [False, False]
    assert checks["plot"]["fix"] == f"{shlex.quote(str(installed.python))} -m pip install 'heddle-fabric[plot]'"
