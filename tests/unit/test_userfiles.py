"""Root in directories of the user who called sudo: with that user's rights, and not where others can write."""

from __future__ import annotations

import os
import pwd
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from heddle.base import state
from heddle.base.owners import held, late
from heddle.base.problems import HeddleError, InputError, MachineError
from heddle.base.userfiles import as_caller, as_root, caller, check_owner, give_to_caller, make_dir, output_directory
from heddle.cli.endings import ended
from heddle.fabric.fabricfile import load_fabric
from heddle.lab.opening import blueprint_from
from heddle.render.render import DEFAULT
from heddle.runs.store import History
from heddle.switch.pfc.world import Log
from heddle.views.graph import write_file
from heddle.wire.pcapng import PcapngFile
from tests.unit.history_runs import keep

ROOT = Path(__file__).parents[2]
RECORD = state.Record("zone", "netns", "running", {"name": "zone"})
SECRET = "of root"


@pytest.fixture
def roots() -> Iterator[Path]:
    """A directory of root with a file and a directory, as /etc has them; others may look into it."""
    with tempfile.TemporaryDirectory(prefix="heddle-test-", dir="/var/tmp") as made:
        place = Path(made, "roots")
        (place / "sub").mkdir(parents=True)
        Path(made).chmod(0o755)
        (place / "file").write_text(SECRET)
        (place / "file").chmod(0o600)
        (place / "lab.json").write_text(SECRET)
        yield place


def untouched(roots: Path) -> bool:
    paths = (roots, *roots.rglob("*"))
    names = {path.name for path in paths}
    texts = {path.read_text() for path in paths if path.is_file()}
    return (
        names == {"roots", "sub", "file", "lab.json"}
        and texts == {SECRET}
        and not any(path.stat().st_uid for path in paths)
    )


def render(_: Path) -> None:
    topology = state.lab_dir("zone") / "topology"
    blueprint_from(load_fabric("tiny", name="zone")).write(topology, DEFAULT)
    give_to_caller(topology, deep=True)


def crash(_: Path) -> None:
    def fails() -> None:
        raise LookupError("a defect")

    assert ended(fails, ["inv"], as_json=False) == 70


WRITERS: dict[str, Callable[[Path], object]] = {
    "a record": lambda _: state.write_record(RECORD),
    "a script": lambda _: state.write_file(state.lab_dir("zone") / "up.sh", "#!/bin/sh"),
    "a topology": render,
    "a removal": lambda _: state.remove_record("zone"),
    "a run": lambda _: keep(History.named("zone")),
    "a log": lambda _: Log(state.lab_dir("zone") / "pfc.log").say("x", "y"),
    "a crash": crash,
    "a picture": lambda home: write_file(home / "state/labs/zone/x.svg", b"svg", "x.svg"),
    "a capture": lambda home: PcapngFile(home / "state/labs/zone/x.pcapng", ["a"]).__enter__().keep(0, {}),
}
LINKS = (
    "state/labs", "state/labs/zone", "state/labs/zone/topology", "state/labs/zone/runs", "state/labs/zone/runs/0001",
    "state/labs/zone/runs/.lock", "state/labs/zone/runs/.next.json", "state/labs/zone/lab.json",
    "state/labs/zone/up.sh", "state/labs/zone/pfc.log", "state/labs/zone/x.svg", "state/labs/zone/x.pcapng",
)  # fmt: skip


@pytest.mark.root
@pytest.mark.parametrize("link", LINKS)
def test_root_follows_no_link_of_a_user_to_a_file_of_root(link: str, home_of_nobody: Path, roots: Path) -> None:
    """At each level, to a directory and to a file: an error or a file beside it, and nothing of root's is changed."""
    nobody = pwd.getpwnam("nobody")
    for target in (roots, roots / "file", roots / "sub"):
        for what, write in WRITERS.items():
            place = home_of_nobody / link
            with as_caller(place):
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(target)
            with suppress(HeddleError, OSError):  # the agent turns the latter into a HeddleError (pfc/keeper.py)
                write(home_of_nobody)
            assert untouched(roots), f"{what}: {link} -> {target}"
            with as_caller(place):
                for path in sorted(home_of_nobody.rglob("*"), reverse=True):
                    assert path.lstat().st_uid == nobody.pw_uid, f"{what}: {path} is not the user's"
                    if path != home_of_nobody / "state":
                        path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()


