"""Tools of a lock file are installed when the environment has others, and not otherwise."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

import pytest

from heddle.base.problems import MachineError
from heddle.cli.console import Console
from heddle.cli.lockedtools import ensure_tools

MISSING = f"heddle-has-no-such-package==1 --hash=sha256:{'0' * 64}\n"


def test_tools_that_are_as_pinned_need_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    lock = tmp_path / "requirements-some.lock"
    lock.write_text(f"pytest=={version('pytest')} ; python_version > '3' \\\n    --hash=sha256:00\n{MISSING}")
    ensure_tools(Console(), lock, ["pytest"], "the tools")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("pin", ["pytest==0.0.1 --hash=sha256:00\n", MISSING])
def test_another_version_or_none_is_installed_and_a_failure_is_named(
    tmp_path: Path, pin: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    lock = tmp_path / "requirements-some.lock"
    lock.write_text(pin)
    with pytest.raises(MachineError, match=r"requirements-some\.lock could not be installed"):
        ensure_tools(Console(), lock, [pin.partition("==")[0]], "the tools")
    assert "installing the tools of requirements-some.lock" in capfd.readouterr().err
