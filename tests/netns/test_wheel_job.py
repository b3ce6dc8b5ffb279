"""The main job from a wheel: in a fresh environment, in an empty directory with a space, as root and through sudo.

And what is missing on a machine, or in the way there: each is a clear message, and nothing is left behind. And a plugin
of another distribution, as a user installs both.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.version import VERSION
from heddle.host.packages import FRR_DIRS, LIBBPF
from heddle.kernel.namespace import NETNS_DIR
from tests.sshd import ssh_server
from tests.wheels import InstalledWheel, install

Leftovers = Callable[[str], list[str]]
NOBODY = 65534
AS_NOBODY = [shutil.which("setpriv") or "setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
COMPILERS = ("cc", "c99", "gcc", "g++", "c++", "clang", "ld", "ld.lld", "rustc", "cargo", "go")


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> InstalledWheel:
    return install(wheel, tmp_path_factory.mktemp("with spaces") / "the environment")


@pytest.fixture
def empty(tmp_path: Path) -> Path:
    """An empty directory, with a space in its path, that stays empty."""
    place = tmp_path / "an empty directory"
    place.mkdir()
    return place


@pytest.fixture
def no_compiler(tmp_path: Path) -> Iterator[dict[str, str]]:
    """An environment whose compilers fail; nothing may start one."""
    tools, called = tmp_path / "compilers", tmp_path / "called"
    tools.mkdir()
    for name in COMPILERS:
        (tools / name).write_text(f'#!/bin/sh\necho "$0 $*" >> {shlex.quote(str(called))}\nexit 1\n')
        (tools / name).chmod(0o755)
    yield {"PATH": f"{tools}:{os.environ['PATH']}", "CC": "cc"}
    assert not called.exists(), called.read_text()


@pytest.mark.deep
def test_the_main_job(
    installed: InstalledWheel, name: str, empty: Path, tmp_path: Path, no_compiler: dict[str, str],
    leftovers: Leftovers,
) -> None:  # fmt: skip
    env = {"HEDDLE_STATE_DIR": str(tmp_path / "state"), **no_compiler}
    up = installed.heddle("up", "tiny", "--name", name, cwd=empty, env=env)
    assert (up.returncode, up.stdout.split()[0]) == (0, name), up.stderr
    run = installed.heddle("run", "--lab", name, "--format", "json", cwd=empty, env=env)
    assert run.returncode == 0, run.stderr
    assert {row["wrong"] for row in json.loads(run.stdout)["results"]} == {0}
    paths = installed.heddle("paths", "--lab", name, "--format", "json", cwd=empty, env=env)
    assert (paths.returncode, json.loads(paths.stdout)["agree"]) == (0, True), paths.stderr
    assert installed.heddle("validate", "--lab", name, cwd=empty, env=env).returncode == 0
    down = installed.heddle("down", name, cwd=empty, env=env)
    assert (down.returncode, down.stdout) == (0, f"{name}: removed completely, with 1 stored run\n"), down.stderr
    assert leftovers(name) == []
    assert list(empty.iterdir()) == []
    for done in (up, run, paths, down):
        assert "./inv" not in done.stdout + done.stderr


@pytest.mark.needs("sudo")
@pytest.mark.long
def test_the_main_job_through_sudo(wheel: Path, name: str, leftovers: Leftovers) -> None:
    """As an ordinary user who may use sudo: in a mount namespace that has a sudoers file for that user."""
    python = python_of_others()
    with tempfile.TemporaryDirectory(prefix="heddle test ") as spot:
        home = Path(spot, "home of nobody")
        home.mkdir()
        made = install(wheel, Path(spot, "env"), python=python)
        for each in (Path(spot), home):
            each.chmod(0o755)
        os.chown(home, NOBODY, NOBODY)
        verbs = ["up tiny --name", "run --lab", "paths --lab", "down"]
        lines = " && ".join(f"{shlex.quote(str(made.program))} {verb} {name}" for verb in verbs)
        script = (
            "set -e; mount -t tmpfs -o mode=755 tests /etc/sudoers.d;"
            f"echo '#{NOBODY} ALL=(root) NOPASSWD: ALL' > /etc/sudoers.d/test; chmod 440 /etc/sudoers.d/test;"
            f"exec setpriv --reuid={NOBODY} --regid={NOBODY} --clear-groups sh -c {shlex.quote(lines)}"
        )
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home)}
        argv = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script]
        done = subprocess.run(argv, cwd=home, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert f"{name}: removed completely" in done.stdout
        assert "up needs root: running it again through sudo" in done.stderr
        assert {path.stat().st_uid for path in home.rglob("*")} == {NOBODY}, "what is made there is the user's"
    assert leftovers(name) == []


def python_of_others() -> str:
    """An interpreter of this version that an ordinary user can start; the one of these tests may be in root's home."""
    for python in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        asked = f"import sys; sys.path.append({sysconfig.get_path('purelib')!r}); import numpy, pydantic"
        argv = [*AS_NOBODY, "sh", "-c", '"$@"', "sh", python, "-c", asked]
        if subprocess.run(argv, capture_output=True, check=False).returncode == 0:
            return python
    pytest.skip(f"no Python 3.{sys.version_info.minor} that an ordinary user can start")


