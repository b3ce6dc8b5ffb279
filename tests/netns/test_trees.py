"""Directories are removed as far as they are ours: mounts and links that stand in them lead nowhere.

A chroot is recognised, since no engine works in one.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.base import mounts as trees
from heddle.base.problems import MachineError
from heddle.base.resources import HERE
from heddle.host.engine.docker import check_engine_possible, in_chroot
from tests.machine import child

pytestmark = pytest.mark.needs("mount")

ROOT = Path(__file__).parents[2]


@pytest.fixture
def others(tmp_path: Path) -> Iterator[Path]:
    """A foreign directory with a file; its mounts are removed at the end."""
    directory = tmp_path / "others"
    directory.mkdir()
    (directory / "file").write_text("precious")
    try:
        yield directory
        assert (directory / "file").read_text() == "precious"
    finally:
        for each in reversed(trees.mount_points()):
            if each.is_relative_to(tmp_path):
                subprocess.run(["umount", str(each)], check=True)


def test_nothing_is_removed_while_something_is_mounted_in_it(others: Path, tmp_path: Path) -> None:
    # A bind mount on the same disk: neither its device nor its inode tells it from a plain directory.
    ours = tmp_path / "ours é a\\b"
    (ours / "deep/dev").mkdir(parents=True)
    (ours / "first").touch()
    subprocess.run(["mount", "--bind", str(others), str(ours / "deep/dev")], check=True)
    with pytest.raises(MachineError, match=r"something is mounted at .*deep/dev"):
        trees.remove(ours)
    assert (ours / "first").exists()
    subprocess.run(["umount", str(ours / "deep/dev")], check=True)
    trees.remove(ours)
    assert not ours.exists()
    trees.remove(ours)


def test_links_are_removed_and_what_they_lead_to_stays(others: Path, tmp_path: Path) -> None:
    ours = tmp_path / "ours"
    ours.mkdir()
    (ours / "way").symlink_to(others)
    trees.remove(ours)
    assert not ours.exists()
    ours.symlink_to(others)
    trees.remove(ours)
    assert ours.is_symlink()


def test_files_of_a_killed_process_are_removed_by_the_next_one(
    others: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "TEMPORARY", tmp_path)
    (tmp_path / "trial-link").symlink_to(others)
    code = f"""
from pathlib import Path
from heddle.base import mounts as trees
trees.TEMPORARY = Path({str(tmp_path)!r})
with trees.scratch("trial-") as place:
    print(place, flush=True)
    input()
"""
    argv = [sys.executable, "-c", code]
    with child(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as proc:
        assert proc.stdout is not None
        left = Path(proc.stdout.readline().strip())
        with trees.scratch("trial-") as place:
            assert left.is_dir(), "it is in use"
            assert place.stat().st_mode & 0o777 == 0o700
        os.kill(proc.pid, signal.SIGKILL)
        proc.wait()
        with trees.scratch("trial-"):
            assert not left.exists()
    assert [path.name for path in tmp_path.glob("trial-*")] == ["trial-link"]


PROGRAM = "from heddle.host.engine.docker import in_chroot, check_engine_possible as check; print(in_chroot()); check()"


def test_the_root_of_a_namespace_is_no_chroot() -> None:
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    (part,) = {words[3] for words in lines if words[4] == "/"}
    if part != "/":
        pytest.skip(f"the root directory is {part} of a file system: these tests may run in a chroot")
    assert not in_chroot()
    check_engine_possible()


def test_an_engine_in_a_chroot_is_refused(tmp_path: Path) -> None:
    """A root directory of its own with everything of the machine's in it."""
    root = tmp_path / "root"
    root.mkdir()
    script = tmp_path / "script"
    script.write_text(
        """root=$1; shift
        mount -t tmpfs none "$root"
        for each in /*; do
            if [ -L "$each" ]; then cp -a "$each" "$root$each"
            elif [ -d "$each" ]; then mkdir "$root$each" && mount --rbind "$each" "$root$each"; fi
        done
        exec chroot "$root" "$@"
        """
    )
    program = ["env", f"PYTHONPATH={HERE.root}", sys.executable, "-c", PROGRAM]
    argv = ["unshare", "--mount", "sh", "-e", str(script), str(root), *program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.stdout == "True\n", done.stderr
    assert "a chroot" in done.stderr
    assert "cannot start a docker engine" in done.stderr
