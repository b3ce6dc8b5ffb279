"""Fixtures that several modules of unit tests share."""

from __future__ import annotations

import gc
import os
import pwd
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from heddle.runs.store import KEEP_BYTES, KEEP_RUNS, History
from tests.unit.trees import tree_of


@pytest.fixture(scope="module")
def parsed_once() -> Iterator[None]:
    """Trees of all files are millions of objects: no garbage collector looks at them; they go with the last test."""
    gc.disable()
    yield
    tree_of.cache_clear()
    gc.enable()


@pytest.fixture
def history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> History:
    monkeypatch.delenv(KEEP_RUNS, raising=False)
    monkeypatch.delenv(KEEP_BYTES, raising=False)
    return History("zone", tmp_path / "runs")


@pytest.fixture
def home_of_nobody(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory of user nobody, who called this process with sudo; its `state` is the state directory."""
    user, home = pwd.getpwnam("nobody"), Path(tempfile.mkdtemp(prefix="heddle-test-", dir="/var/tmp"))
    try:
        (home / "state").mkdir()
        home.chmod(0o755)
        for path in (home, home / "state"):
            os.chown(path, user.pw_uid, user.pw_gid)
        monkeypatch.setenv("HEDDLE_STATE_DIR", str(home / "state"))
        monkeypatch.setenv("SUDO_USER", "nobody")
        yield home
    finally:
        shutil.rmtree(home)