def hidden(*paths: Path) -> list[str]:
    """Words in front of a command that does not see these files and directories."""
    lines = [
        f"mount -t tmpfs -o ro hidden {shlex.quote(str(path))}" if path.is_dir()
        else f"mount --bind /dev/null {shlex.quote(str(path))}"
        for path in paths if path.exists()
    ]  # fmt: skip
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", "; ".join(["set -e", *lines, 'exec "$@"']), "x"]


def libbpf_files() -> list[Path]:
    found = [Path(line.split("=> ")[1]) for line in ldconfig() if line.strip().startswith(LIBBPF)]
    return sorted({path.resolve() for path in found})


def ldconfig() -> list[str]:
    return subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.deep
@pytest.mark.long
def test_a_lab_server_gets_what_it_needs_from_the_wheel(
    installed: InstalledWheel, name: str, empty: Path, tmp_path: Path, leftovers: Leftovers
) -> None:
    with ssh_server(tmp_path / "a server", project=installed.packages / "heddle/_content") as server:

        def there(*words: str) -> subprocess.CompletedProcess[str]:
            return installed.heddle(*words, "--on", server.place, cwd=empty, env=server.env)

        up = there("up", "tiny", "--name", name)
        assert (up.returncode, up.stdout.split()[0]) == (0, name), up.stderr
        assert " files copied (" in up.stderr
        assert there("run", "--lab", name, "--size", "64K").returncode == 0
        wrong = there("validate", "--lab", "nosuch")
        assert (wrong.returncode, wrong.stderr) == (2, f"lab nosuch is not running\n  hint: allowed: {name}\n")
        again = there("up", "tiny", "--name", name, "--runtime", "containerlab")
        assert f"hint: heddle down {name} first" in again.stderr, "the name that was typed here"
        assert there("down", name).returncode == 0
        assert leftovers(name) == []
    assert list(empty.iterdir()) == []


@pytest.mark.long
def test_a_machine_without_packages_says_which_command_installs_them(
    installed: InstalledWheel, name: str, empty: Path, tmp_path: Path, leftovers: Leftovers
) -> None:
    tools = [Path(found).resolve() for tool in ("ip", "tc") if (found := shutil.which(tool))]
    before = hidden(*FRR_DIRS, *libbpf_files(), *tools)
    env = {"HEDDLE_STATE_DIR": str(tmp_path / "state")}
    for words in (["up", "tiny", "--name", name], ["setup", "fabric"]):
        output = installed.heddle(*words, cwd=empty, env=env, before=before)
        assert output.returncode == 3, output.stdout
        (command,) = re.findall("apt-get install (.+)", output.stderr)
        assert {"frr", "libbpf1", "iproute2"} <= set(command.split())
        assert "Traceback" not in output.stderr
    checked = installed.heddle("doctor", cwd=empty, env=env, before=before)
    assert checked.returncode == 3
    (absent,) = re.findall(r"Missing on this machine: (.+)\. heddle setup fabric installs", checked.stdout)
    assert {"frr", "libbpf", "iproute2"} <= set(absent.split(", "))
    assert ": sh: " not in checked.stdout, "what a shell says about a missing program is no word about the kernel"
    assert "doctor to compare" not in checked.stdout, "this is root already"
    assert leftovers(name) == []
    assert list(empty.iterdir()) == []