@pytest.mark.root
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_root_writes_to_no_pipe_and_no_device_that_the_user_may_not_write_to(
    kind: str, home_of_nobody: Path, roots: Path
) -> None:
    target = roots / kind
    os.mkfifo(target, 0o600) if kind == "fifo" else os.mknod(target, 0o600 | stat.S_IFCHR, os.makedev(1, 3))
    reader = os.open(target, os.O_RDONLY | os.O_NONBLOCK)
    (home_of_nobody / "out").symlink_to(target)
    for mode in (0o755, 0o700):
        roots.chmod(mode)
        with pytest.raises(InputError, match=r"--csv out cannot be (written|used): Permission denied"):
            write_file(home_of_nobody / "out", SECRET.encode(), "out", "--csv")
    assert os.read(reader, 100) == b""
    os.close(reader)


def test_a_pipe_is_written_to_if_a_process_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(InputError, match="--out pipe is a FIFO that no process reads\n  hint: start its reader"):
        write_file(path, b"x", "pipe")
    large = b"x" * (1 << 20)  # more than a pipe takes at once
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    writer = threading.Thread(target=write_file, args=(path, large, "pipe"))
    writer.start()
    os.set_blocking(reader, True)
    found = b""
    while len(found) < len(large):
        found += os.read(reader, 1 << 16)
    writer.join()
    os.close(reader)
    assert found == large
    write_file(Path("/dev/null"), b"x", "/dev/null")
    code = "import sys; from pathlib import Path; from heddle.views.graph import write_file as w;"
    code += "w(Path('/dev/stdout'), b'drawn', '/dev/stdout')"
    assert subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout == b"drawn"


@pytest.mark.root
def test_what_root_writes_there_belongs_to_the_user_and_is_not_for_all(home_of_nobody: Path) -> None:
    for write in (each for name, each in WRITERS.items() if name not in ("a removal", "a crash")):
        make_dir(state.lab_dir("zone"))
        write(home_of_nobody)
    owners = {path.lstat().st_uid for path in (home_of_nobody / "state").rglob("*")}
    assert owners == {pwd.getpwnam("nobody").pw_uid}
    own = state.lab_dir("zone")
    assert [stat.S_IMODE((own / name).stat().st_mode) for name in ("lab.json", "up.sh")] == [0o600, 0o600]
    assert state.read_record("zone") == RECORD and state.remove_record("zone")


@pytest.mark.root
def test_a_thread_is_root_again_after_the_block_however_it_ends(home_of_nobody: Path) -> None:
    with pytest.raises(KeyboardInterrupt), as_caller(home_of_nobody):
        with pytest.raises(PermissionError):
            Path("/etc/shadow").read_bytes()
        raise KeyboardInterrupt
    assert Path("/proc/thread-self/status").read_text().split("Uid:\t")[1].split("\n")[0] == "0\t0\t0\t0"
    block = as_caller(home_of_nobody)
    block.__enter__()
    with as_caller(home_of_nobody):
        pass
    with pytest.raises(PermissionError):
        Path("/etc/shadow").read_bytes()
    as_root()
    assert Path("/etc/shadow").read_bytes()
    block.__exit__(None, None, None)


