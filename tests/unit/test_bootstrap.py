"""`inv`, the shell script that sets Heddle up: fast when all is there, clear when it is not. No network is used."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

from heddle.cli import baremachine
from heddle.host import packages

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A tree with `inv`, a lock file without packages, and a tasks.py that says what it was given."""
    return cloned(tmp_path)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """Such a tree after its first call, which made the venv, and that call. Tests leave the tree as it is."""
    tree = cloned(tmp_path_factory.mktemp("first"))
    return tree, inv(tree, "x", HEDDLE_PYTHON=sys.executable)


def cloned(place: Path) -> Path:
    tree = place / "a b" / "heddle"
    tree.mkdir(parents=True)
    shutil.copy(ROOT / "inv", tree / "inv")
    (tree / "requirements.lock").write_text("# nothing\n")
    (tree / "tasks.py").write_text("import os, sys\nprint(sys.argv[1:], os.getcwd())\n")
    return tree


def inv(tree: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(tree / "inv"), *words], capture_output=True, text=True, stdin=subprocess.DEVNULL, env=own_env(**env),
        cwd="/", check=False,
    )  # fmt: skip


def own_env(**more: str) -> dict[str, str]:
    """The environment without what chooses a Python, or confirms questions, for the tests themselves."""
    return {k: v for k, v in os.environ.items() if k not in ("CI", "HEDDLE_PYTHON", "HEDDLE_VENV")} | more


def test_set_up_is_skipped_when_the_stamp_is_right_also_through_symbolic_links(clone: Path, tmp_path: Path) -> None:
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").symlink_to(sys.executable)
    stamp = hashlib.sha256((clone / "requirements.lock").read_bytes()).hexdigest()
    (clone / ".venv/heddle-stamp").write_text(f"{stamp}\n")
    done = inv(clone, "up", "a b", "--x=*")
    assert (done.stdout, done.stderr) == ("['up', 'a b', '--x=*'] /\n", "")
    # It works through symbolic links.
    (tmp_path / "one").symlink_to(clone / "inv")
    (tmp_path / "inv").symlink_to("one")
    assert inv(tmp_path, "x").stdout.startswith("['x']")