@pytest.mark.deep
def test_read_only_sysctls_are_named_before_anything_is_made(
    installed: InstalledWheel, name: str, empty: Path, tmp_path: Path, leftovers: Leftovers
) -> None:
    """As in a container: the hint has the option of the engine that makes them writable."""
    script = 'mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && exec "$@"'
    before = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "x"]
    env = {"HEDDLE_STATE_DIR": str(tmp_path / "state")}
    output = installed.heddle("up", "tiny", "--name", name, cwd=empty, env=env, before=before)
    assert output.returncode == 3, output.stdout
    assert output.stderr == (
        "kernel  /proc/sys is read-only here, and nodes need sysctls of their own\n"
        "        hint: in a container: docker run --security-opt systempaths=unconfined"
        " (podman: --security-opt unmask=ALL)\n"
    )
    checked = installed.heddle("doctor", cwd=empty, env=env, before=before).stdout
    assert "sysctls       MISSING  /proc/sys is read-only" in checked
    assert "this kernel has no /proc/sys" not in checked
    assert leftovers(name) == []


@pytest.mark.deep
def test_setup_fabric_finds_what_is_installed(installed: InstalledWheel, empty: Path) -> None:
    done = installed.heddle("setup", "fabric", "--format", "json", cwd=empty)
    assert done.returncode == 0, done.stderr
    steps = json.loads(done.stdout)["steps"]
    assert steps == [{"name": "packages", "done": False, "detail": "all are installed"}]
    assert installed.heddle("setup", "fabric", "--stop", cwd=empty).returncode == 2


@pytest.mark.deep
def test_without_root_and_sudo_the_error_says_how_to_become_root(wheel: Path, name: str) -> None:
    python = python_of_others()
    with tempfile.TemporaryDirectory(prefix="heddle test ") as spot:
        Path(spot).chmod(0o755)
        made = install(wheel, Path(spot, "env"), python=python)
        tools = Path(spot, "bin")
        tools.mkdir()
        for tool in ("env", "ip", "tc"):
            (tools / tool).symlink_to(shutil.which(tool) or "/bin/false")
        env = {"PATH": str(tools), "HOME": spot}

        def as_nobody(*words: str) -> subprocess.CompletedProcess[str]:
            return made.heddle(*words, cwd=Path(spot), env=env, before=AS_NOBODY)

        output = as_nobody("up", "tiny", "--name", name)
        assert output.returncode == 3, output.stderr
        assert "heddle up needs root, but sudo is not installed" in output.stderr
        assert str(made.program) in output.stderr, "root's PATH is another one"
        predicted = as_nobody("predict", "tiny", "--workload", "ring")
        assert predicted.returncode == 0, predicted.stderr
        assert sorted(path.name for path in Path(spot).iterdir()) == ["bin", "env"]


@pytest.mark.deep
def test_a_read_only_home_is_reported_and_nothing_is_left(
    installed: InstalledWheel, name: str, empty: Path, tmp_path: Path, leftovers: Leftovers
) -> None:
    home = tmp_path / "a home"
    home.mkdir()
    script = 'mount -t tmpfs -o ro x "$HOME"; exec "$@"'
    before = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", script, "x"]
    output = installed.heddle("up", "tiny", "--name", name, cwd=empty, env={"HOME": str(home)}, before=before)
    assert output.returncode == 3, output.stdout
    assert (
        "Read-only file system\n  hint: set another directory, as in HEDDLE_STATE_DIR=/var/tmp/heddle" in output.stderr
    )
    assert leftovers(name) == []
    # What keeps no state works, and says nothing about caches of its libraries.
    for words in (["status"], ["render", "tiny", "--out", "out"], ["graph", "--fabric", "tiny", "--out", "tiny.png"]):
        done = installed.heddle(*words, cwd=empty, env={"HOME": str(home)}, before=before)
        assert (done.returncode, done.stderr) == (0, ""), words


@pytest.mark.deep
@pytest.mark.long
def test_a_lab_of_another_version_is_refused_and_can_be_taken_down(
    installed: InstalledWheel, wheel: Path, name: str, empty: Path, tmp_path: Path, leftovers: Leftovers
) -> None:
    """Two versions on one machine: the other one is the same wheel with another number."""
    other = install(wheel, tmp_path / "other")
    path = other.packages / "heddle/base/version.py"
    path.write_text(path.read_text().replace(VERSION, "99.1"))
    env = {"HEDDLE_STATE_DIR": str(tmp_path / "state")}
    assert other.heddle("up", "tiny", "--name", name, cwd=empty, env=env).returncode == 0
    why = f"lab {name} was brought up by Heddle 99.1, and this is Heddle {VERSION}"
    hint = f"hint: use the version that brought it up, or run heddle down {name} and bring it up again"
    for words in (["run"], ["hashing", "e-ecmp"], ["up", "tiny", "--name", name]):
        output = installed.heddle(*words, cwd=empty, env=env)
        assert output.returncode == 2, words
        assert output.stderr == f"{why}\n  {hint}\n", words
    seen = json.loads(installed.heddle("status", "--format", "json", cwd=empty, env=env).stdout)["labs"]
    assert [(lab["lab"], lab["faults"]) for lab in seen] == [(name, [why])]
    assert other.heddle("run", cwd=empty, env=env).returncode == 0, "it is as it was"
    assert installed.heddle("down", name, cwd=empty, env=env).returncode == 0
    assert leftovers(name) == []
    assert not list(NETNS_DIR.glob(f"*{name}*"))
    assert not (Path(env["HEDDLE_STATE_DIR"]) / "labs" / name).exists()