@pytest.mark.root
def test_the_caller_is_the_one_of_sudo_by_name_or_number(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = pwd.getpwnam("nobody")
    for name, number, wanted in (
        ("nobody", "", nobody), ("", str(nobody.pw_uid), nobody), ("", "", None), ("root", "0", None), ("", "x", None),
        ("no-such-user", "", None),
    ):  # fmt: skip
        monkeypatch.setenv("SUDO_USER", name)
        monkeypatch.setenv("SUDO_UID", number)
        assert caller() == wanted


@pytest.mark.root
@pytest.mark.parametrize(
    ("mode", "uid", "gid", "why"),
    [
        (0o777, 0, 0, "is writable for every user"),
        (0o775, 0, 100, "is writable for its group"),
        (0o755, 65534, 0, "belongs to another user"),
        (0o775, 0, 0, ""),  # root's own group
        (0o1777, 0, 0, ""),  # as /tmp
        (0o755, 0, 100, ""),
    ],
)
def test_a_state_directory_and_those_above_it_are_safe_from_others(
    mode: int, uid: int, gid: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SUDO_USER", "SUDO_UID"):
        monkeypatch.delenv(name, raising=False)
    above = tmp_path / "above"
    inside = above / "state"
    inside.mkdir(parents=True)
    os.chown(above, uid, gid)
    above.chmod(mode)
    monkeypatch.setenv("HEDDLE_STATE_DIR", str(inside))
    for checked in (state.labs, lambda: state.read_record("x"), lambda: make_dir(inside / "labs")):
        if why:
            with pytest.raises(MachineError, match=f"{above} {why}, but Heddle runs its content as root") as caught:
                checked()
            assert "set another directory, as in HEDDLE_STATE_DIR=" in str(caught.value)
        else:
            checked()
    if mode == 0o1777:  # the state directory itself is not one that all may write to
        with pytest.raises(MachineError, match="is writable for every user"):
            check_owner(above)


@pytest.mark.root
def test_root_does_not_work_in_the_home_of_a_user_who_did_not_call_sudo(
    home_of_nobody: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SUDO_USER")
    for name in ("SUDO_UID", "HEDDLE_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home_of_nobody))
    with pytest.raises(MachineError, match=r"belongs to another user.*\n.*HEDDLE_STATE_DIR="):
        state.write_record(RECORD)
    assert [path.name for path in home_of_nobody.iterdir()] == ["state"]


@pytest.mark.root
def test_a_hard_link_is_not_given_away(home_of_nobody: Path) -> None:
    with as_caller(home_of_nobody):
        (home_of_nobody / "d").mkdir()
    for name in ("a", "b"):
        (home_of_nobody / "d" / name).write_text("")
    (home_of_nobody / "d" / "c").hardlink_to(home_of_nobody / "d" / "a")
    give_to_caller(home_of_nobody / "d", deep=True)
    owners = {path.name: path.stat().st_uid for path in (home_of_nobody / "d").iterdir()}
    assert owners == {"a": 0, "b": pwd.getpwnam("nobody").pw_uid, "c": 0}


def test_a_lock_file_that_is_no_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    os.mkfifo(path)
    with pytest.raises(OSError, match="it is not a regular file"), held(path, late(path, 0)):
        pass
    path.unlink()
    (tmp_path / "there").write_text("kept")
    path.symlink_to(tmp_path / "there")
    with pytest.raises(OSError, match="symbolic links"), held(path, late(path, 0)):
        pass
    assert (tmp_path / "there").read_text() == "kept"


@pytest.mark.root
def test_root_compiles_no_module_in_a_checkout_of_a_user(home_of_nobody: Path) -> None:
    for name in ("tasks.py", "heddle"):
        (home_of_nobody / name).symlink_to(ROOT / name)
    shows = "import runpy, sys; runpy.run_path('tasks.py', run_name='shown'); print(sys.pycache_prefix)"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
    found = []
    for own in (ROOT / "tasks.py", home_of_nobody / "tasks.py"):
        if own.is_symlink():
            own.unlink()
            own.write_bytes((ROOT / "tasks.py").read_bytes())
            give_to_caller(own)
        argv = [sys.executable, "-B", "-c", shows]
        done = subprocess.run(argv, cwd=own.parent, env=env, capture_output=True, text=True, check=True)
        found.append(done.stdout.split()[-1])
    assert found == ["None", str(Path("~root/.cache/heddle/pycache").expanduser())]


@pytest.mark.root
def test_a_directory_for_results_is_the_callers_and_not_behind_a_link_to_one_of_root(
    home_of_nobody: Path, roots: Path
) -> None:
    output_directory(home_of_nobody / "res/runs", "--out res")
    made = [home_of_nobody / "res", home_of_nobody / "res/runs"]
    nobody = pwd.getpwnam("nobody").pw_uid
    assert [each.stat().st_uid for each in made] == [nobody] * 2 and not [*made[1].iterdir()]
    roots.chmod(0o700)
    with suppress(FileExistsError):
        (home_of_nobody / "results").symlink_to(roots)
    (home_of_nobody / "file").write_text("x")
    for name, why in (
        ("results/runs", "is not a directory"),
        ("results", "cannot be written"),
        ("file", "is not a dir"),
    ):
        with pytest.raises(InputError, match=f"--out {name} {why}"):
            output_directory(home_of_nobody / name, f"--out {name}")
    assert untouched(roots)
