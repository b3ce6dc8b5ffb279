"""A user's directory with a test file, outside the tree and with a space in its path: pytest runs there by itself."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.machine import patience

ROOT = Path(__file__).resolve().parents[1]
PLUGIN = ("-p", "heddle.testing.plugin")


@dataclass(frozen=True)
class UserPlace:
    """A directory; `state` is where its labs have their records. before: words in front of Python.

    python: an interpreter that has Heddle installed; None takes this one, with the checkout in PYTHONPATH.
    """

    path: Path
    before: tuple[str, ...] = ()
    python: Path | None = None

    @classmethod
    def below(cls, parent: Path, before: tuple[str, ...] = (), **files: str) -> UserPlace:
        """With these files: `test_mine="..."` writes test_mine.py."""
        place = cls(parent / "a place with spaces", before)
        place.path.mkdir()
        place.write(**files)
        return place

    @property
    def state(self) -> Path:
        return self.path.parent / "state of labs"

    def write(self, **files: str) -> None:
        for name, text in files.items():
            (self.path / f"{name}.py").write_text(text)

    def environment(self, *python_path: Path) -> dict[str, str]:
        """The variables of a session, without those of this one."""
        mine = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "HEDDLE", "PYTHON"))}
        paths = [*([ROOT] if self.python is None else []), *python_path]
        return {
            **mine,
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HEDDLE_STATE_DIR": str(self.state),
            "COLUMNS": "100",
            "TERM": "dumb",
        }

    def command(self, *words: str) -> list[str]:
        return [
            *self.before,
            str(self.python or sys.executable),
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "--color=no",
            *words,
        ]

    def pytest(self, *words: str, python_path: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
        """A whole session."""
        return subprocess.run(
            self.command(*words), cwd=self.path, env=self.environment(*python_path), capture_output=True, text=True,
            timeout=patience(600), check=False,
        )  # fmt: skip

    def start(self, *words: str) -> subprocess.Popen[str]:
        """A session that goes on."""
        return subprocess.Popen(
            self.command(*words), cwd=self.path, env=self.environment(), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


def section(text: str, title: str) -> str:
    """The lines of one of pytest's sections, as `ERRORS`."""
    lines = text.splitlines()
    at = next(number for number, line in enumerate(lines) if line.strip("= ").startswith(title) and line[0] == "=")
    end = next((number for number, line in enumerate(lines[at + 1 :], at + 1) if line.startswith("===")), len(lines))
    return "\n".join(lines[at + 1 : end]) + "\n"