@pytest.mark.deep
def test_a_record_of_a_later_format_names_its_version(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: InstalledWheel, empty: Path
) -> None:
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(tmp_path / "state"))
    state.write_json(state.lab_dir(name) / "lab.json", {"format": 77, "version": "99.1", "name": name})
    env = {"HEDDLE_STATE_DIR": str(tmp_path / "state")}
    output = installed.heddle("validate", cwd=empty, env=env)
    assert output.returncode == 3
    assert f"its format is 77 of Heddle 99.1, and Heddle {VERSION} reads 2" in output.stderr
    assert f"hint: run heddle down {name} to remove it" in output.stderr
    assert installed.heddle("down", name, cwd=empty, env=env).returncode == 0


@pytest.mark.long
def test_it_is_offered_runs_and_is_recorded_and_its_own_tests_pass(
    installed: InstalledWheel, tmp_path: Path, name: str
) -> None:
    """A congestion control from another distribution, beside the wheel. The environment keeps it: the last test."""
    made = installed
    env = {"HEDDLE_STATE_DIR": str(tmp_path / "state")}

    def heddle(*words: str) -> subprocess.CompletedProcess[str]:
        done = made.heddle(*words, cwd=tmp_path, env=env)
        assert done.returncode == 0, done.stderr
        return done

    heddle("plugin", "new", "congestion", "gentle")
    pip = [sys.executable, "-m", "pip", "--python", str(made.python), "install", "-q", "--no-index", "--no-deps"]
    words = [*pip, "--no-build-isolation", "--disable-pip-version-check", str(tmp_path / "heddle-gentle")]
    subprocess.run(words, check=True, capture_output=True)

    assert "gentle (halves the rate for a CNP" in heddle("run", "--help").stdout
    assert "gentle" in heddle("--complete", "--", "heddle", "run", "--cc", "").stdout.split()
    assert "gentle" in words_of_assistants(made, tmp_path)
    found = heddle("doctor", "--format", "json").stdout
    (row,) = (each for each in json.loads(found)["checks"] if each["name"] == "plugins")
    assert row["ok"] and "heddle-gentle 0.1.0" in row["detail"]

    heddle("up", "tiny", "--name", name)
    try:
        typed = ("--cc", "gentle", "--cc-set", "quiet=100", "--collective", "incast", "--size", "64K", "--iters", "2")
        run = json.loads(heddle("run", "--lab", name, *typed, "--format", "json").stdout)
        assert {result["wrong"] for result in run["results"]} == {0}
        assert run["options"]["congestion"] == "gentle"
        heddle("report", "--lab", name, "--out", str(tmp_path / "r.html"))
        page = (tmp_path / "r.html").read_text()
        assert "--cc gentle" in page and "--cc-set quiet=100" in page, "the command that repeats the run"
    finally:
        heddle("down", name)

    own = [str(made.python), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "heddle-gentle")]
    tests = subprocess.run(own, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **env})
    assert tests.returncode == 0 and "3 passed" in tests.stdout, tests.stdout + tests.stderr


def words_of_assistants(made: InstalledWheel, there: Path) -> list[str]:
    """What an assistant is told of the argument `cc` of the tool `run`."""
    program = (
        "import json; from heddle.cli.front import tasks; from heddle.cli.program import commands_in; "
        "from heddle.cli.assistant import _listed; "
        "print(json.dumps(_listed(commands_in(vars(tasks()))['run'].verb).input_schema['properties']['cc']['enum']))"
    )
    done = subprocess.run([str(made.python), "-c", program], capture_output=True, text=True, check=False, cwd=there)
    assert done.returncode == 0, done.stderr
    return [str(each) for each in json.loads(done.stdout)]
