"""What the two sides of a place take from each other: a lab server is trusted with its own files, and no more."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.places.session import copy_back
from heddle.places.store import Store

PICTURES = (".svg", ".png")


def tar_of(files: dict[str, str], links: dict[str, str] | None = None) -> io.BytesIO:
    """What any server may send."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w|gz") as tar:
        for name, target in (links or {}).items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            tar.addfile(link)
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    made.seek(0)
    return made


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory."""
    directory = tmp_path / "here"
    directory.mkdir()
    monkeypatch.chdir(directory)
    return directory


def test_requested_files_are_written_to_the_paths_named(here: Path, tmp_path: Path) -> None:
    outs = {"a/zone.svg": "out/0/zone.svg", str(tmp_path / "all"): "out/1/all"}
    files = {"here/zone.png": "p", "out/0/zone.svg": "s", "out/1/all/x.yml": "x", "out/1/all/rtsw1/frr.conf": "f"}
    assert copy_back(tar_of(files), outs, PICTURES) == []
    assert (here / "zone.png").read_text() == "p"
    assert (here / "a/zone.svg").read_text() == "s"
    assert (tmp_path / "all/rtsw1/frr.conf").read_text() == "f"


def test_a_server_puts_nothing_into_the_working_directory_that_the_verb_does_not_write_there(here: Path) -> None:
    files = {"here/.bashrc": "x", "here/inv": "x", "here/.git/hooks/post-commit": "x", "here/.x.svg": "x"}
    assert copy_back(tar_of(files), {}, PICTURES) == [".bashrc", ".git", ".x.svg", "inv"]
    assert copy_back(tar_of({"here/zone.svg": "x"}), {}, ()) == ["zone.svg"]
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["here/way.svg", "out/0/all", "out/0/all/way"])
def test_a_server_cannot_redirect_writes_by_a_link(name: str, here: Path, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="is a link"):
        copy_back(tar_of({}, {name: str(tmp_path)}), {"all": "out/0/all"}, PICTURES)
    assert list(here.iterdir()) == []


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "out/0/all/../../../evil"])
def test_a_server_names_no_file_beyond_what_was_asked_for(name: str, here: Path, tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="is outside"):
        copy_back(tar_of({name: "x"}), {"all": "out/0/all"}, PICTURES)
    assert list(here.iterdir()) == []
    assert [path.name for path in tmp_path.iterdir()] == ["here"]


def test_an_incomplete_answer_is_reported_and_leaves_nothing(here: Path) -> None:
    whole = tar_of({"out/0/all/x": os.urandom(5000).hex()}).getvalue()
    with pytest.raises(MachineError, match="could not be copied back"):
        copy_back(io.BytesIO(whole[:2000]), {"all": "out/0/all"}, ())
    assert list(here.iterdir()) == []


def test_files_copied_to_a_server_are_not_writable_by_others(tmp_path: Path) -> None:
    before = os.umask(0o000)
    try:
        store = Store(tmp_path / "there")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (store.base, store.project)} == {0o700}
    store.base.chmod(0o777)  # as an earlier Heddle, or a hand, may have left it
    Store(store.base)
    assert store.base.stat().st_mode & 0o777 == 0o700


def test_a_directory_prepared_by_another_user_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir()
    (tmp_path / "there").symlink_to(tmp_path / "others")
    with pytest.raises(PermissionError, match="another user's"):
        Store(tmp_path / "there")
    assert not list((tmp_path / "others").iterdir())