def test_the_first_call_makes_a_venv_and_the_next_does_not(
    first: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    tree, done = first
    assert done.stdout.startswith("['x']"), done.stderr
    assert "setting up" in done.stderr
    assert inv(tree, "x").stderr == ""


@pytest.mark.long
def test_a_stale_stamp_sets_up_again(clone: Path, first: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    shutil.copytree(first[0] / ".venv", clone / ".venv", symlinks=True)
    (clone / "requirements.lock").write_text("# still nothing\n")
    assert "setting up" in inv(clone).stderr
    assert inv(clone).stderr == ""


@pytest.mark.deep
def test_two_first_calls_at_once_both_take_up_an_interrupted_set_up(clone: Path) -> None:
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/python").symlink_to("/nowhere/python3.11")
    env = own_env(HEDDLE_PYTHON=sys.executable)
    argv = [str(clone / "inv"), "x"]
    both = [subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) for _ in range(2)]
    said = [p.communicate(timeout=120) for p in both]
    assert [p.returncode for p in both] == [0, 0], said
    assert sum(b"setting up Heddle" in err for _, err in said) == 1


def test_packages_that_cannot_be_had_are_no_traceback(
    clone: Path, first: tuple[Path, subprocess.CompletedProcess[str]]
) -> None:
    shutil.copytree(first[0] / ".venv", clone / ".venv", symlinks=True)
    (clone / ".venv/heddle-stamp").unlink()
    lines = ["one==1.0", "two.x==2.0 ; python_version < '4'", "two.x==3.0", "colours==1 ; sys_platform == 'win32'"]
    lock = "".join(f"{line} \\\n    --hash=sha256:{'0' * 64}\n    # via one\n" for line in lines)
    (clone / "requirements.lock").write_text(lock)
    done = inv(clone, "status", "--format", "json", HEDDLE_PYTHON=sys.executable, PIP_NO_INDEX="1")
    assert done.returncode == 3
    said = done.stderr.splitlines()
    at = said.index("setting up Heddle's Python packages in .venv (once; it takes a while), and nowhere else:")
    assert said[at + 1] == "  one, two.x", "named before anything is installed"
    assert any("ERROR" in line for line in said[at + 2 :])  # pip comes after that
    assert "Python packages could not be installed" in done.stderr
    assert "Traceback" not in done.stderr
    assert json.loads(done.stdout)["error"]["exit_code"] == 3
    assert not (clone / ".venv/heddle-stamp").exists()


def test_an_environment_of_the_user_is_used_when_it_has_the_packages_of_the_lock(clone: Path, tmp_path: Path) -> None:
    given = tmp_path / "an env"
    (given / "bin").mkdir(parents=True)
    (given / "bin/python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (given / "bin/python").chmod(0o755)
    pins = f"pytest==0.0.1 ; python_version < '3'\npytest=={version('pytest')} ; python_version > '3'\n"
    (clone / "requirements.lock").write_text(pins)
    done = inv(clone, "x", HEDDLE_VENV=str(given))
    assert (done.stdout, done.stderr) == ("['x'] /\n", "")
    for other in ("pytest==0.0.1\n", "heddle-has-no-such-package==1\n"):
        (clone / "requirements.lock").write_text(other)
        done = inv(clone, "x", HEDDLE_VENV=str(given), HEDDLE_PYTHON="/bin/true")
        assert done.returncode == 3, "it makes .venv, of an interpreter that is none"
    (given / "heddle-stamp").write_text(hashlib.sha256((clone / "requirements.lock").read_bytes()).hexdigest() + "\n")
    assert inv(clone, "x", HEDDLE_VENV=str(given)).stderr == "", "its stamp is for this file"
    assert sorted(path.name for path in given.iterdir()) == ["bin", "heddle-stamp"]


@pytest.mark.parametrize("named", ["/nowhere/python3", "/bin/true", "no-such-python"])
def test_an_interpreter_that_is_none_is_not_passed_over(clone: Path, named: str) -> None:
    done = inv(clone, "status", "--format=json", HEDDLE_PYTHON=named)
    assert done.returncode == 3
    assert f"HEDDLE_PYTHON={named} is not a Python 3.11 or newer" in done.stderr
    assert json.loads(done.stdout)["error"]["problems"][0]["hint"] == "use another one, or unset HEDDLE_PYTHON"


# Debian ships python3 without ensurepip; a Python that cannot import it stands for that.
NO_VENV = f"""case "$2" in *ensurepip*) exit 1 ;; *base*) echo "$0"; exit 0 ;; esac
exec "{sys.executable}" "$@"
"""


@pytest.mark.parametrize(
    ("script", "why", "hint"),
    [
        ('[ "$1" = -V ] && echo "Python 3.9.2"\nexit 1\n', "Python is 3.9.2, but 3.11 or newer is needed", ""),
        (NO_VENV, "python3-venv is missing", "apt-get install python3-venv"),
    ],
)
def test_a_python_that_is_too_old_or_has_no_venv_is_named(
    script: str, why: str, hint: str, clone: Path, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("python3", "python3.11", "python3.12", "python3.13"):
        (programs / name).write_text(f"#!/bin/sh\n{script}")
        (programs / name).chmod(0o755)
    done = inv(clone, PATH=f"{programs}:/usr/bin:/bin")
    assert done.returncode == 3
    assert why in done.stderr and hint in done.stderr


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("demo", packages.FABRIC),
        ("up tiny --runtime containerlab", packages.LAB),
        ("run --fabric tiny", packages.FABRIC),
        ("capture rtsw1:eth1", packages.CAPTURE),
        ("up tiny --dry-run", ()),
        ("up tiny --on vm", ()),
        ("up tiny --place here", packages.FABRIC),
        ("demo --help", ()),
        ("up --nosuch", ()),
        ("status", ()),
        ("check --base tiny --head tiny", ()),
        ("nosuch", ()),
        ("--list", ()),
        ("", ()),
    ],
)
def test_system_packages_of_a_line_are_known_before_the_setup(line: str, parts: Sequence[str]) -> None:
    assert tuple(baremachine.needed(line.split())) == tuple(parts)


def test_they_are_known_without_any_package_of_the_lock() -> None:
    """A Python in isolated mode, without site-packages: `run` declares its options with numpy, so its flags decide."""
    lines = [
        "demo",
        "up tiny",
        "run --fabric tiny",
        "run",
        "run --fabric tiny --runtime containerlab",
        "experiment x.yml",
        "hashing --fabric tiny",
        "launch --ranks 4 -- x --fabric y",
    ]
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from heddle.cli.baremachine import needed\n"
        "print([list(needed(line.split())) for line in sys.argv[2:]])\n"
        "assert not {'numpy', 'pydantic', 'yaml'} & set(sys.modules)\n"
    )
    argv = [sys.executable, "-I", "-S", "-B", "-c", code, str(ROOT), *lines]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=own_env(HEDDLE_CONFIG=""))
    fabric = list(packages.FABRIC)
    assert done.stdout == f"{[fabric, fabric, fabric, [], [], [], [], []]}\n", done.stderr


def test_all_that_is_missing_is_named_with_the_line_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(packages, "FRR_DIRS", (Path("/nowhere"),))
    monkeypatch.setattr(packages, "LIBBPF", ("libnosuch.so",))
    assert baremachine.main(["up", "my fabric.yml"], ["python3-venv"]) == 3
    assert capsys.readouterr().err == (
        "frr is missing: the switches' control plane: zebra and bgpd\n"
        "libbpf1 is missing: loads the hashing and counting programs\n"
        "  hint: run ./inv up 'my fabric.yml' --yes: it installs python3-venv, frr, libbpf1 by apt-get, "
        "and Heddle's Python packages in .venv\n"
    )
    assert baremachine.main(["up", "tiny", "--dry-run"], ["python3-venv"]) == 0
