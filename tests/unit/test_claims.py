"""Names and claims of the labs of a pytest: whose they are, and whether that process still runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.base.process import start_of
from heddle.base.state import check_name
from heddle.testing import claims


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(claims, "CLAIMS_DIR", tmp_path / "claims")
    return tmp_path / "claims"


def test_names_can_be_those_of_labs_and_differ() -> None:
    names = [claims.new_name() for _ in range(40)]
    assert len(set(names)) == len(names)
    for name in names:
        assert check_name(name) == name
        assert name.startswith(names[0][:10])


def test_a_process_is_known_by_its_start_and_one_that_ended_by_none() -> None:
    assert start_of(os.getpid()) == start_of(os.getpid()) is not None
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = start_of(child.pid)
    assert started is not None and claims.LabClaim("a", child.pid, started, "").alive
    assert not claims.LabClaim("a", child.pid, started + 1, "").alive, "another process has the number by now"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_of(child.pid) is None, "it has ended, though its parent has not looked"
    child.communicate()
    assert start_of(child.pid) is None


@pytest.mark.root
def test_only_claims_of_processes_that_ended_are_orphans(directory: Path) -> None:
    with claims.orphans() as found:
        assert found == []
    claims.claim("mine", Path("/var/tmp/state"))
    child = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    row = {"lab": "lost", "pid": int(child.stdout), "started": 1, "state_dir": "/var/tmp/other"}
    (directory / "lost").write_text(json.dumps(row))
    (directory / "broken").write_text("{")
    (directory / ".half").write_text("")
    assert [each.lab for each in claims.claims()] == ["lost", "mine"]
    with claims.orphans() as found:
        assert [(each.lab, each.state_dir) for each in found] == [("lost", "/var/tmp/other")]
    claims.unclaim("lost")
    claims.unclaim("lost")
    assert [each.lab for each in claims.claims()] == ["mine"]
    for name in (".half", "broken"):
        (directory / name).unlink()
    claims.unclaim("mine")
    assert not directory.exists()


@pytest.mark.root
@pytest.mark.parametrize("kind", ["writable", "link", "owner"])
def test_claims_that_others_could_write_are_refused(directory: Path, tmp_path: Path, kind: str) -> None:
    if kind == "link":
        (tmp_path / "elsewhere").mkdir()
        directory.symlink_to(tmp_path / "elsewhere")
    else:
        directory.mkdir(mode=0o755)
        directory.chmod(0o777 if kind == "writable" else 0o755)
        if kind == "owner":
            os.chown(directory, 65534, 65534)
    with pytest.raises(MachineError, match="is not a directory that only root can write"):
        claims.claim("mine", Path("/var/tmp/state"))
    with pytest.raises(MachineError, match="only root can write"), claims.orphans():
        pass
