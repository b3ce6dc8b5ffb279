"""Namespaces, programs and processes that a killed test made by hand are removed by the next test run."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from heddle.runtimes.netns_cleanup import namespaces_of
from heddle.testing import claims
from heddle.testing.pool import sweep
from tests.netns.static_fabric import static_fabric

ROOT = Path(__file__).resolve().parents[2]
MAKE = """
import sys
from pathlib import Path
from heddle.testing import claims
from tests.netns.pfc_lab import pfc_lab

claims.CLAIMS_DIR = Path(sys.argv[2])
with pfc_lab(Path(sys.argv[1])) as net:
    print(net.lab.name, flush=True)
    sys.stdin.read()
"""
Leftovers = Callable[[str], list[str]]


def test_the_fabric_of_a_killed_test_is_removed_with_its_processes(
    tmp_path: Path, leftovers: Leftovers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claims are in a directory of this test's own: another session on this machine must not sweep them first."""
    monkeypatch.setattr(claims, "CLAIMS_DIR", tmp_path / "claims")
    argv = [sys.executable, "-c", MAKE, str(tmp_path), str(claims.CLAIMS_DIR)]
    with subprocess.Popen(argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as maker:
        assert maker.stdout is not None
        name = maker.stdout.readline().strip()
        notes: list[str] = []
        sweep(notes.append)
        assert not [note for note in notes if name in note], "its process is running"
        maker.kill()
    found = leftovers(name)
    assert any("namespace" in each for each in found) and any("heddle.switch.pfc" in each for each in found), found
    sweep(notes.append)
    assert f"lab {name} was removed: pytest (process {maker.pid}) had ended without doing so" in notes
    assert leftovers(name) == []
    assert name not in {each.lab for each in claims.claims()}


def test_a_fabric_that_is_removed_as_usual_has_no_claim() -> None:
    with static_fabric() as lab:
        assert lab.name in {each.lab for each in claims.claims()}
    assert lab.name not in {each.lab for each in claims.claims()}
    assert namespaces_of(lab.name) == []
