"""Two state directories on one machine: a lab belongs to one of them, and only one process at a time changes it."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from heddle.base import owners
from heddle.base.events import Silent
from heddle.runtimes.netns_cleanup import BPF_DIR, remove_lab
from heddle.runtimes.netns_space import RUN_DIR
from heddle.switch.pfc import control as pfc
from tests.machine import patience, until
from tests.typed import typed

ROOT = Path(__file__).parents[2]
Leftovers = Callable[[str], list[str]]
BUSY = re.compile(r"is being worked on by another Heddle \(process (\d+)\)")
RUN = ("run", "--collective", "all-reduce", "--size", "64KB", "--iters", "1")


class Place:
    """Verbs with one state directory. variables: of the environment, for verbs that are processes of their own."""

    def __init__(self, directory: Path, **variables: str) -> None:
        self.directory, self._apart = directory, bool(variables)
        self._env = {"HEDDLE_STATE_DIR": str(directory), **variables}

    def start(self, *words: str) -> subprocess.Popen[str]:
        argv, pipe = [sys.executable, str(ROOT / "tasks.py"), *words], subprocess.PIPE
        env = {**os.environ, **self._env}
        return subprocess.Popen(argv, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)

    def run(self, *words: str) -> tuple[int, str, str]:
        if self._apart:
            return ended(self.start(*words))
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("HEDDLE_STATE_DIR", str(self.directory))
            done = typed(*words)
        return done.returncode, done.stdout, done.stderr


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=patience(120))
    return process.returncode, out, err


@pytest.fixture
def ours(tmp_path: Path) -> Place:
    return Place(tmp_path / "ours")


@pytest.fixture
def theirs(tmp_path: Path) -> Place:
    return Place(tmp_path / "theirs")


@pytest.mark.long
def test_of_two_that_begin_at_once_one_wins_and_the_other_is_told_the_process(
    name: str, ours: Place, theirs: Place, leftovers: Leftovers
) -> None:
    both = [place.start("up", "tiny", "--name", name) for place in (ours, theirs)]
    (code, _, won), (lost_code, _, lost) = sorted(ended(each) for each in both)
    assert (code, lost_code) == (0, 2), won + lost
    winner = both[0] if both[0].returncode == 0 else both[1]
    busy = BUSY.search(lost)
    assert busy is None or int(busy[1]) == winner.pid, lost
    assert busy is not None or f"lab {name} belongs to " in lost, "it came when the other one had ended"
    kept = ours if winner is both[0] else theirs
    assert not (theirs if kept is ours else ours).directory.exists(), "nothing of the loser is left"
    assert kept.run("validate", name)[0] == 0
    assert kept.run("down", name)[:2] == (0, f"{name}: removed completely\n")
    assert leftovers(name) == []
    # `down` of another one while `up` works: it ends nothing.
    up = ours.start("up", "tiny", "--name", name)
    until(lambda: owners.working_on(name) is not None)
    for down in [theirs.start("down", name), theirs.start("down", name, "--force")]:
        code, _, said = ended(down)
        busy = BUSY.search(said)
        assert code == 2 and (busy is None or int(busy[1]) == up.pid), said
    assert ended(up)[0] == 0
    assert ours.run("validate", name)[0] == 0
    # A removal and another one's `up`.
    down = ours.start("down", name)
    until(lambda: owners.working_on(name) is not None)
    code, _, said = theirs.run("up", "tiny", "--name", name)
    assert ended(down)[0] == 0
    assert code in (0, 2) and (code == 0 or f"lab {name} " in said), said
    theirs.run("down", name)
    assert leftovers(name) == []


@pytest.mark.long("10 seconds and more")
def test_a_lab_of_another_one_is_named_and_goes_down_only_by_force_while_nothing_runs(
    name: str, ours: Place, theirs: Place, leftovers: Leftovers
) -> None:
    assert theirs.run("up", "tiny", "--name", name)[0] == 0
    assert theirs.run(*RUN, "--lab", name)[0] == 0
    whose = f"lab {name} belongs to root (state directory {theirs.directory})"
    code, _, said = ours.run("up", "tiny", "--name", name)
    assert code == 2 and said == f"{whose}\n  hint: use another --name, or remove it: ./inv down {name} --force\n"
    for words in (("down", name), ("status", name), ("exec", "--lab", name, "rtsw1", "true"), (*RUN, "--lab", name)):
        code, _, said = ours.run(*words)
        assert code == 2 and whose in said, words
    code, out, _ = ours.run("status")
    assert code == 0 and whose in out
    code, out, _ = ours.run("down", "--all")
    assert code == 0 and f"{whose}: it is left" in out
    assert theirs.run("validate", name)[0] == 0
    # A run goes on: nothing ends it.
    run = theirs.start("run", "--lab", name, "--collective", "all-reduce", "--size", "4M", "--iters", "1000")
    work = "run (all-reduce over 4 ranks, 4 MiB, 1 QP)"
    until(lambda: (holder := owners.working_on(name)) is not None and holder.work == work)
    for other in (("up", "tiny", "--name", name), ("down", name)):
        code, _, said = ours.run(*other)
        assert code == 2 and f"{whose}, and its {work} goes on (process {run.pid})" in said, said
    code, _, said = ours.run("down", name, "--force")
    assert code == 2 and f"another Heddle (process {run.pid}): its {work} goes on; the lab is root's" in said, said
    assert run.poll() is None
    run.terminate()
    ended(run)
    # What is forced leaves the runs to their owner, whose next `up` goes on with them.
    code, out, _ = ours.run("down", name, "--force")
    assert (code, out) == (
        0, f"{name}: removed from this machine; its record and its runs stay in {theirs.directory}\n"
    )  # fmt: skip
    assert leftovers(name) == [] and not ours.directory.exists()
    code, _, said = theirs.run("up", "tiny", "--name", name)
    assert code == 0 and "kept 1 stored run of an earlier lab of that name" in said, said
    code, out, _ = theirs.run("down", name)
    assert (code, out) == (0, f"{name}: removed completely, with 1 stored run\n")
    assert leftovers(name) == [] and owners.owner_of(name) is None


@pytest.mark.deep
@pytest.mark.long
def test_runs_outlive_a_restart_of_the_machine_and_only_down_removes_them(
    name: str, ours: Place, leftovers: Leftovers
) -> None:
    assert ours.run("up", "tiny", "--name", name)[0] == 0
    assert ours.run(*RUN, "--lab", name)[0] == 0
    pfc.stop(name)  # what a restart leaves: the state directory
    remove_lab(name, RUN_DIR / name, Silent())
    shutil.rmtree(BPF_DIR / name, ignore_errors=True)
    (owners.LOCKS / f"{name}.json").unlink()
    code, out, _ = ours.run("status", name)
    assert code == 0 and "keeps its runs" not in out
    code, _, said = ours.run("paths", "--lab", name)
    assert f"./inv up brings it up again and keeps its runs; ./inv down {name} removes it with 1 stored run" in said
    code, _, said = ours.run("up", "tiny", "--name", name)
    assert code == 0 and "kept 1 stored run" in said, said
    code, out, _ = ours.run("runs", "--lab", name)
    assert code == 0 and "0001" in out
    assert ours.run(*RUN, "--lab", name)[0] == 0
    # A `down` that was killed is finished, by `up` too: then the runs go, as the user wanted.
    place = ours.directory / "labs" / name
    (place / "lab.json").write_text((place / "lab.json").read_text().replace('"running"', '"ending"'))
    code, out, _ = ours.run("status", name)
    assert code == 0 and "its `down` is running or was killed" in out
    code, _, said = ours.run("up", "tiny", "--name", name)
    assert code == 0 and f"lab {name} was being removed; removing the rest of it first" in said and "kept" not in said
    (place / "lab.json").write_text((place / "lab.json").read_text().replace('"running"', '"ending"'))
    assert ours.run("down", name)[:2] == (0, f"{name}: removed completely\n")
    assert leftovers(name) == []


@pytest.fixture
def sudo() -> Iterator[Place]:
    """User nobody, who called sudo."""
    user = pwd.getpwnam("nobody")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="heddle-test-", dir="/var/tmp")))
        home.chmod(0o755)
        os.chown(home, user.pw_uid, user.pw_gid)
        yield Place(home / "state", SUDO_USER="nobody", SUDO_UID=str(user.pw_uid))


@pytest.mark.deep
def test_no_file_of_root_is_in_the_state_of_the_user_who_called_sudo(
    name: str, sudo: Place, ours: Place, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert sudo.run("up", "tiny", "--name", name)[0] == 0
    assert sudo.run(*RUN, "--lab", name)[0] == 0
    assert sudo.run("queues", "set", "ecn.kmin=42KB", "--lab", name)[0] == 0
    uid = pwd.getpwnam("nobody").pw_uid
    found = list(sudo.directory.rglob("*"))
    assert {path.name for path in found} >= {"lab.json", "up.sh", "pfc.log", "pfc.lock", "run.json", f"{name}.clab.yml"}
    assert [path for path in found if path.lstat().st_uid != uid] == []
    assert (sudo.directory / "labs" / name / "up.sh").stat().st_mode & 0o077 == 0
    code, _, said = ours.run("down", name)
    assert code == 2 and f"lab {name} belongs to nobody (state directory {sudo.directory})" in said
    assert sudo.run("down", name)[0] == 0
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(sudo.directory))
    assert leftovers(name) == [] and [*(sudo.directory / "labs").iterdir()] == []


@pytest.mark.deep
def test_a_link_in_the_state_leads_root_nowhere(name: str, sudo: Place, leftovers: Leftovers, tmp_path: Path) -> None:
    """As the user could make them: before `up`, for the lab, and for its topology."""
    user = pwd.getpwnam("nobody")
    (tmp_path / "sub").mkdir()
    tmp_path.chmod(0o755)
    for link in (f"labs/{name}", f"labs/{name}/topology"):
        place = sudo.directory / link
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(tmp_path)
        for path in (sudo.directory, *sudo.directory.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        code, _, said = sudo.run("up", "tiny", "--name", name)
        assert code in (2, 3) and "Permission denied" in said, said
        assert [path.name for path in tmp_path.iterdir()] == ["sub"] and (tmp_path / "sub").stat().st_uid == 0
        sudo.run("down", name)
        assert leftovers(name) == [] and not place.is_symlink()
